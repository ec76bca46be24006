//! One subscriber's events, of one session or of all: replay, then live, as `Activity` signals to it alone.
//!
//! A bus queues without bound for a subscriber that does not read, and in the end for everybody. So on a bus at
//! most [`WINDOW`] bytes are under way: then the subscriber is pinged, and its answer, which cannot overtake what
//! was queued before the ping, opens the next window. One that stays silent gets one `Lagged` with the cursor to
//! go on from. On a private connection the writing half bounds it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use zbus::names::BusName;
use zbus::object_server::SignalEmitter;

use super::PATH;
use super::engine::{AllEvents, EventFeed};
use super::peer::Peer;
use super::sessions1::{EventTuple, Sessions1, event};
use super::variant::Budget;
use crate::client::reply::{error_reply, is_gone};
use crate::model::{Entry, MAX_SIGNAL_BODY, RunId};
use crate::service::{Batch, Piece};

/// Bytes under way to a subscriber on a bus before it must answer.
const WINDOW: usize = 256 << 10;
/// How long it may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// What a batch may hold as JSON, so that it fits a signal as D-Bus writes it, with names, types and padding.
const BATCH: usize = MAX_SIGNAL_BODY / 2;
/// What one record may fill of a signal's body; the rest is for the signal itself.
const ROOM: usize = MAX_SIGNAL_BODY - 1024;

/// What a subscription reads.
pub enum Source {
    /// One session, until its last record.
    One(RunId, Box<dyn EventFeed>),
    /// All sessions.
    All(Box<dyn AllEvents>),
}

/// One running subscription.
#[derive(Debug)]
pub struct Subscription {
    /// Where to send.
    pub connection: zbus::Connection,
    /// To whom.
    pub peer: Arc<Peer>,
    /// Its number.
    pub id: u32,
}

impl Source {
    /// The next piece; `None` when there is nothing more.
    async fn next(&mut self) -> Option<Piece> {
        match self {
            Source::All(feed) => feed.next(BATCH).await,
            Source::One(run_id, feed) => match feed.next(BATCH).await {
                Ok(batch) => batch.map(|batch| Piece::Batch { run_id: *run_id, batch }),
                Err(error) => Some(Piece::Broken { run_id: *run_id, resume: feed.position(), error }),
            },
        }
    }

    /// Whether nothing comes after this piece.
    fn ends_with(&self, piece: &Piece) -> bool {
        match piece {
            Piece::Batch { batch, .. } => batch.last && matches!(self, Source::One(..)),
            Piece::Broken { .. } => matches!(self, Source::One(..)),
            Piece::Missed => true,
        }
    }

    /// What `Lagged` says of a subscriber that does not read: the session and its place, or nothing of any of them.
    fn place(&self) -> (String, String) {
        match self {
            Source::One(run_id, feed) => (run_id.to_string(), feed.position()),
            Source::All(_) => (String::new(), String::new()),
        }
    }
}

impl Subscription {
    /// Sends until the source's end, the end of the subscription, or the subscriber's end.
    pub async fn run(
        self,
        mut source: Source,
        when_answered: oneshot::Receiver<()>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        // Resolves by being dropped: the answer with the subscription's number goes first.
        let _ = when_answered.await;
        if let Err(error) = self.deliver(&mut source, &mut stopped).await {
            tracing::debug!(run_id = source.place().0, %error, "a subscription ended with its subscriber");
        }
        // Unknown only if the peer left, and then all of it is gone.
        let _ = self.peer.end_subscription(self.id);
    }

