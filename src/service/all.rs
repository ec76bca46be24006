//! A subscription to all sessions: those that have not ended, those that the subscriber names, and those that come. Each is
//! replayed and then live, without a gap and without a repetition; among each other they have no order.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::broadcast::{self, error::RecvError};

use super::reading::{self, Feed};
use super::{Batch, Change, Error, Hub, Piece};
use crate::model::{RunId, shown};

/// A feed with what it gave last.
type Given = (RunId, Feed, Result<Option<Batch>, Error>);

/// See the module.
pub struct AllFeed {
    hub: Weak<Hub>,
    changes: broadcast::Receiver<Change>,
    /// What is said first: where sessions stand of which only what comes is wanted.
    opening: Vec<Piece>,
    /// Feeds that are not read from yet.
    idle: Vec<(RunId, Feed)>,
    reading: FuturesUnordered<BoxFuture<'static, Given>>,
    /// The sessions of both.
    followed: HashSet<RunId>,
}

/// See [`Sessions::subscribe_all`](super::Sessions::subscribe_all).
pub(super) async fn subscribe(
    hub: &Arc<Hub>,
    cursor: &str,
    cursors: BTreeMap<RunId, String>,
) -> Result<AllFeed, Error> {
    if !matches!(cursor, "start" | "end") {
        return Err(Error::MalformedCursor(shown(cursor)));
    }
    // First the changes, then the sessions that are there: one that comes between them is found twice and taken once.
    let changes = hub.changes.subscribe();
    let live: Vec<RunId> = hub.live().keys().copied().collect();
    let mut feed = AllFeed {
        hub: Arc::downgrade(hub),
        changes,
        opening: Vec::new(),
        idle: Vec::new(),
        reading: FuturesUnordered::new(),
        followed: HashSet::new(),
    };
    for run_id in live.into_iter().filter(|run_id| !cursors.contains_key(run_id)) {
        // One that was removed meanwhile had ended: it is not among those that were asked for.
        match reading::subscribe(hub, run_id, cursor).await {
            Ok(session) => {
                if cursor == "end" {
                    feed.opening.push(standing(run_id, &session));
                }
                feed.add(run_id, session);
            }
            Err(Error::Removed(_) | Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (run_id, cursor) in cursors {
        let session = reading::subscribe(hub, run_id, &cursor).await?;
        feed.add(run_id, session);
    }
    Ok(feed)
}

/// Where a session stands: a batch without events. Where there is no journal yet it stands at its start.
fn standing(run_id: RunId, feed: &Feed) -> Piece {
    let place = match feed.position() {
        word if word == "end" => "start".to_owned(),
        place => place,
    };
    let batch = Batch { from: place.clone(), next: place, events: Vec::new(), last: false };
    Piece::Batch { run_id, batch }
}

impl AllFeed {
    fn add(&mut self, run_id: RunId, feed: Feed) {
        if self.followed.insert(run_id) {
            self.idle.push((run_id, feed));
        }
    }

    /// The next piece, with at most about `max_bytes` of events as JSON (one event at least), waiting for it as long as it
    /// takes. `None` when the service is gone. Dropping the future ends the feed.
    pub async fn next(&mut self, max_bytes: usize) -> Option<Piece> {
        if let Some(piece) = self.opening.pop() {
            return Some(piece);
        }
        loop {
            for (run_id, mut feed) in self.idle.drain(..) {
                self.reading.push(Box::pin(async move {
                    let given = feed.next(max_bytes).await;
                    (run_id, feed, given)
                }));
            }
            tokio::select! {
                // New sessions first: a session must be known to be followed before its end is told.
                biased;
                change = self.changes.recv() => match change {
                    Ok(Change::Added(run_id)) if !self.followed.contains(&run_id) => {
                        let hub = self.hub.upgrade()?;
                        match reading::subscribe(&hub, run_id, "start").await {
                            Ok(feed) => self.add(run_id, feed),
                            Err(error) => {
                                return Some(Piece::Broken { run_id, resume: "start".to_owned(), error });
                            }
                        }
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => return Some(Piece::Missed),
                    Err(RecvError::Closed) => return None,
                },
                Some((run_id, feed, given)) = self.reading.next() => match given {
                    Ok(Some(batch)) => {
                        match batch.last {
                            true => drop(self.followed.remove(&run_id)),
                            false => self.idle.push((run_id, feed)),
                        }
                        return Some(Piece::Batch { run_id, batch });
                    }
                    Ok(None) => drop(self.followed.remove(&run_id)),
                    Err(error) => {
                        self.followed.remove(&run_id);
                        return Some(Piece::Broken { run_id, resume: feed.position(), error });
                    }
                },
            }
        }
    }
}
