use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::chain::Sum;
use super::header::Header;
use super::lines::{Chain, Checked, Lines, read_at};
use super::reader::{check_run, missing, no_epoch};
use super::{Appender, Cursor, Encoder, FILE, JournalError, encoder, new_epoch, wall_clock};
use crate::model::{Entry, RunId, kind};
use crate::spool::private::{Dir, sync_file};

/// What a torn tail is kept as: this and a number from 1.
pub(crate) const TORN: &str = "journal.torn-";

/// A stretch of a journal in which nothing counts, although something after it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The records that are missing there, where that can be told.
    pub records: Option<u64>,
}

/// A journal that was verified to its end and can be written again.
#[derive(Debug)]
pub struct Repaired {
    /// Continues the chain.
    pub encoder: Encoder,
    /// Continues the file; everything in it is durable.
    pub appender: Appender,
    /// The journal's random name.
    pub epoch: String,
    /// The bytes of the torn tail that was cut off now. A `notice` record with the reason `repaired` says so too.
    pub cut: Option<u64>,
    /// The damaged stretches that stay. Readers find a notice in the place of each.
    pub damaged: Vec<Damage>,
    /// The last record that the session's owner wrote (repairs left out, damaged ones not counted).
    pub last: Option<Entry>,
    /// The number of the last record before this repair; 0 if there is none.
    pub last_seq: u64,
}

/// Verifies and repairs; see [`SessionDir::repair_journal`](crate::spool::SessionDir::repair_journal).
pub(crate) fn repair(
    dir: &Dir,
    run_id: RunId,
    claimed: impl FnOnce() -> Result<Option<String>, JournalError>,
) -> Result<Option<Repaired>, JournalError> {
    let Some(file) = dir.open_write(FILE)? else { return Ok(None) };
    let path = dir.path().join(FILE);
    let failed = |e| JournalError::io("read", &path, e);
    let size = file.metadata().map_err(failed)?.len();
    let scan = scan(&file, size).map_err(failed)?;
    let epoch = match &scan.header {
        Some(header) => {
            check_run(header, run_id, &path)?;
            header.epoch.clone()
        }
        None => match (claimed()?, scan.sum) {
            (Some(epoch), _) => epoch,
            // Nothing in it counts, so that no cursor into it was ever good: it begins anew.
            (None, None) => new_epoch(),
            (None, Some(_)) => return Err(no_epoch(&path)),
        },
    };
    let torn = size > scan.end || scan.sum.is_none();
    if torn {
        keep_tail(dir, &file, scan.end, &scan.told)?;
    }
    let appender = match torn {
        true => Appender::cut(file, path, scan.end)?,
        false => {
            // What was written may not have been synced by the one who wrote it.
            sync_file(&file, FILE).map_err(|e| JournalError::io("sync", &path, e))?;
            Appender::new(file, path, scan.end)
        }
    };
    let last_seq = scan.seq;
    let mut repaired = Repaired {
        encoder: Encoder::new(last_seq, scan.sum.unwrap_or(Sum::ORIGIN)),
        appender,
        cut: torn.then_some(size - scan.end),
        damaged: scan.damaged,
        last: scan.last.map(|last| with_cursor(last, &epoch)),
        last_seq,
        epoch,
    };
    if scan.sum.is_none() {
        let (line, sum) = Header::new(run_id, &repaired.epoch).line();
        repaired.appender.append(&line)?;
        repaired.encoder = Encoder::new(0, sum);
    }
    tell(dir, &mut repaired, &scan.told)?;
    Ok(Some(repaired))
}

fn with_cursor((mut entry, end): (Entry, u64), epoch: &str) -> Entry {
    entry.cursor = Cursor { epoch: epoch.to_owned(), offset: end }.to_string();
    entry
}

