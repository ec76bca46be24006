use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::{Binding, End, Phase, Plan, RunId, State, Submission};

/// The version of `record.json`.
pub const RECORD_VERSION: u32 = 1;
/// The version of `claim.json`.
pub const CLAIM_VERSION: u32 = 1;

/// What the daemon knows of a session that is not settled: `record.json`. Only the daemon writes it. Times are µs
/// since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// [`digest`] of the submission and its input.
    pub digest: String,
    /// The identity under which a framework lets it run; absent where the spool itself is the authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The profile it runs under.
    pub profile: String,
    /// The dialect that reads it.
    pub dialect: String,
    /// The submitter's own label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The program's own name of the conversation that goes on in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The directory in which that conversation went on so far: that of the session, unless its submission names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_directory: Option<PathBuf>,
    /// When it was admitted.
    pub accepted: u64,
    /// What this service is doing with it.
    pub state: State,
    /// What the controller says of it.
    pub phase: Phase,
    /// The attempt, from 1; 0 before the first claim.
    pub attempt: u32,
    /// When somebody first asked for its cancellation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested: Option<u64>,
    /// When its program was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Why it ended so, or what is uncertain, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How its processes are held together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<String>,
    /// The directory of the cgroup that its executor was placed in, saved before that was let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// The controller has its outcome.
    #[serde(default)]
    pub delivered: bool,
}

impl Record {
    /// The record of a session that is being admitted at `accepted`: queued, pending, nothing else known.
    pub fn admitted(submission: &Submission, digest: String, dialect: &str, accepted: u64) -> Record {
        Record {
            version: RECORD_VERSION,
            run_id: submission.run_id(),
            digest,
            binding: submission.binding.names_framework().then(|| submission.binding.clone()),
            profile: submission.profile.clone(),
            dialect: dialect.to_owned(),
            label: submission.label.clone(),
            conversation: None,
            conversation_directory: None,
            accepted,
            state: State::Queued,
            phase: Phase::Pending,
            attempt: 0,
            cancel_requested: None,
            started: None,
            ended: None,
            end: None,
            error: None,
            containment: None,
            cgroup: None,
            delivered: false,
        }
    }
}

/// The word that from here on the session may have run: `claim.json`, written once before the executor exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Claim {
    /// [`CLAIM_VERSION`].
    pub version: u32,
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The journal that the executor will create.
    pub epoch: String,
    /// The boot in which it was claimed, as `/proc/sys/kernel/random/boot_id` has it.
    pub boot_id: String,
    /// When, µs since 1970.
    pub time: u64,
    /// [`digest`] of the submission and its input.
    pub digest: String,
    /// Everything that the executor needs.
    pub plan: Plan,
}

/// What stays of a removed session, so that a retry of its submission is still recognised: a line of `removed.log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tombstone {
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// [`digest`] of its submission and input.
    pub digest: String,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// When it was removed, µs since 1970.
    pub removed: u64,
}

/// SHA-256, in hex, over everything that was submitted; the submission names its attachments by hash: the same submission always gives the same digest (the struct
/// has one order of fields and its maps are sorted), and no input differs from an empty one.
pub fn digest(submission: &Submission, input: Option<&[u8]>) -> String {
    let json = serde_json::to_vec(submission).expect("a submission has only text keys and plain values");
    let mut hash = Sha256::new();
    hash.update(b"airouter submission 1\n");
    hash.update((json.len() as u64).to_le_bytes());
    hash.update(&json);
    match input {
        None => hash.update(b"no input"),
        Some(bytes) => {
            hash.update(b"input");
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(Sha256::digest(bytes));
        }
    }
    hex(&hash.finalize())
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission() -> Submission {
        let id = "0192f3c4-5b6a-7c8d-9e0f-112233445566".parse().expect("a run id");
        let mut submission = Submission::new(id, "echo");
        submission.environment.insert("B".into(), "2".into());
        submission.environment.insert("A".into(), "1".into());
        submission
    }

    #[test]
    fn the_digest_stays_what_it_was() {
        // Kept on disk and compared after upgrades: a change here makes every retry a changed submission.
        assert_eq!(
            digest(&submission(), Some(b"hello")),
            "b2bd1a86d6d3028a13cb6a176fc9e75ecdece0dc7749f7c0ffce7f609a6e63c3"
        );
    }

    #[test]
    fn the_digest_sees_every_difference() {
        let base = submission();
        let mut other = base.clone();
        other.arguments.push(String::new());
        let digests = [
            digest(&base, None),
            digest(&base, Some(b"")),
            digest(&base, Some(b"a")),
            digest(&base, Some(b"b")),
            digest(&other, None),
        ];
        let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }

    #[test]
    fn the_digest_does_not_depend_on_how_the_submission_was_spelled() {
        let json = serde_json::to_value(submission()).expect("json");
        let again: Submission = serde_json::from_str(&json.to_string()).expect("submission");
        assert_eq!(digest(&again, None), digest(&submission(), None));
    }

    #[test]
    fn hex_is_lower_case_and_padded() {
        assert_eq!(hex(&[0, 15, 16, 255]), "000f10ff");
    }
}
