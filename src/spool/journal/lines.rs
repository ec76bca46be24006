use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::chain::{self, Sum, TAIL};
use super::header::Header;
use super::record;
use crate::model::Entry;

/// Bytes read at once.
const BLOCK: usize = 64 << 10;
/// A line that is longer than this is only taken into memory once its end has the form of one.
const LONG: usize = 1 << 20;

/// A stretch of the file up to and with a line feed, or to the head where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
    /// It is in memory and may be a line. Otherwise it is none, for certain.
    whole: bool,
}

/// Goes through a journal line by line, up to a head, with bounded memory on whatever stands there.
pub(super) struct Lines<'a> {
    file: &'a File,
    head: u64,
    /// A part of the file that begins at `base`.
    buffer: Vec<u8>,
    base: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(file: &'a File, head: u64) -> Lines<'a> {
        Lines { file, head, buffer: Vec::new(), base: 0 }
    }

    /// The bytes of a span that [`Lines::next`] gave last; `None` if it cannot be a line.
    pub(super) fn line(&self, span: Span) -> Option<&[u8]> {
        let from = span.start.checked_sub(self.base)? as usize;
        let to = span.end.checked_sub(self.base)? as usize;
        self.buffer.get(from..to).filter(|_| span.whole)
    }

    /// The span that begins at `start`; `None` at the head.
    pub(super) fn next(&mut self, start: u64) -> io::Result<Option<Span>> {
        if start >= self.head {
            return Ok(None);
        }
        if start < self.base || start > self.base + self.buffer.len() as u64 {
            self.buffer.clear();
            self.base = start;
        }
        let mut seen = 0;
        loop {
            let pending = &self.buffer[(start - self.base) as usize..];
            if let Some(at) = pending[seen..].iter().position(|&b| b == b'\n') {
                let end = start + (seen + at + 1) as u64;
                return Ok(Some(Span { start, end, whole: true }));
            }
            seen = pending.len();
            if seen >= LONG {
                return self.long_line(start, seen as u64).map(Some);
            }
            if !self.fill(start)? {
                // No line feed before the head, or the file ends before it.
                return Ok(Some(Span { start, end: self.head, whole: false }));
            }
        }
    }

    /// Reads one more block; `false` if there is nothing more.
    fn fill(&mut self, start: u64) -> io::Result<bool> {
        self.buffer.drain(..(start - self.base) as usize);
        self.base = start;
        let old = self.buffer.len();
        let at = self.base + old as u64;
        let wanted = (self.head - at).min((BLOCK + old) as u64) as usize;
        self.buffer.resize(old + wanted, 0);
        let read = read_at(self.file, &mut self.buffer[old..], at)?;
        self.buffer.truncate(old + read);
        Ok(read > 0)
    }

    fn long_line(&mut self, start: u64, seen: u64) -> io::Result<Span> {
        let not_whole = |end| Ok(Span { start, end, whole: false });
        let Some(end) = find_line_feed(self.file, start + seen, self.head)? else {
            return not_whole(self.head);
        };
        if tail_before(self.file, end)?.is_none() {
            return not_whole(end);
        }
        self.buffer.clear();
        self.base = start;
        self.buffer.resize((end - start) as usize, 0);
        match read_at(self.file, &mut self.buffer, start)? == self.buffer.len() {
            true => Ok(Span { start, end, whole: true }),
            false => not_whole(end),
        }
    }
}

/// The end of the line that `from` is in, if it ends before the head.
pub(super) fn find_line_feed(file: &File, from: u64, head: u64) -> io::Result<Option<u64>> {
    let mut block = vec![0; BLOCK];
    let mut at = from;
    while at < head {
        let wanted = (head - at).min(BLOCK as u64) as usize;
        let read = read_at(file, &mut block[..wanted], at)?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(found) = block[..read].iter().position(|&b| b == b'\n') {
            return Ok(Some(at + found as u64 + 1));
        }
        at += read as u64;
    }
    Ok(None)
}

/// Reads as much as there is, up to the length of `into`.
pub(super) fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match file.read_at(&mut into[read..], at + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

/// The sum of the line that ends at `end`, if what stands there has the form of one.
fn tail_before(file: &File, end: u64) -> io::Result<Option<Sum>> {
    let Some(at) = end.checked_sub(TAIL as u64) else { return Ok(None) };
    let mut tail = [0; TAIL];
    let read = read_at(file, &mut tail, at)?;
    Ok(chain::written(&tail[..read]))
}

/// What a line is that verified.
pub(super) enum Checked {
    /// The journal's header.
    Header(Header),
    /// A record, its cursor still empty.
    Record(Entry),
}

/// What the next line may continue from.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// The sum that the line before it bears.
    written: Option<Sum>,
    /// The sum that the line before it should bear.
    computed: Option<Sum>,
    /// The sum of the last line that counted.
    good: Option<Sum>,
    /// The number of the last record that counted, where it is known.
    pub(super) seq: Option<u64>,
    /// Its time, or 0.
    pub(super) time: u64,
}

impl Chain {
    /// Before the header.
    pub(super) fn origin() -> Chain {
        Chain { written: Some(Sum::ORIGIN), computed: None, good: None, seq: Some(0), time: 0 }
    }

    /// Before the line at `offset`, from the bytes just before it alone.
    pub(super) fn at(file: &File, offset: u64) -> io::Result<Chain> {
        if offset == 0 {
            return Ok(Chain::origin());
        }
        Ok(Chain { written: tail_before(file, offset)?, computed: None, good: None, seq: None, time: 0 })
    }

    /// The sum of the last line that counted.
    pub(super) fn good(&self) -> Option<Sum> {
        self.good
    }

    /// Goes over a line: what it is if it counts. `first`: it stands at the very beginning.
    pub(super) fn check(&mut self, line: Option<&[u8]>, first: bool) -> Option<Checked> {
        let Some((body, tail)) = line.and_then(chain::split) else {
            (self.written, self.computed) = (None, None);
            return None;
        };
        let written = chain::written(tail);
        let previous = [self.written, self.computed, self.good].into_iter().flatten();
        let mut verified = None;
        let mut computed = None;
        for previous in previous {
            let sum = previous.next(body);
            computed.get_or_insert(sum);
            if written == Some(sum) {
                verified = written;
                break;
            }
        }
        (self.written, self.computed) = (written, computed);
        let sum = verified?;
        let line = line?;
        let checked = match first {
            true => Checked::Header(Header::parse(line)?),
            false => Checked::Record(record::parse(line).filter(|r| self.seq.is_none_or(|seq| r.seq > seq))?),
        };
        self.good = Some(sum);
        if let Checked::Record(entry) = &checked {
            self.seq = Some(entry.seq);
            self.time = entry.time;
        }
        Some(checked)
    }
}