    async fn deliver(&self, source: &mut Source, stopped: &mut oneshot::Receiver<()>) -> zbus::Result<()> {
        let emitter = self.emitter()?;
        let mut under_way = 0;
        loop {
            let piece = tokio::select! {
                biased;
                _ = &mut *stopped => return Ok(()),
                piece = source.next() => piece,
            };
            let Some(piece) = piece else { return Ok(()) };
            let last = source.ends_with(&piece);
            match piece {
                Piece::Batch { run_id, batch } => {
                    let run_id = run_id.to_string();
                    for (from, next, events, size) in signals(batch) {
                        Sessions1::activity(&emitter, &run_id, &from, &next, events).await?;
                        under_way += size;
                    }
                }
                Piece::Broken { run_id, resume, error } => {
                    tracing::warn!(%run_id, %error, "a subscription cannot be read further");
                    Sessions1::lagged(&emitter, &run_id.to_string(), &resume).await?;
                }
                Piece::Missed => {
                    tracing::warn!("a subscription to all sessions may have missed some");
                    Sessions1::lagged(&emitter, "", "").await?;
                }
            }
            if last {
                return Ok(());
            }
            if under_way >= WINDOW && self.connection.is_bus() {
                tokio::select! {
                    biased;
                    _ = &mut *stopped => return Ok(()),
                    answered = self.ping() => if !answered {
                        let (run_id, resume) = source.place();
                        tracing::info!(run_id, "a subscriber does not read and is told where to go on");
                        return Sessions1::lagged(&emitter, &run_id, &resume).await;
                    },
                }
                under_way = 0;
            }
        }
    }

    fn emitter(&self) -> zbus::Result<SignalEmitter<'static>> {
        let emitter = SignalEmitter::new(&self.connection, PATH)?;
        Ok(match self.peer.name() {
            Some(name) => emitter.set_destination(BusName::Unique(name.clone().into_inner())),
            None => emitter,
        })
    }

    /// Whether the subscriber answers; a refusal is an answer.
    async fn ping(&self) -> bool {
        let call = self.connection.call_method(
            self.peer.name().map(|name| BusName::Unique(name.as_ref())),
            "/",
            Some("org.freedesktop.DBus.Peer"),
            "Ping",
            &(),
        );
        match tokio::time::timeout(ANSWER, call).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error_reply(&error).is_some_and(|(name, _)| !is_gone(&name)),
            Err(_) => false,
        }
    }
}

/// A signal's `from`, `next` and events, and about how many bytes they take.
type Signal = (String, String, Vec<EventTuple>, usize);

/// A batch as signals of at most [`MAX_SIGNAL_BODY`] bytes. A record that does not fit one by itself is cut, and
/// says so with `shortened` (b) in its details: `Events` and `Follow` give all of it.
fn signals(batch: Batch) -> Vec<Signal> {
    let mut signals: Vec<Signal> = Vec::new();
    let mut from = batch.from;
    let mut gathered: Vec<EventTuple> = Vec::new();
    let mut size = 0;
    for entry in &batch.events {
        let (event, bytes) = sized(entry);
        if size + bytes > ROOM && !gathered.is_empty() {
            let next = gathered.last().map(|event| event.0.clone()).unwrap_or_default();
            signals.push((from, next.clone(), std::mem::take(&mut gathered), size));
            (from, size) = (next, 0);
        }
        size += bytes;
        gathered.push(event);
    }
    // One without events that is not the last says where a session stands.
    if !gathered.is_empty() || (batch.events.is_empty() && !batch.last) {
        signals.push((from, batch.next, gathered, size));
    }
    signals
}

/// An event that fits a signal, and its size as D-Bus writes it.
fn sized(entry: &Entry) -> (EventTuple, usize) {
    let (whole, cut) = event(entry, &mut Budget { text: MAX_SIGNAL_BODY, total: MAX_SIGNAL_BODY });
    let bytes = written(&whole);
    if bytes <= ROOM && !cut {
        return (whole, bytes);
    }
    let (mut short, _) = event(entry, &mut Budget { text: ROOM / 4, total: ROOM / 2 });
    short.3.insert("shortened".into(), true.into());
    let bytes = written(&short);
    (short, bytes)
}

fn written(event: &EventTuple) -> usize {
    let context = zbus::wire::serialized::Context::new(zbus::wire::Endian::Little, 0);
    zbus::wire::serialized_size(context, event).map_or(usize::MAX / 4, |size| *size)
}
