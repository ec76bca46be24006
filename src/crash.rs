//! Crash points: named places at which a test can have the process killed as if by a power loss of this process.
//!
//! They exist only with the feature `crash-points`, which no release has. `AIROUTER_CRASH_AT=<name>` makes the first
//! process that reaches the point `<name>` kill itself with SIGKILL; `<name>:<file>` does so only if `<file>` does not
//! exist yet, and creates it first, so that it happens once however often the service is started again.

/// Every point, in the order in which a session passes them. `daemon.` and `executor.` say whose death it is.
pub const ALL: [&str; 21] = [
    "daemon.admitted",
    "daemon.permitted",
    "daemon.locked",
    "daemon.claimed",
    "daemon.driving",
    "daemon.spawned",
    "daemon.placed",
    "daemon.go",
    "executor.adopted",
    "executor.journal",
    "executor.started",
    "executor.spawned",
    "executor.recorded",
    "executor.exited",
    "executor.stopped",
    "executor.ended",
    "executor.outcome",
    "daemon.outcome",
    "daemon.delivered",
    "daemon.finished",
    "daemon.settled",
];

/// Those that only a session passes that somebody talks to: a message or an answer is stored and not yet passed on or
/// acknowledged; the answer to a question was written to the program and its receipt is not recorded.
pub const TALKING: [&str; 2] = ["daemon.told", "executor.answered"];

/// The variable that names the point.
pub const VARIABLE: &str = "AIROUTER_CRASH_AT";

/// Dies here if a test wants it so.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "crash-points")]
    reach(name);
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}

#[cfg(feature = "crash-points")]
fn reach(name: &'static str) {
    debug_assert!(ALL.contains(&name) || TALKING.contains(&name), "{name} is not in the list");
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    let (wanted, once) =
        wanted.split_once(':').map_or((wanted.as_str(), None), |(name, file)| (name, Some(file)));
    if wanted != name {
        return;
    }
    if let Some(file) = once
        && std::fs::File::options().write(true).create_new(true).open(file).is_err()
    {
        return;
    }
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    // The signal is delivered before this returns; nothing after this line may happen.
    loop {
        std::thread::park();
    }
}
