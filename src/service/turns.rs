//! One change at a time for each session: its submission, its acknowledgement, its moving and its removal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::model::RunId;

/// Beyond so many entries those that nobody uses are swept out.
const SWEEP: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<RunId, Weak<AsyncMutex<()>>>>);

impl Turns {
    /// Waits until nobody else changes the session; the turn lasts until what this gives is dropped. In the order of
    /// asking. Different sessions do not wait for each other.
    pub(super) async fn take(&self, run_id: RunId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns();
            if turns.len() >= SWEEP {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            let known = turns.get(&run_id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::new(AsyncMutex::new(()));
                turns.insert(run_id, Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<RunId, Weak<AsyncMutex<()>>>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_session_s_turns_come_in_order_and_others_do_not_wait() {
        let turns = Arc::new(Turns::default());
        let (one, other) = (RunId::random(), RunId::random());
        let first = turns.take(one).await;
        drop(turns.take(other).await);
        let waiting = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.take(one).await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.expect("its turn came");
    }

    #[tokio::test]
    async fn what_nobody_uses_is_not_kept() {
        let turns = Turns::default();
        for _ in 0..10 * SWEEP {
            drop(turns.take(RunId::random()).await);
        }
        assert!(turns.turns().len() <= SWEEP);
    }
}
