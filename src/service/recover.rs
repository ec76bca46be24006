//! At start: what became of the sessions that an earlier daemon left. Nothing is started that may have run.

use std::sync::Arc;

use super::blocking::blocking;
use super::driver::{self, Start};
use super::examine::{self, Finding};
use super::live::Head;
use super::{Error, Hub};
use crate::model::{RunId, State};
use crate::spool::{ActiveEntry, Ownership, Place, Record, SessionDir};

/// What was found of one session.
struct Found {
    dir: SessionDir,
    record: Record,
    head: Head,
    finding: Finding,
}

/// Looks at every session in `active/` and gives each a driver. A session that cannot be read is set aside; the
/// others do not notice.
pub(super) async fn recover(hub: &Arc<Hub>) -> Result<(), Error> {
    let looking = hub.clone();
    let mut found = blocking(move || {
        let mut found = Vec::new();
        for ActiveEntry { run_id, dir } in looking.spool.active()? {
            match dir.map_err(Error::from).and_then(|dir| look(&dir)) {
                Ok(session) => found.push(session),
                Err(error) => set_aside(&looking, run_id, &error),
            }
        }
        Ok(found)
    })
    .await?;
    found.sort_by_key(|session| (session.record.accepted, session.record.run_id));
    // What runs already takes its place before anything that waits for one.
    let (owned, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|session| matches!(session.finding, Finding::Owned));
    for mut session in owned.into_iter().chain(rest) {
        let run_id = session.record.run_id;
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
        driver::spawn(hub, session.dir, session.record, session.head, start);
    }
    Ok(())
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
    Ok(Found { dir: dir.clone(), record, head, finding })
}

/// A session that cannot be trusted is kept, untouched, out of the way. One that somebody owns stays where it is, and
/// so does one that may well be read another time.
fn set_aside(hub: &Hub, run_id: RunId, error: &Error) {
    tracing::error!(%run_id, %error, "a session cannot be read");
    let place = hub.spool.locate(run_id);
    let owned = matches!(place, Ok(Place::Active(dir)) if matches!(dir.lock_owner(), Ok(Ownership::Held)));
    if owned || !matches!(error, Error::DamagedFile(_) | Error::Damaged { .. }) {
        return;
    }
    if let Err(error) = hub.spool.set_aside(run_id, &error.to_string()) {
        tracing::error!(%run_id, %error, "and it cannot be set aside");
    }
}
