//! The retention that the configuration asks for: after the start, every hour, when sessions have ended or were
//! acknowledged after their end, and when the configuration was read again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::age::Rules;
use super::removal::{Bounds, Found, pass};
use super::{Error, Hub, Stopping};
use crate::config::Retention;
use crate::model::{PruneAction, Pruned};

/// Between two passes, where nothing happens.
const EVERY: Duration = Duration::from_secs(3600);
/// The shortest time between two passes: sessions that end meanwhile share the next one.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);
/// A pass takes at most one part in so many of the time.
const SHARE: u32 = 20;
/// Sessions that a pass removes: whoever waits for the next pass, or for what the spool holds, waits no longer than that.
const REMOVED: usize = 1000;
/// Sessions of which a pass says in the log that it kept them.
const TOLD: usize = 100;

/// What the configuration wants to go; `None` if that is nothing.
pub(super) fn rules(retention: &Retention) -> Option<Rules> {
    let older_than = retention.max_age_days.map(|days| Duration::from_secs(days.saturating_mul(86_400)));
    let rules =
        Rules { acknowledged: retention.acknowledged_only, older_than, keep_bytes: retention.max_bytes };
    (rules.older_than.is_some() || rules.keep_bytes.is_some()).then_some(rules)
}

/// Keeps to the retention for as long as the service lives and does not stop.
pub(super) async fn keep(hub: Weak<Hub>) {
    loop {
        let Some(here) = hub.upgrade() else { return };
        let (mut stopping, due) = (here.stopping.subscribe(), here.retention_due.clone());
        let begun = Instant::now();
        let pause = match rules(&here.config().retention) {
            None => Duration::ZERO,
            Some(rules) => {
                if let Err(error) = once(&here, rules).await {
                    tracing::warn!(%error, "the retention removed nothing; it is tried again later");
                }
                AT_MOST_EVERY.max(begun.elapsed() * SHARE)
            }
        };
        drop(here);
        let next = async {
            tokio::time::sleep(pause).await;
            let _ = tokio::time::timeout(EVERY, due.notified()).await;
        };
        tokio::select! {
            _ = stopping.wait_for(|how| *how != Stopping::No) => return,
            () = next => {}
        }
    }
}

async fn once(hub: &Arc<Hub>, rules: Rules) -> Result<(), Error> {
    let bounds = Bounds { removed: REMOVED, told: TOLD, looks: usize::MAX };
    let mut passes = hub.passes.lock().await;
    let Found { sessions, cut } = pass(hub, &mut passes, rules, false, bounds).await?;
    if cut {
        hub.retention_due.notify_one();
    }
    for Pruned { run_id, action, why, .. } in sessions {
        match action {
            PruneAction::Removed => tracing::info!(%run_id, "removed by the retention"),
            PruneAction::Kept | PruneAction::WouldRemove => {
                tracing::debug!(%run_id, why = why.unwrap_or_default(), "kept from the retention");
            }
        }
    }
    Ok(())
}
