//! Group commit on a thread of its own, so that a slow disk never keeps the executor from draining its program.
//!
//! The executor appends encoded records to a queue in memory. The thread takes all that is there, writes it, calls
//! fdatasync once, and publishes the new durable head; what arrives meanwhile joins the next commit. A lone record
//! waits for nothing. The queue is bounded by its user, who asks [`Committer::pending`] before reading more.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::spool::journal::{Appender, JournalError};

/// About so many bytes go into one commit at the most: on a slow disk, progress then still shows often.
const COMMIT: usize = 1 << 20;

/// How far the journal is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durable {
    /// Up to this offset.
    pub head: u64,
    /// Why it will go no further.
    pub failure: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    durable: watch::Receiver<Durable>,
    /// Offset in the journal at which the next record will begin.
    offset: u64,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole records, in pieces of about [`COMMIT`] bytes.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes in them.
    bytes: usize,
    /// Bytes that the thread has taken and not yet committed.
    in_flight: usize,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it holds the lock, and a queue of bytes is never half-changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Committer {
    /// Takes over a journal that nobody else writes.
    pub fn start(appender: Appender) -> std::io::Result<Committer> {
        let shared = Arc::new(Shared::default());
        let offset = appender.offset();
        let (publish, durable) = watch::channel(Durable { head: appender.head(), failure: None });
        let thread = std::thread::Builder::new().name("committer".into()).stack_size(128 * 1024).spawn({
            let shared = shared.clone();
            move || commit_until_closed(&shared, appender, &publish)
        })?;
        Ok(Committer { shared, thread: Some(thread), durable, offset })
    }

    /// Queues whole records.
    pub fn push(&mut self, records: &[u8]) {
        self.offset += records.len() as u64;
        let mut queue = self.shared.queue();
        queue.bytes += records.len();
        match queue.pieces.back_mut() {
            Some(last) if last.len() < COMMIT => last.extend_from_slice(records),
            _ => queue.pieces.push_back(records.to_vec()),
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Bytes that are queued or being written.
    pub fn pending(&self) -> usize {
        let queue = self.shared.queue();
        queue.bytes + queue.in_flight
    }

    /// Where the next record will begin: the journal's size once all is durable.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Follows the durable head.
    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.durable.clone()
    }

    /// Waits until everything queued so far is durable, or never will be.
    pub async fn flush(&self) -> Durable {
        let mut durable = self.durable.clone();
        let wanted = self.offset;
        match durable.wait_for(|d| d.head >= wanted || d.failure.is_some()).await {
            Ok(durable) => durable.clone(),
            Err(_) => {
                Durable { head: self.durable.borrow().head, failure: Some("the committer ended".into()) }
            }
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn commit_until_closed(shared: &Shared, mut appender: Appender, publish: &watch::Sender<Durable>) {
    loop {
        let batch = {
            let mut queue = shared.queue();
            while queue.pieces.is_empty() && !queue.closed {
                queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(batch) = queue.pieces.pop_front() else { return };
            queue.bytes -= batch.len();
            queue.in_flight = batch.len();
            batch
        };
        let result = append_and_commit(&mut appender, &batch);
        shared.queue().in_flight = 0;
        match result {
            Ok(head) => publish.send_modify(|durable| durable.head = head),
            // A failed fsync is never retried: whatever is queued stays unacknowledged.
            Err(error) => {
                publish.send_modify(|durable| durable.failure = Some(error.to_string()));
                return;
            }
        }
    }
}

fn append_and_commit(appender: &mut Appender, batch: &[u8]) -> Result<u64, JournalError> {
    appender.append(batch)?;
    appender.commit()
}
