//! Everything on disk: locks, records, journals, outcomes, private-file checks.
//!
//! ```text
//! <spool>/                 0700, one file system
//!   service.lock           locked for the daemon's life; names its holder
//!   active/<run_id>/       everything of a session that is not settled
//!     submission.json, input          written once, at admission
//!     attachments/<sha256>.<type>, output-schema.json   the same
//!     record.json                     replaced by the daemon
//!     owner.lock                      locked: something owns the session
//!     claim.json                      written once: from here on it may have run
//!     journal.jsonl, journal.torn-<n> written by the owner alone
//!     inbox.jsonl                     what applications told the session, appended by the daemon
//!     outcome.reserve → outcome.json  written once
//!     acknowledged.json               replaced by the daemon: how far the application has projected the events
//!   ended/<xx>/<run_id>/   the same, after it ended; xx: the first two digits of the id
//!   ended.log              derived: the ended sessions in order
//!   removed.log            tombstones
//!   damaged/<run_id>/      set aside untouched, with <run_id>.why beside it
//! ```
//!
//! [`Spool`] is the daemon's: one process has it. [`SessionDir`] is one session's folder, used by daemon and executor;
//! what each may write there follows from the locks. A session's life on disk is a sequence of durable steps, each
//! whole or not at all: admitted (a folder that appears by rename), claimed, started (a journal), ended (an outcome),
//! settled (the folder moves to `ended/`). The cost of opening a spool depends on `active/` alone.

mod acknowledged;
mod admission;
mod checks;
mod content;
mod ended;
mod error;
mod faults;
mod inbox;
mod inventory;
pub mod journal;
mod lock;
mod place;
mod private;
mod record;
mod removed;
mod sealed;
mod session;
mod survey;
#[cfg(test)]
mod tests;

pub use content::{attachment_path, output_schema_path, sha256};
pub use ended::{EndedLine, EndedPage};
pub use error::SpoolError;
pub(crate) use error::exhausted;
pub use inbox::{Inbox, InboxReader, Named, Slot};
pub use inventory::Contents;
pub use lock::{OwnerLock, Ownership};
pub use record::{CLAIM_VERSION, Claim, RECORD_VERSION, Record, Tombstone, digest};
pub use session::SessionDir;
pub use survey::{EndedSession, Usage};

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ended::EndedLog;
use journal::wall_clock;
use private::Dir;
use removed::Removed;

use crate::model::RunId;

type Result<T, E = SpoolError> = std::result::Result<T, E>;

/// Folders of admissions that are not complete, in `active/`.
const INCOMPLETE: &str = ".new-";
/// Folders that are being removed, in `ended/`.
const REMOVING: &str = ".removing-";

/// One spool, ours as long as this value lives.
#[derive(Debug)]
pub struct Spool {
    dir: Dir,
    active: Dir,
    ended: Dir,
    damaged: Dir,
    ended_log: Mutex<EndedLog>,
    removed: Mutex<Removed>,
    admissions: AtomicU64,
    _lock: File,
}

/// A folder in `active/`.
#[derive(Debug)]
pub struct ActiveEntry {
    /// The session.
    pub run_id: RunId,
    /// Its folder, or why it is not used.
    pub dir: Result<SessionDir>,
}

/// Where a session is.
#[derive(Debug)]
pub enum Place {
    /// Not settled.
    Active(SessionDir),
    /// Settled.
    Ended(SessionDir),
    /// It was here and was removed.
    Removed(Tombstone),
    /// It is here and cannot be trusted: why.
    Damaged(String),
    /// It was never here.
    Absent,
}

impl Spool {
    /// Opens a spool at an absolute path, making what is missing, and takes its lock: [`SpoolError::Locked`] names who
    /// has it. Admissions and removals that a crash left half done are cleared away.
    pub fn open(path: &Path) -> Result<Spool> {
        let (dir, lock) = place::open(path, wall_clock())?;
        let active = dir.ensure_dir("active")?;
        let ended = dir.ensure_dir("ended")?;
        let damaged = dir.ensure_dir("damaged")?;
        clear(&active, INCOMPLETE)?;
        clear(&ended, REMOVING)?;
        let fresh = ended.names()?.is_empty();
        let ended_log = match EndedLog::open(&dir, fresh) {
            // It is derived: what cannot be used as one is kept aside, and a new one is built.
            Err(e) if e.is_damage() => {
                aside(&dir, ended::FILE, &damaged)?;
                EndedLog::open(&dir, fresh)?
            }
            opened => opened?,
        };
        let ended_log = Mutex::new(ended_log);
        let (removed, admissions) = (Mutex::default(), AtomicU64::new(0));
        Ok(Spool { dir, active, ended, damaged, ended_log, removed, admissions, _lock: lock })
    }

