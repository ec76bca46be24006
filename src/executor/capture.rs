//! Where a program's output comes from: a pipe, or a file that is followed.
//!
//! A pipe is enlarged to 1 MiB, so that a burst does not make the program wait. Some programs cut long lines on any
//! pipe and exit with success all the same; their output goes to a file in the session's folder, which is read as it
//! grows and given back to the file system behind the reader.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

/// How much of a followed file stays before it is punched away.
const PUNCH: u64 = 4 << 20;

/// One stream of output.
#[derive(Debug)]
pub enum Capture {
    /// A pipe.
    Pipe {
        /// Its reading end.
        receiver: pipe::Receiver,
        /// What the program had written when it was gone, and was not read yet, in bytes.
        owed: usize,
    },
    /// A file that the program appends to.
    File {
        /// Opened for reading and punching.
        file: File,
        /// Wakes when it grows.
        grown: AsyncFd<Watch>,
        /// How far it was read.
        offset: u64,
        /// How far it was given back.
        punched: u64,
        /// Where it ends, once the program is gone: what others append later is not the program's output.
        end: Option<u64>,
    },
}

/// An inotify instance as tokio wants it.
#[derive(Debug)]
pub struct Watch(Inotify);

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Capture {
    /// A pipe, and the end to give to the program.
    pub fn pipe() -> io::Result<(Capture, OwnedFd)> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // Beyond /proc/sys/fs/pipe-max-size or the account's quota the kernel refuses; the smaller pipe works too.
        let _ = fcntl(&reader, FcntlArg::F_SETPIPE_SZ(1 << 20));
        Ok((Capture::Pipe { receiver: pipe::Receiver::from_owned_fd(reader)?, owed: 0 }, writer))
    }

    /// A new file at `path`, and the descriptor to give to the program.
    pub fn file(path: &Path) -> io::Result<(Capture, OwnedFd)> {
        let writer = File::options().append(true).create_new(true).mode(0o600).open(path)?;
        let file = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?;
        // SAFETY: the instance owns its descriptor until it is dropped, and always names the same one.
        let grown = unsafe { AsyncFd::register(Watch(inotify)) }?;
        let capture = Capture::File { file, grown, offset: 0, punched: 0, end: None };
        Ok((capture, OwnedFd::from(writer)))
    }

    /// The program is gone: a file ends where it ends now, and a pipe owes what it holds now. It ends by itself when
    /// its last writer closes it.
    pub fn program_is_gone(&mut self) {
        match self {
            Capture::Pipe { receiver, owed } => *owed = bytes_in(receiver),
            Capture::File { file, end, .. } => {
                *end = Some(file.metadata().map_or(0, |metadata| metadata.len()));
            }
        }
    }

    /// Something that the program itself printed may not have been read yet.
    pub fn owes(&self) -> bool {
        match self {
            Capture::Pipe { owed, .. } => *owed > 0,
            Capture::File { offset, end, .. } => end.is_none_or(|end| *offset < end),
        }
    }

    /// Waits until something is there and reads it; 0 when every writer is gone. Safe to drop at any await.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Capture::Pipe { receiver, owed } => loop {
                receiver.readable().await?;
                match receiver.try_read(buffer) {
                    Ok(got) => {
                        *owed = if got == 0 { 0 } else { owed.saturating_sub(got) };
                        return Ok(got);
                    }
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    }
                    result => return result,
                }
            },
            Capture::File { file, grown, offset, punched, end } => loop {
                if end.is_some_and(|end| *offset >= end) {
                    return Ok(0);
                }
                let got = file.read_at(buffer, *offset)?;
                if got > 0 {
                    *offset += got as u64;
                    if *offset - *punched >= PUNCH {
                        punch(file, *punched, *offset);
                        *punched = *offset;
                    }
                    return Ok(got);
                }
                // What grew before this wait has left an event: the wait ends at once then.
                let mut guard = grown.readable().await?;
                if let Ok(Err(error)) = guard.try_io(|inotify| Ok(inotify.get_ref().0.read_events()?)) {
                    return Err(error);
                }
            },
        }
    }
}

nix::ioctl_read_bad!(fionread, libc::FIONREAD, libc::c_int);

/// How much a pipe holds (pipe(7), `FIONREAD`).
fn bytes_in(receiver: &pipe::Receiver) -> usize {
    let mut bytes = 0;
    // SAFETY: the descriptor is open, and the kernel writes one integer into the one that is borrowed for the call.
    match unsafe { fionread(receiver.as_raw_fd(), &mut bytes) } {
        Ok(_) => usize::try_from(bytes).unwrap_or_default(),
        Err(_) => 0,
    }
}

/// Best effort: a file system that cannot punch just keeps the bytes until the session ends.
fn punch(file: &File, from: u64, to: u64) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    if let (Ok(from), Ok(length)) = (i64::try_from(from), i64::try_from(to - from)) {
        let _ = fallocate(file.as_fd(), flags, from, length);
    }
}
