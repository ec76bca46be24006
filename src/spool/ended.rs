//! `ended.log`: the sessions that ended, in order, so that a list starts from the newest without looking at them all.
//!
//! It is derived. Its first line bears a random id; a page's token is `<id>-<offset>`, so that a token of a list that was
//! rebuilt since is recognised. A line whose session is not in `ended/` (removed since, or a settling that crashed) is
//! passed over. A list that is missing or bears a line that does not verify is removed and built again from `ended/`
//! when the next page is asked for.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::SpoolError;
use super::journal::{new_epoch, valid_epoch};
use super::private::{Dir, cut_file, sync_data, write_at};
use super::sealed::{seal, unseal};
use crate::model::{End, RunId};

/// Its name in the spool.
pub(crate) const FILE: &str = "ended.log";
const VERSION: u32 = 1;
/// Bytes read at once, backwards.
const BLOCK: u64 = 16 << 10;
/// Lines of sessions that are gone that one page passes over at most, for each that it was asked for.
const PASSED_OVER: usize = 16;

/// One ended session, as the list has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EndedLine {
    /// The session.
    #[serde(rename = "run_id")]
    pub run_id: RunId,
    /// When it ended, µs since 1970.
    pub ended: u64,
    /// How.
    pub end: End,
    /// Its profile.
    pub profile: String,
    /// The submitter's own label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What its folder took of the disk then, in bytes; absent in lists of earlier versions, and where it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Some ended sessions, the last ended first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedPage {
    /// The sessions; there can be fewer than asked for although there is a next page.
    pub lines: Vec<EndedLine>,
    /// The token of the next page; `None` when there is none.
    pub next: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "ended-log")]
    version: u32,
    id: String,
}

/// An ended session as a survey needs it, without what only people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Brief {
    pub run_id: RunId,
    pub ended: u64,
    #[serde(default)]
    pub bytes: Option<u64>,
}

/// The list, open; `None` where it has to be built first.
#[derive(Debug)]
pub(crate) struct EndedLog {
    list: Option<List>,
}

#[derive(Debug)]
struct List {
    file: File,
    id: String,
    /// After the header.
    start: u64,
    size: u64,
    /// Sessions whose line is here although they may not be in `ended/`: those of the last lines, after a crash, and
    /// those whose move failed.
    recent: HashSet<RunId>,
}

impl EndedLog {
    /// Opens the list. The cost does not depend on its length. `fresh`: no session has ended yet.
    pub(crate) fn open(dir: &Dir, fresh: bool) -> Result<EndedLog, SpoolError> {
        let mut log = EndedLog { list: None };
        match dir.open_write(FILE)? {
            Some(file) => {
                log.list = List::open(file).map_err(|e| SpoolError::io("read", dir.path().join(FILE), e))?;
                if log.list.is_none() {
                    log.forget(dir)?;
                }
            }
            None if fresh => log.write(dir, &[])?,
            None => {}
        }
        Ok(log)
    }

    /// Adds a session that is about to be moved to `ended/`, durably. A list that has to be built anyway will find it
    /// there.
    pub(crate) fn add(&mut self, dir: &Dir, line: &EndedLine) -> Result<(), SpoolError> {
        let Some(list) = &mut self.list else { return Ok(()) };
        if list.recent.contains(&line.run_id) {
            return Ok(());
        }
        let path = dir.path().join(FILE);
        let bytes = seal(line).map_err(|e| SpoolError::malformed(&path, &e))?;
        if let Err(e) = write_at(&list.file, &bytes, list.size, FILE) {
            // If a part of the line cannot be cut off, the list is built again: it is derived.
            if cut_file(&list.file, list.size, FILE).is_err() {
                self.forget(dir)?;
            }
            return Err(SpoolError::io("append to", &path, e));
        }
        if let Err(e) = sync_data(&list.file, FILE) {
            self.forget(dir)?;
            return Err(SpoolError::io("sync", &path, e));
        }
        list.size += bytes.len() as u64;
        list.recent.insert(line.run_id);
        Ok(())
    }

    /// The session is in `ended/` by now: it will not be added again.
    pub(crate) fn settled(&mut self, run_id: RunId) {
        if let Some(list) = &mut self.list {
            list.recent.remove(&run_id);
        }
    }

