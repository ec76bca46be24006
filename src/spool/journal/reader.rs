use std::fs::File;
use std::path::{Path, PathBuf};

use super::header::Header;
use super::lines::{Chain, Checked, Lines, find_line_feed, read_at};
use super::{Cursor, CursorError, FILE, JournalError, record};
use crate::model::{Entry, RunId};
use crate::spool::private::Dir;

/// How much of a journal's end is read to find its last record, in bytes, before more is.
const TAIL: u64 = 1 << 20;
/// How far back a reader looks, in bytes, when the bytes before its cursor do not tell what the next line continues from.
const LOOK_BACK: u64 = 64 << 20;

/// Some records of a journal, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// The records; a damaged stretch is a `notice` among them, with the reason `damaged` and `seq` 0.
    pub entries: Vec<Entry>,
    /// The offset after the last of them.
    pub next: u64,
    /// There is more before the head.
    pub more: bool,
}

/// The end of a journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Tail {
    /// The last record that verifies; `None` if none does.
    pub last: Option<Entry>,
    /// The bytes after it, which are no record: torn, damaged, or being written.
    pub torn: u64,
}

/// The reading end of a journal: any number, in any process, while it is written or after. It reads what it opened, also
/// after the session was moved or removed.
#[derive(Debug)]
pub struct JournalReader {
    file: File,
    path: PathBuf,
    epoch: String,
    start: u64,
}

/// Opens a journal for reading; `None` if there is none. `claimed` gives the claim's epoch, which is asked for only where
/// the header cannot be trusted.
pub(crate) fn open(
    dir: &Dir,
    run_id: RunId,
    claimed: impl FnOnce() -> Result<Option<String>, JournalError>,
) -> Result<Option<JournalReader>, JournalError> {
    let Some(file) = dir.open_read(FILE)? else { return Ok(None) };
    let path = dir.path().join(FILE);
    let failed = |e| JournalError::io("read", &path, e);
    let size = file.metadata().map_err(failed)?.len();
    // A header is short; what is longer is none.
    let mut lines = Lines::new(&file, size.min(4096));
    let span = lines.next(0).map_err(failed)?;
    let header = span.and_then(|span| Chain::origin().check(lines.line(span), true));
    let (epoch, start) = match (header, span) {
        (Some(Checked::Header(header)), Some(span)) => {
            check_run(&header, run_id, &path)?;
            (header.epoch, span.end)
        }
        // From the very beginning, so that readers are told of the damage.
        _ => (claimed()?.ok_or_else(|| no_epoch(&path))?, 0),
    };
    Ok(Some(JournalReader { file, path, epoch, start }))
}

pub(super) fn check_run(header: &Header, run_id: RunId, path: &Path) -> Result<(), JournalError> {
    match header.run_id == run_id {
        true => Ok(()),
        false => Err(JournalError::damaged(path, format!("it is of session {}", header.run_id))),
    }
}

pub(super) fn no_epoch(path: &Path) -> JournalError {
    JournalError::damaged(path, "its header does not verify, and there is no claim that names its epoch")
}

impl JournalReader {
    /// The journal's random name, as cursors have it.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The offset of the first record: 0 where the header is damaged, so that reading says so.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The bytes in the file. While somebody writes, the durable head may be lower: ask the writer.
    pub fn size(&self) -> Result<u64, JournalError> {
        self.file.metadata().map(|data| data.len()).map_err(|e| JournalError::io("look at", &self.path, e))
    }

    /// The end of the last whole line, made durable by this call: how far a journal can be shown while its writer
    /// lives and has not said so itself. What the writer appends meanwhile may or may not be in it.
    pub fn written(&self) -> Result<u64, JournalError> {
        const STEP: u64 = 64 * 1024;
        let size = self.size()?;
        self.file.sync_data().map_err(|e| JournalError::io("sync", &self.path, e))?;
        let mut end = size;
        while end > 0 {
            let begin = end.saturating_sub(STEP);
            let mut bytes = vec![0; usize::try_from(end - begin).unwrap_or_default()];
            let read = read_at(&self.file, &mut bytes, begin)
                .map_err(|e| JournalError::io("read", &self.path, e))?;
            if let Some(at) = bytes[..read].iter().rposition(|&byte| byte == b'\n') {
                return Ok(begin + at as u64 + 1);
            }
            end = begin;
        }
        Ok(0)
    }

    /// The end of the last line that counts, made durable by this call: how far a journal can be shown whose writer is
    /// dead, before it is repaired. A repair cuts off what follows.
    pub fn counted(&self) -> Result<u64, JournalError> {
        let written = self.written()?;
        let (_, counted) = self.walk_to(written).map_err(|e| JournalError::io("read", &self.path, e))?;
        Ok(counted)
    }

    /// The cursor at an offset.
    pub fn cursor(&self, offset: u64) -> String {
        Cursor { epoch: self.epoch.clone(), offset }.to_string()
    }

    /// The offset of a cursor: `start`, `end` (the head), or one that this journal gave.
    pub fn resolve(&self, cursor: &str, head: u64) -> Result<u64, CursorError> {
        match cursor {
            "start" => return Ok(self.start),
            "end" => return Ok(head.max(self.start)),
            _ => {}
        }
        let Cursor { epoch, offset } = cursor.parse()?;
        if epoch != self.epoch {
            return Err(CursorError::OtherJournal);
        }
        if offset == self.start || offset == head {
            return Ok(offset);
        }
        if offset > head {
            return Err(CursorError::BeyondHead);
        }
        match offset > self.start && self.line_ends_at(offset) {
            true => Ok(offset),
            false => Err(CursorError::InsideRecord),
        }
    }

