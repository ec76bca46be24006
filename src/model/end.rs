use std::fmt;

use serde::{Deserialize, Serialize};

/// What the controller says of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Known, not started.
    Pending,
    /// Started, not over; also while it is uncertain whether it is over.
    Running,
    /// Over, and it did what was asked.
    Complete,
    /// Over otherwise.
    Failed,
    /// Over because somebody asked for it.
    Cancelled,
}

/// What this service is doing with the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Admitted, waiting for a free driver.
    Queued,
    /// Admitted, a driver has it, nothing was started yet.
    Accepted,
    /// An executor has been started for it.
    Driving,
    /// It ended, and the end was delivered.
    Finished,
    /// What happened is uncertain; `Reconcile` says why and settles what can be settled.
    ReconciliationRequired,
}

/// How a session ended. The list is closed for one interface version and only grows with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The program exited with success and did not say otherwise.
    Completed,
    /// The program's exit or its own verdict says so.
    Failed,
    /// Cancelled by request.
    Cancelled,
    /// The submission's deadline passed.
    Deadline,
    /// Nothing was printed for longer than the submission's idle limit.
    Idle,
    /// The lease to drive it was lost.
    LeaseLost,
    /// The kernel killed it for its memory limit.
    OutOfMemory,
    /// Its journal reached its limit.
    JournalFull,
    /// Its journal could not be written.
    JournalFailed,
    /// The program could not be started.
    SpawnFailed,
    /// Nothing was printed within the submission's start limit.
    NoOutput,
    /// The program reports a usage limit.
    LimitReached,
    /// A signal that this service did not send ended it.
    Killed,
    /// Its executor was told to stop (logout, shutdown, `on_stop = "cancel"`).
    StoppedWithService,
    /// Its owner died while it ran: its effects are unknown.
    Interrupted,
    /// Its answer does not match the schema that was asked for.
    InvalidOutput,
}

impl End {
    /// Every end, in the order of the documentation.
    pub const ALL: [End; 16] = [
        End::Completed,
        End::Failed,
        End::Cancelled,
        End::Deadline,
        End::Idle,
        End::LeaseLost,
        End::OutOfMemory,
        End::JournalFull,
        End::JournalFailed,
        End::SpawnFailed,
        End::NoOutput,
        End::LimitReached,
        End::Killed,
        End::StoppedWithService,
        End::Interrupted,
        End::InvalidOutput,
    ];

    /// The phase of a run that ended so.
    pub fn phase(self) -> Phase {
        match self {
            End::Completed => Phase::Complete,
            End::Cancelled => Phase::Cancelled,
            _ => Phase::Failed,
        }
    }
}

macro_rules! display_as_serde {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Serialize::serialize(self, f)
            }
        }
    )*};
}
display_as_serde!(Phase, State, End, VerdictResult);

/// How the main process exited, as `waitid(2)` told the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// It returned this code (0 to 255).
    #[serde(rename = "exit-code")]
    Code(i32),
    /// This signal ended it.
    #[serde(rename = "exit-signal")]
    Signal(i32),
}

/// What the program itself said of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictResult {
    /// It says it succeeded.
    Success,
    /// It says it failed.
    Failure,
    /// It said nothing final: neither success nor failure, whatever the exit code.
    #[default]
    None,
}

/// The program's own verdict and how it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Verdict {
    /// The verdict.
    pub result: VerdictResult,
    /// The rule by which it was read, for people, such as `turn.completed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The program's own words for a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The program reports a usage limit: its words for when it ends, or an empty text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// The end of a program that nobody stopped, from its exit and its verdict (docs/sessions.md).
///
/// | verdict | exit 0 | exit other | signal |
/// |---|---|---|---|
/// | success | `completed` | `failed` | `killed` |
/// | failure with a usage limit | `limit-reached` | `limit-reached` | `limit-reached` |
/// | failure | `failed` | `failed` | `failed` |
/// | none, and the dialect has verdicts | `failed` | `failed` | `killed` |
/// | none, and the dialect has none | `completed` | `failed` | `killed` |
///
/// A program that printed a success and then exits with an error did not do all that it set out to do: exit and
/// verdict stay visible side by side in the status. An unknown exit (`None`) counts as an exit other than 0.
pub fn derive_end(verdict: &Verdict, exit: Option<Exit>, dialect_has_verdicts: bool) -> End {
    match (verdict.result, exit) {
        (VerdictResult::Failure, _) if verdict.limit.is_some() => End::LimitReached,
        (VerdictResult::Failure, _) => End::Failed,
        (_, Some(Exit::Signal(_))) => End::Killed,
        (VerdictResult::Success, Some(Exit::Code(0))) => End::Completed,
        (VerdictResult::None, Some(Exit::Code(0))) if !dialect_has_verdicts => End::Completed,
        _ => End::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_follow_from_exit_and_verdict() {
        use VerdictResult::{Failure, None as Nothing, Success};
        let verdict = |result| Verdict { result, ..Verdict::default() };
        let (ok, bad, sig) = (Some(Exit::Code(0)), Some(Exit::Code(1)), Some(Exit::Signal(9)));
        for (result, exit, has, end) in [
            (Success, ok, true, End::Completed),
            (Success, bad, true, End::Failed),
            (Success, sig, true, End::Killed),
            (Failure, ok, true, End::Failed),
            (Failure, sig, true, End::Failed),
            (Nothing, ok, true, End::Failed),
            (Nothing, ok, false, End::Completed),
            (Nothing, bad, false, End::Failed),
            (Nothing, sig, false, End::Killed),
            (Success, None, true, End::Failed),
        ] {
            assert_eq!(derive_end(&verdict(result), exit, has), end, "{result:?} {exit:?} {has}");
        }
        let limited = Verdict { result: Failure, limit: Some("3pm".into()), ..Verdict::default() };
        assert_eq!(derive_end(&limited, bad, true), End::LimitReached);
    }

    #[test]
    fn all_lists_every_end_once_and_names_are_kebab() {
        let names: std::collections::BTreeSet<String> = End::ALL.iter().map(|e| e.to_string()).collect();
        assert_eq!(names.len(), End::ALL.len());
        assert!(names.contains("stopped-with-service"));
    }
}
