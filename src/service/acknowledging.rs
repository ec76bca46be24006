//! The application has projected a session's events up to a cursor, and says so.

use std::sync::Arc;

use super::blocking::blocking;
use super::reading;
use super::{Error, Hub};
use crate::model::{RunId, Status};

/// See [`Sessions::acknowledge`](super::Sessions::acknowledge).
pub(super) async fn acknowledge(hub: &Arc<Hub>, run_id: RunId, cursor: &str) -> Result<Status, Error> {
    let _turn = hub.turns.take(run_id).await;
    // Before there is a journal there is nothing to acknowledge, and nothing is stored.
    if let Some((dir, place, head)) = reading::place(hub, run_id, cursor).await? {
        let stands = blocking(move || Ok(dir.acknowledge(&place, head)?)).await?;
        match hub.find(run_id) {
            Some(live) => live.set_acknowledged(stands),
            None => hub.retention_due.notify_one(),
        }
    }
    match hub.find(run_id) {
        Some(live) => Ok(hub.status_of(&live)),
        None => hub.settled_status(run_id).await,
    }
}
