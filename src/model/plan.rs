use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Attachment, ResourceLimits};

/// Everything that an executor needs to run a session, resolved from submission, profile and configuration when the
/// session was claimed. It stands in `claim.json`, so that nothing that changes later changes a running session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The absolute program.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// The attachments, in their order; their bytes stand in the session's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The final answer must fit the JSON Schema in the session's folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_schema: bool,
    /// The program's own name of the conversation that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The absolute directory it runs in.
    pub directory: PathBuf,
    /// The dialect that reads it.
    pub dialect: String,
    /// Take its standard output through a file instead of a pipe.
    #[serde(default)]
    pub capture_file: bool,
    /// The containment to use: `process-group`, `cgroup` or `systemd-scope`.
    pub containment: String,
    /// What its processes and its journal may take.
    #[serde(default)]
    pub resources: ResourceLimits,
    /// The longest line of standard output kept whole, in bytes.
    pub line_max: u64,
    /// The largest journal, in bytes.
    pub journal_max: u64,
    /// Standard error kept, in bytes.
    pub stderr_max: u64,
    /// Milliseconds between two requests to stop.
    pub grace_ms: u64,
    /// Milliseconds that an exited program's pipes may still be read.
    pub drain_ms: u64,
    /// Milliseconds that it may go on after its final verdict; 0 for no limit.
    pub linger_ms: u64,
    /// Seconds of boot time until it is ended as `deadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// Seconds of running time without output until it is ended as `idle`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Seconds until it is ended as `no-output` if it printed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<u64>,
    /// Seconds of boot time for which the session may go on without a renewal; `None`: no renewal is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
    /// Seconds of boot time after which a question that nobody answered is refused; `None`: it waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question_seconds: Option<u64>,
    /// Leave running what it left behind.
    #[serde(default)]
    pub leave_descendants: bool,
}

#[cfg(test)]
impl Plan {
    /// One that says as little as it can.
    pub(crate) fn sample() -> Plan {
        Plan {
            program: "/bin/true".into(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            attachments: Vec::new(),
            output_schema: false,
            conversation: None,
            directory: "/".into(),
            dialect: "jsonl".into(),
            capture_file: false,
            containment: "process-group".into(),
            resources: ResourceLimits::default(),
            line_max: 1,
            journal_max: 1,
            stderr_max: 1,
            grace_ms: 1,
            drain_ms: 1,
            linger_ms: 1,
            deadline_seconds: None,
            idle_seconds: None,
            start_seconds: None,
            lease_seconds: None,
            question_seconds: None,
            leave_descendants: false,
        }
    }
}
