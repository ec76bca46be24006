//! Where the project's own programs are: how `sessionctl` finds the daemon, and the daemon the executor.
//!
//! Installed, the three stand side by side. Where only one of them was built (`cargo run` builds nothing but
//! `sessionctl`), it carries the others: started under another's name in `argv[0]`, it is that other.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The daemon's name.
pub const DAEMON: &str = "airouter-sessiond";
/// The executor's name.
pub const EXECUTOR: &str = "airouter-native-exec";

/// Marks every descriptor above 2 as close-on-exec: what our starter leaked into us must not reach a program, where it
/// could hold a lock or a socket for hours (close_range(2)).
pub fn keep_descriptors_from_children() -> io::Result<()> {
    // SAFETY: takes plain numbers and only sets a flag on descriptors that are open.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
/// The executable of this process, which the kernel keeps for as long as it lives.
pub const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// How to start one of the project's programs: `path`, with `argv0` as its own name (`Command::arg0`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sibling {
    /// The executable.
    pub path: PathBuf,
    /// What stands in its `argv[0]`, so that an executable that carries several programs knows which to be.
    pub arg0: String,
}

/// The program `name` ([`DAEMON`] or [`EXECUTOR`]): the executable of that name beside the running one, or the
/// running one itself. The latter must decide by [`called_as`] in its `main`.
///
/// After the running executable was replaced by an upgrade, the new one beside it is used; if nothing is left there,
/// the running one through `/proc/self/exe`, which the kernel keeps for as long as this process lives.
///
/// # Errors
/// `/proc` is not mounted.
pub fn sibling(name: &str) -> io::Result<Sibling> {
    let running = fs::read_link(OWN_EXECUTABLE)?;
    // Who was started as a carried program goes on with what it carries: what stands beside may be of another build.
    let carried = called_as()
        .is_some_and(|called| (called == DAEMON || called == EXECUTOR) && !running.ends_with(&called));
    let path = match beside(&running, name) {
        Some(path) if !carried => path,
        _ => itself(running),
    };
    Ok(Sibling { path, arg0: name.to_owned() })
}

/// The program `name` as the running executable carries it, whatever stands beside it.
///
/// # Errors
/// `/proc` is not mounted.
pub fn carried(name: &str) -> io::Result<Sibling> {
    Ok(Sibling { path: itself(fs::read_link(OWN_EXECUTABLE)?), arg0: name.to_owned() })
}

fn itself(running: PathBuf) -> PathBuf {
    if is_running(&running) { running } else { PathBuf::from(OWN_EXECUTABLE) }
}

/// Whether the file at `path` is still the one that this process runs.
fn is_running(path: &Path) -> bool {
    match (fs::metadata(path), fs::metadata(OWN_EXECUTABLE)) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

/// An executable file `name` in the directory of `running`.
fn beside(running: &Path, name: &str) -> Option<PathBuf> {
    let path = running.parent()?.join(name);
    let found = path.metadata().ok()?;
    (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(path)
}

/// The name under which this process was started: the last part of `argv[0]`.
pub fn called_as() -> Option<String> {
    let argv0 = env::args_os().next()?;
    Some(last_part(&argv0).to_owned())
}

/// The name under which another process was started.
pub fn name_of_process(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let argv0 = line.split(|byte| *byte == 0).next().filter(|argv0| !argv0.is_empty())?;
    Some(last_part(OsStr::from_bytes(argv0)).to_owned())
}

fn last_part(argv0: &OsStr) -> &str {
    let start = argv0.as_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    std::str::from_utf8(&argv0.as_bytes()[start..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_executable_file_beside_us_is_a_sibling() {
        let directory = tempfile::tempdir().unwrap();
        let running = directory.path().join("sessionctl");
        let daemon = directory.path().join(DAEMON);
        assert_eq!(beside(&running, DAEMON), None);
        fs::write(&daemon, "").unwrap();
        fs::set_permissions(&daemon, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(beside(&running, DAEMON), None);
        fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(beside(&running, DAEMON), Some(daemon));
        fs::create_dir(directory.path().join(EXECUTOR)).unwrap();
        assert_eq!(beside(&running, EXECUTOR), None);
    }

    #[test]
    fn the_name_is_the_last_part_of_argv0() {
        assert_eq!(last_part(OsStr::new("airouter-sessiond")), "airouter-sessiond");
        assert_eq!(last_part(OsStr::new("/usr/bin/airouter-native-exec")), "airouter-native-exec");
        assert_eq!(last_part(OsStr::new("")), "");
        assert_eq!(name_of_process(std::process::id()), called_as());
        assert_eq!(name_of_process(u32::MAX), None);
    }

    #[test]
    fn without_a_sibling_the_running_program_is_started_under_its_name() {
        // No daemon is built into the directory of the test's executable.
        let sibling = sibling(DAEMON).unwrap();
        assert_eq!((sibling.path, sibling.arg0.as_str()), (env::current_exe().unwrap(), DAEMON));
        assert!(is_running(&env::current_exe().unwrap()) && !is_running(Path::new("/bin/sh")));
    }
}
