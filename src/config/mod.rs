//! The configuration: one TOML file, `$XDG_CONFIG_HOME/airouter/sessiond.toml`, everything in it optional.
//!
//! - `mod.rs`: what the daemon gets, with every default filled in;
//! - `file`: the file's own form, its keys, and the checks on their values;
//! - `given`: values of any kind, and what each key needs;
//! - `account`: whose service this is, from the password database by uid;
//! - `controller`: the framework that owns runs and leases;
//! - `token`: the file that holds the framework's token;
//! - `trust`: who could change the file or a registered program.
//!
//! Nobody can run anything that is not registered here, so whoever can write the file, a program or its directory
//! decides what runs: what other accounts can write is refused at start, with every directory on the way. That a program is missing or not executable
//! is a [problem](Profile::problem) of its profile alone and keeps no other session from running.
//!
//! Keys are spelled with underscores in all of the file. An unknown key is refused: a misspelled limit must not be
//! silently absent.

mod account;
mod controller;
mod file;
mod given;
mod token;
mod trust;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use account::Account;
pub use controller::{ControllerBus, ControllerConfig};
pub use token::{Token, TokenFile, TokenProblem};
pub use trust::Untrusted;

use crate::client::location;
use crate::containment::Backend;
use crate::dialect;
use crate::model::{Limits, ResourceLimits};

/// The search path of programs where the configuration sets none.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Whether to serve on the user's bus besides the private socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BusMode {
    /// If there is one, whenever there is one.
    #[default]
    Auto,
    /// Never.
    Off,
    /// The daemon does not start without it.
    Required,
}

/// What happens to running sessions when the daemon is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStop {
    /// They go on under their executors; the next daemon adopts them.
    Detach,
    /// They are cancelled, and the daemon waits for their ends.
    Cancel,
}

/// How the processes of a session are held together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainmentMode {
    /// The best that this machine offers.
    #[default]
    Auto,
    /// A scope of the user manager for each session.
    SystemdScope,
    /// A cgroup for each session in the daemon's own delegated one.
    Cgroup,
    /// A session of its own, a subreaper and pidfds.
    ProcessGroup,
}

impl ContainmentMode {
    /// The one backend that is wanted, or none in particular.
    pub fn forced(self) -> Option<Backend> {
        match self {
            ContainmentMode::Auto => None,
            ContainmentMode::SystemdScope => Some(Backend::SystemdScope),
            ContainmentMode::Cgroup => Some(Backend::Cgroup),
            ContainmentMode::ProcessGroup => Some(Backend::ProcessGroup),
        }
    }
}

/// How a program's standard output is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// A pipe.
    Pipe,
    /// A file that the executor follows: for programs that cut long lines on any pipe.
    File,
}

/// Everything that the daemon is configured with.
#[derive(Clone, PartialEq)]
pub struct Config {
    /// The file that was looked for; it need not exist.
    pub file: PathBuf,
    /// The spool: an absolute path.
    pub spool: PathBuf,
    /// The private socket: an absolute path of at most [`MAX_SOCKET_PATH`](location::MAX_SOCKET_PATH) bytes.
    pub socket: PathBuf,
    /// Whether to serve on the user's bus.
    pub bus: BusMode,
    /// Whether root may run the daemon, and call it.
    pub allow_root: bool,
    /// What happens to sessions at the daemon's stop; `None`: detach under systemd, cancel elsewhere.
    pub on_stop: Option<OnStop>,
    /// How long a session may go on without a daemon, in seconds; `None`: for ever.
    pub lease_seconds: Option<u64>,
    /// How long a question waits for an answer before it is refused, in seconds; `None`: for ever.
    pub question_seconds: Option<u64>,
    /// The framework that owns runs and leases; `None`: the spool itself does.
    pub controller: Option<ControllerConfig>,
    /// The application that bindings must name; empty: any. A framework has one.
    pub application: String,
    /// This host's name.
    pub host: String,
    /// What the service accepts and keeps.
    pub limits: Limits,
    /// The base of every program's environment; profile and submission override it.
    pub environment: BTreeMap<String, String>,
    /// What may be run, by name.
    pub profiles: BTreeMap<String, Profile>,
    /// How the processes of a session are held together.
    pub containment: ContainmentMode,
    /// What of the ended sessions is removed without being asked.
    pub retention: Retention,
}

/// What of the ended sessions is removed without being asked: nothing, unless a limit is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Only sessions whose events an application acknowledged up to the last.
    pub acknowledged_only: bool,
    /// Those that ended so many days ago.
    pub max_age_days: Option<u64>,
    /// The first that ended, while all together take more bytes of the disk.
    pub max_bytes: Option<u64>,
}

/// A registered program.
#[derive(Clone, PartialEq)]
pub struct Profile {
    /// The absolute program.
    pub program: PathBuf,
    /// The name of the dialect that reads it.
    pub dialect: String,
    /// Its fixed arguments instead of the dialect's own; `None`: the dialect's.
    pub arguments: Option<Vec<String>>,
    /// Environment on top of the configuration's.
    pub environment: BTreeMap<String, String>,
    /// Where it runs if the submission does not say; `None`: the account's home.
    pub directory: Option<PathBuf>,
    /// Limits for submissions that give none.
    pub limits: ResourceLimits,
    /// How its standard output is taken; `None`: as its dialect says.
    pub capture: Option<Capture>,
    /// The deadline for submissions that give none, in seconds.
    pub deadline_seconds: Option<u64>,
    /// The idle limit for submissions that give none, in seconds.
    pub idle_seconds: Option<u64>,
    /// The start limit for submissions that give none, in seconds.
    pub start_seconds: Option<u64>,
}

