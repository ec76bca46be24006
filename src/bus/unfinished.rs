//! Private connections whose handshake is not finished: a bounded number, and never in the way of others.
//!
//! A newcomer always gets a place. When none is free, a handshake that began earlier is closed for it: the oldest of
//! the process that holds the most. A process that connects in a loop and stays silent so only loses its own, however
//! fast it is, and of many processes the one that was silent longest gives way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Handshakes that may run at once.
pub const HANDSHAKES: usize = 64;

/// The process of a client; 0 where the kernel does not name it.
pub type Pid = i32;

/// Clients in the order in which they came, with their processes.
#[derive(Debug)]
pub struct Crowd<T> {
    queue: VecDeque<(Pid, T)>,
    held: HashMap<Pid, usize>,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Crowd { queue: VecDeque::new(), held: HashMap::new() }
    }
}

impl<T> Crowd<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// One more.
    pub fn push(&mut self, pid: Pid, client: T) {
        *self.held.entry(pid).or_default() += 1;
        self.queue.push_back((pid, client));
    }

    /// Takes the oldest of the process that has the most.
    pub fn give_way(&mut self) -> Option<T> {
        let most = self.held.values().copied().max()?;
        let index = self.queue.iter().position(|(pid, _)| self.held.get(pid) == Some(&most))?;
        self.take(index)
    }

    fn take(&mut self, index: usize) -> Option<T> {
        let (pid, client) = self.queue.remove(index)?;
        if let Some(held) = self.held.get_mut(&pid) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&pid);
            }
        }
        Some(client)
    }
}

impl<T> IntoIterator for Crowd<T> {
    type Item = (Pid, T);
    type IntoIter = std::collections::vec_deque::IntoIter<(Pid, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.queue.into_iter()
    }
}

/// All unfinished handshakes of one socket.
#[derive(Debug)]
pub struct Unfinished {
    places: Arc<Semaphore>,
    waiting: Arc<Mutex<Crowd<Waiting>>>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    /// Dropping it closes the handshake.
    _open: oneshot::Sender<()>,
}

/// The place of one handshake, which is over when this is dropped.
#[derive(Debug)]
pub struct Handshake {
    number: u64,
    waiting: Arc<Mutex<Crowd<Waiting>>>,
    closed: oneshot::Receiver<()>,
    // Freed last: whoever gets it finds this one gone from the queue.
    _place: OwnedSemaphorePermit,
}

fn locked(waiting: &Mutex<Crowd<Waiting>>) -> MutexGuard<'_, Crowd<Waiting>> {
    // Nothing that is done under the lock can leave it half done.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unfinished {
    /// None yet.
    pub fn new() -> Self {
        Unfinished { places: Arc::new(Semaphore::new(HANDSHAKES)), waiting: Arc::default() }
    }

    /// A place for the connection `number` of the process `pid`, and whether another handshake was closed for it.
    /// Waits only for that one to let go. `None` never happens while this is alive.
    pub async fn enter(&self, number: u64, pid: Pid) -> Option<(Handshake, bool)> {
        let free = self.places.clone().try_acquire_owned().ok();
        let crowded = free.is_none();
        let place = match free {
            Some(place) => place,
            None => {
                drop(locked(&self.waiting).give_way());
                self.places.clone().acquire_owned().await.ok()?
            }
        };
        let (open, closed) = oneshot::channel();
        locked(&self.waiting).push(pid, Waiting { number, _open: open });
        Some((Handshake { number, waiting: self.waiting.clone(), closed, _place: place }, crowded))
    }
}

impl Handshake {
    /// Comes back when this handshake is to give way.
    pub async fn closed(&mut self) {
        // Nothing is sent: the sender is dropped.
        let _ = (&mut self.closed).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut waiting = locked(&self.waiting);
        if let Some(index) = waiting.queue.iter().position(|(_, one)| one.number == self.number) {
            waiting.take(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn enter(unfinished: &Unfinished, number: u64, pid: i32) -> (Handshake, bool) {
        unfinished.enter(number, pid).await.unwrap()
    }

    fn is_closed(handshake: &mut Handshake) -> bool {
        handshake.closed.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    /// Enters while every place is taken; the handshakes of `others` let go when they are closed, as tasks do.
    async fn crowd(unfinished: &Unfinished, others: &mut Vec<Handshake>, number: u64, pid: i32) -> Vec<u64> {
        let entering = enter(unfinished, number, pid);
        tokio::pin!(entering);
        let mut gone = Vec::new();
        let (newcomer, crowded) = loop {
            tokio::select! {
                biased;
                entered = &mut entering => break entered,
                () = tokio::task::yield_now() => {
                    let closed = others.extract_if(.., is_closed);
                    gone.extend(closed.map(|handshake| handshake.number));
                }
            }
        };
        assert!(crowded);
        others.push(newcomer);
        gone
    }

    #[tokio::test]
    async fn a_process_that_connects_in_a_loop_loses_only_its_own() {
        let unfinished = Unfinished::new();
        let (mut honest, _) = enter(&unfinished, 0, 1).await;
        let mut silent = Vec::new();
        for number in 1..HANDSHAKES as u64 {
            let (handshake, crowded) = enter(&unfinished, number, 2).await;
            assert!(!crowded);
            silent.push(handshake);
        }
        for number in 0..1000_u64 {
            assert_eq!(crowd(&unfinished, &mut silent, HANDSHAKES as u64 + number, 2).await, [number + 1]);
        }
        assert!(!is_closed(&mut honest));
        assert_eq!(locked(&unfinished.waiting).len(), HANDSHAKES);
        drop((honest, silent));
        assert_eq!(locked(&unfinished.waiting).len(), 0);
        assert_eq!(locked(&unfinished.waiting).held.len(), 0);
        assert_eq!(unfinished.places.available_permits(), HANDSHAKES);
    }

    #[tokio::test]
    async fn of_many_processes_the_oldest_gives_way() {
        let unfinished = Unfinished::new();
        let mut all = Vec::new();
        for number in 0..HANDSHAKES as u64 {
            all.push(enter(&unfinished, number, number as i32).await.0);
        }
        for number in 0..100_u64 {
            let newcomer = HANDSHAKES as u64 + number;
            assert_eq!(crowd(&unfinished, &mut all, newcomer, newcomer as i32).await, [number]);
        }
    }
}
