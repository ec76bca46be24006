//! Reading a session's journal: pages, follow, subscriptions. All go by cursor up to the durable head, so that replay
//! and live are the same thing, without a gap and without a repetition.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use nix::fcntl::OFlag;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::blocking::blocking;
use super::live::Head;
use super::{Batch, Error, FollowOptions, FollowPermit, Hub, Page};
use crate::model::{Entry, RunId, shown};
use crate::spool::SessionDir;
use crate::spool::journal::{Chunk, Cursor, CursorError, JournalReader};

/// How much a follower reads at once, in bytes: what a pipe holds, so that one that does not read keeps little.
const FOLLOW_CHUNK: u64 = 64 * 1024;

/// A session's journal as it grows.
struct Source {
    dir: SessionDir,
    head: watch::Receiver<Head>,
    journal: OnceLock<Arc<JournalReader>>,
}

impl Source {
    async fn open(hub: &Arc<Hub>, run_id: RunId) -> Result<Source, Error> {
        if let Some(live) = hub.reach(run_id).await? {
            return Ok(Source {
                dir: live.dir.clone(),
                head: live.head.subscribe(),
                journal: OnceLock::new(),
            });
        }
        let dir = hub.folder(run_id).await?;
        let outcome_dir = dir.clone();
        let outcome = blocking(move || Ok(outcome_dir.outcome()?)).await?;
        // The sender goes at once: a settled session's head never changes.
        let (_, head) = watch::channel(Head::settled(outcome.as_ref()));
        Ok(Source { dir, head, journal: OnceLock::new() })
    }

    fn head(&self) -> Head {
        self.head.borrow().clone()
    }

    async fn journal(&self) -> Result<Option<Arc<JournalReader>>, Error> {
        if let Some(journal) = self.journal.get() {
            return Ok(Some(journal.clone()));
        }
        let dir = self.dir.clone();
        let opened = blocking(move || Ok(dir.journal()?)).await?;
        Ok(opened.map(|journal| self.journal.get_or_init(|| Arc::new(journal)).clone()))
    }

    /// The offset that a cursor names. Without a journal, only `start` and `end` name something: its beginning.
    async fn resolve(&self, cursor: &str) -> Result<Position, Error> {
        let head = self.head();
        if head.epoch.is_none() {
            return match cursor {
                "start" | "end" => Ok(Position::Start),
                _ => match cursor.parse::<Cursor>() {
                    Ok(_) => Err(Error::ForeignCursor),
                    Err(_) => Err(Error::MalformedCursor(shown(cursor))),
                },
            };
        }
        let Some(journal) = self.journal().await? else { return Ok(Position::Start) };
        let cursor = cursor.to_owned();
        blocking(move || match journal.resolve(&cursor, head.offset) {
            Ok(offset) => Ok(Position::At(offset)),
            Err(CursorError::Malformed) => Err(Error::MalformedCursor(shown(&cursor))),
            Err(CursorError::OtherJournal) => Err(Error::ForeignCursor),
            Err(CursorError::BeyondHead) => Err(Error::CursorBeyondHead),
            Err(CursorError::InsideRecord) => Err(Error::CursorInsideRecord),
            Err(CursorError::Expired) => Err(Error::CursorExpired),
        })
        .await
    }

