//! Who is on the other side: one [`Peer`] for a private connection, or for a sender on a bus.
//!
//! A peer owns what ends with it (subscriptions, waits), and keeps its calls about one session in order: zbus runs
//! each call as a task of its own, in the order of arrival, and each waits for its [`Peer::turn`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use zbus::message::{Flags, Header};
use zbus::names::OwnedUniqueName;

use super::BusError;
use super::gate::Traffic;
use crate::model::RunId;

/// The most subscriptions of one peer.
pub const SUBSCRIPTIONS: usize = 64;
/// The most `Follow` streams of one peer that are written to.
pub const FOLLOWS: usize = 64;

/// Somebody who calls.
#[derive(Debug)]
pub struct Peer {
    /// Its unique name, on a bus.
    name: Option<OwnedUniqueName>,
    gone: watch::Sender<bool>,
    turns: Mutex<HashMap<RunId, Weak<AsyncMutex<()>>>>,
    subscriptions: Mutex<Subscriptions>,
    follows: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Subscriptions {
    last: u32,
    /// Dropping an entry stops the subscription.
    live: HashMap<u32, oneshot::Sender<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks can leave them half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// A peer that is there; `name` on a bus.
    pub fn new(name: Option<OwnedUniqueName>) -> Arc<Self> {
        Arc::new(Peer {
            name,
            gone: watch::Sender::new(false),
            turns: Mutex::default(),
            subscriptions: Mutex::default(),
            follows: Arc::new(Semaphore::new(FOLLOWS)),
        })
    }

    /// Its unique name, on a bus.
    pub fn name(&self) -> Option<&OwnedUniqueName> {
        self.name.as_ref()
    }

    /// It left: ends what it owns.
    pub fn leave(&self) {
        self.gone.send_replace(true);
        locked(&self.subscriptions).live.clear();
    }

    /// Comes back when the peer has left.
    pub async fn left(&self) {
        // The sender lives as long as this peer, so waiting cannot fail.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Waits until this peer's earlier calls about `run_id` took effect.
    pub async fn turn(&self, run_id: RunId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = locked(&self.turns);
            turns.retain(|_, turn| turn.strong_count() > 0);
            match turns.get(&run_id).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::new(AsyncMutex::new(()));
                    turns.insert(run_id, Arc::downgrade(&turn));
                    turn
                }
            }
        };
        // Fair: in the order of asking.
        turn.lock_owned().await
    }

    /// Makes room for a subscription: its number, and what comes back when it is to stop.
    pub fn add_subscription(&self) -> Result<(u32, oneshot::Receiver<()>), BusError> {
        let mut subscriptions = locked(&self.subscriptions);
        if *self.gone.borrow() {
            return Err(BusError::argument("the caller has left"));
        }
        if subscriptions.live.len() >= SUBSCRIPTIONS {
            let why = format!("{SUBSCRIPTIONS} subscriptions of yours are open; end one with Unsubscribe");
            return Err(BusError::new("AtCapacity", why));
        }
        subscriptions.last = subscriptions.last.wrapping_add(1);
        let id = subscriptions.last;
        let (stop, stopped) = oneshot::channel();
        subscriptions.live.insert(id, stop);
        Ok((id, stopped))
    }

    /// Makes room for a `Follow` stream, which is over when the permit is dropped. A stream may outlive the peer: the
    /// descriptor can be handed on.
    pub fn add_follow(&self) -> Result<OwnedSemaphorePermit, BusError> {
        self.follows.clone().try_acquire_owned().map_err(|_| {
            let why =
                format!("{FOLLOWS} streams of yours are open; close the descriptor of one of them first");
            BusError::new("AtCapacity", why)
        })
    }

    /// Ends a subscription. One that ended by itself is ended already; one that never was is refused.
    pub fn end_subscription(&self, id: u32) -> Result<(), BusError> {
        let mut subscriptions = locked(&self.subscriptions);
        if subscriptions.live.remove(&id).is_none() && (id == 0 || id > subscriptions.last) {
            return Err(BusError::argument(format_args!("no subscription of yours has the number {id}")));
        }
        Ok(())
    }
}

