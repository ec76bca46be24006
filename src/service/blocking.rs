//! The disk, off the runtime's thread, and its errors in the service's words.

use super::Error;
use crate::controller::ControllerError;
use crate::spool::SpoolError;
use crate::spool::journal::JournalError;

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Internal("a disk operation was cut off".into())),
    }
}

impl From<ControllerError> for Error {
    fn from(error: ControllerError) -> Error {
        match error {
            ControllerError::Binding(invalid) => invalid.into(),
            ControllerError::Refused { text, .. } => Error::BindingMismatch(text),
            ControllerError::Unavailable(why) => Error::ControllerUnavailable(why),
        }
    }
}

impl From<SpoolError> for Error {
    fn from(error: SpoolError) -> Error {
        let text = error.to_string();
        match error {
            _ if error.is_no_space() => Error::StorageFull(text),
            _ if error.is_exhaustion() => Error::Exhausted(text),
            _ if error.is_damage() => Error::DamagedFile(text),
            SpoolError::Io { .. } | SpoolError::Unsynced { .. } => Error::StorageFailed(text),
            _ => Error::Internal(text),
        }
    }
}

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Error {
        let text = error.to_string();
        match error {
            _ if error.is_no_space() => Error::StorageFull(text),
            _ if error.is_damage() => Error::DamagedFile(text),
            JournalError::Io { .. } | JournalError::Failed { .. } => Error::StorageFailed(text),
            JournalError::Spool(error) => error.into(),
            _ => Error::Internal(text),
        }
    }
}
