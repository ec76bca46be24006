//! Starting the program: its arguments, directory, environment, streams, and nothing of ours.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, Pid, faccessat};

use super::capture::Capture;
use crate::model::Plan;

/// A program that was started.
#[derive(Debug)]
pub struct Program {
    /// Its main process.
    pub pid: Pid,
    /// Its standard output.
    pub stdout: Capture,
    /// Its standard error.
    pub stderr: Capture,
}

/// Why it could not be started. The text names the path that was tried, never an argument.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The directory it should run in is not there, or may not be entered.
    #[error("cannot start in the directory {path}: {source}")]
    Directory {
        /// The directory.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The program itself.
    #[error("cannot start {path}: {source}")]
    Program {
        /// The program.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Its pipes or its output file.
    #[error("cannot make the program's streams: {0}")]
    Streams(#[source] io::Error),
}

/// Starts it. `input` becomes its standard input, `capture_path` is the file for its output where the plan wants one,
/// `marker` goes into its environment; through `entrance`, a cgroup's `cgroup.procs`, it is inside before it runs.
pub fn start(
    plan: &Plan,
    input: Option<File>,
    capture_path: &Path,
    marker: Option<(String, String)>,
    entrance: Option<File>,
) -> Result<Program, SpawnError> {
    check_directory(&plan.directory)
        .map_err(|source| SpawnError::Directory { path: plan.directory.display().to_string(), source })?;
    let (stdout, stdout_end) = if plan.capture_file { Capture::file(capture_path) } else { Capture::pipe() }
        .map_err(SpawnError::Streams)?;
    let (stderr, stderr_end) = Capture::pipe().map_err(SpawnError::Streams)?;
    let mut command = Command::new(&plan.program);
    command
        .args(&plan.arguments)
        .env_clear()
        .envs(&plan.environment)
        .envs(marker)
        .env("PWD", &plan.directory)
        .current_dir(&plan.directory)
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .stdout(stdout_end)
        .stderr(stderr_end);
    // SAFETY: setsid(2) and write(2) are async-signal-safe, and nothing is allocated; this process is small, so fork
    // is cheap.
    unsafe {
        command.pre_exec(move || {
            if let Some(entrance) = &entrance {
                nix::unistd::write(entrance, b"0")?;
            }
            Ok(nix::unistd::setsid().map(drop)?)
        });
    }
    match command.spawn() {
        // Children are reaped in one place, with the orphans of the tree: the handle is of no use.
        Ok(child) => Ok(Program { pid: Pid::from_raw(child.id() as i32), stdout, stderr }),
        Err(source) => Err(SpawnError::Program { path: plan.program.display().to_string(), source }),
    }
}

/// Whether the program can be started in a directory. After the fork nobody could tell that from the program's own faults.
fn check_directory(path: &Path) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(path, flags, Mode::empty())?;
    // O_PATH asks for no right to the directory itself.
    Ok(faccessat(&directory, ".", AccessFlags::X_OK, AtFlags::AT_EACCESS)?)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What `check` gives for an account that files bind.
    fn unprivileged<T: Send + 'static>(check: impl FnOnce() -> T + Send + 'static) -> T {
        let other = move || {
            if nix::unistd::geteuid().is_root() {
                let keep: libc::c_long = -1;
                // SAFETY: no memory is passed. The raw call changes this thread alone, and the thread ends here.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, keep, 4711 as libc::c_long, keep) };
                assert_eq!(changed, 0);
            }
            check()
        };
        std::thread::spawn(other).join().unwrap()
    }

    #[test]
    fn a_directory_that_may_not_be_entered_is_told_from_the_program() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let directory = scratch.path().join("closed");
        std::fs::create_dir(&directory).unwrap();
        for (mode, kind) in [(0o755, None), (0o444, Some(io::ErrorKind::PermissionDenied))] {
            std::fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            let asked = directory.clone();
            let answer = unprivileged(move || check_directory(&asked));
            assert_eq!(answer.as_ref().err().map(io::Error::kind), kind, "{mode:o}: {answer:?}");
        }
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(check_directory(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(
            check_directory(&scratch.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
