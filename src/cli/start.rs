//! Starting the daemon where none answers: detached, on the private socket, one starter at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;

use super::failure::Failure;
use crate::client::{Client, Connector, Error, location};
use crate::program;

/// How long a daemon may take until it is ready. Recovery of many sessions takes time; what hangs does not end.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How much of a failed daemon's log is shown, in bytes.
const LOG_TAIL: u64 = 2_000;

/// Connects to `socket`, the one of the configuration, after starting a daemon if none listens there. Returns where
/// the one that was started logs.
///
/// # Errors
/// It cannot be started; the message is the daemon's own.
pub async fn connect_or_start(
    connector: &Connector,
    socket: &Path,
    config: Option<&Path>,
) -> Result<(Client, Option<PathBuf>), Failure> {
    let directory = location::state_directory()
        .ok_or_else(|| Failure::NotStarted("nothing tells the account's home; set HOME".to_owned()))?
        .join("airouter");
    let trouble = |what: &str, error: io::Error| Failure::NotStarted(format!("{what}: {error}"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| trouble(&format!("{} cannot be made", directory.display()), error))?;
    // Of several at once one starts a daemon, and the others find it.
    let lock = lock(&directory.join("start.lock"))?;
    match connector.socket(socket).await {
        Err(Error::NoService { .. }) => {}
        other => return Ok((other?, None)),
    }
    let log = directory.join("sessiond.log");
    let (mut child, ready) = spawn(config, &log)?;
    let answer = wait_until_ready(ready, &mut child, &log).await;
    drop(lock);
    answer?;
    Ok((connector.socket(socket).await?, Some(log)))
}

fn lock(path: &Path) -> Result<Flock<File>, Failure> {
    let failed =
        |error: io::Error| Failure::NotStarted(format!("{} cannot be locked: {error}", path.display()));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(error.into()))
}

/// Starts the daemon in a session of its own, and returns it with the pipe on which it says that it is ready.
fn spawn(config: Option<&Path>, log: &Path) -> Result<(Child, OwnedFd), Failure> {
    let failed = |error: io::Error| Failure::NotStarted(error.to_string());
    let sibling = program::sibling(program::DAEMON).map_err(failed)?;
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(log)
        .map_err(|error| Failure::NotStarted(format!("{} cannot be written: {error}", log.display())))?;
    let (ready, tell) = io::pipe().map_err(failed)?;
    // Inherited by the daemon alone: this process starts nothing else before it closes its own copy.
    fcntl(tell.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).map_err(|error| failed(error.into()))?;
    let mut command = Command::new(&sibling.path);
    command.arg0(&sibling.arg0).arg("--ready-fd").arg(tell.as_raw_fd().to_string());
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    // SAFETY: setsid(2) is async-signal-safe and allocates nothing; std has no other way to leave our terminal.
    unsafe {
        command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from));
    }
    let child = command.spawn().map_err(|error| {
        Failure::NotStarted(format!("{} ({}): {error}", sibling.path.display(), sibling.arg0))
    })?;
    Ok((child, ready.into()))
}

/// Waits for the daemon's one line: `ready`, or why it cannot be.
async fn wait_until_ready(ready: OwnedFd, child: &mut Child, log: &Path) -> Result<(), Failure> {
    let receiver = Receiver::from_owned_fd(ready).map_err(|error| Failure::NotStarted(error.to_string()))?;
    let mut line = String::new();
    let mut lines = BufReader::new(receiver);
    let read = tokio::time::timeout(READY_WITHIN, lines.read_line(&mut line)).await;
    match (read, line.trim()) {
        (Ok(_), "ready") => Ok(()),
        (Ok(_), "") => {
            // It closed the pipe without a word: it is gone, or as good as gone.
            let status =
                child.try_wait().ok().flatten().map(|status| format!(" ({status})")).unwrap_or_default();
            Err(Failure::NotStarted(format!("it ended before it was ready{status}; {}", tail(log))))
        }
        (Ok(_), error) => Err(Failure::NotStarted(error.strip_prefix("error: ").unwrap_or(error).to_owned())),
        (Err(_), _) => Err(Failure::NotStarted(format!(
            "it is not ready after {} seconds and is left running; {}",
            READY_WITHIN.as_secs(),
            tail(log)
        ))),
    }
}

/// The end of the log, as a sentence.
fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(last) => format!("the last line of {} is: {last}", log.display()),
        None => format!("{} says nothing", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn answer(text: &str) -> Result<(), Failure> {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        fs::write(&log, "first\nthe disk is on fire\n\n").unwrap();
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let answer = wait_until_ready(reader.into(), &mut child, &log).await;
        child.wait().unwrap();
        answer
    }

    #[tokio::test]
    async fn the_daemons_own_words_are_told() {
        assert!(answer("ready\n").await.is_ok());
        let error = answer("error: the spool is locked by pid 7\n").await.unwrap_err();
        assert_eq!(error.to_string(), "the service could not be started: the spool is locked by pid 7");
        let error = answer("").await.unwrap_err().to_string();
        assert!(error.contains("the disk is on fire"), "{error}");
    }
}
