use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{End, Exit, Leftover, MessageMode, Question, Receipt, Settled, Usage, VerdictResult};

/// Which part of an answer a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The answer.
    Text,
    /// The reasoning before it.
    Thinking,
}

/// One thing that happened, as it is written to the journal. Readers get [`Entry`], which is open: a newer executor
/// may write kinds and keys that an older reader does not know, and it must pass them on.
///
/// `None` fields are absent in the JSON. Integers are never negative.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Event {
    /// The journal's first record: an attempt begins. Durable before the program exists.
    Started {
        /// 1 for the first.
        attempt: u32,
        /// The dialect that reads it.
        dialect: String,
        /// How its processes are held together.
        containment: String,
        /// What that containment does not promise, where it is weaker than the best.
        #[serde(skip_serializing_if = "Option::is_none")]
        weaker: Option<String>,
    },
    /// A model began to answer.
    ResponseStarted {
        /// The program's name for the message, where it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The sub-agent that speaks; absent for the main one.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
    },
    /// A piece of text as it comes: an increment, never a repetition.
    Preview {
        /// The increment.
        text: String,
        /// Answer or reasoning.
        part: Part,
        /// The program's name for the message.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The sub-agent that speaks.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
    },
    /// A finished text of the answer, whole.
    ResponseCompleted {
        /// The whole text.
        text: String,
        /// The program's name for the message.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// The sub-agent that spoke: such a text is not the session's answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
        /// It was cut before its end (interrupt, length limit, dropped connection).
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        cut: bool,
    },
    /// A finished piece of reasoning, whole.
    Thinking {
        /// The whole text.
        text: String,
        /// The sub-agent that thought.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
    },
    /// A tool call began.
    ToolStarted {
        /// The program's id of the call, unique in the session.
        tool: String,
        /// The tool's name.
        name: String,
        /// Its input: a text, or the JSON object that the program printed.
        #[serde(skip_serializing_if = "Value::is_null")]
        input: Value,
        /// The sub-agent that called it.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
    },
    /// A tool call ended.
    ToolFinished {
        /// The id of its `tool-started`.
        tool: String,
        /// The tool's name.
        name: String,
        /// It failed, was refused or was killed.
        error: bool,
        /// Its exit code, where the program tells one.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit_code: Option<i64>,
        /// What it gave back, as text.
        output: String,
        /// The sub-agent that called it.
        #[serde(skip_serializing_if = "Option::is_none")]
        sub: Option<String>,
    },
    /// What the session has used so far, in all.
    Usage(Usage),
    /// The program asks and waits.
    Question(Question),
    /// A question is open no more.
    QuestionSettled {
        /// The question.
        question: String,
        /// How it was settled.
        how: Settled,
        /// The choice that was answered.
        #[serde(skip_serializing_if = "Option::is_none")]
        choice: Option<String>,
        /// The text that was answered.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// How far a message has come.
    Message {
        /// The message.
        request_id: String,
        /// When it is meant to be read.
        mode: MessageMode,
        /// How far it has come.
        receipt: Receipt,
        /// What it says; with the first record of the message.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Why the program never took it.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// The program's own verdict on a turn. The last one before the exit counts.
    Verdict {
        /// The verdict.
        result: VerdictResult,
        /// The rule by which it was read.
        rule: String,
        /// The program's words for a failure.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A line of the program's standard error.
    Stderr {
        /// The line; bytes that are not UTF-8 are replaced.
        text: String,
        /// Its exact bytes as base64 (RFC 4648), where they are not UTF-8.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes64: Option<String>,
    },
    /// A line of standard output that says nothing more than itself: not JSON, or of a type without a meaning here.
    Raw {},
    /// Something a reader should know: a repair, a gap, a retry, a limit, a warning.
    Notice {
        /// A word for programs, from [`notice`](kind::notice).
        reason: String,
        /// A sentence for people.
        text: String,
        /// What the reason needs besides, such as `bytes` or `attempt`.
        #[serde(flatten)]
        more: Map<String, Value>,
    },
    /// The main process is gone and its pipes are drained.
    Exited {
        /// How; absent where it is not known.
        #[serde(flatten)]
        exit: Option<Exit>,
    },
    /// The session ended: the last record.
    Ended {
        /// How.
        end: End,
        /// Why, for people.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Processes of the session that could not be stopped.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        leftovers: Vec<Leftover>,
        /// Every line that the program printed is in this journal.
        activity_complete: bool,
        /// The structured output, as [`Outcome::value`](super::Outcome::value) has it.
        #[serde(skip_serializing_if = "Value::is_null")]
        value: Value,
    },
}

impl Event {
    /// A notice without further keys.
    pub fn notice(reason: &str, text: impl Into<String>) -> Event {
        Event::Notice { reason: reason.to_owned(), text: text.into(), more: Map::new() }
    }
}

/// The words of `kind`, and those of a notice's `reason`.
pub mod kind {
    /// Every kind of event of this interface version, in the order of the documentation.
    pub const ALL: [&str; 17] = [
        "started",
        "response-started",
        "preview",
        "response-completed",
        "thinking",
        "tool-started",
        "tool-finished",
        "usage",
        "question",
        "question-settled",
        "message",
        "verdict",
        "stderr",
        "raw",
        "notice",
        "exited",
        "ended",
    ];

    /// Reasons of a `notice`.
    pub mod notice {
        /// The program warns of something and goes on.
        pub const WARNING: &str = "warning";
        /// The program tries again (`attempt`, `max-attempts`, `delay-ms` where told).
        pub const RETRY: &str = "retry";
        /// The program reports a usage limit (`until` where told).
        pub const LIMIT: &str = "limit";
        /// Something that the program printed is missing here (`bytes`, `lines`).
        pub const GAP: &str = "gap";
        /// A line was longer than the limit; its head, length and digest are kept (`bytes`, `sha256`).
        pub const LINE_TOO_LONG: &str = "line-too-long";
        /// Standard error exceeded what is kept; from here on it is only counted (`bytes`).
        pub const STDERR_CUT: &str = "stderr-cut";
        /// The journal was repaired when it was opened (`bytes`, `file`).
        pub const REPAIRED: &str = "repaired";
        /// Records here are damaged and left out (`bytes`, `records`); never in a journal, made when it is read.
        pub const DAMAGED: &str = "damaged";
        /// Somebody asked for the session to be cancelled.
        pub const CANCEL_REQUESTED: &str = "cancel-requested";
        /// The executor is stopping the session (`end`, `step`).
        pub const STOPPING: &str = "stopping";
        /// The idle limit is near (`seconds`).
        pub const IDLE: &str = "idle";
        /// The program printed its verdict and did not exit.
        pub const LINGERING: &str = "lingering";
    }
}

/// One record of a journal, as readers get it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Entry {
    /// The cursor after this record: reading from it gives what follows.
    pub cursor: String,
    /// The record's number, from 1. 0 for what was made while reading (a damaged stretch).
    pub seq: u64,
    /// Microseconds since 1970: a label. The order is `seq` alone.
    pub time: u64,
    /// The kind, one of [`kind::ALL`] or one of a newer version.
    pub kind: String,
    /// Everything else that the record says, without `raw`.
    pub details: Map<String, Value>,
    /// The exact source line without its line feed, where the record stands for one and it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// The same as base64 (RFC 4648), where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw64: Option<String>,
}
