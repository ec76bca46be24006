use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::model::RunId;

/// Why the spool refuses or cannot do something. Texts name the file, what is wrong with it, and what to do; never
/// anything that stands in it.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another daemon has the spool.
    #[error(
        "the spool {} is in use by {holder}; stop that one first, or name another spool", path.display()
    )]
    Locked {
        /// The spool.
        path: PathBuf,
        /// Who has it, in its own words.
        holder: String,
    },
    /// A file or folder is not as private files have to be.
    #[error("{} {problem}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The content of a file cannot be trusted.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The kernel refused an operation.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `write`.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An earlier fsync of this folder failed: what it holds by now may not survive a power loss, and no later success
    /// could prove otherwise.
    #[error("{} could not be synced before and takes no more changes; check its disk and restart", path.display())]
    Unsynced {
        /// The folder.
        path: PathBuf,
    },
    /// A session of that name is in the spool already.
    #[error("session {0} is in the spool already")]
    Exists(RunId),
    /// No session of that name is where it has to be for this.
    #[error("session {run_id} is not {place}")]
    Missing {
        /// The session.
        run_id: RunId,
        /// Where it should be, such as `among the active ones`.
        place: &'static str,
    },
    /// A claim is written once.
    #[error("session {0} was claimed already")]
    AlreadyClaimed(RunId),
    /// An outcome is written once.
    #[error("session {0} has an outcome already")]
    AlreadyEnded(RunId),
    /// The lock given is not the session's own.
    #[error("the lock is not that of session {0}")]
    ForeignLock(RunId),
    /// A claim is taken back only while nothing can have run.
    #[error("session {0} has a journal: it may have run, and its claim stays")]
    MayHaveRun(RunId),
    /// The token is none that `ended` gave.
    #[error("{0:?} is no token of this list; use one that it gave, or none")]
    BadToken(String),
    /// The token is of a list that was rebuilt since.
    #[error("the list was rebuilt since that token was given; read it from its start")]
    ListChanged,
}

impl SpoolError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        SpoolError::Io { what, path: path.into(), source: source.into() }
    }

    pub(crate) fn refused(path: &Path, problem: impl Into<String>) -> Self {
        SpoolError::Refused { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        SpoolError::Damaged { path: path.into(), problem: problem.into() }
    }

    /// JSON that does not parse. serde's own text can quote the content, so only the place is told.
    pub(crate) fn malformed(path: impl Into<PathBuf>, error: &serde_json::Error) -> Self {
        let problem =
            format!("it is not what it should be at line {} column {}", error.line(), error.column());
        SpoolError::damaged(path, problem)
    }

    /// The file system takes no more: it is full, over quota, or read-only. It can pass.
    pub fn is_no_space(&self) -> bool {
        matches!(self, SpoolError::Io { source, .. } if no_space(source))
    }

    /// This process, or the machine, is short of descriptors or memory. It passes.
    pub fn is_exhaustion(&self) -> bool {
        matches!(self, SpoolError::Io { source, .. } if exhausted(source))
    }

    /// The session is set aside for such an error: its files are not what they have to be, and no retry helps.
    pub fn is_damage(&self) -> bool {
        matches!(self, SpoolError::Damaged { .. } | SpoolError::Refused { .. })
    }
}

/// Whether an I/O error says that the file system takes no more.
pub(crate) fn no_space(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS))
}

/// Whether an error says that the process or the machine is short of descriptors, memory or processes.
pub(crate) fn exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_read_only_file_system_is_told_from_other_errors() {
        for (errno, full) in
            [(Errno::ENOSPC, true), (Errno::EDQUOT, true), (Errno::EROFS, true), (Errno::EIO, false)]
        {
            assert_eq!(SpoolError::io("write", "/x", errno).is_no_space(), full, "{errno}");
        }
    }

    #[test]
    fn a_malformed_file_is_not_quoted() {
        let error = serde_json::from_str::<u64>("\"a secret\"").expect_err("no number");
        let text = SpoolError::malformed("/x", &error).to_string();
        assert!(!text.contains("secret"), "{text}");
    }
}
