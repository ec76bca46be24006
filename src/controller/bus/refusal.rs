//! The framework's errors: `org.airouter.Controller1.Error.<name>`.
//!
//! Only the names of the contract are refusals. Any other error says that the framework could not do what was asked,
//! and nothing of the run.

use zbus::Error;

use super::INTERFACE;
use crate::client::reply::{error_reply, is_gone};
use crate::controller::{ControllerError, Refusal};
use crate::model::shown;

/// How a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The framework said no.
    Refused(Refusal, String),
    /// It does not know who we are: it was started again, or forgot.
    NotAuthenticated(String),
    /// The connection, the bus or the process at the other end is gone; a new one may answer.
    Broken(String),
    /// It answered, and not what was asked for.
    Other(String),
}

impl Failure {
    pub(super) fn of(error: Error) -> Failure {
        let Some((name, text)) = error_reply(&error) else { return Failure::Broken(error.to_string()) };
        let text = shown(&text);
        match name.strip_prefix(INTERFACE).and_then(|rest| rest.strip_prefix(".Error.")) {
            Some("UnknownRun") => Failure::Refused(Refusal::UnknownRun, text),
            Some("ForeignLease") => Failure::Refused(Refusal::ForeignLease, text),
            Some("LeaseLost") => Failure::Refused(Refusal::LeaseLost, text),
            Some("Terminal") => Failure::Refused(Refusal::Terminal, text),
            Some("NotAuthenticated") => Failure::NotAuthenticated(text),
            Some(_) => Failure::Other(format!("{name}: {text}")),
            None if is_gone(&name) => Failure::Broken(format!("{name}: {text}")),
            None => Failure::Other(format!("{name}: {text}")),
        }
    }
}

impl From<Failure> for ControllerError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(why, text) => {
                let what = match why {
                    Refusal::Mismatch => "the binding is not the framework's",
                    Refusal::UnknownRun => "the framework knows no such run",
                    Refusal::ForeignLease => "somebody else holds the lease",
                    Refusal::LeaseLost => "the lease is lost",
                    Refusal::Terminal => "the framework says that the run is over",
                };
                ControllerError::Refused { why, text: format!("{what} ({text})") }
            }
            Failure::NotAuthenticated(text) => {
                ControllerError::Unavailable(format!("the framework does not take our token: {text}"))
            }
            Failure::Broken(text) => ControllerError::Unavailable(format!("the framework is away: {text}")),
            Failure::Other(text) => ControllerError::Unavailable(format!("the framework failed: {text}")),
        }
    }
}