    /// Looks whether [`Spool::open`] would take or could make a spool at this path. Makes and locks nothing, so that it
    /// may be in use; what is in its sessions is not looked at.
    ///
    /// # Errors
    /// Those of [`Spool::open`], but for [`SpoolError::Locked`].
    pub fn check(path: &Path) -> Result<()> {
        place::check(path, &["active", "ended", "damaged"])
    }

    /// Where it is, without symbolic links.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The bytes that the file system still gives to this account.
    pub fn free_space(&self) -> Result<u64> {
        let stat = nix::sys::statvfs::fstatvfs(&self.dir)
            .map_err(|e| SpoolError::io("measure the free space of", self.path(), e))?;
        // On 32-bit machines they are shorter.
        #[allow(clippy::useless_conversion)]
        Ok(u64::from(stat.blocks_available()).saturating_mul(u64::from(stat.fragment_size())))
    }

    /// The sessions that are not settled. One that cannot be opened is among them, with the reason.
    pub fn active(&self) -> Result<Vec<ActiveEntry>> {
        let mut entries = Vec::new();
        for name in self.active.names()? {
            if let Some(run_id) = session_name(&name) {
                let dir = self.open_session(&self.active, run_id);
                let missing = SpoolError::Missing { run_id, place: "among the active ones" };
                entries.push(ActiveEntry { run_id, dir: dir.and_then(|dir| dir.ok_or(missing)) });
            }
        }
        entries.sort_by_key(|entry| entry.run_id);
        Ok(entries)
    }

