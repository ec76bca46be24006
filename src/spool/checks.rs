//! What a private file and a private folder are.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};

use super::error::SpoolError;

/// The mode of every file.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The mode of every folder.
pub(crate) const DIR_MODE: u32 = 0o700;

/// Why something could not be opened: a thing of the wrong kind is refused, anything else is the kernel's error.
pub(crate) fn open_error(path: &Path, error: Errno, dir: bool) -> SpoolError {
    match error {
        Errno::ELOOP => SpoolError::refused(path, "is a symbolic link; put what it points to in its place"),
        // O_DIRECTORY | O_NOFOLLOW on a symbolic link says ENOTDIR.
        Errno::ENOTDIR if dir => {
            SpoolError::refused(path, "is not a folder (or a symbolic link to one); move it away")
        }
        Errno::ENXIO | Errno::EISDIR => SpoolError::refused(path, "is not a regular file; move it away"),
        e => SpoolError::io("open", path, e),
    }
}

/// A regular file of this account, reachable for nobody else and under one name.
pub(crate) fn check_file(path: &Path, stat: &FileStat, uid: u32) -> Result<(), SpoolError> {
    if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFREG {
        return Err(SpoolError::refused(path, "is not a regular file; move it away"));
    }
    check_owner(path, stat, uid)?;
    if stat.st_mode & 0o7777 != FILE_MODE {
        return Err(bad_mode(path, stat, FILE_MODE));
    }
    if stat.st_nlink != 1 {
        return Err(SpoolError::refused(
            path,
            format!(
                "has {} hard links, so that it can be changed under another name; remove those (find -inum {})",
                stat.st_nlink, stat.st_ino
            ),
        ));
    }
    Ok(())
}

/// Whether it is a folder, and no link to one.
pub(crate) fn is_folder(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

/// A folder of this account, open to nobody else.
pub(crate) fn check_dir(path: &Path, stat: &FileStat, uid: u32) -> Result<(), SpoolError> {
    check_owner(path, stat, uid)?;
    match stat.st_mode & 0o7777 == DIR_MODE {
        true => Ok(()),
        false => Err(bad_mode(path, stat, DIR_MODE)),
    }
}

fn check_owner(path: &Path, stat: &FileStat, uid: u32) -> Result<(), SpoolError> {
    if stat.st_uid == uid {
        return Ok(());
    }
    Err(SpoolError::refused(
        path,
        format!(
            "belongs to uid {}, and this is uid {uid}; name another place, or chown it if you trust what is in it",
            stat.st_uid
        ),
    ))
}

fn bad_mode(path: &Path, stat: &FileStat, mode: u32) -> SpoolError {
    SpoolError::refused(
        path,
        format!(
            "has mode {:04o} and must have {mode:04o}; if nobody else used it: chmod {mode:o} {}",
            stat.st_mode & 0o7777,
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::stat;

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut found = stat(folder.path()).expect("looked");
        found.st_mode = found.st_mode & !0o7777 | DIR_MODE;
        check_dir(folder.path(), &found, found.st_uid).expect("ours");
        let error = check_dir(folder.path(), &found, found.st_uid + 1).expect_err("not ours").to_string();
        assert!(error.contains(&format!("belongs to uid {}", found.st_uid)), "{error}");

        let path = folder.path().join("file");
        std::fs::write(&path, "").expect("written");
        let mut found = stat(&path).expect("looked");
        found.st_mode = found.st_mode & !0o7777 | FILE_MODE;
        check_file(&path, &found, found.st_uid).expect("ours");
        assert!(check_file(&path, &found, found.st_uid + 1).is_err());
    }
}