/// The peers of a connection.
#[derive(Debug)]
pub enum Peers {
    /// A private connection has one.
    One(Arc<Peer>),
    /// A bus connection has as many as the bus has clients that call.
    Bus(Arc<super::senders::Senders>),
}

/// What the object server of one connection knows about it.
#[derive(Debug)]
pub struct Link {
    /// What is not answered yet.
    pub traffic: Arc<Traffic>,
    /// Who calls.
    pub peers: Peers,
}

impl Link {
    /// Who sent `call`.
    pub fn caller<'a>(&'a self, call: &'a Header<'a>) -> Result<Caller<'a>, BusError> {
        let peer = match &self.peers {
            Peers::One(peer) => Some(peer.clone()),
            Peers::Bus(senders) => call.sender().and_then(|name| senders.present(name.as_str())),
        };
        let caller = Caller { peer: peer.clone(), traffic: &self.traffic, call };
        if peer.is_none() {
            return Err(BusError::argument("the caller has left"));
        }
        Ok(caller)
    }
}

/// The sender of one call, while it is handled.
#[derive(Debug)]
pub struct Caller<'a> {
    peer: Option<Arc<Peer>>,
    traffic: &'a Arc<Traffic>,
    call: &'a Header<'a>,
}

impl Caller<'_> {
    /// The peer.
    pub fn peer(&self) -> Result<&Arc<Peer>, BusError> {
        self.peer.as_ref().ok_or_else(|| BusError::argument("the caller has left"))
    }

    /// Drops `thing` when the answer to this call was sent.
    pub fn keep_until_answered<T: Send + 'static>(&self, thing: T) {
        self.traffic.keep(self.call, Box::new(thing));
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        // No answer will tell the gate that this call is over.
        if self.call.primary().flags().contains(Flags::NO_REPLY_EXPECTED) {
            self.traffic.done(self.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_taken_in_the_order_of_asking() {
        let peer = Peer::new(None);
        let id = RunId::random();
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = peer.turn(id).await;
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let (peer, order) = (peer.clone(), order.clone());
                tokio::spawn(async move {
                    let _turn = peer.turn(id).await;
                    locked(&order).push(n);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(locked(&order).is_empty());
        // Another session's turn is free.
        drop(peer.turn(RunId::random()).await);
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*locked(&order), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_a_peer_owns_ends_with_it() {
        let peer = Peer::new(None);
        let (id, stopped) = peer.add_subscription().unwrap();
        let (other, other_stopped) = peer.add_subscription().unwrap();
        peer.end_subscription(id).unwrap();
        assert!(stopped.await.is_err());
        peer.end_subscription(id).expect("ended already");
        assert!(peer.end_subscription(other + 1).is_err());
        peer.leave();
        assert!(other_stopped.await.is_err());
        peer.left().await;
        assert!(peer.add_subscription().is_err());
    }

    #[test]
    fn subscriptions_have_a_bound() {
        let peer = Peer::new(None);
        let open: Vec<_> = (0..SUBSCRIPTIONS).map(|_| peer.add_subscription().unwrap()).collect();
        assert_eq!(peer.add_subscription().unwrap_err().short(), "AtCapacity");
        peer.end_subscription(open[0].0).unwrap();
        peer.add_subscription().unwrap();
    }

    #[test]
    fn streams_have_a_bound() {
        let peer = Peer::new(None);
        let mut open: Vec<_> = (0..FOLLOWS).map(|_| peer.add_follow().unwrap()).collect();
        assert_eq!(peer.add_follow().unwrap_err().short(), "AtCapacity");
        open.pop();
        drop(peer.add_follow().expect("room again"));
        drop(Peer::new(None).add_follow().expect("others have room of their own"));
    }
}
