//! The errors of the D-Bus face: one name below `org.airouter.Sessions1.Error` for each way to be refused.
//!
//! `busctl` shows the text of an error and never its name, so each text begins with the name's last part.

use zbus::message::{Header, Message};
use zbus::names::ErrorName;

use crate::model::{InvalidSubmission, shown};
use crate::service;

/// What all names of our errors begin with.
pub const PREFIX: &str = "org.airouter.Sessions1.Error";

/// A refusal or failure as a caller over D-Bus sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct BusError {
    /// The name below [`PREFIX`].
    short: &'static str,
    name: ErrorName<'static>,
    /// `<short>: <what was wrong and what to do>`.
    text: String,
}

impl BusError {
    /// An error `<PREFIX>.<short>` that says `what`.
    pub fn new(short: &'static str, what: impl std::fmt::Display) -> Self {
        // Every short name is a literal of this module; a test holds all of them against the D-Bus grammar.
        let name = ErrorName::try_from(format!("{PREFIX}.{short}")).unwrap_or_else(|_| {
            ErrorName::from_static_str_unchecked("org.airouter.Sessions1.Error.Internal")
        });
        BusError { short, name, text: format!("{short}: {what}") }
    }

    /// An argument other than a submission is malformed.
    pub fn argument(what: impl std::fmt::Display) -> Self {
        BusError::new("InvalidArgument", what)
    }

    /// The name below [`PREFIX`], such as `NotFound`.
    pub fn short(&self) -> &'static str {
        self.short
    }

    /// A key of a dictionary that is refused: of the submission, or of another argument. The caller may have chosen it:
    /// it is cut as [`shown`] says.
    pub fn key(submission: bool, key: &str, problem: impl std::fmt::Display) -> Self {
        let short = if submission { "InvalidSubmission" } else { "InvalidArgument" };
        BusError::new(short, format!("{}: {problem}", shown(key)))
    }
}

impl From<service::Error> for BusError {
    fn from(error: service::Error) -> Self {
        use service::Error as E;
        let short = match &error {
            E::NotFound(_) => "NotFound",
            E::InvalidSubmission(_) => "InvalidSubmission",
            E::InvalidArgument(_) => "InvalidArgument",
            E::SubmissionChanged(_) => "SubmissionChanged",
            E::InvalidMessage(_) => "InvalidArgument",
            E::MessageChanged { .. } => "MessageChanged",
            E::TooManyMessages { .. } => "TooManyMessages",
            E::Unsupported(_) => "Unsupported",
            E::UnknownQuestion { .. } => "UnknownQuestion",
            E::QuestionSettled { .. } => "QuestionSettled",
            E::UnknownProfile { .. } => "UnknownProfile",
            E::AtCapacity { .. } | E::Exhausted(_) => "AtCapacity",
            E::MalformedCursor(_) => "InvalidCursor.Malformed",
            E::ForeignCursor => "InvalidCursor.OtherJournal",
            E::CursorBeyondHead => "InvalidCursor.BeyondHead",
            E::CursorInsideRecord => "InvalidCursor.InsideRecord",
            E::CursorExpired => "CursorExpired",
            E::NotRunning(_) => "NotRunning",
            E::NotSettled(_) => "NotSettled",
            E::Kept { .. } => "Kept",
            E::Removed(_) => "Removed",
            E::Damaged { .. } | E::DamagedFile(_) => "Damaged",
            E::StorageFull(_) => "StorageFull",
            E::StorageFailed(_) => "StorageFailed",
            E::BindingMismatch(_) => "BindingMismatch",
            E::ControllerUnavailable(_) => "ControllerUnavailable",
            E::Stopping => "Stopping",
            E::Internal(_) => "Internal",
        };
        BusError::new(short, error)
    }
}

impl From<InvalidSubmission> for BusError {
    fn from(error: InvalidSubmission) -> Self {
        BusError::new("InvalidSubmission", error)
    }
}

impl From<zbus::Error> for BusError {
    fn from(error: zbus::Error) -> Self {
        BusError::new("Internal", error)
    }
}

impl zbus::DBusError for BusError {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&self.text)
    }

    fn name(&self) -> ErrorName<'_> {
        self.name.as_ref()
    }

    fn description(&self) -> Option<&str> {
        Some(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::{InvalidMessage, RunId};

    fn every_service_error() -> Vec<service::Error> {
        use service::Error as E;
        let id = RunId::random();
        vec![
            E::NotFound(id),
            E::InvalidSubmission(InvalidSubmission::new("label", "is longer than 256 characters")),
            E::InvalidArgument("limit".into()),
            E::SubmissionChanged(id),
            E::InvalidMessage(InvalidMessage { argument: "text", problem: "is empty".into() }),
            E::MessageChanged { run_id: id, request_id: "x".into() },
            E::TooManyMessages { run_id: id, most: 128 },
            E::Unsupported("x".into()),
            E::UnknownQuestion { run_id: id, question: "x".into() },
            E::QuestionSettled { run_id: id, question: "x".into() },
            E::UnknownProfile { name: "x".into(), known: "none is registered".into() },
            E::AtCapacity { queued: 256 },
            E::Exhausted("x".into()),
            E::MalformedCursor("x".into()),
            E::ForeignCursor,
            E::CursorBeyondHead,
            E::CursorInsideRecord,
            E::CursorExpired,
            E::NotRunning(id),
            E::NotSettled(id),
            E::Kept { run_id: id, why: "has an unknown file".into() },
            E::Removed(id),
            E::Damaged { run_id: id, what: "x".into() },
            E::DamagedFile("x".into()),
            E::StorageFull("x".into()),
            E::StorageFailed("x".into()),
            E::BindingMismatch("binding.run_id: x".into()),
            E::ControllerUnavailable("x".into()),
            E::Stopping,
            E::Internal("x".into()),
        ]
    }

    #[test]
    fn each_error_has_its_own_valid_name_and_says_it() {
        let errors: Vec<BusError> = every_service_error().into_iter().map(BusError::from).collect();
        let names: BTreeSet<&str> = errors.iter().map(|e| e.short()).collect();
        // A damaged file is a damaged session's, a service short of descriptors is at its capacity, and a malformed message
        // is a malformed argument.
        assert_eq!(names.len(), errors.len() - 3);
        for error in &errors {
            assert_eq!(error.name.as_str(), format!("{PREFIX}.{}", error.short()));
            assert!(error.text.starts_with(&format!("{}: ", error.short())), "{}", error.text);
        }
    }

    #[test]
    fn a_refused_key_is_named() {
        let error = BusError::from(InvalidSubmission::new("label", "holds a control character"));
        assert_eq!(error.to_string(), "InvalidSubmission: label: holds a control character");
    }
}
