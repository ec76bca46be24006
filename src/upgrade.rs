//! Whether the program on disk is still the one that runs.
//!
//! An upgrade replaces the file under a running daemon, which goes on with the old one until it is restarted. The kernel
//! keeps what runs (`/proc/self/exe`), so the two can be compared. Only a file that is another one by its inode, or
//! changed since the last look, is read: as a rule a look is two calls of stat(2).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::program::OWN_EXECUTABLE;

/// The program of this process, and where it stood when it began to look.
#[derive(Debug)]
pub struct Installed {
    path: PathBuf,
    running: File,
    last: Mutex<Option<(Version, bool)>>,
}

/// A state of a file: replaced or written to, it has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Installed {
    /// Of this process.
    ///
    /// # Errors
    /// `/proc` is not mounted, or the program may be run and not read.
    pub fn of_this_process() -> io::Result<Installed> {
        Ok(Installed::new(std::fs::read_link(OWN_EXECUTABLE)?, File::open(OWN_EXECUTABLE)?))
    }

    fn new(path: PathBuf, running: File) -> Installed {
        Installed { path: place(path), running, last: Mutex::default() }
    }

    /// Where the program stands.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether another program stands there now than the one that runs, or none. May read both files.
    pub fn differs(&self) -> bool {
        let Ok(there) = std::fs::metadata(&self.path) else { return true };
        let there = Version::of(&there);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((version, differs)) if version == there => differs,
            _ => {
                let differs = self.compare(&there).unwrap_or(true);
                *last = Some((there, differs));
                differs
            }
        }
    }

    fn compare(&self, there: &Version) -> io::Result<bool> {
        let ours = Version::of(&self.running.metadata()?);
        if (ours.device, ours.inode) == (there.device, there.inode) {
            return Ok(false);
        }
        Ok(ours.size != there.size || !same_bytes(File::open(&self.path)?, &self.running)?)
    }
}

impl Version {
    fn of(file: &Metadata) -> Version {
        Version {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// The kernel marks the path of a program that was replaced before it looked (proc_pid_exe(5)).
fn place(path: PathBuf) -> PathBuf {
    match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(before) if !path.exists() => before.into(),
        _ => path,
    }
}

fn same_bytes(mut one: File, other: &File) -> io::Result<bool> {
    let (mut mine, mut theirs) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut at = 0;
    loop {
        let got = one.read(&mut mine)?;
        if got == 0 {
            return Ok(other.read_at(&mut theirs, at)? == 0);
        }
        match other.read_exact_at(&mut theirs[..got], at) {
            Ok(()) if mine[..got] == theirs[..got] => at += got as u64,
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_bytes_are_another_program() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("program");
        let replace = |bytes: &[u8]| {
            let new = scratch.path().join("new");
            std::fs::write(&new, bytes).unwrap();
            std::fs::rename(&new, &path).unwrap();
        };
        replace(b"one");
        let installed = Installed::new(path.clone(), File::open(&path).unwrap());
        assert!(!installed.differs());
        replace(b"one");
        assert!(!installed.differs(), "the same again");
        replace(b"two");
        assert!(installed.differs(), "of the same length");
        assert!(installed.differs(), "as it was seen before");
        replace(b"one");
        assert!(!installed.differs(), "put back");
        replace(&vec![0; 200_000]);
        assert!(installed.differs());
        std::fs::remove_file(&path).unwrap();
        assert!(installed.differs(), "gone");
    }

    #[test]
    fn a_program_that_was_replaced_before_the_first_look_is_looked_for_where_it_stood() {
        assert_eq!(place("/opt/daemon (deleted)".into()), Path::new("/opt/daemon"));
        assert_eq!(place("/opt/daemon".into()), Path::new("/opt/daemon"));
        assert!(!Installed::of_this_process().unwrap().differs());
    }
}
