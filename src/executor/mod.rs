//! The per-session process: start, read, journal, end. It outlives the daemon.
//!
//! `airouter-native-exec --check-output` is the checker of [`schema`] instead.
//!
//! `airouter-native-exec SESSION-FOLDER` is started with the locked `owner.lock` as standard input and a control
//! socket as standard output. It reads `claim.json`, waits for "go", writes the journal's header and `started`, starts
//! the program, and records everything until the program and its tree are gone; then it writes `outcome.json` and
//! exits, which frees the lock. It needs no daemon for any of that: limits and stops are enforced here.
//!
//! One thread does everything but the disk: `committer` has a thread of its own, because a slow disk must not keep
//! the program's output from being drained.

mod capture;
mod clock;
pub use clock::{BootTimer, boot_ms, now_us};
mod committer;
pub mod control;
mod conversation;
mod lines;
mod link;
mod opening;
mod program;
mod recorder;
mod run;
mod staged;
mod stop;
mod timers;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::schema;
use crate::spool::SessionDir;

/// The soft limit on open files that programs expect: descriptors beyond it do not fit into select(2).
const DESCRIPTORS: u64 = 1024;

/// The program `airouter-native-exec`.
pub fn main() -> ExitCode {
    if schema::is_checker() {
        return schema::checker_main();
    }
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!(
            "usage: airouter-native-exec SESSION-FOLDER\n\nStarted by airouter-sessiond, one for each session."
        );
        return ExitCode::from(2);
    };
    match prepare_and_run(PathBuf::from(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("airouter-native-exec: {error}");
            ExitCode::FAILURE
        }
    }
}

fn prepare_and_run(folder: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let (lock, parent) = take_inherited()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(DESCRIPTORS), hard)?;
    crate::program::keep_descriptors_from_children()?;
    let dir = SessionDir::open(&folder)?;
    let lock = dir.adopt_lock(lock)?;
    crate::crash::point("executor.adopted");
    // A terminal's signals are for the daemon that may run there, never for the sessions.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run::run(dir, lock, parent))
}

/// Takes the lock and the control socket from descriptors 0 and 1, and leaves /dev/null there, so that neither can
/// reach the program.
fn take_inherited() -> io::Result<(File, UnixStream)> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut taken = Vec::new();
    for number in [0, 1] {
        // SAFETY: descriptors 0 and 1 are open (std opens /dev/null there otherwise) and borrowed only here.
        let inherited = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let copy = fcntl(inherited, FcntlArg::F_DUPFD_CLOEXEC(3))?;
        // SAFETY: fcntl(2) has just made this descriptor; nobody else owns it.
        taken.push(unsafe { OwnedFd::from_raw_fd(copy) });
        // SAFETY: dup2(2) on two open descriptors; what held 0 and 1 by number now holds /dev/null.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut taken = taken.into_iter();
    match (taken.next(), taken.next()) {
        (Some(lock), Some(control)) => Ok((File::from(lock), UnixStream::from(control))),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
