//! Private files: how every file and folder of the spool is opened, checked, written and moved.
//!
//! Everything is relative to an open folder, so that nobody can exchange a folder on the way. Files are regular, ours,
//! mode 0600, with one link; folders are ours and 0700; symbolic links are not followed. Anything else is refused
//! with its name and what is wrong with it.
//!
//! A change follows write, fsync, rename, fsync of the folder. All system calls of the spool that write stand here and
//! in the journal's appender. A folder whose fsync failed takes no more changes through the same handle: the
//! kernel reports such a failure once, and a later success proves nothing about what was lost.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::checks::{DIR_MODE, FILE_MODE, check_dir, check_file, open_error};
use super::error::SpoolError;
use super::faults::{self, Op};

type Result<T, E = SpoolError> = std::result::Result<T, E>;

/// Temporary files start so. They are leftovers of a crash wherever nobody is writing.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// An open private folder. Clones share the descriptor.
#[derive(Debug, Clone)]
pub(crate) struct Dir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    unsynced: Arc<AtomicBool>,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens the folder at an absolute path.
    pub(crate) fn open(path: &Path) -> Result<Dir> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty()).map_err(|e| open_error(path, e, true))?;
        Dir::checked(fd, path.to_owned())
    }

    fn checked(fd: OwnedFd, path: PathBuf) -> Result<Dir> {
        let stat = fstat(&fd).map_err(|e| SpoolError::io("look at", &path, e))?;
        check_dir(&path, &stat, geteuid().as_raw())?;
        Ok(Dir { fd: Arc::new(fd), path, unsynced: Arc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor's number, for `/proc/self/fd`.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(crate) fn stat(&self) -> Result<FileStat> {
        fstat(&*self.fd).map_err(|e| SpoolError::io("look at", &self.path, e))
    }

    fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// The folder of that name in this one; `None` if there is nothing.
    pub(crate) fn dir(&self, name: &str) -> Result<Option<Dir>> {
        let path = self.join(name);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(self, name, flags, Mode::empty()) {
            Ok(fd) => Dir::checked(fd, path).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(open_error(&path, e, true)),
        }
    }

    /// Makes a folder that must not be there yet. Durable after the next [`Dir::sync`] of this one.
    pub(crate) fn make_dir(&self, name: &str) -> Result<Dir> {
        self.writable()?;
        let path = self.join(name);
        faults::check(Op::MakeDir, name).map_err(|e| SpoolError::io("make", &path, e))?;
        mkdirat(self, name, Mode::from_bits_truncate(DIR_MODE))
            .map_err(|e| SpoolError::io("make", &path, e))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(self, name, flags, Mode::empty()).map_err(|e| open_error(&path, e, true))?;
        // The umask may have taken bits away.
        fchmod(&fd, Mode::from_bits_truncate(DIR_MODE))
            .map_err(|e| SpoolError::io("set the mode of", &path, e))?;
        Dir::checked(fd, path)
    }

    /// The folder of that name, made and synced if it is missing. It must be on this folder's file system.
    pub(crate) fn ensure_dir(&self, name: &str) -> Result<Dir> {
        let dir = match self.dir(name)? {
            Some(dir) => dir,
            None => {
                let dir = match self.make_dir(name) {
                    Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                        self.dir(name)?
                            .ok_or_else(|| SpoolError::io("open", self.join(name), Errno::ENOENT))?
                    }
                    made => made?,
                };
                self.sync()?;
                dir
            }
        };
        self.check_same_file_system(&dir)?;
        Ok(dir)
    }

    /// Sessions are moved by rename.
    pub(crate) fn check_same_file_system(&self, dir: &Dir) -> Result<()> {
        match dir.stat()?.st_dev == self.stat()?.st_dev {
            true => Ok(()),
            false => Err(SpoolError::refused(
                &dir.path,
                "is on another file system than the spool; sessions are moved by rename: keep the spool on one",
            )),
        }
    }

    /// Whether something of that name is here, whatever it is.
    pub(crate) fn has(&self, name: &str) -> Result<bool> {
        match fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(e) => Err(SpoolError::io("look at", self.join(name), e)),
        }
    }

    /// What stands under a name here, not followed; `None` if there is nothing.
    pub(crate) fn stat_of(&self, name: &OsStr) -> Result<Option<FileStat>> {
        match fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(SpoolError::io("look at", self.join(name), e)),
        }
    }

    /// The names in this folder, in no order.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let failed = |e: Errno| SpoolError::io("list", &self.path, e);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = nix::dir::Dir::openat(self, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let name = OsString::from_vec(entry.map_err(failed)?.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open_file(&self, name: &str, access: OFlag) -> Result<Option<File>> {
        let path = self.join(name);
        // Without O_NONBLOCK the opening of a FIFO would wait for its other end. It means nothing for regular files.
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = match openat(self, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(open_error(&path, e, false)),
        };
        let stat = fstat(&fd).map_err(|e| SpoolError::io("look at", &path, e))?;
        check_file(&path, &stat, geteuid().as_raw())?;
        Ok(Some(File::from(fd)))
    }

    /// Opens a file for reading; `None` if there is none.
    pub(crate) fn open_read(&self, name: &str) -> Result<Option<File>> {
        self.open_file(name, OFlag::O_RDONLY)
    }

    /// Opens a file for reading and writing; `None` if there is none.
    pub(crate) fn open_write(&self, name: &str) -> Result<Option<File>> {
        self.open_file(name, OFlag::O_RDWR)
    }

    /// Reads a whole file of at most `cap` bytes; `None` if there is none.
    pub(crate) fn read(&self, name: &str, cap: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_read(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        faults::check(Op::Read, name)
            .and_then(|()| file.take(cap + 1).read_to_end(&mut bytes))
            .map_err(|e| SpoolError::io("read", self.join(name), e))?;
        if bytes.len() as u64 > cap {
            return Err(SpoolError::damaged(self.join(name), format!("it is longer than {cap} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Makes a file that must not be there yet.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        self.writable()?;
        let path = self.join(name);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(FILE_MODE);
        faults::check(Op::Create, name).map_err(|e| SpoolError::io("make", &path, e))?;
        let fd = openat(self, name, flags, mode).map_err(|e| SpoolError::io("make", &path, e))?;
        fchmod(&fd, mode).map_err(|e| SpoolError::io("set the mode of", &path, e))?;
        Ok(File::from(fd))
    }

    /// Makes a file with this content, synced. Durable after the next [`Dir::sync`].
    pub(crate) fn create_with(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(name)?;
        write_at(&file, bytes, 0, name).map_err(|e| SpoolError::io("write", self.join(name), e))?;
        sync_file(&file, name).map_err(|e| SpoolError::io("sync", self.join(name), e))
    }

    /// A file under a temporary name with this content, synced. The name is new in every process that may write here.
    fn temporary(&self, name: &str, bytes: &[u8]) -> Result<String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let unique = uuid::Uuid::new_v4().simple();
        let temporary = format!("{TEMPORARY}{name}-{count}-{unique}");
        self.create_with(&temporary, bytes).inspect_err(|_| self.discard(&temporary))?;
        Ok(temporary)
    }

    /// Replaces a file: the old or the new content stands there at any time, and the new one durably on return.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.writable()?;
        let temporary = self.temporary(name, bytes)?;
        faults::check(Op::Rename, name)
            .and_then(|()| Ok(renameat(self, temporary.as_str(), self, name)?))
            .map_err(|e| SpoolError::io("replace", self.join(name), e))
            .inspect_err(|_| self.discard(&temporary))?;
        self.sync()
    }

    /// Writes a file that must not be there yet: the whole of it stands there or nothing. `false`: it was there.
    pub(crate) fn publish(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.writable()?;
        let temporary = self.temporary(name, bytes)?;
        let moved = self.rename_new(&temporary, self, name);
        if !matches!(moved, Ok(true)) {
            self.discard(&temporary);
            return moved;
        }
        self.sync()?;
        Ok(true)
    }

    /// Like [`Dir::publish`] with the bytes of another file from an offset to its end, however many they are.
    pub(crate) fn publish_part(&self, name: &str, source: &File, from: u64) -> Result<bool> {
        self.writable()?;
        let failed = |e: io::Error| SpoolError::io("copy to", self.join(name), e);
        let temporary = self.temporary(name, &[])?;
        let copy = || {
            let mut copy = self.open_write(&temporary)?.ok_or_else(|| failed(Errno::ENOENT.into()))?;
            let mut source = source;
            source.seek(SeekFrom::Start(from)).map_err(failed)?;
            faults::check(Op::Write, name).map_err(failed)?;
            io::copy(&mut source, &mut copy).map_err(failed)?;
            sync_file(&copy, name).map_err(failed)?;
            self.rename_new(&temporary, self, name)
        };
        let moved = copy();
        if !matches!(moved, Ok(true)) {
            self.discard(&temporary);
            return moved;
        }
        self.sync()?;
        Ok(true)
    }

    /// Moves something to a name that must not be there yet; `false`: it was there. Not yet durable.
    pub(crate) fn rename_new(&self, name: &str, to: &Dir, new: &str) -> Result<bool> {
        self.writable()?;
        to.writable()?;
        faults::check(Op::Rename, new).map_err(|e| SpoolError::io("move", self.join(name), e))?;
        match rename_noreplace(self, name, to, new) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            // The file system does not know the flag. Every name in the spool has one writer, by the spool's lock or
            // the session's, so that looking first is as good.
            Err(Errno::EINVAL | Errno::ENOSYS) if to.has(new)? => Ok(false),
            Err(Errno::EINVAL | Errno::ENOSYS) => renameat(self, name, to, new)
                .map(|()| true)
                .map_err(|e| SpoolError::io("move", self.join(name), e)),
            Err(e) => Err(SpoolError::io("move", self.join(name), e)),
        }
    }

    /// Removes a file; it may be missing. Not yet durable.
    pub(crate) fn unlink(&self, name: &str) -> Result<()> {
        faults::check(Op::Unlink, name).map_err(|e| SpoolError::io("remove", self.join(name), e))?;
        match unlinkat(self, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(SpoolError::io("remove", self.join(name), e)),
        }
    }

    /// Removes a file that nothing depends on. What stays is cleared away when its session is settled.
    fn discard(&self, name: &str) {
        let _ = self.unlink(name);
    }

    /// Removes a folder with all that it holds, following nothing. It may be missing. Not yet durable.
    pub(crate) fn remove_tree(&self, name: &OsStr) -> Result<()> {
        let failed = |e: Errno| SpoolError::io("remove", self.join(name), e);
        faults::check(Op::Unlink, name).map_err(|e| SpoolError::io("remove", self.join(name), e))?;
        match unlinkat(self, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(e) => return Err(failed(e)),
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(self, name, flags, Mode::empty()).map_err(failed)?;
        let inside = Dir { fd: Arc::new(fd), path: self.join(name), unsynced: Arc::default() };
        if inside.stat()?.st_dev != self.stat()?.st_dev {
            return Err(SpoolError::refused(
                &inside.path,
                "is another file system, mounted here; unmount it",
            ));
        }
        for name in inside.names()? {
            inside.remove_tree(&name)?;
        }
        unlinkat(self, name, UnlinkatFlags::RemoveDir).map_err(failed)
    }

    /// Makes the names in this folder durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.writable()?;
        let synced = faults::check(Op::DirSync, &self.path).and_then(|()| Ok(nix::unistd::fsync(&*self.fd)?));
        synced.map_err(|e| {
            self.unsynced.store(true, Ordering::Relaxed);
            SpoolError::io("sync", &self.path, e)
        })
    }

    fn writable(&self) -> Result<()> {
        match self.unsynced.load(Ordering::Relaxed) {
            true => Err(SpoolError::Unsynced { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Makes a file of `size` bytes whose blocks are allocated: room for a later write on a full disk. It is not synced: a
    /// power loss may take it, and then [`Dir::publish_reserved`] does without.
    pub(crate) fn create_reserve(&self, name: &str, size: u64) -> Result<()> {
        let mut file = self.create(name)?;
        let failed = |e: io::Error| SpoolError::io("reserve space for", self.join(name), e);
        faults::check(Op::Allocate, name).map_err(failed)?;
        match fallocate(&file, FallocateFlags::empty(), 0, size as i64) {
            // Not every file system can; written zeros take the same room there.
            Err(Errno::EOPNOTSUPP) => {
                io::copy(&mut io::repeat(0).take(size), &mut file).map(drop).map_err(failed)
            }
            result => result.map_err(|e| failed(e.into())),
        }
    }

    /// Like [`Dir::publish`], but writes into the allocated file `reserve`, so that a full disk does not matter as
    /// long as the bytes fit into it. The reserve is used up by that.
    pub(crate) fn publish_reserved(&self, reserve: &str, name: &str, bytes: &[u8]) -> Result<bool> {
        self.writable()?;
        let Some(file) = self.open_write(reserve)? else { return self.publish(name, bytes) };
        let filled = write_at(&file, bytes, 0, reserve)
            .and_then(|()| cut_file(&file, bytes.len() as u64, reserve))
            .and_then(|()| sync_file(&file, reserve));
        if let Err(e) = filled {
            // This file can no longer be trusted, whatever a second attempt says; a new one may.
            self.unlink(reserve)?;
            return self.publish(name, bytes).map_err(|_| SpoolError::io("write", self.join(reserve), e));
        }
        if !self.rename_new(reserve, self, name)? {
            return Ok(false);
        }
        self.sync()?;
        Ok(true)
    }
}

/// Writes all bytes at an offset of the file of that name. Not yet durable.
pub(crate) fn write_at(file: &File, bytes: &[u8], at: u64, name: &str) -> io::Result<()> {
    if let Err(e) = faults::check(Op::Short, name) {
        file.write_all_at(&bytes[..bytes.len() / 2], at)?;
        return Err(e);
    }
    faults::check(Op::Write, name)?;
    file.write_all_at(bytes, at)
}

/// fsync(2) on the file of that name.
pub(crate) fn sync_file(file: &File, name: &str) -> io::Result<()> {
    faults::check(Op::Fsync, name)?;
    file.sync_all()
}

/// fdatasync(2) on the file of that name.
pub(crate) fn sync_data(file: &File, name: &str) -> io::Result<()> {
    faults::check(Op::Fsync, name)?;
    file.sync_data()
}

/// Cuts the file of that name to a length. Not yet durable.
pub(crate) fn cut_file(file: &File, length: u64, name: &str) -> io::Result<()> {
    faults::check(Op::Truncate, name)?;
    file.set_len(length)
}

/// renameat2(2) with `RENAME_NOREPLACE`. Unlike link(2) it never leaves a file with two names.
fn rename_noreplace(from: &Dir, name: &str, to: &Dir, new: &str) -> nix::Result<()> {
    let (name, new) = (cstring(name)?, cstring(new)?);
    // SAFETY: both descriptors are open for the call and both strings end with NUL; the kernel only reads them.
    // The C library's own function does not exist in every one, hence the number.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from.fd.as_raw_fd(),
            name.as_ptr(),
            to.fd.as_raw_fd(),
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    Errno::result(result).map(drop)
}

fn cstring(name: &str) -> nix::Result<CString> {
    CString::new(OsStr::new(name).as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Makes a folder and its missing parents, 0700, each durably. What is there is left as it is.
pub(crate) fn make_way(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let Some(parent) = path.parent() else { return Ok(()) };
    make_way(parent)?;
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(SpoolError::io("make", path, e)),
        Ok(()) => File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(|e| SpoolError::io("sync", parent, e)),
    }
}
