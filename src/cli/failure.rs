use std::io;

use serde_json::{Value, json};

use super::demo::DemoError;
use super::exit::Exit;
use crate::client;
use crate::config::ConfigError;

/// Why a command did not do what was asked. Every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The service refuses, or cannot be reached.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Something on this side went wrong.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
    /// Something on this side is not as it must be.
    #[error("{0}")]
    Trouble(String),
    /// No service answers, and none could be started.
    #[error("the service could not be started: {0}")]
    NotStarted(String),
    /// The demo did not show what it should have.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// Nobody reads the output any more: nothing to tell anybody.
    #[error("nobody reads the output")]
    OutputClosed,
}

impl Failure {
    /// An I/O error with what was being done.
    pub fn io(what: impl Into<String>, error: io::Error) -> Failure {
        Failure::Io { what: what.into(), error }
    }

    /// The connection was lost: whether what was asked for happened is not known.
    pub fn is_lost(&self) -> bool {
        matches!(self, Failure::Client(error) if error.is_lost())
    }

    /// The exit for it.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Client(error) => Exit::of_error(error),
            Failure::Usage(_) => Exit::Usage,
            Failure::NotStarted(_) => Exit::NoService,
            Failure::Demo(_) => Exit::Failed,
            Failure::OutputClosed => Exit::OutputClosed,
            Failure::Config(_) | Failure::Io { .. } | Failure::Trouble(_) => Exit::Trouble,
        }
    }

    /// The same for programs: `error` (a short name), `text`, `status` (the exit status).
    pub fn json(&self) -> Value {
        let name = match self {
            Failure::Client(client::Error::Refused { name, .. }) => name.as_str(),
            Failure::Client(client::Error::NoService { .. }) => "no-service",
            Failure::Client(client::Error::Busy { .. }) => "busy",
            Failure::Client(client::Error::Unreachable { .. }) => "unreachable",
            Failure::Client(client::Error::OtherAccount { .. }) => "other-account",
            Failure::Client(client::Error::Lost(_)) => "connection-lost",
            Failure::Client(client::Error::Answer(_)) => "unreadable-answer",
            Failure::Config(_) => "configuration",
            Failure::Usage(_) => "usage",
            Failure::Io { .. } | Failure::Trouble(_) => "trouble",
            Failure::NotStarted(_) => "not-started",
            Failure::Demo(_) => "demo",
            Failure::OutputClosed => "output-closed",
        };
        json!({"error": name, "text": self.to_string(), "status": self.exit().code()})
    }
}
