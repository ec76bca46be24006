use std::fmt;

use serde::{Deserialize, Serialize};

use super::RunId;

/// Which ended sessions `Prune` removes. A session is due if it is old enough, or if the ended sessions take more room
/// than they may; each condition counts by itself, and one of them must be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PrunePolicy {
    /// Only say what would be removed.
    pub dry_run: bool,
    /// Only those whose events were acknowledged up to the last.
    pub acknowledged: bool,
    /// Those that ended so long ago; 0 for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<u64>,
    /// The first that ended, as long as all ended sessions together take more bytes than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// At most so many, 1 to 1000; 1000 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl Default for PrunePolicy {
    /// Nothing is due, nothing would be removed that was not acknowledged, and nothing is removed.
    fn default() -> Self {
        PrunePolicy {
            dry_run: true,
            acknowledged: true,
            older_than_seconds: None,
            keep_bytes: None,
            limit: None,
        }
    }
}

/// What `Prune` did with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PruneAction {
    /// It was removed.
    Removed,
    /// It would be removed if this were no dry run.
    WouldRemove,
    /// It was due, and something keeps it.
    Kept,
}

impl fmt::Display for PruneAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The answer of `Prune` on one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pruned {
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// What was done.
    pub action: PruneAction,
    /// What keeps it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it ended, µs since 1970; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// The bytes of the disk that it takes, or took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What the spool holds. Bytes are of the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Storage {
    /// Where it is: an absolute path.
    pub spool: String,
    /// Sessions that are not settled.
    pub active: u64,
    /// What they take.
    pub active_bytes: u64,
    /// Sessions that are settled.
    pub ended: u64,
    /// What they took when they ended.
    pub ended_bytes: u64,
    /// Sessions that were set aside, since they cannot be trusted.
    pub damaged: u64,
    /// What they take: of the first 100 000 files.
    pub damaged_bytes: u64,
    /// What the file system still gives to this account.
    pub free_bytes: u64,
    /// When the first of the settled sessions ended, µs since 1970; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<u64>,
    /// What is removed without being asked; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionReport>,
}

/// What the configured retention removes, and would remove now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RetentionReport {
    /// Only those whose events were acknowledged up to the last.
    pub acknowledged_only: bool,
    /// Those that ended so long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_days: Option<u64>,
    /// The first that ended, as long as all together take more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Sessions that the next pass would remove.
    pub due: u64,
    /// What they take.
    pub due_bytes: u64,
    /// There may be more: only the first 10 000 that are old enough or too many were looked into.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub due_at_least: bool,
}
