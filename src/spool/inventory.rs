//! What is in a session's folder, without opening any of it: how large it is, and whether all of it is the session's.

use std::ffi::OsStr;
use std::fs::File;

use nix::sys::stat::FileStat;

use super::checks::{check_dir, check_file};
use super::content::{ATTACHMENTS, OUTPUT_SCHEMA};
use super::inbox::INBOX;
use super::private::{Dir, TEMPORARY};
use super::session::{
    ACKNOWLEDGED, CLAIM, CONTROL, INPUT, OUTCOME, OWNER_LOCK, RECORD, RESERVE, SUBMISSION, SessionDir,
};
use super::{Result, SpoolError, journal};
use crate::model::shown;

/// The files that a session's folder may hold. Those of [`journal::TORN`] and [`TEMPORARY`] have more to their names.
const FILES: [&str; 12] = [
    SUBMISSION,
    INPUT,
    RECORD,
    CLAIM,
    OWNER_LOCK,
    OUTCOME,
    RESERVE,
    ACKNOWLEDGED,
    journal::FILE,
    INBOX,
    OUTPUT_SCHEMA,
    // What a program printed, where an executor that takes it by a file died.
    "stdout.capture",
];
/// The folders that it may hold; what is in them is named by a SHA-256 in hex, with or without
/// a type after a dot.
const FOLDERS: [&str; 1] = [ATTACHMENTS];

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// The bytes that it takes of the disk, with the folder itself.
    pub bytes: u64,
    /// Why it must not be removed unseen: the first thing in it that is not the session's own, as a sentence without
    /// its subject, such as `has an unknown file "x"`.
    pub foreign: Option<String>,
}

/// The bytes that something takes of the disk.
pub(super) fn allocated(stat: &FileStat) -> u64 {
    // In units of 512 bytes on every file system (stat(2)); never negative.
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

impl Contents {
    fn add(&mut self, stat: &FileStat) {
        self.bytes = self.bytes.saturating_add(allocated(stat));
    }

    fn is_foreign(&mut self, why: impl FnOnce() -> String) {
        self.foreign.get_or_insert_with(why);
    }
}

impl SessionDir {
    /// Looks at everything in the folder. An error is the disk's; a file that is not as private files have to be, such as
    /// one with a second link, is [foreign](Contents::foreign).
    pub fn contents(&self) -> Result<Contents> {
        let mut contents = Contents::default();
        contents.add(&self.dir().stat()?);
        look(self.dir(), &mut contents, Of::Session)?;
        Ok(contents)
    }

    /// The names of the session's own files that are there and may be copied, in order, those in folders as
    /// `folder/name`. What only the running service needs (locks, sockets, reserves) is not among them.
    pub fn file_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.dir().names()? {
            let Some(name) = name.to_str() else { continue };
            if FOLDERS.contains(&name) {
                let Some(inside) = self.dir().dir(name)? else { continue };
                let inside = inside.names()?;
                let own = inside.iter().filter_map(|file| file.to_str()).filter(|file| is_attachment(file));
                names.extend(own.map(|file| format!("{name}/{file}")));
            } else if is_file_of_session(name)
                && ![OWNER_LOCK, RESERVE].contains(&name)
                && !name.starts_with(TEMPORARY)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// One of [those files](SessionDir::file_names), open for reading; `None` if it is not there.
    pub fn open_file(&self, name: &str) -> Result<Option<File>> {
        match name.split_once('/') {
            None => self.dir().open_read(name),
            Some((folder, name)) => match self.dir().dir(folder)? {
                Some(inside) => inside.open_read(name),
                None => Ok(None),
            },
        }
    }
}

/// Whose files a folder holds.
#[derive(Clone, Copy)]
enum Of {
    Session,
    Attachments,
}

fn look(dir: &Dir, contents: &mut Contents, of: Of) -> Result<()> {
    let uid = nix::unistd::geteuid().as_raw();
    for name in dir.names()? {
        let Some(stat) = dir.stat_of(&name)? else { continue };
        contents.add(&stat);
        let path = dir.path().join(&name);
        let text = name.to_str().unwrap_or_default();
        match of {
            Of::Session if FOLDERS.contains(&text) => match check_dir(&path, &stat, uid) {
                Ok(()) => match dir.dir(text) {
                    Ok(Some(inside)) => look(&inside, contents, Of::Attachments)?,
                    Ok(None) => {}
                    Err(e) if e.is_damage() => contents.is_foreign(|| why(&name, &e)),
                    Err(e) => return Err(e),
                },
                Err(e) => contents.is_foreign(|| why(&name, &e)),
            },
            // A socket that the executor left. It was its own to make, and holds nothing.
            Of::Session if text == CONTROL => {}
            Of::Session if !is_file_of_session(text) => contents.is_foreign(|| unknown(&name)),
            Of::Attachments if !is_attachment(text) => contents.is_foreign(|| unknown(&name)),
            _ => {
                if let Err(e) = check_file(&path, &stat, uid) {
                    contents.is_foreign(|| why(&name, &e));
                }
            }
        }
    }
    Ok(())
}

fn unknown(name: &OsStr) -> String {
    format!("has an unknown file {:?}; move it away", shown(&name.to_string_lossy()))
}

fn why(name: &OsStr, error: &SpoolError) -> String {
    let name = shown(&name.to_string_lossy());
    match error {
        SpoolError::Refused { problem, .. } => format!("has a file {name:?} that {problem}"),
        other => format!("has a file {name:?} that cannot be trusted: {other}"),
    }
}

fn is_file_of_session(name: &str) -> bool {
    FILES.contains(&name) || name.starts_with(TEMPORARY) || is_torn(name)
}

fn is_torn(name: &str) -> bool {
    let number = name.strip_prefix(journal::TORN);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_attachment(name: &str) -> bool {
    let (hash, kind) = name.split_once('.').unwrap_or((name, ""));
    let hash_is_one = hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    hash_is_one && kind.len() <= 16 && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
