//! What the spool holds, as a whole, and its removal piece by piece.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use super::checks::is_folder;
use super::inventory::allocated;
use super::journal::wall_clock;
use super::private::Dir;
use super::{REMOVING, Result, SessionDir, Spool, SpoolError, Tombstone, lock, session_name};
use crate::model::RunId;

/// Things that are counted of the sessions that were set aside, at most: they can be anybody's.
const COUNTED: u64 = 100_000;
/// Folders in each other that are entered there.
const DEEP: u32 = 16;

/// An ended session, as the survey of all of them knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedSession {
    /// The session.
    pub run_id: RunId,
    /// When it ended, µs since 1970; absent where its record cannot be read.
    pub ended: Option<u64>,
    /// What its folder took of the disk when it ended, in bytes; absent in lists of earlier versions.
    pub bytes: Option<u64>,
}

/// How many of something there are, and what they take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// So many.
    pub count: u64,
    /// Bytes of the disk.
    pub bytes: u64,
}

impl Spool {
    /// Every ended session, in the order in which they ended. Nothing is opened for that but the list of them, and the
    /// names in `ended/` are read: some microseconds a session.
    pub fn survey(&self) -> Result<Vec<EndedSession>> {
        // The names first: whatever is there by then has its line.
        let mut there = self.names_of_ended()?;
        let mut listed = None;
        // A list that does not verify is built again, once.
        for _ in 0..2 {
            let snapshot = lock(&self.ended_log).snapshot(&self.dir, || self.all_ended())?;
            listed = snapshot.sessions()?;
            if listed.is_some() {
                break;
            }
            lock(&self.ended_log).forget(&self.dir)?;
        }
        let mut sessions = Vec::with_capacity(there.len());
        for line in listed.unwrap_or_default() {
            if there.remove(&line.run_id) {
                sessions.push(EndedSession {
                    run_id: line.run_id,
                    ended: Some(line.ended),
                    bytes: line.bytes,
                });
            }
        }
        // What is there without a line: its record could not be read when the list was built.
        let mut rest: Vec<RunId> = there.into_iter().collect();
        rest.sort();
        sessions.extend(rest.into_iter().map(|run_id| EndedSession { run_id, ended: None, bytes: None }));
        Ok(sessions)
    }

    fn names_of_ended(&self) -> Result<HashSet<RunId>> {
        let mut there = HashSet::new();
        for shard in self.ended.names()? {
            let Some(shard) = shard.to_str().filter(|name| name.len() == 2) else { continue };
            let Some(dir) = self.ended.dir(shard)? else { continue };
            let names = dir.names()?;
            there.extend(names.iter().filter_map(|name| session_name(name)));
        }
        Ok(there)
    }

    /// The sessions that are not settled. Looks into each folder.
    pub fn usage_of_active(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        for entry in self.active()? {
            usage.count += 1;
            // One that settles meanwhile, or cannot be read, is counted without its size.
            usage.bytes += entry.dir.and_then(|dir| dir.contents()).map_or(0, |contents| contents.bytes);
        }
        Ok(usage)
    }

    /// The sessions that were set aside, and the bytes of at most 100 000 files of theirs.
    pub fn usage_of_damaged(&self) -> Result<Usage> {
        let names = self.damaged.names()?;
        let count = names.iter().filter(|name| is_set_aside(name)).count() as u64;
        let mut usage = Usage { count, bytes: 0 };
        let mut left = COUNTED;
        measure(&self.damaged, &names, 0, &mut left, &mut usage.bytes)?;
        Ok(usage)
    }

    /// Removes an ended session: first its tombstone is durable, then its folder goes. Again after a crash it does
    /// what is left to do. One caller at a time for one session.
    pub fn remove(&self, run_id: RunId) -> Result<Tombstone> {
        let shard = self.shard(run_id)?;
        let session = match &shard {
            Some(shard) => self.open_session(shard, run_id)?,
            None => None,
        };
        let tombstone = self.bury(run_id, session)?;
        let Some(shard) = shard else { return Ok(tombstone) };
        let name = run_id.to_string();
        if shard.has(&name)? {
            let going = format!("{REMOVING}{name}");
            self.ended.remove_tree(OsStr::new(&going))?;
            shard.rename_new(&name, &self.ended, &going)?;
            shard.sync()?;
            self.ended.remove_tree(OsStr::new(&going))?;
        }
        Ok(tombstone)
    }

    fn bury(&self, run_id: RunId, session: Option<SessionDir>) -> Result<Tombstone> {
        let mut removed = self.removed();
        if let Some(tombstone) = removed.find(&self.dir, run_id)? {
            return Ok(tombstone);
        }
        let session = session.ok_or(SpoolError::Missing { run_id, place: "among the ended ones" })?;
        let record = session.record()?;
        let tombstone = Tombstone { run_id, digest: record.digest, end: record.end, removed: wall_clock() };
        removed.add(&self.dir, &tombstone)?;
        Ok(tombstone)
    }

    /// Writes the list of ended sessions anew without those that were removed. To be called after many were.
    pub fn compact(&self) -> Result<()> {
        lock(&self.ended_log).compact(&self.dir, |run_id| self.shard_has(run_id))
    }
}

/// Set aside under its session's name, with or without a number after it; not the reason beside it.
fn is_set_aside(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let id = name.split_once('.').map_or(name, |(id, number)| match number.parse::<u32>() {
        Ok(_) => id,
        Err(_) => name,
    });
    session_name(OsStr::new(id)).is_some()
}

/// Adds up what stands in a folder, following nothing, as far as `left` things and [`DEEP`] folders in each other go.
fn measure(dir: &Dir, names: &[OsString], deep: u32, left: &mut u64, bytes: &mut u64) -> Result<()> {
    for name in names {
        let Some(rest) = left.checked_sub(1) else { return Ok(()) };
        *left = rest;
        let Some(stat) = dir.stat_of(name)? else { continue };
        *bytes = bytes.saturating_add(allocated(&stat));
        // What is not private, or not ours, is not entered.
        if is_folder(&stat)
            && deep < DEEP
            && let Some(name) = name.to_str()
            && let Ok(Some(inside)) = dir.dir(name)
        {
            measure(&inside, &inside.names()?, deep + 1, left, bytes)?;
        }
    }
    Ok(())
}