    /// A page. `build` gives every session in `ended/`, in any order, and `is_there` tells whether one is there.
    pub(crate) fn page(
        &mut self,
        dir: &Dir,
        before: Option<&str>,
        limit: usize,
        is_there: impl Fn(RunId) -> Result<bool, SpoolError>,
        build: impl Fn() -> Result<Vec<EndedLine>, SpoolError>,
    ) -> Result<EndedPage, SpoolError> {
        let token = before.map(parse_token).transpose()?;
        for _ in 0..2 {
            if self.list.is_none() {
                let mut lines = build()?;
                lines.sort_by_key(|line| (line.ended, line.run_id));
                self.write(dir, &lines)?;
            }
            let Some(list) = &self.list else { break };
            let from = match &token {
                None => list.size,
                Some((id, _)) if *id != list.id => return Err(SpoolError::ListChanged),
                Some((_, offset)) => *offset,
            };
            if from > list.size || from < list.start || !list.line_ends_at(from) {
                return Err(SpoolError::BadToken(before.unwrap_or_default().chars().take(80).collect()));
            }
            match list.page(from, limit.max(1), &is_there, dir)? {
                Some(page) => return Ok(page),
                None => self.forget(dir)?,
            }
        }
        Err(SpoolError::damaged(dir.path().join(FILE), "it does not verify although it was just written"))
    }

    /// What is in the list now, to be read without keeping anybody from adding to it.
    pub(crate) fn snapshot(
        &mut self,
        dir: &Dir,
        build: impl Fn() -> Result<Vec<EndedLine>, SpoolError>,
    ) -> Result<Snapshot, SpoolError> {
        if self.list.is_none() {
            let mut lines = build()?;
            lines.sort_by_key(|line| (line.ended, line.run_id));
            self.write(dir, &lines)?;
        }
        let path = dir.path().join(FILE);
        let Some(list) = &self.list else {
            return Err(SpoolError::damaged(path, "it does not verify although it was just written"));
        };
        let file = list.file.try_clone().map_err(|e| SpoolError::io("open", &path, e))?;
        Ok(Snapshot { file, path, start: list.start, size: list.size })
    }

    /// Writes the list anew without the lines of sessions that are gone. Tokens of pages given before are of another list
    /// then.
    pub(crate) fn compact(
        &mut self,
        dir: &Dir,
        is_there: impl Fn(RunId) -> Result<bool, SpoolError>,
    ) -> Result<(), SpoolError> {
        let Some(list) = &self.list else { return Ok(()) };
        let bytes = read(&list.file, list.start, list.size - list.start)
            .map_err(|e| SpoolError::io("read", dir.path().join(FILE), e))?;
        let mut lines = Vec::new();
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            let Some(line) = unseal::<EndedLine>(line) else { return self.forget(dir) };
            // What is about to be moved has its line before it is there.
            if list.recent.contains(&line.run_id) || is_there(line.run_id)? {
                lines.push(line);
            }
        }
        let recent = list.recent.clone();
        self.write(dir, &lines)?;
        if let Some(list) = &mut self.list {
            list.recent.extend(recent);
        }
        Ok(())
    }

    /// Gives up the list, so that it is built again, also by a later daemon.
    pub(crate) fn forget(&mut self, dir: &Dir) -> Result<(), SpoolError> {
        self.list = None;
        dir.unlink(FILE)?;
        dir.sync()
    }

    fn write(&mut self, dir: &Dir, lines: &[EndedLine]) -> Result<(), SpoolError> {
        let path = dir.path().join(FILE);
        let malformed = |e: serde_json::Error| SpoolError::malformed(&path, &e);
        let mut bytes = seal(&Header { version: VERSION, id: new_epoch() }).map_err(malformed)?;
        for line in lines {
            bytes.extend(seal(line).map_err(malformed)?);
        }
        dir.replace(FILE, &bytes)?;
        let file = dir.open_write(FILE)?.ok_or_else(|| SpoolError::damaged(&path, "it vanished"))?;
        self.list = List::open(file).map_err(|e| SpoolError::io("read", &path, e))?;
        Ok(())
    }
}

/// The list as it was at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    file: File,
    path: PathBuf,
    start: u64,
    size: u64,
}

