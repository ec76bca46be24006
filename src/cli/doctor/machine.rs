//! The account's places, the programs, and the system.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use super::Check;
use crate::cli::profiles::detect::missing_interpreter;
use crate::client::location;
use crate::config::{Account, Config};
use crate::containment::{Backend, Placer};
use crate::program;

/// Whether this account may run the service.
pub fn account(config: &Config) -> Vec<Check> {
    const NAME: &str = "account";
    match Account::own() {
        Ok(account) if account.uid == 0 && !config.allow_root => vec![Check::fail(
            NAME,
            "root runs no sessions",
            format!(
                "use the account that owns them, or set allow_root = true in {} where there is nobody else",
                config.file.display()
            ),
        )],
        Ok(account) => vec![Check::ok(NAME, format!("{} (uid {})", account.name, account.uid))],
        Err(error) => vec![Check::fail(NAME, error.to_string(), "")],
    }
}

/// Where sockets are.
pub fn runtime_directory() -> Check {
    const NAME: &str = "runtime directory";
    let named = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match (location::runtime_directory(), named) {
        (Some(found), Some(named)) if found != named => Check::warn(
            NAME,
            format!("XDG_RUNTIME_DIR names {}, which is not a private directory of ours", named.display()),
            format!("{} is used instead; `su` and `sudo` leave such variables behind", found.display()),
        ),
        (Some(found), _) => Check::ok(NAME, found.display().to_string()),
        (None, named) => Check::warn(
            NAME,
            match named {
                Some(named) => {
                    format!(
                        "XDG_RUNTIME_DIR names {}, which is not a private directory of ours",
                        named.display()
                    )
                }
                None => {
                    "there is none: XDG_RUNTIME_DIR is not set, and /run/user has none of ours".to_owned()
                }
            },
            "the socket is kept in the state directory instead, which works as well",
        ),
    }
}

/// The spool's directory, and which process has it.
pub fn spool(config: &Config) -> Vec<Check> {
    const NAME: &str = "spool";
    let shown = config.spool.display();
    let found = match fs::symlink_metadata(&config.spool) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Check::ok(NAME, format!("{shown} is not there yet; the daemon makes it"))];
        }
        Err(error) => {
            return vec![Check::fail(NAME, format!("{shown}: {error}"), "the daemon cannot use it either")];
        }
    };
    let uid = nix::unistd::geteuid().as_raw();
    let check = if !found.is_dir() {
        Check::fail(NAME, format!("{shown} is not a directory"), "move it away, or name another `spool`")
    } else if found.uid() != uid {
        Check::fail(
            NAME,
            format!("{shown} belongs to uid {}, not to us", found.uid()),
            "it must be ours: name another `spool`, or have its owner give it to us",
        )
    } else if found.mode() & 0o077 != 0 {
        let mode = found.mode() & 0o7777;
        Check::fail(NAME, format!("others may enter {shown} (mode {mode:04o})"), format!("chmod 700 {shown}"))
    } else {
        Check::ok(NAME, shown.to_string())
    };
    vec![check, holder(&config.spool)]
}

/// Who holds the spool's lock, from the kernel's list: taking the lock to find out would keep a daemon from starting.
fn holder(spool: &Path) -> Check {
    const NAME: &str = "spool's owner";
    let Ok(lock) = fs::metadata(spool.join("service.lock")) else {
        return Check::ok(NAME, "no daemon has used it yet");
    };
    let locks = match fs::read_to_string("/proc/locks") {
        Ok(locks) => locks,
        Err(error) => {
            return Check::warn(NAME, format!("/proc/locks: {error}"), "it cannot be told who has it");
        }
    };
    match flock_holder(&locks, lock.ino()) {
        Some(pid) => {
            let command = program::name_of_process(pid).unwrap_or_else(|| "not visible from here".to_owned());
            Check::ok(NAME, format!("process {pid} ({command})"))
        }
        None => Check::ok(NAME, "no daemon runs on it"),
    }
}

/// The process with a flock(2) on that inode, in the lines of proc_locks(5). Devices are not compared: some file systems
/// show another one there than stat(2) does.
fn flock_holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        // "1: FLOCK ADVISORY WRITE 4711 fd:01:123456 0 EOF"; one who waits has "->" after the number.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
        (file.rsplit(':').next()?.parse::<u64>().ok()? == inode).then(|| pid.parse().ok()).flatten()
    })
}

/// The space that new work needs.
pub fn free_space(config: &Config) -> Check {
    const NAME: &str = "free space";
    let Some(place) = config.spool.ancestors().find(|place| place.exists()) else {
        return Check::warn(NAME, "no part of the spool's path exists", "");
    };
    match statvfs(place) {
        Ok(found) => {
            // The fields are c_ulong: 64 bits here, 32 elsewhere.
            #[allow(clippy::useless_conversion)]
            let free = u64::from(found.blocks_available()).saturating_mul(u64::from(found.fragment_size()));
            let text = format!("{} MiB at {}", free >> 20, place.display());
            match free >= config.limits.free_space {
                true => Check::ok(NAME, text),
                false => Check::fail(
                    NAME,
                    text,
                    format!("new work needs {} MiB (limits.free_space)", config.limits.free_space >> 20),
                ),
            }
        }
        Err(error) => Check::warn(NAME, format!("{}: {}", place.display(), error.desc()), ""),
    }
}

