//! What the spool holds, and what the retention would remove of it.

use std::sync::Arc;

use super::blocking::blocking;
use super::removal::{Bounds, pass, survey};
use super::{Error, Hub, retention};
use crate::model::{RetentionReport, Storage};

/// Folders that are looked into for what the retention would remove: the answer is for people who wait for it.
const MOST_LOOKS: usize = 10_000;

/// See [`Sessions::storage`](super::Sessions::storage).
pub(super) async fn storage(hub: &Arc<Hub>) -> Result<Storage, Error> {
    let mut passes = hub.passes.lock().await;
    let looking = hub.clone();
    let (active, damaged, free) = blocking(move || {
        let spool = &looking.spool;
        Ok((spool.usage_of_active()?, spool.usage_of_damaged()?, spool.free_space()?))
    })
    .await?;
    let ended = survey(hub).await?;
    let configured = hub.config().retention.clone();
    let retention = match retention::rules(&configured) {
        None => None,
        Some(rules) => {
            let bounds = Bounds { removed: usize::MAX, told: 0, looks: MOST_LOOKS };
            let found = pass(hub, &mut passes, rules, true, bounds).await?;
            Some(RetentionReport {
                acknowledged_only: configured.acknowledged_only,
                max_age_days: configured.max_age_days,
                max_bytes: configured.max_bytes,
                due: found.sessions.len() as u64,
                due_bytes: found.sessions.iter().filter_map(|session| session.bytes).sum(),
                due_at_least: found.cut,
            })
        }
    };
    Ok(Storage {
        spool: hub.spool.path().display().to_string(),
        active: active.count,
        active_bytes: active.bytes,
        ended: ended.len() as u64,
        ended_bytes: ended.iter().filter_map(|session| session.bytes).sum(),
        damaged: damaged.count,
        damaged_bytes: damaged.bytes,
        free_bytes: free,
        oldest: ended.iter().find_map(|session| session.ended),
        retention,
    })
}
