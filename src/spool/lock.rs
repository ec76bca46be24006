//! Locks that the kernel drops at death: flock(2) on a file, whichever path leads to it.
//!
//! A lock belongs to the open file, so a descriptor that was inherited holds it too. Nothing here ever unlocks: a
//! lock ends when its last descriptor is closed, so that a daemon that gave a lock to an executor cannot take it away
//! by dropping its own copy.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::error::SpoolError;
use super::private::Dir;

/// What asking for a session's lock gave.
#[derive(Debug)]
pub enum Ownership {
    /// It was free and is ours now: nothing else owns the session.
    Taken(OwnerLock),
    /// Something owns the session.
    Held,
}

/// A session's `owner.lock`, held. Whoever holds it owns the session and is the one writer of its journal. It ends when
/// the last descriptor of it is closed, in whichever process.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    id: (u64, u64),
}

impl OwnerLock {
    pub(crate) fn new(file: File, dir: &Dir, name: &str) -> Result<OwnerLock, SpoolError> {
        let id = identity(&file, dir, name)?;
        Ok(OwnerLock { file, id })
    }

    /// The locked file, for handing it to an executor.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// The locked file itself.
    pub fn into_file(self) -> File {
        self.file
    }

    pub(crate) fn is(&self, id: (u64, u64)) -> bool {
        self.id == id
    }
}

/// Device and inode: which file it is, whatever its path.
pub(crate) fn identity(file: &File, dir: &Dir, name: &str) -> Result<(u64, u64), SpoolError> {
    let data = file.metadata().map_err(|e| SpoolError::io("look at", dir.path().join(name), e))?;
    Ok((data.dev(), data.ino()))
}

/// Takes the lock on an open file if it is free.
pub(crate) fn try_lock(file: &File, dir: &Dir, name: &str) -> Result<bool, SpoolError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(SpoolError::io("lock", dir.path().join(name), e)),
    }
}

/// The name of the spool's lock.
pub(super) const SERVICE_LOCK: &str = "service.lock";

/// How long the lock of a service that has just died may still be held: a child that it had forked and that has not
/// reached its exec yet has the descriptor too.
const LAST_DESCRIPTOR: Duration = Duration::from_secs(1);

/// Takes the spool's lock and writes into it who holds it. If another has it, and keeps it for a second, the error says
/// who.
pub(crate) fn lock_service(dir: &Dir, time: u64) -> Result<File, SpoolError> {
    let until = Instant::now() + LAST_DESCRIPTOR;
    loop {
        match try_lock_service(dir, time) {
            // The kernel tells nobody when a lock becomes free, other than those who wait for it without a limit.
            Err(SpoolError::Locked { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn try_lock_service(dir: &Dir, time: u64) -> Result<File, SpoolError> {
    loop {
        let mut file = match dir.open_write(SERVICE_LOCK)? {
            Some(file) => file,
            None => match dir.create(SERVICE_LOCK) {
                Ok(file) => file,
                Err(SpoolError::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                    continue;
                }
                Err(e) => return Err(e),
            },
        };
        if !try_lock(&file, dir, SERVICE_LOCK)? {
            let holder = holder(&mut file);
            return Err(SpoolError::Locked { path: dir.path().to_owned(), holder });
        }
        // Somebody may have removed the file between opening and locking; then the lock protects nothing.
        let current = dir.open_write(SERVICE_LOCK)?;
        let locked = identity(&file, dir, SERVICE_LOCK)?;
        match current {
            Some(current) if identity(&current, dir, SERVICE_LOCK)? == locked => {}
            _ => continue,
        }
        lock_folder(dir)?;
        // The lock holds without a name in it, and a full disk must not keep the service from starting.
        let _ = sign(&mut file, time);
        return Ok(file);
    }
}

/// The folder itself is locked too, for as long as `dir` is open: that lock is not lost if somebody removes the file. Not every
/// file system can lock folders; then the file has to do.
fn lock_folder(dir: &Dir) -> Result<(), SpoolError> {
    let taken =
        File::from(dir.as_fd().try_clone_to_owned().map_err(|e| SpoolError::io("lock", dir.path(), e))?);
    match taken.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SpoolError::Locked {
            path: dir.path().to_owned(),
            holder: "a service whose service.lock was removed".to_owned(),
        }),
        _ => Ok(()),
    }
}

fn sign(file: &mut File, time: u64) -> std::io::Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let text =
        format!("process {} on host {host}, since {} (Unix time)", std::process::id(), time / 1_000_000);
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())
}

fn holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.take(500).read_to_end(&mut bytes);
    let text: String = String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect();
    match read {
        Ok(_) if !text.is_empty() => text,
        _ => "a service that has not said who it is".to_owned(),
    }
}