/// Our own programs.
pub fn programs() -> Vec<Check> {
    [("daemon", program::DAEMON), ("executor", program::EXECUTOR)]
        .into_iter()
        .map(|(name, program)| match program::sibling(program) {
            Ok(found) if !found.path.ends_with(program) => {
                Check::ok(name, format!("carried by this program ({program} is not beside it)"))
            }
            Ok(found) => Check::ok(name, found.path.display().to_string()),
            Err(error) => Check::fail(name, format!("{program}: {error}"), "mount /proc"),
        })
        .collect()
}

/// What may be run.
pub fn profiles(config: &Config) -> Vec<Check> {
    config
        .profiles
        .iter()
        .map(|(name, profile)| {
            let check = format!("profile {name}");
            if let Some(problem) = profile.problem() {
                return Check::fail(
                    &check,
                    problem,
                    "install it, or register another by `sessionctl profiles`",
                );
            }
            let path = profile.environment.get("PATH").or(config.environment.get("PATH"));
            match missing_interpreter(&profile.program, path.map(String::as_str).unwrap_or_default()) {
                Some(interpreter) => Check::fail(
                    &check,
                    format!(
                        "{} needs {interpreter}, which is not on the path it gets",
                        profile.program.display()
                    ),
                    format!("set PATH in [profiles.{name}.environment], with the directory of {interpreter}"),
                ),
                None => Check::ok(&check, format!("{} ({})", profile.program.display(), profile.dialect)),
            }
        })
        .collect()
}

/// Whether the account's processes live on after its last logout.
pub fn lingering() -> Check {
    const NAME: &str = "logout";
    let Ok(account) = Account::own() else { return Check::warn(NAME, "the account's name is not known", "") };
    match account.lingers() {
        None => Check::ok(NAME, "no systemd here: nothing is stopped at the last logout"),
        Some(true) => {
            Check::ok(NAME, format!("{} lingers: sessions live on after the last logout", account.name))
        }
        Some(false) => Check::warn(
            NAME,
            format!("{} does not linger: the last logout stops the service and its sessions", account.name),
            "`loginctl enable-linger` lets them live on",
        ),
    }
}

/// How sessions can be held together here.
pub async fn containment(config: &Config) -> Check {
    const NAME: &str = "containment";
    let placer = match Placer::choose(config.containment.forced()).await {
        Ok(placer) => placer,
        Err(error) => return Check::fail(NAME, error.to_string(), "the daemon does not start before that"),
    };
    let missing: Vec<String> =
        placer.missing().iter().map(|(backend, why)| format!("no {}: {why}", backend.name())).collect();
    let found = |what: &str| match missing.is_empty() {
        true => format!("{}: {what}", placer.backend().name()),
        false => format!("{}: {what}; {}", placer.backend().name(), missing.join("; ")),
    };
    match placer.backend() {
        Backend::SystemdScope => Check::ok(NAME, found("each session gets a scope of the user manager")),
        Backend::Cgroup => Check::ok(NAME, found("each session gets a cgroup below the service's")),
        Backend::ProcessGroup if config.containment.forced().is_some() => {
            Check::ok(NAME, found("as the configuration asks"))
        }
        Backend::ProcessGroup => Check::warn(
            NAME,
            found("sessions are stopped and proven gone, but their memory, tasks and CPU are not limited"),
            "a systemd user manager, or a delegated cgroup, allows more",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::Level;
    use super::*;

    #[test]
    fn the_holder_is_read_from_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fd:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 fd:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 fd:01:78 0 EOF\n3: FLOCK  ADVISORY  WRITE 13 00:2a:178 0 EOF\n";
        assert_eq!(flock_holder(locks, 77), Some(4711));
        assert_eq!(flock_holder(locks, 78), None);
        assert_eq!(flock_holder(locks, 178), Some(13));
    }

    #[test]
    fn a_held_spool_names_its_holder_and_a_free_one_none() {
        let directory = tempfile::tempdir().unwrap();
        assert!(holder(directory.path()).text.contains("yet"));
        let file = fs::File::create(directory.path().join("service.lock")).unwrap();
        assert!(holder(directory.path()).text.contains("no daemon runs"));
        file.lock().unwrap();
        let pid = std::process::id().to_string();
        assert!(holder(directory.path()).text.contains(&pid), "{:?}", holder(directory.path()));
    }

    #[test]
    fn a_spool_that_others_may_enter_fails() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default_for_account().unwrap();
        config.spool = directory.path().to_owned();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(spool(&config)[0].level, Level::Ok);
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o750)).unwrap();
        let check = &spool(&config)[0];
        assert!(check.level == Level::Fail && check.advice.starts_with("chmod 700"), "{check:?}");
        config.spool = directory.path().join("missing");
        assert_eq!(spool(&config)[0].level, Level::Ok);
        config.limits.free_space = u64::MAX;
        assert_eq!(free_space(&config).level, Level::Fail);
    }

    #[test]
    fn a_profile_without_its_program_fails() {
        let text = "[profiles.gone]\nprogram = \"/nonexistent/agent\"\ndialect = \"codex\"\n\
                    [profiles.here]\nprogram = \"/bin/cat\"\ndialect = \"jsonl\"\n";
        let config = Config::parse(text, Path::new("/sessiond.toml")).unwrap();
        let levels: Vec<Level> = profiles(&config).iter().map(|check| check.level).collect();
        assert_eq!(levels, [Level::Fail, Level::Ok]);
    }
}