impl Snapshot {
    /// Every session once that has a line, in the order in which they ended; `None` if a line does not verify.
    pub(crate) fn sessions(&self) -> Result<Option<Vec<Brief>>, SpoolError> {
        let failed = |e| SpoolError::io("read", &self.path, e);
        let stretch = Stretch { file: &self.file, at: self.start, end: self.size };
        let mut reader = BufReader::with_capacity(1 << 16, stretch);
        let (mut sessions, mut seen) = (Vec::new(), HashSet::new());
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(failed)? > 0 {
            let Some(brief) = unseal::<Brief>(&line) else { return Ok(None) };
            // A settling that crashed and was done again can have two lines.
            if seen.insert(brief.run_id) {
                sessions.push(brief);
            }
            line.clear();
        }
        Ok(Some(sessions))
    }
}

/// Reads a part of a file without moving its offset, which others share.
struct Stretch<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Stretch<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..room], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn parse_token(token: &str) -> Result<(String, u64), SpoolError> {
    let bad = || SpoolError::BadToken(token.chars().take(80).collect());
    let (id, offset) = token.split_once('-').ok_or_else(bad)?;
    let offset = offset.parse().map_err(|_| bad())?;
    match valid_epoch(id) {
        true => Ok((id.to_owned(), offset)),
        false => Err(bad()),
    }
}

impl List {
    /// `None` if it has no header that verifies.
    fn open(file: File) -> io::Result<Option<List>> {
        let mut size = file.metadata()?.len();
        let head = read(&file, 0, size.min(BLOCK))?;
        let Some(start) = head.iter().position(|&b| b == b'\n').map(|at| at + 1) else { return Ok(None) };
        let header = unseal::<Header>(&head[..start]).filter(|h| h.version == VERSION && valid_epoch(&h.id));
        let Some(Header { id, .. }) = header else { return Ok(None) };
        // A line that a crash left unfinished: its session is not in `ended/` yet.
        let tail_from = size.saturating_sub(4 * BLOCK).max(start as u64);
        let tail = read(&file, tail_from, size - tail_from)?;
        let whole = tail.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        if whole < tail.len() {
            size = tail_from + whole as u64;
            cut_file(&file, size, FILE)?;
        }
        let recent = tail[..whole].split(|&b| b == b'\n').filter_map(unseal::<EndedLine>);
        let recent = recent.map(|line| line.run_id).collect();
        Ok(Some(List { file, id, start: start as u64, size, recent }))
    }

    fn line_ends_at(&self, offset: u64) -> bool {
        read(&self.file, offset - 1, 1).is_ok_and(|byte| byte == b"\n")
    }

    /// The page before an offset; `None` if a line in it does not verify.
    fn page(
        &self,
        from: u64,
        limit: usize,
        is_there: impl Fn(RunId) -> Result<bool, SpoolError>,
        dir: &Dir,
    ) -> Result<Option<EndedPage>, SpoolError> {
        let mut back = Backwards { list: self, bytes: Vec::new(), base: from };
        let mut lines = Vec::new();
        let mut passed = 0;
        while lines.len() < limit && passed < limit.saturating_mul(PASSED_OVER) {
            let taken = back.take_line().map_err(|e| SpoolError::io("read", dir.path().join(FILE), e))?;
            let Some(line) = taken else { break };
            let Some(line) = unseal::<EndedLine>(&line) else { return Ok(None) };
            match is_there(line.run_id)? {
                true => lines.push(line),
                false => passed += 1,
            }
        }
        let next = (back.position() > self.start).then(|| format!("{}-{}", self.id, back.position()));
        Ok(Some(EndedPage { lines, next }))
    }
}

/// Reads lines from the end of a stretch to its beginning, a block at a time.
struct Backwards<'a> {
    list: &'a List,
    /// What was read and not yet taken; it begins at `base`.
    bytes: Vec<u8>,
    base: u64,
}

impl Backwards<'_> {
    /// The end of the next line to take.
    fn position(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn take_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let without_feed = self.bytes.len().saturating_sub(1);
            let before = self.bytes[..without_feed].iter().rposition(|&b| b == b'\n').map(|at| at + 1);
            match before {
                Some(at) => return Ok(Some(self.bytes.split_off(at))),
                None if self.base == self.list.start => {
                    let line = std::mem::take(&mut self.bytes);
                    return Ok(Some(line).filter(|line| !line.is_empty()));
                }
                None => {
                    let from = self.base.saturating_sub(BLOCK).max(self.list.start);
                    let mut block = read(&self.list.file, from, self.base - from)?;
                    block.append(&mut self.bytes);
                    (self.bytes, self.base) = (block, from);
                }
            }
        }
    }
}

fn read(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
