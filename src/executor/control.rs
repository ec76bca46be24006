//! What the daemon and an executor say to each other: JSON lines on a Unix stream socket.
//!
//! The daemon sends [`Request`]s, the executor sends its whole [`Report`] whenever something in it changed; when the
//! daemon is slow, reports in between are left out, never queued. Both sides skip what they do not know, fields are
//! only ever added, and each report carries the version: an older executor and a newer daemon understand each other.
//!
//! The first connection is the executor's standard output, a socket pair that the daemon made. Later daemons connect
//! to `control.sock` in the session's folder.

use serde::{Deserialize, Serialize};

use crate::containment::Placement;
use crate::model::{End, OpenQuestion, Progress, Receipt, RunId, VerdictResult};

/// The version of this protocol. 1: go, stop, renew. 2: the inbox and questions.
pub const CONTROL_VERSION: u32 = 2;

/// The longest line that either side takes.
pub const MAX_CONTROL_LINE: usize = 64 * 1024;

/// From the daemon to the executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Begin. The executor waits for it, and exits without a trace if its daemon is gone before.
    Go {
        /// Where the executor was put meanwhile.
        #[serde(default)]
        placement: Placement,
        /// Until when the lease stands, in milliseconds of `CLOCK_BOOTTIME`; absent: for its whole time from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
    },
    /// End the session for this reason. Asking twice is asking once: the first reason stays.
    Stop {
        /// `cancelled`, `lease-lost` or `stopped-with-service`.
        end: End,
    },
    /// The lease stands again.
    Renew {
        /// Until when, in milliseconds of `CLOCK_BOOTTIME`; absent: for its whole time from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
    },
    /// The inbox has grown: read on in it.
    Mail,
    /// Something of a newer daemon.
    #[serde(other)]
    Unknown,
}

/// Where an executor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It waits for [`Request::Go`].
    Waiting,
    /// The journal exists; the program runs or is about to.
    Running,
    /// It stops the session.
    Stopping,
    /// `outcome.json` is durable; the executor exits next.
    Ended,
}

/// From the executor to the daemon: everything the daemon shows of a running session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// [`CONTROL_VERSION`] of the executor.
    pub version: u32,
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// The executor's process.
    pub pid: u32,
    /// Where it stands.
    pub stage: Stage,
    /// The journal is durable up to this offset; 0 before there is one.
    pub head: u64,
    /// When the program was started, µs since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// Turns, tools, tokens.
    #[serde(default)]
    pub progress: Progress,
    /// What the program said last of its success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictResult>,
    /// The program's name of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// How far each entry of the inbox has come, in its order; those beyond were not read yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "letters")]
    pub receipts: Vec<Receipt>,
    /// The questions that wait for an answer, oldest first; the first 16 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<OpenQuestion>,
    /// How many questions were asked so far: `q1` to `q<asked>`.
    #[serde(default, skip_serializing_if = "crate::model::is_zero")]
    pub asked: u32,
    /// Every line that the program printed so far is in the journal.
    pub activity_complete: bool,
    /// How the session's processes are held together; absent before it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<String>,
}

/// Receipts as a text of one letter each, so that thousands fit into a report.
mod letters {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::model::Receipt;

    pub fn serialize<S: Serializer>(receipts: &[Receipt], to: S) -> Result<S::Ok, S::Error> {
        let letter = |receipt: &Receipt| match receipt {
            Receipt::Stored => 's',
            Receipt::Written => 'w',
            Receipt::Seen => 't',
            Receipt::Undeliverable => 'u',
        };
        to.serialize_str(&receipts.iter().map(letter).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Receipt>, D::Error> {
        let receipt = |letter| match letter {
            'w' => Receipt::Written,
            't' => Receipt::Seen,
            'u' => Receipt::Undeliverable,
            // Nothing more is known of what a newer executor says.
            _ => Receipt::Stored,
        };
        Ok(String::deserialize(from)?.chars().map(receipt).collect())
    }
}

/// One message as a line.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Serializing these types into memory cannot fail: their keys are strings and they hold no maps of others.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_report_is_a_line_that_is_taken() {
        let question = OpenQuestion {
            question: format!("q{}", u32::MAX),
            about: crate::model::About::Permission,
            choices: vec!["x".repeat(64); 16],
            takes_text: true,
            // Two bytes of JSON for each of its bytes.
            tool: Some("\\".repeat(256)),
            asked: u64::MAX,
            expires: Some(u64::MAX),
        };
        let report = Report {
            version: CONTROL_VERSION,
            run_id: RunId::random(),
            pid: u32::MAX,
            stage: Stage::Stopping,
            head: u64::MAX,
            started: Some(u64::MAX),
            progress: Progress { tool: Some("\u{1}".repeat(256)), ..Progress::default() },
            verdict: None,
            conversation: Some("\u{1}".repeat(256)),
            receipts: [Receipt::Seen, Receipt::Undeliverable, Receipt::Written, Receipt::Stored].repeat(4096),
            questions: vec![question; 16],
            asked: u32::MAX,
            activity_complete: false,
            containment: None,
        };
        let line = encode(&report);
        assert!(line.len() < MAX_CONTROL_LINE - 4096, "{}", line.len());
        assert_eq!(serde_json::from_slice::<Report>(&line).expect("parses"), report);
    }

    #[test]
    fn what_a_newer_daemon_says_is_skipped() {
        let request: Request = serde_json::from_str(r#"{"request":"dance","with":1}"#).expect("parses");
        assert_eq!(request, Request::Unknown);
        let go: Request = serde_json::from_str(r#"{"request":"go"}"#).expect("an older daemon's");
        assert_eq!(go, Request::Go { placement: Placement::default(), until: None });
        let renew: Request = serde_json::from_str(r#"{"request":"renew"}"#).expect("an older daemon's");
        assert_eq!(renew, Request::Renew { until: None });
        let stop = Request::Stop { end: End::Cancelled };
        assert_eq!(encode(&stop), b"{\"request\":\"stop\",\"end\":\"cancelled\"}\n");
    }
}
