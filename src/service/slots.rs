//! The driver pool and the queue before it: how many sessions run at once, and who is next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::model::{Limits, RunId};

/// See the module.
#[derive(Debug)]
pub(super) struct Slots {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max_active: usize,
    max_queued: usize,
    active: usize,
    waiting: VecDeque<(RunId, oneshot::Sender<()>)>,
}

/// A place in the pool or in the queue; dropping it gives it to the next.
#[derive(Debug)]
pub(super) struct Ticket {
    run_id: RunId,
    slots: Arc<Slots>,
    granted: Option<oneshot::Receiver<()>>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub queued: u32,
}

impl Slots {
    pub(super) fn new(limits: &Limits) -> Arc<Slots> {
        let state = State {
            max_active: limits.active as usize,
            max_queued: limits.queued as usize,
            active: 0,
            waiting: VecDeque::new(),
        };
        Arc::new(Slots { state: Mutex::new(state) })
    }

    /// A place in the pool if one is free and nobody waits, else at the end of the queue.
    pub(super) fn reserve(self: &Arc<Self>, run_id: RunId) -> Result<Ticket, Full> {
        let mut state = self.state();
        if state.active >= state.max_active && state.waiting.len() >= state.max_queued {
            return Err(Full { queued: state.max_queued as u32 });
        }
        Ok(self.enqueue(&mut state, run_id))
    }

    /// The same for a session that was admitted before: the queue's limit does not refuse it.
    pub(super) fn readmit(self: &Arc<Self>, run_id: RunId) -> Ticket {
        self.enqueue(&mut self.state(), run_id)
    }

    /// A place for a session that runs already, whether one is free or not.
    pub(super) fn adopt(self: &Arc<Self>, run_id: RunId) -> Ticket {
        self.state().active += 1;
        Ticket { run_id, slots: self.clone(), granted: None }
    }

    /// New limits: they hold for what comes, and more places are given out at once.
    pub(super) fn set_limits(&self, limits: &Limits) {
        let mut state = self.state();
        state.max_active = limits.active as usize;
        state.max_queued = limits.queued as usize;
        state.grant();
    }

    /// Sessions in the pool and in the queue.
    pub(super) fn counts(&self) -> (u32, u32) {
        let state = self.state();
        (state.active as u32, state.waiting.len() as u32)
    }

    /// The place in the queue, from 1.
    pub(super) fn position(&self, run_id: RunId) -> Option<u32> {
        self.state().waiting.iter().position(|(id, _)| *id == run_id).map(|at| at as u32 + 1)
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, run_id: RunId) -> Ticket {
        let (grant, granted) = oneshot::channel();
        state.waiting.push_back((run_id, grant));
        state.grant();
        Ticket { run_id, slots: self.clone(), granted: Some(granted) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn grant(&mut self) {
        while self.active < self.max_active {
            let Some((_, grant)) = self.waiting.pop_front() else { return };
            self.active += 1;
            // A receiver that is gone gives its place back when its ticket is dropped.
            let _ = grant.send(());
        }
    }
}

impl Ticket {
    /// Waits for the place in the pool. Safe to drop at any await.
    pub(super) async fn granted(&mut self) {
        if let Some(granted) = &mut self.granted {
            let _ = granted.await;
            self.granted = None;
        }
    }

    /// It has its place already.
    pub(super) fn is_granted(&mut self) -> bool {
        if let Some(granted) = &mut self.granted
            && granted.try_recv().is_ok()
        {
            self.granted = None;
        }
        self.granted.is_none()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.slots.state();
        match state.waiting.iter().position(|(id, _)| *id == self.run_id) {
            Some(at) if self.granted.is_some() => drop(state.waiting.remove(at)),
            _ => {
                state.active -= 1;
                state.grant();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(active: u32, queued: u32) -> Arc<Slots> {
        Slots::new(&Limits { active, queued, ..Limits::default() })
    }

    #[test]
    fn places_are_given_in_order_and_given_back() {
        let slots = slots(1, 2);
        let ids: Vec<RunId> = (0..4).map(|_| RunId::random()).collect();
        let mut first = slots.reserve(ids[0]).expect("free");
        let mut second = slots.reserve(ids[1]).expect("queued");
        let mut third = slots.reserve(ids[2]).expect("queued");
        assert_eq!(slots.reserve(ids[3]).expect_err("full"), Full { queued: 2 });
        assert!(first.is_granted() && !second.is_granted());
        assert_eq!(slots.position(ids[2]), Some(2));
        drop(second);
        assert_eq!(slots.position(ids[2]), Some(1));
        drop(first);
        assert!(third.is_granted());
        assert_eq!(slots.counts(), (1, 0));
        drop(third);
        assert_eq!(slots.counts(), (0, 0));
    }

    #[test]
    fn adopted_sessions_count_even_beyond_the_limit() {
        let slots = slots(1, 1);
        let first = slots.adopt(RunId::random());
        let second = slots.adopt(RunId::random());
        let mut waiting = slots.reserve(RunId::random()).expect("queued");
        drop(first);
        assert!(!waiting.is_granted());
        drop(second);
        assert!(waiting.is_granted());
    }

    #[test]
    fn more_places_are_given_out_at_once() {
        let slots = slots(1, 4);
        let _first = slots.reserve(RunId::random());
        let mut second = slots.reserve(RunId::random()).expect("queued");
        assert!(!second.is_granted());
        slots.set_limits(&Limits { active: 2, ..Limits::default() });
        assert!(second.is_granted());
    }
}
