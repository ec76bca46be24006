use std::io;
use std::path::PathBuf;

use crate::model::RunId;
use crate::spool::error::{SpoolError, no_space};

/// Why a journal cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The kernel refused an operation.
    #[error("cannot {what} the journal {}: {source}", path.display())]
    Io {
        /// What was tried, such as `append to`.
        what: &'static str,
        /// The journal.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A write or a sync failed before. What is durable stays so; nothing more is taken, since a later success could not
    /// prove that what was lost in between is there.
    #[error("the journal {} takes no more records: a write to it failed before", path.display())]
    Failed {
        /// The journal.
        path: PathBuf,
    },
    /// It cannot be trusted at all.
    #[error("the journal {} is damaged: {problem}", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A session has one journal.
    #[error("session {0} has a journal already")]
    Exists(RunId),
    /// The epoch given is not 16 digits of lower-case hex.
    #[error("{0:?} is no epoch: 16 digits of lower-case hex")]
    BadEpoch(String),
    /// The session's folder or another file of it.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

impl JournalError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        JournalError::Io { what, path: path.into(), source: source.into() }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        JournalError::Damaged { path: path.into(), problem: problem.into() }
    }

    /// The file system takes no more: it is full, over quota, or read-only. It can pass.
    pub fn is_no_space(&self) -> bool {
        match self {
            JournalError::Io { source, .. } => no_space(source),
            JournalError::Spool(error) => error.is_no_space(),
            _ => false,
        }
    }

    /// Its files are not what they have to be, and no retry helps.
    pub fn is_damage(&self) -> bool {
        match self {
            JournalError::Damaged { .. } => true,
            JournalError::Spool(error) => error.is_damage(),
            _ => false,
        }
    }
}
