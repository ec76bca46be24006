//! Removing sessions that have ended: one by name, or those that a policy finds.

use std::sync::Arc;
use std::time::Duration;

use super::age::{Pass, Rules, Want};
use super::blocking::blocking;
use super::{Change, Error, Hub, Stopping};
use crate::executor::now_us;
use crate::model::{PruneAction, PrunePolicy, Pruned, RunId};
use crate::spool::{EndedSession, Place};

/// Sessions that one `Prune` removes, at most.
const MOST_REMOVED: u32 = 1000;
/// Sessions that are kept and of which one `Prune` tells.
const MOST_KEPT: usize = 1000;
/// The list of ended sessions is written anew when it has this many lines of removed ones, and more than of others.
const MOST_LEFT_OVER: u64 = 1000;

/// What passes over all ended sessions keep between them. One goes at a time.
#[derive(Debug, Default)]
pub(super) struct Passes {
    /// Sessions removed since the list of ended ones was written anew.
    removed: u64,
}

/// How far a pass goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Sessions that it removes.
    pub removed: usize,
    /// Kept ones of which it tells.
    pub told: usize,
    /// Folders that it looks into.
    pub looks: usize,
}

/// What a pass found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The sessions that were due, the first ended first.
    pub sessions: Vec<Pruned>,
    /// It stopped at one of its bounds.
    pub cut: bool,
}

/// See [`Sessions::remove`](super::Sessions::remove).
pub(super) async fn remove(hub: &Arc<Hub>, run_id: RunId) -> Result<(), Error> {
    let _turn = hub.turns.take(run_id).await;
    if hub.find(run_id).is_some() {
        return Err(Error::NotSettled(run_id));
    }
    let removing = hub.clone();
    let gone = blocking(move || {
        let spool = &removing.spool;
        match spool.locate(run_id)? {
            Place::Ended(dir) => {
                if let Some(why) = dir.contents()?.foreign {
                    return Err(Error::Kept { run_id, why });
                }
                removing.remove(run_id)
            }
            // A retry, which finishes what may be left to do.
            Place::Removed(_) => Ok(spool.remove(run_id).map(|_| false)?),
            Place::Active(_) => Err(Error::NotSettled(run_id)),
            Place::Damaged(what) => Err(Error::Damaged { run_id, what }),
            Place::Absent => Err(Error::NotFound(run_id)),
        }
    })
    .await?;
    if gone {
        tracing::info!(%run_id, "removed");
    }
    Ok(())
}

/// See [`Sessions::prune`](super::Sessions::prune).
pub(super) async fn prune(hub: &Arc<Hub>, policy: PrunePolicy) -> Result<Vec<Pruned>, Error> {
    if policy.older_than_seconds.is_none() && policy.keep_bytes.is_none() {
        return Err(Error::InvalidArgument(
            "older-than-seconds: is missing; give it (0 for every age), or keep-bytes, or both".into(),
        ));
    }
    let limit = policy.limit.unwrap_or(MOST_REMOVED);
    if !(1..=MOST_REMOVED).contains(&limit) {
        return Err(Error::InvalidArgument(format!("limit: must be from 1 to {MOST_REMOVED}")));
    }
    let rules = Rules {
        acknowledged: policy.acknowledged,
        older_than: policy.older_than_seconds.map(Duration::from_secs),
        keep_bytes: policy.keep_bytes,
    };
    let bounds = Bounds { removed: limit as usize, told: MOST_KEPT, looks: usize::MAX };
    let mut passes = hub.passes.lock().await;
    Ok(pass(hub, &mut passes, rules, policy.dry_run, bounds).await?.sessions)
}

