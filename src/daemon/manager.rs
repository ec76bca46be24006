//! What the service manager is told: readiness, a line that `systemctl status` shows, and that the service answers.
//!
//! All of it is nothing where no manager asks (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::broadcast::{self, error::RecvError};
use tracing::warn;

use crate::client::Client;
use crate::config::Account;
use crate::service::{Change, Facts, Sessions};

/// The line is told at most this often.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How long the manager may take to read what it was told.
const BARRIER: Duration = Duration::from_secs(5);
/// How often is looked whether another program is installed: nothing announces that.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Whether a service manager started this process, and would start it again.
pub(super) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some() || std::env::var_os("INVOCATION_ID").is_some()
}

pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Between this and [`ready`] the manager counts the service as reloading.
pub(super) fn reloading() {
    let mut states = vec![NotifyState::Reloading];
    states.extend(NotifyState::monotonic_usec_now().ok());
    tell(&states);
}

/// Why it does not start, for `systemctl status`.
pub(super) fn failed(why: &str) {
    tell(&[NotifyState::Status(&one_line(why))]);
}

/// Ends the start that calls on the bus asked for, so that the next call gets one of its own. A call that comes while
/// the manager counts this process as starting would join that start; dbus-daemon would let it, and all that follow,
/// wait until its time has run out. One that comes while it is stopping is started after the stop.
pub(super) async fn give_up_start() {
    tell(&[NotifyState::Ready]);
    tell(&[NotifyState::Stopping]);
    if tokio::time::timeout(BARRIER, all_told()).await.is_err() {
        warn!("the service manager does not read what it is told");
    }
}

/// Comes back when the manager has read everything that it was told (sd_notify_barrier(3)): it closes the descriptor.
async fn all_told() {
    let Ok((reader, writer)) = std::io::pipe() else { return };
    let barrier = sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[writer.as_fd()]);
    drop(writer);
    if let (Ok(()), Ok(mut reader)) = (barrier, Receiver::from_owned_fd(reader.into())) {
        let _ = reader.read_u8().await;
    }
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("the service manager cannot be told: {error}");
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Keeps the status line current, for ever. `note` stands at its end; empty for nothing.
pub(super) async fn keep_status(sessions: Sessions, note: &str) {
    let mut changes = sessions.changes();
    let mut told = String::new();
    loop {
        let undelivered = sessions.controller().undelivered;
        let line = status(&sessions.facts(), undelivered, sessions.upgrade_pending().await, note);
        if line != told {
            tell(&[NotifyState::Status(&line)]);
            told = line;
        }
        // What changes while it waits is in the next line.
        tokio::time::sleep(TELL_EVERY).await;
        tokio::select! {
            () = of_consequence(&mut changes) => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Comes back after a change that may show in the line.
async fn of_consequence(changes: &mut broadcast::Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(Change::Advanced { .. }) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn status(facts: &Facts, undelivered: u32, upgrade_pending: bool, note: &str) -> String {
    let mut line = format!("{} running, {} waiting", facts.active, facts.queued);
    if facts.state != "running" {
        line = format!("{}: {line}", facts.state);
    }
    if undelivered > 0 {
        line.push_str(&format!("; {undelivered} not delivered to the framework"));
    }
    if upgrade_pending {
        line.push_str("; another program is installed: restart to use it");
    }
    if !note.is_empty() {
        line.push_str("; ");
        line.push_str(note);
    }
    line
}

/// What is to be said of the account's last logout; empty where it stops nothing.
pub(super) fn logout_note() -> &'static str {
    let lingers = Account::own().ok().and_then(|account| account.lingers());
    match is_there() && lingers == Some(false) {
        true => "no lingering: the last logout ends all sessions",
        false => "",
    }
}

/// Tells the manager that the service answers, for as long as it does, for ever. It asks itself on its private socket,
/// as any client would: that the event loop turns is not enough. A manager that hears nothing for the time that its
/// unit gives kills the daemon and starts another; sessions go on.
pub(super) async fn keep_watchdog(socket: PathBuf) {
    let Some(within) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let every = within / 3;
    loop {
        if answers(&socket, every).await {
            tell(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(every).await;
    }
}

/// Whether somebody answers in time. A refusal is an answer: it was given because there is no room now.
async fn answers(socket: &Path, within: Duration) -> bool {
    let ask = async { Client::connect_socket(socket).await?.properties().await };
    match tokio::time::timeout(within, ask).await {
        Ok(_) => true,
        Err(_) => {
            warn!("the service does not answer itself within {} ms", within.as_millis());
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_and_says_what_is_to_be_done() {
        let facts = |state, active, queued| Facts {
            application: String::new(),
            host: String::new(),
            state,
            active,
            queued,
            containment: "",
        };
        assert_eq!(status(&facts("running", 3, 1), 0, false, ""), "3 running, 1 waiting");
        assert_eq!(
            status(&facts("stopping", 2, 0), 4, true, "no lingering"),
            "stopping: 2 running, 0 waiting; 4 not delivered to the framework; another program is installed: restart to use it; no lingering"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_nobody_serves_is_told_from_one_that_answers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sock");
        assert!(answers(&path, Duration::from_secs(1)).await, "an answer, of the kernel");
        let _stuck = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!answers(&path, Duration::from_secs(1)).await);
    }
}
