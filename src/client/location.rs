//! Where an account's service is found: by variables where they are set and ours, by uid where they are not.
//!
//! Only the standard library is used, so that application processes, `sessionctl` and the daemon find the same
//! places by the same rule. The rule is the XDG Base Directory Specification's, with one addition: a directory named
//! by a variable that another account owns (`su` and `sudo -E` leave such variables behind) is not used.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The longest path of a Unix socket in bytes: `sun_path` of unix(7) without its terminating NUL.
pub const MAX_SOCKET_PATH: usize = 107;

/// The effective uid of this process.
///
/// # Errors
/// `/proc` is not mounted.
pub fn own_uid() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

/// The account's home: `HOME`, and where that is missing or relative, the password database's.
pub fn home_directory() -> Option<PathBuf> {
    env::home_dir().filter(|path| path.is_absolute())
}

/// `$XDG_CONFIG_HOME`, or `~/.config`.
pub fn config_directory() -> Option<PathBuf> {
    variable("XDG_CONFIG_HOME").or_else(|| Some(home_directory()?.join(".config")))
}

/// `$XDG_STATE_HOME`, or `~/.local/state`.
pub fn state_directory() -> Option<PathBuf> {
    variable("XDG_STATE_HOME").or_else(|| Some(home_directory()?.join(".local/state")))
}

/// The account's runtime directory: `$XDG_RUNTIME_DIR`, or `/run/user/<uid>`; only if it is a directory of ours that
/// nobody else can write.
pub fn runtime_directory() -> Option<PathBuf> {
    let uid = own_uid().ok()?;
    [variable("XDG_RUNTIME_DIR"), Some(PathBuf::from(format!("/run/user/{uid}")))]
        .into_iter()
        .flatten()
        .find(|path| is_private(path, uid))
}

/// The private socket of this account's service where the configuration names no other:
/// `airouter/sessiond.sock` in the [`runtime_directory`], or `airouter/run/sessiond.sock` in the
/// [`state_directory`] where there is none.
pub fn socket_path() -> Option<PathBuf> {
    match runtime_directory() {
        Some(directory) => Some(directory.join("airouter/sessiond.sock")),
        None => Some(state_directory()?.join("airouter/run/sessiond.sock")),
    }
}

/// Where the account's own bus listens where `DBUS_SESSION_BUS_ADDRESS` is not set: `bus` in the
/// [`runtime_directory`], if it is there.
pub fn bus_socket() -> Option<PathBuf> {
    runtime_directory().map(|directory| directory.join("bus")).filter(|path| path.exists())
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn is_private(path: &Path, uid: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_not_private() {
        let directory = tempfile::tempdir().unwrap();
        let uid = own_uid().unwrap();
        assert!(is_private(directory.path(), uid));
        assert!(!is_private(directory.path(), uid + 1));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(!is_private(directory.path(), uid));
        assert!(!is_private(&directory.path().join("missing"), uid));
    }
}
