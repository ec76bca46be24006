use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{End, Exit, Progress, Receipt, RunId, Usage, Verdict};

/// The version of `outcome.json`.
pub const OUTCOME_VERSION: u32 = 1;

/// A process of a session that could not be stopped, or that the submission wanted left running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Leftover {
    /// Its process id.
    pub pid: u32,
    /// Its command's name, as `/proc/<pid>/comm` has it (never its arguments: they can hold secrets).
    pub command: String,
}

/// The executor's one final receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Outcome {
    /// [`OUTCOME_VERSION`].
    pub version: u32,
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// The attempt that ended, from 1.
    pub attempt: u32,
    /// The journal that tells how.
    pub epoch: String,
    /// Where that journal ends.
    pub head: u64,
    /// How the session ended.
    pub end: End,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How the main process exited; absent where it is not known or none was started.
    #[serde(flatten)]
    pub exit: Option<Exit>,
    /// What the program said of itself.
    pub verdict: Verdict,
    /// The final answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The final answer was too long for the receipt and is cut there; the journal has all of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub text_cut: bool,
    /// The structured output: the final answer as the submission's `output-schema` wants it. Absent without a schema, where
    /// the answer did not validate, and where it is longer than 1 MiB of JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// How far each entry of the inbox came, in its order. An entry beyond them was never passed on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipts: Vec<Receipt>,
    /// How many questions the program asked: `q1` to `q<asked>`.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub asked: u32,
    /// What was used; absent where the program did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The program's own name of the conversation, for resuming it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Turns, tools and tokens at the end.
    pub progress: Progress,
    /// Processes that could not be stopped, or that the submission wanted left running. Empty: the tree is proven gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Leftover>,
    /// Every line that the program printed is in the journal.
    pub activity_complete: bool,
    /// When the program was started, µs since 1970; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When the session ended, µs since 1970.
    pub ended: u64,
}

impl Outcome {
    /// The outcome of a session of which nothing more is known than how it ended: no program, no journal. `ended` is µs
    /// since 1970.
    pub fn of_nothing(run_id: RunId, attempt: u32, epoch: String, end: End, ended: u64) -> Outcome {
        Outcome {
            version: OUTCOME_VERSION,
            run_id,
            attempt,
            epoch,
            head: 0,
            end,
            error: None,
            exit: None,
            verdict: Verdict::default(),
            text: None,
            text_cut: false,
            value: Value::Null,
            receipts: Vec::new(),
            asked: 0,
            usage: None,
            conversation: None,
            progress: Progress::default(),
            leftovers: Vec::new(),
            activity_complete: false,
            started: None,
            ended,
        }
    }
}

/// One fact that an answer about an uncertain session rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Evidence {
    /// What was looked at: `lock`, `claim`, `journal`, `outcome`, `boot`, `cgroup`, `processes`, `controller`.
    pub source: String,
    /// What it says, for people.
    pub finding: String,
    /// The same for programs.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
}
