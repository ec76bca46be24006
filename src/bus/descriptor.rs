//! Descriptors that callers give to be read: input and attachments.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

/// How long a caller may take to write into the pipes of one call.
pub const READ_TIME: Duration = Duration::from_secs(30);

/// Why a descriptor is not read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// It holds more than it may.
    #[error("holds more than it may")]
    TooLarge,
    /// Its writer goes on.
    #[error("was not closed by its writer within {} s", READ_TIME.as_secs())]
    NotClosed,
    /// It is nothing that has an end.
    #[error("is {0}; give a pipe, a regular file or a memfd")]
    Kind(&'static str),
    /// The system says so.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The reading itself ended early.
    #[error("was not read to its end")]
    CutOff,
}

/// Reads a caller's descriptor to its end, at most `most` bytes. A pipe is read until its writers close it, at the latest
/// at `deadline`; a file or memfd from its beginning, wherever the descriptor stands.
pub async fn read_descriptor(fd: OwnedFd, most: u64, deadline: Instant) -> Result<Vec<u8>, Unread> {
    let file = File::from(fd);
    let kind = file.metadata()?.file_type();
    let bytes = if kind.is_fifo() {
        // A description of our own: whether it blocks must not change for the caller, whose it is too.
        let ours = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        drop(file);
        let pipe = pipe::Receiver::from_file(ours)?;
        let mut bytes = Vec::new();
        match timeout_at(deadline, pipe.take(most.saturating_add(1)).read_to_end(&mut bytes)).await {
            Ok(read) => read?,
            Err(_) => return Err(Unread::NotClosed),
        };
        bytes
    } else if kind.is_file() {
        let read = tokio::task::spawn_blocking(move || read_file(&file, most.saturating_add(1))).await;
        read.map_err(|_| Unread::CutOff)??
    } else if kind.is_char_device() {
        return Err(Unread::Kind("a device"));
    } else {
        return Err(Unread::Kind("neither a pipe nor a file"));
    };
    match bytes.len() as u64 > most {
        true => Err(Unread::TooLarge),
        false => Ok(bytes),
    }
}

fn read_file(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    while (bytes.len() as u64) < most {
        match file.read_at(&mut chunk, bytes.len() as u64) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn read(fd: OwnedFd, most: u64) -> Result<Vec<u8>, Unread> {
        read_descriptor(fd, most, Instant::now() + READ_TIME).await
    }

    #[tokio::test]
    async fn files_are_read_whole_and_bounded() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        let fd = || OwnedFd::from(file.try_clone().unwrap());
        assert_eq!(read(fd(), 100_000).await.unwrap(), vec![7; 100_000]);
        assert!(matches!(read(fd(), 99_999).await, Err(Unread::TooLarge)));
        let null = File::open("/dev/null").unwrap();
        assert!(read(null.into(), 9).await.unwrap_err().to_string().contains("is a device"));
    }

    #[tokio::test]
    async fn pipes_are_read_to_their_end_and_stay_blocking_for_the_caller() {
        let (reader, write) = io::pipe().unwrap();
        let caller = reader.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let mut write = write;
            write.write_all(&vec![b'x'; 300_000])
        });
        assert_eq!(read(reader.into(), 1 << 20).await.unwrap().len(), 300_000);
        writer.join().unwrap().unwrap();
        let flags = nix::fcntl::fcntl(&caller, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_never_ends_is_given_up() {
        let (reader, _write) = io::pipe().unwrap();
        let error = read(reader.into(), 10).await.unwrap_err().to_string();
        assert!(error.contains("was not closed by its writer within 30 s"), "{error}");
    }
}