/// Goes over all ended sessions, the first ended first, and removes those that the rules want to go and nothing keeps.
/// With `dry` it only looks, and finds the same.
pub(super) async fn pass(
    hub: &Arc<Hub>,
    passes: &mut Passes,
    rules: Rules,
    dry: bool,
    bounds: Bounds,
) -> Result<Found, Error> {
    let ended = survey(hub).await?;
    let count = ended.len() as u64;
    let total = ended.iter().filter_map(|session| session.bytes).fold(0, u64::saturating_add);
    let mut pass = Pass::new(rules, hub.believed_now(), total);
    let mut found = Found::default();
    let (mut removed, mut kept, mut looks) = (0, 0, 0);
    for session in ended {
        let verdict = match pass.want(&session) {
            Want::Stay => continue,
            Want::Future => Verdict::Kept("ended in the future by this clock; look at the clock".into()),
            Want::Unread => Verdict::Kept("has a record that cannot be read".into()),
            Want::Go if removed == bounds.removed || looks == bounds.looks => {
                found.cut = true;
                break;
            }
            // What a stopping service was about to do it does not begin.
            Want::Go if *hub.stopping.borrow() != Stopping::No => break,
            Want::Go => {
                looks += 1;
                judge(hub, session.run_id, rules.acknowledged, dry).await
            }
        };
        let (action, why) = match verdict {
            Verdict::Gone => {
                removed += 1;
                pass.gone(&session);
                (if dry { PruneAction::WouldRemove } else { PruneAction::Removed }, None)
            }
            Verdict::Left => {
                pass.gone(&session);
                continue;
            }
            Verdict::Kept(_) if kept >= bounds.told => continue,
            Verdict::Kept(why) => {
                kept += 1;
                (PruneAction::Kept, Some(why))
            }
        };
        let EndedSession { run_id, ended, bytes } = session;
        found.sessions.push(Pruned { run_id, action, why, ended, bytes });
    }
    if !dry {
        passes.removed += removed as u64;
        if passes.removed >= MOST_LEFT_OVER && passes.removed > count.saturating_sub(removed as u64) {
            let compacting = hub.clone();
            match blocking(move || Ok(compacting.spool.compact()?)).await {
                Ok(()) => passes.removed = 0,
                // It is only longer than it need be.
                Err(error) => tracing::warn!(%error, "the list of ended sessions is not written anew"),
            }
        }
    }
    Ok(found)
}

/// All ended sessions with their sizes.
pub(super) async fn survey(hub: &Arc<Hub>) -> Result<Vec<EndedSession>, Error> {
    let hub = hub.clone();
    blocking(move || {
        let mut sessions = hub.spool.survey()?;
        // Only lists of earlier versions do not tell.
        for session in sessions.iter_mut().filter(|session| session.bytes.is_none()) {
            if let Ok(Place::Ended(dir)) = hub.spool.locate(session.run_id) {
                session.bytes = dir.contents().ok().map(|contents| contents.bytes);
            }
        }
        Ok(sessions)
    })
    .await
}

/// What becomes of a session that the rules want to go.
enum Verdict {
    /// It is gone, or would be.
    Gone,
    /// Somebody else removed it.
    Left,
    /// Why it stays.
    Kept(String),
}

/// Looks into a session's folder, and removes it if nothing keeps it. A session that cannot be removed keeps no other
/// from it.
async fn judge(hub: &Arc<Hub>, run_id: RunId, acknowledged: bool, dry: bool) -> Verdict {
    let _turn = hub.turns.take(run_id).await;
    if hub.find(run_id).is_some() {
        return Verdict::Kept("is not put away yet".into());
    }
    let judging = hub.clone();
    let judged = blocking(move || {
        let dir = match judging.spool.locate(run_id)? {
            Place::Ended(dir) => dir,
            // A removal that was cut off: what is left of it goes.
            Place::Removed(_) if !dry => return Ok(judging.spool.remove(run_id).map(|_| Verdict::Left)?),
            Place::Removed(_) | Place::Active(_) | Place::Absent => return Ok(Verdict::Left),
            Place::Damaged(what) => return Ok(Verdict::Kept(format!("cannot be trusted: {what}"))),
        };
        // First what costs least: in a spool that nobody acknowledges anything in, this is asked of every session.
        if acknowledged && !dir.is_acknowledged()? {
            return Ok(Verdict::Kept("is not acknowledged up to its last event".into()));
        }
        if let Some(why) = dir.contents()?.foreign {
            return Ok(Verdict::Kept(why));
        }
        if !dry {
            judging.remove(run_id)?;
        }
        Ok(Verdict::Gone)
    });
    judged.await.unwrap_or_else(|error| Verdict::Kept(error.to_string()))
}

impl Hub {
    /// Removes a session that was looked at, and tells of it. It is gone from the moment that its tombstone is durable.
    fn remove(&self, run_id: RunId) -> Result<bool, Error> {
        let removed = self.spool.remove(run_id);
        if removed.is_ok() || matches!(self.spool.locate(run_id), Ok(Place::Removed(_))) {
            let _ = self.changes.send(Change::Removed(run_id));
        }
        Ok(removed.map(|_| true)?)
    }

    /// The time, µs since 1970, as far as the wall clock is believed.
    pub(super) fn believed_now(&self) -> u64 {
        let mut clock = self.clock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        clock.now(now_us(), boot_us())
    }
}

/// Boot time in µs: what no setting of clocks changes, and what goes on while the machine sleeps.
pub(super) fn boot_us() -> u64 {
    let boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    boot.map_or(0, |boot| u64::try_from(boot.as_micros()).unwrap_or(u64::MAX))
}
