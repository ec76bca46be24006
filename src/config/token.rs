//! The file that holds the token by which a framework knows this service.
//!
//! It must be a regular file, ours or root's, that no other account can read, write or exchange. It is looked at when the
//! configuration is read, and again each time that the token is needed: a new token needs no restart.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::trust;

/// The longest token, in bytes.
const MAX_TOKEN: u64 = 4096;

/// The path of a token's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFile(PathBuf);

/// A token. It shows itself to nobody.
pub struct Token(String);

/// Why a token cannot be used. It names the file, never what is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the token file {path} {problem}")]
pub struct TokenProblem {
    path: String,
    problem: String,
}

impl TokenFile {
    /// The file at an absolute path, whatever is there.
    pub fn new(path: PathBuf) -> TokenFile {
        TokenFile(path)
    }

    /// Its token: the first line, of at most 4096 bytes. `uid` owns this service.
    ///
    /// # Errors
    /// It is no regular file, is not ours or root's, others could read or exchange it, or there is no token in it.
    pub fn read(&self, uid: u32) -> Result<Token, TokenProblem> {
        let path = &self.0;
        let refuse = |problem: String| TokenProblem { path: path.display().to_string(), problem };
        if let Some(parent) = path.parent() {
            trust::check_way(&parent.join("token"), uid)
                .map_err(|untrusted| refuse(format!("is not safe: {untrusted}")))?;
        }
        // O_NONBLOCK: opening a FIFO must not wait for a writer.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
            refuse(match error.raw_os_error() {
                Some(libc::ELOOP) => "is a symbolic link; name the file itself".to_owned(),
                _ => format!("cannot be read: {error}"),
            })
        })?;
        let found = file.metadata().map_err(|error| refuse(format!("cannot be looked at: {error}")))?;
        if !found.is_file() {
            return Err(refuse("is not a regular file".into()));
        }
        if found.uid() != uid && found.uid() != 0 {
            let owner = found.uid();
            return Err(refuse(format!(
                "belongs to the account {owner}; it must be ours (uid {uid}) or root's"
            )));
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(refuse(format!("can be used by others (mode {mode:04o}); `chmod 600` it")));
        }
        let mut text = String::new();
        file.take(MAX_TOKEN + 1)
            .read_to_string(&mut text)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let token = text.lines().next().unwrap_or_default().trim();
        match token.len() as u64 {
            0 => Err(refuse("has no token in its first line".into())),
            1..=MAX_TOKEN if !token.contains('\0') => Ok(Token(token.to_owned())),
            _ => {
                Err(refuse(format!("holds no token of at most {MAX_TOKEN} bytes of text in its first line")))
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Token {
    /// The token itself, for the framework alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::client::location::own_uid;

    #[test]
    fn only_a_file_that_nobody_else_can_read_is_taken() {
        let uid = own_uid().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let token = TokenFile::new(path.clone());
        assert!(token.read(uid).unwrap_err().to_string().contains("cannot be read"));
        fs::write(&path, "secret \nmore\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o610, 0o660] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let problem = token.read(uid).unwrap_err().to_string();
            assert!(problem.contains("chmod 600") && !problem.contains("secret"), "{problem}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(token.read(uid).unwrap().as_str(), "secret");
        }
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(TokenFile::new(link).read(uid).unwrap_err().to_string().contains("symbolic link"));
        assert!(TokenFile::new(directory.path().into()).read(uid).is_err());
        fs::write(&path, "\nsecret").unwrap();
        assert!(token.read(uid).unwrap_err().to_string().contains("no token"));
        fs::write(&path, "x".repeat(5000)).unwrap();
        assert!(token.read(uid).is_err());
        if uid == 0 {
            fs::write(&path, "secret").unwrap();
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            assert!(token.read(uid).unwrap_err().to_string().contains("4711"));
        }
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(token.read(uid).unwrap_err().to_string().contains("not safe"));
    }
}
