use serde::{Deserialize, Serialize};

use super::{End, Evidence, Exit, Leftover, OpenQuestion, Phase, RunId, State, VerdictResult};

/// Tokens and cost that the session itself used, as the program reports them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Usage {
    /// Tokens read, cached ones included or not as the program counts them.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Tokens read from a cache.
    pub cached_tokens: u64,
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
    /// The cost in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The program reports only what the whole conversation has used, of which this session is a part: the numbers
    /// are that total.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub conversation_total: bool,
}

/// How far a session has come.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Progress {
    /// Turns that ended.
    pub turns: u64,
    /// Tool calls that began.
    pub tool_calls: u64,
    /// The name of the tool that runs now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Tokens and cost so far.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Everything that can be said of a session without its content. Times are µs since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// What this service is doing.
    pub state: State,
    /// What the controller says of the run.
    pub phase: Phase,
    /// How it ended; absent while it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// The profile it runs under.
    pub profile: String,
    /// The dialect that reads it.
    pub dialect: String,
    /// The submitter's own label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was admitted.
    pub accepted: u64,
    /// When its program was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// How the main process exited.
    #[serde(flatten)]
    pub exit: Option<Exit>,
    /// What the program said of itself; absent while it has said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictResult>,
    /// Why it ended so, or what is uncertain, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Somebody asked for cancellation; that it ended is another fact.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// Every line that the program printed so far is in the journal.
    pub activity_complete: bool,
    /// The cursor at the end of what is durable; absent before there is a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The cursor up to which the application has projected the events; absent where nothing was acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<String>,
    /// The place in the queue, from 1, while queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<u32>,
    /// The attempt, from 1; 0 before the first claim.
    pub attempt: u32,
    /// How its processes are held together; absent before it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<String>,
    /// Processes that could not be stopped, or that the submission wanted left running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// The program's own name of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The questions that wait for an answer, oldest first; the first 16 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<OpenQuestion>,
    /// Turns, tools and tokens.
    pub progress: Progress,
    /// What the answer of `Reconcile` rests on; only there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

impl Status {
    /// It is known how the session ended, and the controller does not have that yet.
    pub fn is_undelivered(&self) -> bool {
        self.state == State::ReconciliationRequired && self.end.is_some()
    }
}