    /// What stands between a position and the durable head; `None` while there is no journal.
    async fn read(&self, from: Position, records: usize, bytes: u64) -> Result<Option<Read>, Error> {
        let head = self.head();
        if head.epoch.is_none() {
            return Ok(None);
        }
        let Some(journal) = self.journal().await? else {
            // It was removed before this reader had opened it, which must not look as if there had been nothing.
            return if head.offset > 0 { Err(Error::CursorExpired) } else { Ok(None) };
        };
        blocking(move || {
            let from = match from {
                Position::Start => journal.start(),
                Position::At(offset) => offset,
            };
            let chunk = journal.read(from, head.offset, records, bytes)?;
            Ok(Some(Read { from: journal.cursor(from), next_cursor: journal.cursor(chunk.next), chunk }))
        })
        .await
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the first record.
    Start,
    At(u64),
}

struct Read {
    from: String,
    next_cursor: String,
    chunk: Chunk,
}

/// The folder of a session, the place in its journal that a cursor names, and where that ends; `None` while there is no
/// journal.
pub(super) async fn place(
    hub: &Arc<Hub>,
    run_id: RunId,
    cursor: &str,
) -> Result<Option<(SessionDir, Cursor, u64)>, Error> {
    let source = Source::open(hub, run_id).await?;
    let position = source.resolve(cursor).await?;
    let head = source.head();
    let Some(epoch) = head.epoch else { return Ok(None) };
    let offset = match position {
        Position::At(offset) => offset,
        // One that ended without a journal.
        Position::Start => 0,
    };
    Ok(Some((source.dir, Cursor { epoch, offset }, head.offset)))
}

/// See [`Sessions::events`](super::Sessions::events).
pub(super) async fn page(hub: &Arc<Hub>, run_id: RunId, cursor: &str, limit: u32) -> Result<Page, Error> {
    let source = Source::open(hub, run_id).await?;
    let position = source.resolve(cursor).await?;
    let limits = hub.config().limits.clone();
    let records = if limit == 0 { limits.page_records } else { limit.min(limits.page_records) };
    Ok(match source.read(position, records as usize, limits.page_bytes).await? {
        Some(read) => Page { next: read.next_cursor, more: read.chunk.more, events: read.chunk.entries },
        None => Page { next: "start".to_owned(), more: false, events: Vec::new() },
    })
}

/// One subscription: replay, then live.
pub struct Feed {
    source: Source,
    position: Position,
    cursor: String,
    over: bool,
}

/// See [`Sessions::subscribe`](super::Sessions::subscribe).
pub(super) async fn subscribe(hub: &Arc<Hub>, run_id: RunId, cursor: &str) -> Result<Feed, Error> {
    let source = Source::open(hub, run_id).await?;
    let position = source.resolve(cursor).await?;
    let cursor = match position {
        Position::Start => "start".to_owned(),
        Position::At(_) => match cursor {
            "start" | "end" => {
                source.read(position, 1, 1).await?.map_or_else(|| cursor.to_owned(), |read| read.from)
            }
            _ => cursor.to_owned(),
        },
    };
    Ok(Feed { source, position, cursor, over: false })
}

impl Feed {
    /// The next events, at most about `max_bytes` of them as JSON (one at least), waiting for them as long as it
    /// takes. `None` after the batch with `last`. Safe to drop at any await.
    pub async fn next(&mut self, max_bytes: usize) -> Result<Option<Batch>, Error> {
        loop {
            if self.over {
                return Ok(None);
            }
            let head = self.source.head.borrow_and_update().clone();
            if let Some(read) = self.source.read(self.position, 1024, max_bytes as u64).await?
                && (!read.chunk.entries.is_empty() || head.closed)
            {
                self.position = Position::At(read.chunk.next);
                self.cursor = read.next_cursor.clone();
                self.over = head.closed && read.chunk.next >= head.offset;
                let (from, next) = (read.from, read.next_cursor);
                return Ok(Some(Batch { from, next, events: read.chunk.entries, last: self.over }));
            }
            if head.closed {
                self.over = true;
                let at = self.cursor.clone();
                return Ok(Some(Batch { from: at.clone(), next: at, events: Vec::new(), last: true }));
            }
            if self.source.head.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// The cursor from which the next batch will start.
    pub fn position(&self) -> String {
        self.cursor.clone()
    }
}

/// See [`Sessions::follow`](super::Sessions::follow).
pub(super) async fn follow(
    hub: &Arc<Hub>,
    run_id: RunId,
    cursor: &str,
    options: FollowOptions,
    permit: FollowPermit,
) -> Result<OwnedFd, Error> {
    let feed = subscribe(hub, run_id, cursor).await?;
    let no_pipe = |error: std::io::Error| Error::Internal(format!("no pipe can be made: {error}"));
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|errno| no_pipe(errno.into()))?;
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
        .map_err(|errno| no_pipe(errno.into()))?;
    let writer = pipe::Sender::from_owned_fd(writer).map_err(no_pipe)?;
    tokio::spawn(async move {
        write_lines(feed, writer, options).await;
        drop(permit);
    });
    Ok(reader)
}

/// Writes until the session's end, or the reader's.
async fn write_lines(mut feed: Feed, mut writer: pipe::Sender, options: FollowOptions) {
    let until = options.replay_only.then(|| feed.source.head().offset);
    loop {
        let reached = |until: u64| until == 0 || matches!(feed.position, Position::At(at) if at >= until);
        if until.is_some_and(reached) {
            return;
        }
        // Nothing is read from the disk for a reader that takes nothing.
        if writer.writable().await.is_err() {
            return;
        }
        let batch = tokio::select! {
            batch = feed.next(FOLLOW_CHUNK as usize) => batch,
            // The reader closed its end while nothing was written.
            _ = writer.ready(Interest::ERROR) => return,
        };
        let Ok(Some(batch)) = batch else { return };
        let mut lines = Vec::new();
        for entry in batch.events {
            write_line(&mut lines, entry, options.raw);
        }
        if writer.write_all(&lines).await.is_err() {
            return;
        }
        if batch.last {
            return;
        }
    }
}

fn write_line(lines: &mut Vec<u8>, mut entry: Entry, raw: bool) {
    // A line that says nothing more than itself has nothing else to show.
    if !raw && entry.kind != "raw" {
        entry.raw = None;
        entry.raw64 = None;
    }
    if serde_json::to_writer(&mut *lines, &entry).is_ok() {
        lines.push(b'\n');
    }
}