/// What stands in a journal.
struct Scan {
    header: Option<Header>,
    /// The end of the last line that counts.
    end: u64,
    /// Its sum; `None` if no line counts.
    sum: Option<Sum>,
    seq: u64,
    damaged: Vec<Damage>,
    /// The last record that is not a repair's, and where it ends.
    last: Option<(Entry, u64)>,
    /// The files that records of earlier repairs name.
    told: BTreeSet<String>,
}

fn scan(file: &File, size: u64) -> io::Result<Scan> {
    let mut scan = Scan {
        header: None,
        end: 0,
        sum: None,
        seq: 0,
        damaged: Vec::new(),
        last: None,
        told: BTreeSet::new(),
    };
    let mut lines = Lines::new(file, size);
    let mut chain = Chain::origin();
    let mut at = 0;
    while let Some(span) = lines.next(at)? {
        at = span.end;
        let Some(checked) = chain.check(lines.line(span), span.start == 0) else { continue };
        if scan.end < span.start {
            let next = match &checked {
                Checked::Record(entry) => Some(entry.seq),
                Checked::Header(_) => None,
            };
            let records = missing(Some(scan.seq), next);
            scan.damaged.push(Damage { offset: scan.end, bytes: span.start - scan.end, records });
        }
        scan.end = span.end;
        scan.sum = chain.good();
        match checked {
            Checked::Header(header) => scan.header = Some(header),
            Checked::Record(entry) => scan.record(entry),
        }
    }
    Ok(scan)
}

impl Scan {
    fn record(&mut self, entry: Entry) {
        self.seq = entry.seq;
        let text = |key| entry.details.get(key).and_then(Value::as_str);
        match text("file") {
            Some(file) if entry.kind == "notice" && text("reason") == Some(kind::notice::REPAIRED) => {
                self.told.insert(file.to_owned());
            }
            _ => self.last = Some((entry, self.end)),
        }
    }
}

/// Keeps what stands after `end` in a file of its own, durably, before it is cut off.
fn keep_tail(dir: &Dir, journal: &File, end: u64, told: &BTreeSet<String>) -> Result<(), JournalError> {
    for number in 1u32.. {
        let name = format!("{TORN}{number}");
        if let Some(kept) = dir.open_read(&name)? {
            // A repair that crashed before it cut has kept it already.
            let same = !told.contains(&name)
                && same_bytes(&kept, journal, end)
                    .map_err(|e| JournalError::io("compare", dir.path().join(&name), e))?;
            match same {
                true => return Ok(()),
                false => continue,
            }
        }
        if dir.publish_part(&name, journal, end)? {
            return Ok(());
        }
    }
    Err(JournalError::damaged(dir.path().join(FILE), "it has too many torn tails"))
}

fn same_bytes(kept: &File, journal: &File, from: u64) -> io::Result<bool> {
    let (mut ours, mut theirs) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut at = 0;
    loop {
        let read = read_at(kept, &mut ours, at)?;
        let other = read_at(journal, &mut theirs, from + at)?;
        if ours[..read] != theirs[..other] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
        at += read as u64;
    }
}

/// Writes a record for every kept tail that none names yet; also for one of a repair that crashed before it said so.
fn tell(dir: &Dir, repaired: &mut Repaired, told: &BTreeSet<String>) -> Result<(), JournalError> {
    let mut kept: Vec<(u32, String)> = Vec::new();
    for name in dir.names()? {
        let Some(name) = name.to_str() else { continue };
        if let Some(Ok(number)) = name.strip_prefix(TORN).map(str::parse)
            && !told.contains(name)
        {
            kept.push((number, name.to_owned()));
        }
    }
    kept.sort();
    for (_, name) in kept {
        let Some(file) = dir.open_read(&name)? else { continue };
        let path: PathBuf = dir.path().join(&name);
        let bytes = file.metadata().map_err(|e| JournalError::io("look at", path, e))?.len();
        let line = repaired.encoder.encode(wall_clock(), &encoder::repaired(bytes, &name), None);
        repaired.appender.append(&line)?;
    }
    repaired.appender.commit()?;
    Ok(())
}
