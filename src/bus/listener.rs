//! The private socket's place in the file system: in a directory that only we can enter, itself only ours to open,
//! put there and taken away without ever touching another service's socket.
//!
//! Everything is done through one open directory, and under its lock (flock(2)): of two services that start at
//! once, one finds the other listening.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};

/// Why the private socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path has no directory, or is too long for a socket address.
    #[error("the private socket's path {0:?} must be absolute, with at most 107 bytes")]
    Path(PathBuf),
    /// The directory is not safe.
    #[error("the private socket's directory {path:?} {problem}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// Something is in the way.
    #[error("{path:?} {problem}")]
    Occupied {
        /// The socket's path.
        path: PathBuf,
        /// What is there and what to do.
        problem: String,
    },
    /// The system refuses.
    #[error("the private socket {path:?} cannot be served: {step}: {error}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// What was being done.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// A listening socket in its place.
#[derive(Debug)]
pub struct Listener {
    place: Place,
    /// The socket that is ours. While it is open its inode lives, so that its number is nobody else's: a file
    /// system gives a freed one to the very next file.
    ours: File,
}

/// A name in an open directory.
#[derive(Debug)]
struct Place {
    directory: File,
    name: String,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path` for the account `uid`. The directory is made if it is missing; a socket that nobody
    /// listens at is replaced if it is ours.
    pub fn bind(path: &Path, uid: u32) -> Result<(Self, UnixListener), SocketError> {
        let place = Place::open(path, uid)?;
        let lock = place.lock()?;
        place.clear(uid)?;
        let listener = place.listen()?;
        let ours = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(place.inside())
            .map_err(place.failed("looking at it"))?;
        let found = ours.metadata().map_err(place.failed("looking at it"))?;
        if !found.file_type().is_socket() || found.uid() != uid {
            return Err(place.occupied("was replaced while it was made; nobody else may write its directory"));
        }
        drop(lock);
        Ok((Listener { place, ours }, listener))
    }

    /// Takes the socket away, if it is still ours.
    pub fn remove(&self) {
        let Ok(_lock) = self.place.lock() else { return };
        let Ok(ours) = self.ours.metadata() else { return };
        match std::fs::symlink_metadata(self.place.inside()) {
            Ok(found) if (found.dev(), found.ino()) == (ours.dev(), ours.ino()) => {
                if let Err(error) = std::fs::remove_file(self.place.inside()) {
                    tracing::warn!(path = ?self.place.path, %error, "the private socket cannot be removed");
                }
            }
            // Gone, or somebody else's by now: not ours to touch.
            _ => {}
        }
    }
}

impl Place {
    fn open(path: &Path, uid: u32) -> Result<Self, SocketError> {
        let bad_path = || SocketError::Path(path.to_owned());
        let parent = path.parent().filter(|parent| parent.is_absolute()).ok_or_else(bad_path)?;
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(bad_path)?;
        // sockaddr_un(7): 108 bytes with the end.
        if path.as_os_str().len() > 107 {
            return Err(bad_path());
        }
        let unsafe_directory = |problem: String| SocketError::Directory { path: parent.to_owned(), problem };
        match std::fs::DirBuilder::new().mode(0o700).create(parent) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unsafe_directory(format!("cannot be made: {error}"))),
        }
        let directory = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(parent)
            .map_err(|error| {
                unsafe_directory(format!("cannot be opened (it may not be a symlink): {error}"))
            })?;
        let found =
            directory.metadata().map_err(|error| unsafe_directory(format!("cannot be read: {error}")))?;
        if found.uid() != uid {
            return Err(unsafe_directory(format!("belongs to the account {}, not to {uid}", found.uid())));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o7777;
            return Err(unsafe_directory(format!("has mode {mode:o}: others may enter it; chmod 700 it")));
        }
        Ok(Place { directory, name: name.to_owned(), path: path.to_owned() })
    }

    /// The socket's path through the open directory, whatever happens to the directory's name.
    fn inside(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.name))
    }

    fn failed(&self, step: &'static str) -> impl FnOnce(io::Error) -> SocketError {
        let path = self.path.clone();
        move |error| SocketError::Io { path, step, error }
    }

    fn occupied(&self, problem: impl Into<String>) -> SocketError {
        SocketError::Occupied { path: self.path.clone(), problem: problem.into() }
    }

    fn lock(&self) -> Result<Flock<File>, SocketError> {
        // A description of its own: closing it is unlocking.
        let directory = File::open(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
            .map_err(self.failed("opening its directory"))?;
        // Held for a few system calls only, so that waiting for it is no waiting.
        Flock::lock(directory, FlockArg::LockExclusive)
            .map_err(|(_, error)| self.failed("locking its directory")(error.into()))
    }

    /// Removes a socket of ours that nobody listens at; refuses anything else that is there.
    fn clear(&self, uid: u32) -> Result<(), SocketError> {
        let found = match std::fs::symlink_metadata(self.inside()) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.failed("looking at it")(error)),
        };
        if !found.file_type().is_socket() {
            return Err(self.occupied("is there and is no socket; move it away"));
        }
        if found.uid() != uid {
            return Err(self.occupied(format!("is a socket of the account {}; move it away", found.uid())));
        }
        if self.somebody_listens()? {
            return Err(self.occupied("is served already by another process; stop that first"));
        }
        std::fs::remove_file(self.inside()).map_err(self.failed("removing a stale socket"))
    }

    fn address(&self) -> Result<UnixAddr, SocketError> {
        UnixAddr::new(&self.inside()).map_err(|error| self.failed("naming it")(error.into()))
    }

    fn new_socket(&self) -> Result<OwnedFd, SocketError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .map_err(|error| self.failed("making a socket")(error.into()))
    }

    fn somebody_listens(&self) -> Result<bool, SocketError> {
        let probe = self.new_socket()?;
        match connect(probe.as_raw_fd(), &self.address()?) {
            // EAGAIN: its queue is full, so somebody has one.
            Ok(()) | Err(nix::Error::EAGAIN | nix::Error::EINPROGRESS) => Ok(true),
            Err(nix::Error::ECONNREFUSED) => Ok(false),
            Err(error) => Err(self.failed("asking whether somebody listens")(error.into())),
        }
    }

    fn listen(&self) -> Result<UnixListener, SocketError> {
        let socket = self.new_socket()?;
        // Linux gives the file the mode of the socket: it is never open to others, whatever the umask.
        nix::sys::stat::fchmod(&socket, nix::sys::stat::Mode::from_bits_truncate(0o600))
            .map_err(|error| self.failed("setting its mode")(error.into()))?;
        bind(socket.as_raw_fd(), &self.address()?).map_err(|error| self.failed("binding")(error.into()))?;
        std::fs::set_permissions(self.inside(), Permissions::from_mode(0o600))
            .map_err(self.failed("setting its mode"))?;
        // The system cuts it to its own most (net.core.somaxconn).
        listen(&socket, Backlog::MAXCONN).map_err(|error| self.failed("listening")(error.into()))?;
        Ok(UnixListener::from(socket))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn uid() -> u32 {
        nix::unistd::getuid().as_raw()
    }

    fn home() -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("run/sessiond.sock");
        (home, path)
    }

    #[test]
    fn directory_and_socket_are_private_whatever_the_umask() {
        let (_home, path) = home();
        let (listener, _socket) = Listener::bind(&path, uid()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(mode(&path), 0o600);
        UnixStream::connect(&path).expect("somebody listens");
        listener.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let (_home, path) = home();
        let (first, socket) = Listener::bind(&path, uid()).unwrap();
        let refused = Listener::bind(&path, uid()).expect_err("the first listens").to_string();
        assert!(refused.contains("is served already by another process"), "{refused}");
        drop(socket);
        let (_second, _socket) = Listener::bind(&path, uid()).expect("the first is stale");
        // The first one's end must not take the second one's socket away.
        first.remove();
        UnixStream::connect(&path).expect("the second listens");
    }

    #[test]
    fn what_is_not_a_socket_of_ours_is_left_alone() {
        let (_home, path) = home();
        std::fs::DirBuilder::new().mode(0o700).create(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&path, uid()).unwrap_err().to_string().contains("is no socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
        assert!(Listener::bind(&path, uid()).unwrap_err().to_string().contains("is no socket"));
    }

    #[test]
    fn unsafe_directories_are_refused_by_name() {
        let (_home, path) = home();
        let directory = path.parent().unwrap();
        std::fs::create_dir(directory).unwrap();
        std::fs::set_permissions(directory, Permissions::from_mode(0o750)).unwrap();
        let refused = Listener::bind(&path, uid()).unwrap_err().to_string();
        assert!(refused.contains("mode 750") && refused.contains("chmod 700"), "{refused}");
        std::fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
        let refused = Listener::bind(&path, uid() + 1).unwrap_err().to_string();
        assert!(refused.contains("belongs to the account"), "{refused}");
        let link = directory.with_file_name("link");
        std::os::unix::fs::symlink(directory, &link).unwrap();
        let refused = Listener::bind(&link.join("s"), uid()).unwrap_err().to_string();
        assert!(refused.contains("symlink"), "{refused}");
        assert!(matches!(Listener::bind(Path::new("s"), uid()), Err(SocketError::Path(_))));
    }
}