    /// The names in `active/` that are no session's. They are left alone.
    pub fn foreign(&self) -> Result<Vec<String>> {
        let names = self.active.names()?;
        let foreign = names.iter().filter(|name| session_name(name).is_none());
        Ok(foreign.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    /// Where a session is.
    pub fn locate(&self, run_id: RunId) -> Result<Place> {
        match self.open_session(&self.active, run_id) {
            Ok(Some(dir)) => return Ok(Place::Active(dir)),
            Ok(None) => {}
            Err(e) if e.is_damage() => return Ok(Place::Damaged(e.to_string())),
            Err(e) => return Err(e),
        }
        let ended = match self.shard(run_id).map(|shard| shard.map(|s| self.open_session(&s, run_id))) {
            Ok(Some(ended)) => ended,
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        match ended {
            Ok(Some(dir)) => return Ok(self.unless_removed(dir)),
            Ok(None) => {}
            Err(e) if e.is_damage() => return Ok(Place::Damaged(e.to_string())),
            Err(e) => return Err(e),
        }
        if let Some(why) = self.set_aside_why(run_id)? {
            return Ok(Place::Damaged(why));
        }
        match self.removed().find(&self.dir, run_id) {
            Ok(Some(tombstone)) => Ok(Place::Removed(tombstone)),
            Ok(None) => Ok(Place::Absent),
            Err(e) if e.is_damage() => Ok(Place::Damaged(e.to_string())),
            Err(e) => Err(e),
        }
    }

    /// A folder in `ended/` that has a tombstone is a removal that a crash left half done. A tombstone that cannot be
    /// read says nothing against a session that is there.
    fn unless_removed(&self, dir: SessionDir) -> Place {
        match self.removed().find(&self.dir, dir.run_id()) {
            Ok(Some(tombstone)) => Place::Removed(tombstone),
            _ => Place::Ended(dir),
        }
    }

    /// Moves a session whose record says how it ended from `active/` to `ended/`, durably. Again after a crash it
    /// does what is left to do.
    pub fn settle(&self, run_id: RunId) -> Result<SessionDir> {
        let missing = SpoolError::Missing { run_id, place: "among the active ones" };
        let shard = self.ended.ensure_dir(&run_id.shard())?;
        let Some(session) = self.open_session(&self.active, run_id)? else {
            // The move was made before; that it is durable may not have been.
            shard.sync()?;
            self.active.sync()?;
            return self.open_session(&shard, run_id)?.ok_or(missing);
        };
        let mut line = ended_line(&session)?;
        session.tidy()?;
        line.bytes = session.contents().ok().map(|contents| contents.bytes);
        let name = run_id.to_string();
        let mut log = lock(&self.ended_log);
        log.add(&self.dir, &line)?;
        if !self.active.rename_new(&name, &shard, &name)? {
            return Err(SpoolError::Exists(run_id));
        }
        log.settled(run_id);
        drop(log);
        // First where it must be, then where it must no longer be.
        shard.sync()?;
        self.active.sync()?;
        self.open_session(&shard, run_id)?.ok_or(missing)
    }

    /// Moves what stands under a session's name in `active/` to `damaged/`, untouched, and keeps the reason beside it.
    pub fn set_aside(&self, run_id: RunId, why: &str) -> Result<()> {
        let name = run_id.to_string();
        if !self.active.has(&name)? {
            return Err(SpoolError::Missing { run_id, place: "among the active ones" });
        }
        let target = aside(&self.active, &name, &self.damaged)?;
        self.damaged.replace(&format!("{target}.why"), why.as_bytes())
    }

    fn set_aside_why(&self, run_id: RunId) -> Result<Option<String>> {
        let name = run_id.to_string();
        if !self.damaged.has(&name)? {
            return Ok(None);
        }
        let why = self.damaged.read(&format!("{name}.why"), 64 << 10).ok().flatten();
        let why = why.map_or("it was set aside".to_owned(), |why| String::from_utf8_lossy(&why).into_owned());
        Ok(Some(format!("{why} (kept in {})", self.damaged.path().join(&name).display())))
    }

    /// The sessions that ended, the last first: at most `limit` of them, after the page that gave the token `before`.
    pub fn ended(&self, before: Option<&str>, limit: usize) -> Result<EndedPage> {
        lock(&self.ended_log).page(
            &self.dir,
            before,
            limit,
            |run_id| self.shard_has(run_id),
            || self.all_ended(),
        )
    }

    /// Every session in `ended/` whose record can be read. Those that cannot are found by name only.
    fn all_ended(&self) -> Result<Vec<EndedLine>> {
        let mut lines = Vec::new();
        for shard in self.ended.names()? {
            let Some(shard) = shard.to_str().filter(|name| name.len() == 2) else { continue };
            let Ok(Some(shard)) = self.ended.dir(shard) else { continue };
            for name in shard.names()? {
                let Some(run_id) = session_name(&name) else { continue };
                if let Ok(Some(session)) = self.open_session(&shard, run_id)
                    && let Ok(line) = ended_line(&session)
                {
                    lines.push(line);
                }
            }
        }
        Ok(lines)
    }

    fn removed(&self) -> MutexGuard<'_, Removed> {
        lock(&self.removed)
    }

    fn shard(&self, run_id: RunId) -> Result<Option<Dir>> {
        self.ended.dir(&run_id.shard())
    }

    fn shard_has(&self, run_id: RunId) -> Result<bool> {
        match self.shard(run_id)? {
            Some(shard) => shard.has(&run_id.to_string()),
            None => Ok(false),
        }
    }

    fn open_session(&self, parent: &Dir, run_id: RunId) -> Result<Option<SessionDir>> {
        Ok(parent.dir(&run_id.to_string())?.map(|dir| SessionDir::new(dir, run_id)))
    }
}

/// What is behind a lock here is a cache of the disk and stays true when a thread that had it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn session_name(name: &OsStr) -> Option<RunId> {
    let name = name.to_str()?;
    name.parse().ok().filter(|id: &RunId| id.to_string() == name)
}

/// Removes what a crash left half done. What resists is no session and must not keep the others from running.
fn clear(dir: &Dir, prefix: &str) -> Result<()> {
    for name in dir.names()? {
        if name.to_string_lossy().starts_with(prefix) {
            let _ = dir.remove_tree(&name);
        }
    }
    Ok(())
}

/// Moves what stands under a name to the damaged things, untouched and durably: under its own name, or with a number
/// after it if there is one of that name already.
fn aside(dir: &Dir, name: &str, damaged: &Dir) -> Result<String> {
    let mut target = name.to_owned();
    let mut number = 1u32;
    while !dir.rename_new(name, damaged, &target)? {
        number += 1;
        target = format!("{name}.{number}");
    }
    damaged.sync()?;
    dir.sync()?;
    Ok(target)
}

fn ended_line(session: &SessionDir) -> Result<EndedLine> {
    let record = session.record()?;
    let (Some(ended), Some(end)) = (record.ended, record.end) else {
        let path = session.path().join(session::RECORD);
        return Err(SpoolError::refused(
            &path,
            "does not say how the session ended; only an ended one is settled",
        ));
    };
    Ok(EndedLine {
        run_id: record.run_id,
        ended,
        end,
        profile: record.profile,
        label: record.label,
        bytes: None,
    })
}
