//! The account whose service this is.

use std::path::{Path, PathBuf};

use nix::unistd::{Group, Uid, User, geteuid};

use super::ConfigError;
use crate::client::location;

/// The account whose service this is, from the password database by uid; never from variables alone, which `su` and
/// `sudo` leave behind from another account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its user id.
    pub uid: u32,
    /// Its name; the uid as a number where the password database does not know it.
    pub name: String,
    /// Its home.
    pub home: PathBuf,
    /// Its shell; `/bin/sh` where the password database has none.
    pub shell: PathBuf,
}

impl Account {
    /// The account of this process.
    ///
    /// # Errors
    /// [`ConfigError::NoHome`]: neither the password database nor `HOME` tells its home.
    pub fn own() -> Result<Account, ConfigError> {
        let uid = geteuid();
        // A database that cannot be read is the same as one that does not know us: HOME is the next source.
        let user = User::from_uid(uid).ok().flatten();
        let (name, home, shell) = match user {
            Some(user) => (user.name, Some(user.dir), user.shell),
            None => (uid.to_string(), None, PathBuf::new()),
        };
        let home = home.filter(|path| path.is_absolute()).or_else(location::home_directory);
        Ok(Account {
            uid: uid.as_raw(),
            name,
            home: home.ok_or(ConfigError::NoHome { uid: uid.as_raw() })?,
            shell: if shell.is_absolute() { shell } else { PathBuf::from("/bin/sh") },
        })
    }

    /// Whether its processes live on after its last logout, where systemd would stop them; `None`: there is no systemd.
    pub fn lingers(&self) -> Option<bool> {
        // sd_booted(3), and what `loginctl enable-linger` leaves.
        Path::new("/run/systemd/system")
            .is_dir()
            .then(|| Path::new("/var/lib/systemd/linger").join(&self.name).exists())
    }
}

/// Whether `gid` is the private group of `uid`: named like the account and without other members, as most
/// distributions make one for each account. What such a group can write, no other account can.
pub(super) fn is_private_group(gid: u32, uid: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return false };
    let Ok(Some(group)) = Group::from_gid(gid.into()) else { return false };
    user.gid.as_raw() == gid && group.name == user.name && group.mem.iter().all(|member| *member == user.name)
}
