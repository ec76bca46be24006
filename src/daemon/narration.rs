//! The life of each session in the log, by its run_id: never what it was given or what it says.

use std::collections::HashMap;

use tokio::sync::broadcast::{Receiver, error::RecvError};
use tracing::{info, warn};

use crate::model::{RunId, State};
use crate::service::Change;

/// Tells of sessions from now on, until the service is gone.
pub(super) async fn keep(mut changes: Receiver<Change>) {
    // The state that was told last of each session that has not ended: a change of its phase is none of it.
    let mut told = HashMap::<RunId, State>::new();
    loop {
        match changes.recv().await {
            Ok(Change::Added(run_id)) => info!(%run_id, "session admitted"),
            Ok(Change::Removed(run_id)) => info!(%run_id, "session removed"),
            Ok(Change::State { run_id, state, end: Some(end), .. }) => {
                told.remove(&run_id);
                info!(%run_id, %end, "session {state}");
            }
            Ok(Change::State { run_id, state, end: None, .. }) => {
                if told.insert(run_id, state) != Some(state) {
                    info!(%run_id, "session {state}");
                }
            }
            Ok(Change::QuestionAsked { run_id, .. }) => {
                info!(%run_id, "session asks, and waits for an answer")
            }
            Ok(Change::QuestionSettled { .. } | Change::Advanced { .. }) => {}
            Err(RecvError::Lagged(missed)) => warn!(missed, "changes of sessions are not in this log"),
            Err(RecvError::Closed) => return,
        }
    }
}
