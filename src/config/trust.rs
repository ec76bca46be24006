//! Who can change a file that decides what this service runs.
//!
//! A path is followed name by name, as the kernel does: whoever can write a directory in which a name is looked up
//! decides what is found there, and so does the owner of a symbolic link. In a sticky directory, such as `/tmp`, others
//! cannot exchange what is there, so one may lie on the way; the file itself and a link in its place may not be in one,
//! since whoever comes first there makes them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{Metadata, read_link, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::account::is_private_group;

/// The most symbolic links that the kernel follows in one path (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// Why other accounts could change a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} {problem}")]
pub struct Untrusted {
    /// The file or directory.
    path: String,
    /// What is wrong and what would be right.
    problem: String,
}

/// Refuses what accounts other than `uid` and root can write: by owning it, by its group, or as anybody.
pub(super) fn check(path: &Path, found: &Metadata, uid: u32) -> Result<(), Untrusted> {
    let refuse = |problem: String| Err(Untrusted { path: path.display().to_string(), problem });
    check_owner(path, found, uid)?;
    let mode = found.mode() & 0o7777;
    if mode & 0o002 != 0 {
        return refuse(format!("can be written by everybody (mode {mode:04o}); `chmod o-w` it"));
    }
    if mode & 0o020 != 0 && found.gid() != 0 && !is_private_group(found.gid(), uid) {
        return refuse(format!("can be written by group {} (mode {mode:04o}); `chmod g-w` it", found.gid()));
    }
    Ok(())
}

fn check_owner(path: &Path, found: &Metadata, uid: u32) -> Result<(), Untrusted> {
    match found.uid() {
        owner if owner == uid || owner == 0 => Ok(()),
        owner => Err(Untrusted {
            path: path.display().to_string(),
            problem: format!(
                "belongs to uid {owner}, who could change what runs here; it must be ours (uid {uid}) or root's"
            ),
        }),
    }
}

/// Refuses a program that others can write, or replace by writing a directory or owning a link on the way to it. One
/// that does not exist, or cannot be looked at, passes: it cannot be started either, and is reported as a problem of
/// its profile.
pub(super) fn check_program(program: &Path, uid: u32) -> Result<(), Untrusted> {
    match check_way(program, uid)? {
        Some((path, found)) => check(&path, &found, uid),
        None => Ok(()),
    }
}

/// Refuses a way to the absolute path `file` on which others can decide what is found. Returns what is there, without
/// symbolic links; `None` where the way ends before.
pub(super) fn check_way(file: &Path, uid: u32) -> Result<Option<(PathBuf, Metadata)>, Untrusted> {
    let mut left = names(file);
    let mut links = 0;
    let mut at = PathBuf::from("/");
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let Ok(directory) = symlink_metadata(&at) else { return Ok(None) };
        check_directory(&at, &directory, uid, left.is_empty())?;
        let path = at.join(&name);
        let Ok(found) = symlink_metadata(&path) else { return Ok(None) };
        if !found.is_symlink() {
            if left.is_empty() {
                return Ok(Some((path, found)));
            }
            at = path;
            continue;
        }
        check_owner(&path, &found, uid)?;
        links += 1;
        let Ok(target) = read_link(&path) else { return Ok(None) };
        if links > MAX_LINKS {
            return Ok(None);
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        let mut way = names(&target);
        way.append(&mut left);
        left = way;
    }
    Ok(None)
}

/// The names that are looked up for a path, one after the other.
fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// Refuses a directory in which others can exchange what is found. `last`: what is looked up is the file itself.
fn check_directory(path: &Path, found: &Metadata, uid: u32, last: bool) -> Result<(), Untrusted> {
    match found.mode() & 0o1000 != 0 && !last {
        true => check_owner(path, found, uid),
        false => check(path, found, uid),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::client::location::own_uid;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_that_others_can_change_is_refused_by_name() {
        let uid = own_uid().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        mode(&bin, 0o755);
        let program = bin.join("agent");
        fs::write(&program, "").unwrap();
        mode(&program, 0o755);
        let link = directory.path().join("link");
        symlink(&program, &link).unwrap();

        assert_eq!(check_program(&link, uid), Ok(()));
        mode(&program, 0o757);
        let error = check_program(&link, uid).unwrap_err().to_string();
        assert!(error.contains(program.to_str().unwrap()) && error.contains("0757"), "{error}");
        mode(&program, 0o755);
        mode(&bin, 0o1777);
        let error = check_program(&link, uid).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} ", bin.display())), "{error}");
        mode(&bin, 0o755);
        mode(directory.path(), 0o777);
        assert!(check_program(&link, uid).is_err(), "the link itself could be replaced");
        mode(directory.path(), 0o700);
        if uid != 0 {
            return;
        }
        std::os::unix::fs::chown(&program, Some(4711), None).unwrap();
        let error = check_program(&link, uid).unwrap_err().to_string();
        assert!(error.contains("4711"), "{error}");
    }

    #[test]
    fn every_directory_on_the_way_counts_and_sticky_ones_only_at_its_end() {
        let uid = own_uid().unwrap();
        let root = tempfile::tempdir().unwrap();
        // The way goes through a link in `links`, and a second one in `chain`, to `top/middle/bin/agent`.
        for directory in ["links", "chain", "top/middle/bin"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        for directory in ["links", "chain", "top", "top/middle", "top/middle/bin"] {
            mode(&root.path().join(directory), 0o755);
        }
        let program = root.path().join("top/middle/bin/agent");
        fs::write(&program, "").unwrap();
        mode(&program, 0o755);
        symlink("../chain/second", root.path().join("links/first")).unwrap();
        symlink(root.path().join("top"), root.path().join("chain/second")).unwrap();
        let named = root.path().join("links/first/middle/bin/agent");
        assert_eq!(check_program(&named, uid), Ok(()));
        for directory in ["links", "chain", "top", "top/middle", "top/middle/bin"] {
            let path = root.path().join(directory);
            mode(&path, 0o777);
            let error = check_program(&named, uid).expect_err(directory).to_string();
            assert!(error.starts_with(&format!("{} ", path.canonicalize().unwrap().display())), "{error}");
            mode(&path, 0o1777);
            assert_eq!(check_program(&named, uid).is_ok(), directory != "top/middle/bin", "{directory}");
            mode(&path, 0o755);
        }
        assert_eq!(check_program(&named, uid), Ok(()));
        if uid == 0 {
            mode(&root.path().join("links"), 0o1777);
            std::os::unix::fs::lchown(root.path().join("links/first"), Some(4711), None).unwrap();
            let error = check_program(&named, uid).unwrap_err().to_string();
            assert!(error.contains("links/first") && error.contains("4711"), "{error}");
        }
    }

    #[test]
    fn links_that_lead_round_in_circles_end() {
        let directory = tempfile::tempdir().unwrap();
        symlink("b", directory.path().join("a")).unwrap();
        symlink("a", directory.path().join("b")).unwrap();
        assert_eq!(check_program(&directory.path().join("a"), own_uid().unwrap()), Ok(()));
    }

    #[test]
    fn a_missing_program_is_not_untrusted() {
        assert_eq!(check_program(Path::new("/nonexistent/agent"), own_uid().unwrap()), Ok(()));
    }
}
