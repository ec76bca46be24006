//! The exit statuses of `sessionctl`: one table, kept for ever. Scripts decide by them.

use std::process::ExitCode;

use crate::client::{Error, SessionStatus};
use crate::model::End;

/// How `sessionctl` exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked; of a session: it completed.
    Ok,
    /// A session failed; `doctor` found something that must be put right.
    Failed,
    /// The command line is wrong.
    Usage,
    /// A session ended otherwise than completed or failed.
    Ended(End),
    /// What happened to a session is uncertain.
    Uncertain,
    /// A session ended in a way that this version has no word for.
    UnknownEnd,
    /// The wait ran out of time before the condition held.
    TimedOut,
    /// The program never took the message.
    Undeliverable,
    /// The service refused the call.
    Refused,
    /// No service answers for this account, or none could be started.
    NoService,
    /// Something on this side is wrong: the configuration, a file, the connection.
    Trouble,
    /// The view was left with Ctrl-C; the session goes on.
    Detached,
    /// Nobody reads the output any more.
    OutputClosed,
}

impl Exit {
    /// Every exit, in the order of the documentation.
    pub fn all() -> Vec<Exit> {
        let ends = End::ALL.into_iter().filter(|end| !matches!(end, End::Completed | End::Failed));
        let mut all = vec![Exit::Ok, Exit::Failed, Exit::Usage];
        all.extend(ends.map(Exit::Ended));
        all.extend([Exit::Uncertain, Exit::UnknownEnd, Exit::TimedOut, Exit::Undeliverable]);
        all.extend([Exit::Refused, Exit::NoService, Exit::Trouble, Exit::Detached, Exit::OutputClosed]);
        all
    }

    /// The exit status. A status that was given once is never given to anything else.
    pub fn code(self) -> u8 {
        match self {
            Exit::Ok | Exit::Ended(End::Completed) => 0,
            Exit::Failed | Exit::Ended(End::Failed) => 1,
            Exit::Usage => 2,
            Exit::Ended(End::Cancelled) => 10,
            Exit::Ended(End::Deadline) => 11,
            Exit::Ended(End::Idle) => 12,
            Exit::Ended(End::LeaseLost) => 13,
            Exit::Ended(End::OutOfMemory) => 14,
            Exit::Ended(End::JournalFull) => 15,
            Exit::Ended(End::JournalFailed) => 16,
            Exit::Ended(End::SpawnFailed) => 17,
            Exit::Ended(End::NoOutput) => 18,
            Exit::Ended(End::LimitReached) => 19,
            Exit::Ended(End::Killed) => 20,
            Exit::Ended(End::StoppedWithService) => 21,
            Exit::Ended(End::Interrupted) => 22,
            Exit::Ended(End::InvalidOutput) => 23,
            Exit::Uncertain => 40,
            Exit::UnknownEnd => 41,
            Exit::TimedOut => 42,
            Exit::Undeliverable => 43,
            Exit::Refused => 50,
            Exit::NoService => 51,
            Exit::Trouble => 52,
            Exit::Detached => 130,
            Exit::OutputClosed => 141,
        }
    }

    /// What the status means, for the help.
    fn meaning(self) -> String {
        match self {
            Exit::Ok => "done; the session completed".to_owned(),
            Exit::Failed => "the session failed; `doctor` found a fault".to_owned(),
            Exit::Usage => "the command line is wrong".to_owned(),
            Exit::Ended(end) => format!("the session ended as {end}"),
            Exit::Uncertain => {
                "what happened to the session is uncertain (reconciliation-required)".to_owned()
            }
            Exit::UnknownEnd => "the session ended in a way that this version has no word for".to_owned(),
            Exit::TimedOut => "`wait` ran out of time".to_owned(),
            Exit::Undeliverable => "the program never took the message".to_owned(),
            Exit::Refused => "the service refused the call".to_owned(),
            Exit::NoService => "no service answers, or none could be started".to_owned(),
            Exit::Trouble => "configuration, files or connection: see the message".to_owned(),
            Exit::Detached => "left with Ctrl-C; the session goes on".to_owned(),
            Exit::OutputClosed => "nobody reads the output any more".to_owned(),
        }
    }

    /// The table, for the help.
    pub fn table() -> String {
        let lines = Exit::all().into_iter().map(|exit| format!("{:>5}  {}", exit.code(), exit.meaning()));
        std::iter::once("Exit statuses:".to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
    }

    /// The exit that tells how a session that is over ended.
    pub fn of_session(status: &SessionStatus) -> Exit {
        if status.is_uncertain() {
            return Exit::Uncertain;
        }
        let Some(word) = status.end() else { return Exit::UnknownEnd };
        match End::ALL.into_iter().find(|end| end.to_string() == word) {
            Some(End::Completed) => Exit::Ok,
            Some(End::Failed) => Exit::Failed,
            Some(end) => Exit::Ended(end),
            None => Exit::UnknownEnd,
        }
    }

    /// The exit for a call that failed.
    pub fn of_error(error: &Error) -> Exit {
        match error {
            // A service that cannot start refuses the call that was to start it.
            Error::Refused { name, .. } if name == "NotStarted" => Exit::NoService,
            Error::Refused { .. } => Exit::Refused,
            Error::NoService { .. } | Error::Busy { .. } => Exit::NoService,
            Error::Unreachable { .. } | Error::OtherAccount { .. } | Error::Lost(_) | Error::Answer(_) => {
                Exit::Trouble
            }
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_exit_has_a_status_of_its_own() {
        let mut seen = BTreeMap::new();
        for exit in Exit::all() {
            assert_eq!(seen.insert(exit.code(), exit), None, "{exit:?} shares its status");
        }
        for end in End::ALL {
            assert!(seen.contains_key(&Exit::Ended(end).code()), "{end} has none");
        }
        assert_eq!(seen.len(), 3 + (End::ALL.len() - 2) + 9);
    }

    #[test]
    fn statuses_never_change() {
        let codes: Vec<u8> = End::ALL.into_iter().map(|end| Exit::Ended(end).code()).collect();
        assert_eq!(codes, [0, 1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);
    }

    #[test]
    fn the_help_has_every_status() {
        let table = Exit::table();
        for exit in Exit::all() {
            assert!(table.contains(&format!("{:>5}  ", exit.code())), "{exit:?}");
        }
    }
}
