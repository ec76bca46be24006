//! At start: what became of the sessions that an earlier daemon left. Nothing is started that may have run.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::blocking::blocking;
use super::driver::{self, Start};
use super::examine::{self, Finding};
use super::live::Head;
use super::{Change, Error, Hub, Stopping};
use crate::model::{RunId, State};
use crate::spool::journal::Cursor;
use crate::spool::{ActiveEntry, Ownership, Place, Record, SessionDir};

/// Between two looks at a session that could not be read for a reason that may pass: from the first to the longest.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// What was found of one session.
struct Found {
    dir: SessionDir,
    record: Record,
    head: Head,
    finding: Finding,
    acknowledged: Option<Cursor>,
}

/// Looks at every session in `active/` and gives each a driver. A session that cannot be read is set aside; the
/// others do not notice.
pub(super) async fn recover(hub: &Arc<Hub>) -> Result<(), Error> {
    let looking = hub.clone();
    let (mut found, unread) = blocking(move || {
        let (mut found, mut unread) = (Vec::new(), Vec::new());
        for ActiveEntry { run_id, dir } in looking.spool.active()? {
            match dir.map_err(Error::from).and_then(|dir| look(&dir)) {
                Ok(session) => found.push(session),
                Err(error) if may_pass(&error) => {
                    tracing::error!(%run_id, %error, "a session cannot be read now");
                    unread.push((run_id, may_be_owned(&looking, run_id)));
                }
                Err(error) => {
                    tracing::error!(%run_id, %error, "a session cannot be read");
                    if !set_aside(&looking, run_id, &error) {
                        unread.push((run_id, true));
                    }
                }
            }
        }
        Ok((found, unread))
    })
    .await?;
    for (run_id, owned) in unread {
        let place = owned.then(|| hub.slots.adopt(run_id));
        hub.unread().insert(run_id, place);
    }
    found.sort_by_key(|session| (session.record.accepted, session.record.run_id));
    // What runs already takes its place before anything that waits for one.
    let (owned, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|session| matches!(session.finding, Finding::Owned));
    for session in owned.into_iter().chain(rest) {
        begin(hub, session);
    }
    if !hub.unread().is_empty() {
        tokio::spawn(look_again(Arc::downgrade(hub)));
    }
    Ok(())
}

/// Gives a session its driver.
fn begin(hub: &Arc<Hub>, mut session: Found) {
    let run_id = session.record.run_id;
    tracing::info!(%run_id, "{}", session.finding.said());
    let start = match session.finding {
        Finding::Owned => Start::Adopt(hub.slots.adopt(run_id)),
        Finding::Ended(outcome) => Start::Settle(outcome),
        Finding::NeverStarted(lock) => {
            drop(lock);
            // Its record may tell of an executor that never came to anything, or of what kept it from being
            // started.
            session.record.state = State::Queued;
            session.record.error = None;
            Start::Fresh(hub.slots.readmit(run_id))
        }
        Finding::Died(lock) => {
            drop(lock);
            Start::Died
        }
    };
    let live = driver::spawn(hub, session.dir, session.record, session.head, start);
    if let Some(acknowledged) = session.acknowledged {
        live.set_acknowledged(acknowledged);
    }
}

impl Finding {
    /// What becomes of a session that an earlier daemon left, for the log.
    fn said(&self) -> &'static str {
        match self {
            Finding::Owned => "adopted: its executor runs",
            Finding::Ended(_) => "it ended while no service ran, and is put away",
            Finding::NeverStarted(_) => "it was never started, and is queued again",
            Finding::Died(_) => "its executor died: what its program did is uncertain",
        }
    }
}

/// A disk that did not answer, or a lack of descriptors, says nothing of the session.
fn may_pass(error: &Error) -> bool {
    !matches!(error, Error::DamagedFile(_) | Error::Damaged { .. })
}