/// Why there is no configuration. Every message names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nothing says where this account's files are.
    #[error(
        "neither HOME nor the password database tells the home of uid {uid}; set HOME to an absolute path"
    )]
    NoHome {
        /// The account.
        uid: u32,
    },
    /// A file that was asked for by name is not there, or cannot be read.
    #[error("cannot read the configuration {}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is not a regular file, or larger than any configuration.
    #[error("the configuration {} {problem}", file.display())]
    NotAFile {
        /// The file.
        file: PathBuf,
        /// What it is instead.
        problem: &'static str,
    },
    /// Other accounts can write it.
    #[error("the configuration {}: {untrusted}", file.display())]
    Untrusted {
        /// The file.
        file: PathBuf,
        /// Who can.
        untrusted: Untrusted,
    },
    /// It is not TOML, or has an unknown key.
    #[error("{}, line {line}: {problem}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, with the known keys if one is unknown; never a value.
        problem: String,
    },
    /// A value cannot be used.
    #[error("{}: {key}: {problem}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The key, such as `profiles.codex.program`.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The file is there and registers nothing.
    #[error(
        "{} registers no profile, so nothing could be run: `sessionctl profiles detect` registers the agent programs \
         on PATH, `sessionctl profiles add` any other",
        file.display()
    )]
    NoProfiles {
        /// The file.
        file: PathBuf,
    },
}

impl Config {
    /// Reads `path`, or the account's own file where it is `None`. Without a file there, the configuration is
    /// [the default](Config::default_for_account); a file that is asked for by name must exist.
    ///
    /// # Errors
    /// The file is not private, malformed, registers no profile, or a value cannot be used.
    pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
        let config = Config::load_for_edit(path)?;
        match config.profiles.is_empty() && config.file.exists() {
            true => Err(ConfigError::NoProfiles { file: config.file }),
            false => Ok(config),
        }
    }

    /// The same for those who are about to register profiles: a file that registers none is no error.
    ///
    /// # Errors
    /// As [`Config::load`] otherwise.
    pub fn load_for_edit(path: Option<&Path>) -> Result<Config, ConfigError> {
        let account = Account::own()?;
        let file = Config::path(path)?;
        match file::read(&file, account.uid) {
            Ok(text) => file::parse(&text, &file, &account),
            Err(ConfigError::Unreadable { error, .. })
                if path.is_none() && error.kind() == std::io::ErrorKind::NotFound =>
            {
                file::parse("", &file, &account)
            }
            Err(error) => Err(error),
        }
    }

    /// What a configuration file of this text would mean, if it stood at `file`. Nothing is read from there.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        let config = file::parse(text, file, &Account::own()?)?;
        match config.profiles.is_empty() {
            true => Err(ConfigError::NoProfiles { file: config.file }),
            false => Ok(config),
        }
    }

    /// The text of the file; `None` where there is no file.
    ///
    /// # Errors
    /// It cannot be read, or others can write it.
    pub fn text(file: &Path) -> Result<Option<String>, ConfigError> {
        match file::read(file, Account::own()?.uid) {
            Ok(text) => Ok(Some(text)),
            Err(ConfigError::Unreadable { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The file that [`Config::load`] reads for `path`.
    ///
    /// # Errors
    /// Nothing tells the account's home.
    pub fn path(path: Option<&Path>) -> Result<PathBuf, ConfigError> {
        match path {
            Some(path) => Ok(path.to_owned()),
            None => default_file(Account::own()?.uid),
        }
    }

    /// The configuration of an account that has no file: no profile yet.
    ///
    /// # Errors
    /// Nothing tells the account's home.
    pub fn default_for_account() -> Result<Config, ConfigError> {
        let account = Account::own()?;
        file::parse("", &default_file(account.uid)?, &account)
    }
}

/// `$XDG_CONFIG_HOME/airouter/sessiond.toml`, or the same under `~/.config`.
fn default_file(uid: u32) -> Result<PathBuf, ConfigError> {
    let directory = location::config_directory().ok_or(ConfigError::NoHome { uid })?;
    Ok(directory.join("airouter/sessiond.toml"))
}

impl Profile {
    /// What its sessions can do besides running, by the names of [`Features`](crate::dialect::Features).
    pub fn features(&self) -> Vec<&'static str> {
        dialect::find(&self.dialect).map_or_else(Vec::new, |dialect| dialect.features().names())
    }

    /// Why its program cannot be started now: it is missing, not a file, or not executable. A sentence that names it.
    pub fn problem(&self) -> Option<String> {
        let program = self.program.display();
        match self.program.metadata() {
            Err(error) => Some(format!("the program {program} cannot be used: {error}")),
            Ok(found) if !found.is_file() => Some(format!("the program {program} is not a file")),
            Ok(_) => match nix::unistd::access(&self.program, nix::unistd::AccessFlags::X_OK) {
                Ok(()) => None,
                Err(error) => Some(format!("the program {program} is not executable: {}", error.desc())),
            },
        }
    }
}

// Environments and arguments may hold secrets, and whatever is `Debug` ends in a log one day.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("file", &self.file)
            .field("spool", &self.spool)
            .field("socket", &self.socket)
            .field("bus", &self.bus)
            .field("allow_root", &self.allow_root)
            .field("on_stop", &self.on_stop)
            .field("lease_seconds", &self.lease_seconds)
            .field("controller", &self.controller)
            .field("question_seconds", &self.question_seconds)
            .field("application", &self.application)
            .field("host", &self.host)
            .field("limits", &self.limits)
            .field("environment", &self.environment.keys())
            .field("profiles", &self.profiles)
            .field("containment", &self.containment)
            .field("retention", &self.retention)
            .finish()
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("program", &self.program)
            .field("dialect", &self.dialect)
            .field("environment", &self.environment.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
