use serde::{Deserialize, Serialize};

/// The longest single argument or environment entry, in bytes: `MAX_ARG_STRLEN` of execve(2) on 4 KiB pages.
pub const MAX_ARGUMENT: usize = 128 * 1024;
/// The longest label of a session, in characters.
pub const MAX_LABEL: usize = 256;
/// The largest body of an `Activity` signal, in bytes.
pub const MAX_SIGNAL_BODY: usize = 16 * 1024;

/// How much of a name or cursor that a caller gave an error repeats, in characters.
pub const MAX_SHOWN: usize = 64;

/// A name or cursor that a caller gave, as an error repeats it: at most [`MAX_SHOWN`] characters, `…` for the rest.
pub fn shown(name: &str) -> String {
    match name.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// What the service accepts and keeps. The table `[limits]` of the configuration, and the
/// `Limits` property. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// A whole submission: arguments, environment, input and the rest.
    pub submission: u64,
    /// Files that may go along with one submission.
    pub attachments: u32,
    /// Those files together.
    pub attachment_bytes: u64,
    /// The JSON Schema of one submission, in characters.
    pub output_schema: u64,
    /// One line of standard output. A longer one is kept as head, length and digest, and marked.
    pub line: u64,
    /// One session's journal; reaching it ends the session as `journal-full`.
    pub journal: u64,
    /// Standard error kept for a session; the rest is counted.
    pub stderr: u64,
    /// Records in one page of events.
    pub page_records: u32,
    /// Bytes in one page of events; a page holds one record at least.
    pub page_bytes: u64,
    /// Messages (steer, follow-up) that one session takes.
    pub messages: u32,
    /// The text of one message or answer, in characters.
    pub message: u64,
    /// Sessions that run at once (1 to 64).
    pub active: u32,
    /// Sessions that wait for one of those places.
    pub queued: u32,
    /// Free space that the spool's file system must have for new work.
    pub free_space: u64,
    /// Milliseconds between two requests to stop: interrupt, SIGTERM, SIGKILL.
    pub grace_ms: u64,
    /// Milliseconds that an exited program's pipes may still be read.
    pub drain_ms: u64,
    /// Milliseconds that a program may go on after its final verdict; 0 for no limit.
    pub linger_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            submission: 8 << 20,
            attachments: 32,
            attachment_bytes: 16 << 20,
            output_schema: 262_144,
            line: 16 << 20,
            journal: 1 << 30,
            stderr: 1 << 20,
            page_records: 128,
            page_bytes: 1 << 20,
            messages: 128,
            message: 16_384,
            active: 8,
            queued: 256,
            free_space: 64 << 20,
            grace_ms: 5_000,
            drain_ms: 2_000,
            linger_ms: 600_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_of_a_name_has_a_bound() {
        let name = "ä".repeat(MAX_SHOWN);
        assert_eq!(shown(&name), name);
        assert_eq!(shown(&format!("{name}x")), format!("{name}…"));
        assert_eq!(shown(""), "");
    }
}
