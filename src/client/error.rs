use std::path::PathBuf;

/// What the names of this service's errors begin with.
pub const ERROR_PREFIX: &str = "org.airouter.Sessions1.Error.";

/// Why a call did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody serves this account's sessions: neither on the private socket nor on the user's bus.
    #[error(
        "no service answers for this account ({tried}); start airouter-sessiond, or look with `sessionctl doctor`"
    )]
    NoService {
        /// Where it was looked for.
        tried: String,
    },
    /// Somebody listens on the socket and takes no connection off its queue.
    #[error(
        "the service at {} does not accept connections; it may be stopped: `sessionctl doctor`",
        path.display()
    )]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be reached, so that nobody knows whether a service runs.
    #[error(
        "the socket {} cannot be reached: {error}; its path must lead, through directories that this account may \
         enter, to the service's socket",
        path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        error: std::io::Error,
    },
    /// Another account listens on the socket. Nothing was sent to it.
    #[error(
        "the socket {} is served by uid {uid}, not by this account; nothing was sent to it: use the socket of your \
         own service",
        path.display()
    )]
    OtherAccount {
        /// The socket.
        path: PathBuf,
        /// Who listens.
        uid: u32,
    },
    /// The service refuses, or cannot answer. Its text says what to do.
    #[error("{name}: {text}")]
    Refused {
        /// The error's short name, such as `NotFound`; the whole name if it is not one of this service's.
        name: String,
        /// The text without that name.
        text: String,
    },
    /// The connection broke. What was asked for may have happened: ask again (a retried Submit is the same session).
    #[error("the connection to the service was lost: {0}")]
    Lost(String),
    /// The service answered something that this version cannot read.
    #[error("the service's answer cannot be read: {0}; service and client may be of very different versions")]
    Answer(String),
}

impl Error {
    /// A new connection may help.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost(_) | Error::NoService { .. } | Error::Busy { .. })
    }

    /// The short name of the service's refusal; `None` for anything else.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Error::Refused { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(super) fn answer(error: impl std::fmt::Display) -> Error {
        Error::Answer(error.to_string())
    }
}

impl From<zbus::Error> for Error {
    fn from(error: zbus::Error) -> Error {
        match error {
            zbus::Error::MethodError(name, text, _) => refused(name.as_str(), text.unwrap_or_default()),
            zbus::Error::FDO(error) => from_fdo(*error),
            zbus::Error::InputOutput(error) => Error::Lost(error.to_string()),
            zbus::Error::Handshake(text) => Error::Lost(format!("the handshake failed: {text}")),
            other => Error::answer(other),
        }
    }
}

fn from_fdo(error: zbus::fdo::Error) -> Error {
    use zbus::DBusError;
    use zbus::fdo::Error as Fdo;
    match error {
        Fdo::ServiceUnknown(text) | Fdo::NameHasNoOwner(text) => Error::NoService { tried: text },
        Fdo::NoReply(text) | Fdo::Disconnected(text) | Fdo::IOError(text) => Error::Lost(text),
        Fdo::ZBus(inner) => Error::from(inner),
        other => refused(
            other.name().as_str(),
            other.description().unwrap_or("the bus gives no reason").to_owned(),
        ),
    }
}

/// The service's texts begin with the error's short name, since some programs show nothing else.
fn refused(name: &str, text: String) -> Error {
    let name = name.strip_prefix(ERROR_PREFIX).unwrap_or(name).to_owned();
    let text = text.strip_prefix(&format!("{name}: ")).map(str::to_owned).unwrap_or(text);
    Error::Refused { name, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_short_name_once() {
        let error = refused("org.airouter.Sessions1.Error.NotFound", "NotFound: no session x".into());
        assert_eq!(error.to_string(), "NotFound: no session x");
        assert_eq!(error.refusal(), Some("NotFound"));
        let error = refused("org.freedesktop.DBus.Error.AccessDenied", "not yours".into());
        assert_eq!(error.to_string(), "org.freedesktop.DBus.Error.AccessDenied: not yours");
    }

    #[test]
    fn a_missing_service_is_not_a_refusal() {
        let error = from_fdo(zbus::fdo::Error::ServiceUnknown("no such name".into()));
        assert!(matches!(error, Error::NoService { .. }) && error.is_lost());
        assert!(from_fdo(zbus::fdo::Error::NoReply("gone".into())).is_lost());
        assert!(!from_fdo(zbus::fdo::Error::AccessDenied("no".into())).is_lost());
    }
}
