use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::lstat;
use nix::unistd::{AccessFlags, faccessat, getegid, geteuid};

use super::error::SpoolError;
use super::lock::{SERVICE_LOCK, lock_service};
use super::private::{Dir, make_way};

/// Opens or makes the spool's own folder and takes its lock.
pub(super) fn open(path: &Path, time: u64) -> Result<(Dir, File), SpoolError> {
    let path = canonical(path)?;
    check_way(&path)?;
    let dir = Dir::open(&path)?;
    let lock = lock_service(&dir, time)?;
    Ok((dir, lock))
}

/// Looks whether [`open`] would find the folder as it has to be, or could make it. Changes nothing and locks nothing.
/// `folders` are those that the spool has in it.
pub(super) fn check(path: &Path, folders: &[&str]) -> Result<(), SpoolError> {
    let (parent, name) = split(path)?;
    // What `open` finds: the rest it makes, private and ours.
    let Some(found) = parent.ancestors().find(|folder| folder.symlink_metadata().is_ok()) else {
        return Err(SpoolError::io("find", parent, Errno::ENOENT));
    };
    let real = found.canonicalize().map_err(|e| SpoolError::io("find", found, e))?;
    if !real.is_dir() {
        return Err(SpoolError::refused(&real, "is not a folder; name another place for the spool"));
    }
    check_folders(real.ancestors(), path)?;
    let path = real.join(name);
    if found != parent || path.symlink_metadata().is_err() {
        return check_writable(&real);
    }
    let dir = Dir::open(&path)?;
    check_writable(&path)?;
    for folder in folders {
        if let Some(folder) = dir.dir(folder)? {
            dir.check_same_file_system(&folder)?;
        }
    }
    dir.open_read(SERVICE_LOCK).map(drop)
}

fn check_writable(folder: &Path) -> Result<(), SpoolError> {
    let wanted = AccessFlags::W_OK | AccessFlags::X_OK;
    faccessat(AT_FDCWD, folder, wanted, AtFlags::AT_EACCESS)
        .map_err(|e| SpoolError::io("write in", folder, e))
}

/// The folder above the spool, and the spool's name in it.
fn split(path: &Path) -> Result<(&Path, &OsStr), SpoolError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(SpoolError::refused(path, "cannot be a spool; name a folder of its own"));
    };
    match path.is_absolute() {
        true => Ok((parent, name)),
        false => Err(SpoolError::refused(path, "is not an absolute path")),
    }
}

/// The path without symbolic links, made if it is missing. Its last part must not be a link: whoever can write beside
/// it could point it elsewhere.
fn canonical(path: &Path) -> Result<PathBuf, SpoolError> {
    let (parent, name) = split(path)?;
    make_way(parent)?;
    let parent = parent.canonicalize().map_err(|e| SpoolError::io("find", parent, e))?;
    let path = parent.join(name);
    make_way(&path)?;
    Ok(path)
}

/// Every folder above the spool is ours or root's, and nobody else may exchange what is in it: it is not writable for
/// others, unless only the owners of things may move them (the sticky bit, as on /tmp).
fn check_way(path: &Path) -> Result<(), SpoolError> {
    check_folders(path.ancestors().skip(1), path)
}

fn check_folders<'a>(folders: impl Iterator<Item = &'a Path>, spool: &Path) -> Result<(), SpoolError> {
    let account = Account {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        root: if root_is_hidden() { OVERFLOW_UID } else { 0 },
    };
    for folder in folders {
        let stat = lstat(folder).map_err(|e| SpoolError::io("look at", folder, e))?;
        if let Some(problem) = account.problem(stat.st_mode, stat.st_uid, stat.st_gid) {
            let text = format!("{problem}, so that {} is not safe there", spool.display());
            return Err(SpoolError::refused(folder, text));
        }
    }
    Ok(())
}

/// As whom the kernel shows owners that a user namespace does not know (user_namespaces(7)).
const OVERFLOW_UID: u32 = 65534;

/// In a user namespace that knows only this account, as systemd makes for a hardened user unit, root's files seem to
/// belong to [`OVERFLOW_UID`].
fn root_is_hidden() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let firsts: Vec<&str> = map.lines().filter_map(|line| line.split_whitespace().next()).collect();
    !firsts.is_empty() && !firsts.contains(&"0")
}

/// Whom the folders above a spool may belong to.
struct Account {
    uid: u32,
    gid: u32,
    root: u32,
}

impl Account {
    fn problem(&self, mode: u32, owner: u32, group: u32) -> Option<String> {
        if owner != self.uid && owner != self.root {
            return Some(format!("belongs to uid {owner}, which is neither this account nor root"));
        }
        if mode & 0o1000 != 0 {
            return None;
        }
        if mode & 0o002 != 0 {
            return Some(format!("has mode {:04o}, writable for everybody", mode & 0o7777));
        }
        // Where every account has a group of its own (umask 002), its folders are group-writable and yet private.
        let own_group = owner == self.uid && group == self.gid;
        if mode & 0o020 != 0 && !own_group {
            return Some(format!("has mode {:04o}, writable for the group {group}", mode & 0o7777));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_spool_is_ours_or_roots_and_closed_to_others() {
        let account = Account { uid: 1000, gid: 1000, root: 0 };
        for (mode, owner, group, fine) in [
            (0o755, 0, 0, true),
            (0o1777, 0, 0, true),
            (0o700, 1000, 1000, true),
            (0o775, 1000, 1000, true),
            (0o775, 1000, 100, false),
            (0o775, 0, 1000, false),
            (0o777, 1000, 1000, false),
            (0o777, 0, 0, false),
            (0o755, 1001, 1000, false),
            (0o1777, 1001, 1001, false),
            (0o755, OVERFLOW_UID, 0, false),
        ] {
            let problem = account.problem(mode, owner, group);
            assert_eq!(problem.is_none(), fine, "{mode:o} {owner} {group}: {problem:?}");
        }
    }
}