/// Looks at sessions that could not be read until each is read, or is found damaged with nobody who owns it.
async fn look_again(hub: Weak<Hub>) {
    let [mut pause, longest] = LOOK_AGAIN;
    loop {
        let Some(mut stopping) = hub.upgrade().map(|hub| hub.stopping.subscribe()) else { return };
        tokio::select! {
            _ = stopping.wait_for(|how| *how != Stopping::No) => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(longest);
        let Some(hub) = hub.upgrade() else { return };
        let unread: Vec<RunId> = hub.unread().keys().copied().collect();
        for run_id in unread {
            // It stays among them.
            let _ = take_up(&hub, run_id).await;
        }
    }
}

/// Looks once more at a session if it could not be read before, and gives it its driver.
///
/// # Errors
/// It still cannot be read.
pub(super) async fn take_up(hub: &Arc<Hub>, run_id: RunId) -> Result<(), Error> {
    if !hub.unread().contains_key(&run_id) {
        return Ok(());
    }
    let hub = hub.clone();
    // A caller who leaves must not leave it half looked at.
    let looking = tokio::spawn(async move {
        let _alone = hub.looking.lock().await;
        if !hub.unread().contains_key(&run_id) {
            return Ok(());
        }
        let spool = hub.clone();
        let looked = blocking(move || match spool.spool.locate(run_id)? {
            Place::Active(dir) => look(&dir).map(Some),
            _ => Ok(None),
        });
        match looked.await {
            Ok(Some(session)) => {
                tracing::info!(%run_id, "the session can be read again");
                begin(&hub, session);
                // It has a place of its own by now, if it needs one.
                hub.unread().remove(&run_id);
                let _ = hub.changes.send(Change::Added(run_id));
                Ok(())
            }
            Ok(None) => {
                hub.unread().remove(&run_id);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%run_id, %error, "the session still cannot be read");
                let done = !may_pass(&error) && {
                    let (hub, why) = (hub.clone(), error.to_string());
                    blocking(move || Ok(set_aside(&hub, run_id, &why))).await.unwrap_or(false)
                };
                if done {
                    hub.unread().remove(&run_id);
                }
                Err(error)
            }
        }
    });
    looking.await.unwrap_or_else(|_| Err(Error::Internal("the look at a session was cut off".into())))
}

fn look(dir: &SessionDir) -> Result<Found, Error> {
    let record = dir.record()?;
    let finding = examine::examine(dir)?;
    let epoch = match &finding {
        Finding::Ended(outcome) => Some(outcome.epoch.clone()),
        Finding::NeverStarted(_) => {
            // Only what is still to be started needs it.
            dir.submission()?;
            None
        }
        Finding::Owned | Finding::Died(_) => dir.claim()?.map(|claim| claim.epoch),
    };
    // Observers that come back at once find everything that they had seen; its executor tells what follows.
    let written = match &finding {
        Finding::Owned => dir.journal()?.map(|journal| journal.written()).transpose()?,
        // Not what the repair is going to cut off.
        Finding::Died(_) => dir.journal()?.map(|journal| journal.counted()).transpose()?,
        Finding::Ended(outcome) => Some(outcome.head),
        Finding::NeverStarted(_) => None,
    };
    let head =
        Head { epoch: epoch.filter(|_| written.is_some()), offset: written.unwrap_or(0), closed: false };
    Ok(Found { dir: dir.clone(), record, head, finding, acknowledged: dir.acknowledged()? })
}

/// Nobody knows of it that its lock is free.
fn may_be_owned(hub: &Hub, run_id: RunId) -> bool {
    let lock = match hub.spool.locate(run_id) {
        Ok(Place::Active(dir)) => dir.lock_owner(),
        _ => return true,
    };
    !matches!(lock, Ok(Ownership::Taken(_)))
}

/// A session that cannot be trusted is kept, untouched, out of the way; what its program left running is ended. One that
/// somebody owns stays where it is until that has ended: `false`.
fn set_aside(hub: &Hub, run_id: RunId, error: &dyn Display) -> bool {
    let dir = match hub.spool.locate(run_id) {
        Ok(Place::Active(dir)) => Some(dir),
        _ => None,
    };
    if dir.as_ref().is_some_and(|dir| matches!(dir.lock_owner(), Ok(Ownership::Held))) {
        return false;
    }
    // Nobody will look after what its program may have left running.
    let cgroup: Option<PathBuf> = dir.and_then(|dir| dir.record().ok()?.cgroup);
    let why = format!("{error}; {}", examine::clear_unread(run_id, cgroup.as_deref()));
    if let Err(error) = hub.spool.set_aside(run_id, &why) {
        tracing::error!(%run_id, %error, "and it cannot be set aside");
    }
    true
}