    // A failing disk gives no line feed here, and the reading after it says what failed.
    fn line_ends_at(&self, offset: u64) -> bool {
        let mut byte = [0];
        read_at(&self.file, &mut byte, offset - 1).is_ok_and(|read| read == 1) && byte == *b"\n"
    }

    /// The records from an offset (one that [`JournalReader::resolve`] or an earlier chunk gave) up to `head`: at most
    /// `max_records`, and about `max_bytes` of the file, but one at least if there is one.
    pub fn read(
        &self,
        from: u64,
        head: u64,
        max_records: usize,
        max_bytes: u64,
    ) -> Result<Chunk, JournalError> {
        self.read_io(from, head, max_records.max(1), max_bytes)
            .map_err(|e| JournalError::io("read", &self.path, e))
    }

    fn read_io(&self, from: u64, head: u64, max_records: usize, max_bytes: u64) -> std::io::Result<Chunk> {
        let mut lines = Lines::new(&self.file, head);
        let mut chain = Chain::at(&self.file, from)?;
        let mut page =
            Page { reader: self, from, max_records, max_bytes, entries: Vec::new(), next: from, gap: None };
        let mut at = from;
        while let Some(span) = lines.next(at)? {
            if page.gap.is_none() && page.is_full(span.end) {
                break;
            }
            let mut checked = chain.check(lines.line(span), at == 0);
            if checked.is_none() && at == from && from > 0 {
                // The bytes just before the cursor do not tell what this line continues from, or it is bad.
                chain = self.look_back(from)?;
                checked = chain.check(lines.line(span), false);
            }
            match checked {
                None => page.open_gap(span.start, &chain),
                Some(Checked::Header(_)) => page.next = span.end,
                Some(Checked::Record(entry)) => {
                    page.close_gap(span.start, Some(entry.seq));
                    if page.is_full(span.end) {
                        break;
                    }
                    page.push(entry, span.end);
                }
            }
            at = span.end;
        }
        // Still open only if nothing up to the head counts.
        page.close_gap(head, None);
        Ok(Chunk { more: page.next < head, entries: page.entries, next: page.next })
    }

    /// What a reader that came from further up would know before the line at `from`: goes over everything before it.
    /// Nothing less would do, since what counts depends on what counted before; but it is needed only where a journal is
    /// damaged.
    fn look_back(&self, from: u64) -> std::io::Result<Chain> {
        Ok(self.walk_to(from)?.0)
    }

    /// What the line at `to` may continue from, and where the last line before it ends that counts.
    fn walk_to(&self, to: u64) -> std::io::Result<(Chain, u64)> {
        let walk = self.walk(LOOK_BACK, to)?;
        Ok((walk.chain, walk.counted))
    }

    /// Goes over the last `back` bytes before `to`.
    fn walk(&self, back: u64, to: u64) -> std::io::Result<Walk> {
        let start = match to.checked_sub(back) {
            None | Some(0) => 0,
            Some(at) => find_line_feed(&self.file, at, to)?.unwrap_or(to),
        };
        let mut walk = Walk { chain: Chain::at(&self.file, start)?, counted: start, last: None };
        let mut lines = Lines::new(&self.file, to);
        let mut at = start;
        while let Some(span) = lines.next(at)? {
            at = span.end;
            match walk.chain.check(lines.line(span), span.start == 0) {
                None => continue,
                Some(Checked::Header(_)) => {}
                Some(Checked::Record(entry)) => walk.last = Some(entry),
            }
            walk.counted = at;
        }
        Ok(walk)
    }

    /// The end of the journal as it stands in the file, durable or not. Reads no more of it than the last record needs,
    /// and at most 64 MiB.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn tail(&self) -> Result<Tail, JournalError> {
        let failed = |e| JournalError::io("read", &self.path, e);
        let size = self.size()?;
        let mut walk = self.walk(TAIL, size).map_err(failed)?;
        if walk.last.is_none() && size > TAIL {
            walk = self.walk(LOOK_BACK, size).map_err(failed)?;
        }
        let cursor = self.cursor(walk.counted);
        Ok(Tail { last: walk.last.map(|last| Entry { cursor, ..last }), torn: size - walk.counted })
    }
}

/// What a walk over a part of a journal found.
struct Walk {
    chain: Chain,
    /// Where the last line ends that counts.
    counted: u64,
    /// The last record among them.
    last: Option<Entry>,
}

/// A chunk in the making.
struct Page<'a> {
    reader: &'a JournalReader,
    from: u64,
    max_records: usize,
    max_bytes: u64,
    entries: Vec<Entry>,
    next: u64,
    gap: Option<Gap>,
}

/// A stretch in which nothing counts so far.
struct Gap {
    start: u64,
    seq: Option<u64>,
    time: u64,
}

impl Page<'_> {
    /// Whether a record that ends at `end` is one too many.
    fn is_full(&self, end: u64) -> bool {
        self.entries.len() >= self.max_records
            || (!self.entries.is_empty() && end - self.from > self.max_bytes)
    }

    fn push(&mut self, mut entry: Entry, end: u64) {
        entry.cursor = self.reader.cursor(end);
        self.entries.push(entry);
        self.next = end;
    }

    fn open_gap(&mut self, start: u64, before: &Chain) {
        self.gap.get_or_insert(Gap { start, seq: before.seq, time: before.time });
    }

    fn close_gap(&mut self, end: u64, next_seq: Option<u64>) {
        let Some(gap) = self.gap.take() else { return };
        let records = missing(gap.seq, next_seq);
        self.push(record::gap(String::new(), gap.time, end - gap.start, records), end);
    }
}

/// How many records are missing between two numbers, where both are known.
pub(super) fn missing(before: Option<u64>, next: Option<u64>) -> Option<u64> {
    next?.checked_sub(before?)?.checked_sub(1)
}
