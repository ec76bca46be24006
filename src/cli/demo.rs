//! `sessionctl demo`: the main job on a scratch spool, with the failures that matter, checked as it goes.
//!
//! A real program prints lines and writes the same lines to a file of its own. While it runs, its observer leaves and
//! the daemon is killed with SIGKILL. A new daemon adopts it; the observer resumes by cursor; the same submission is
//! sent again. At the end the program's own file says whether it ran once and whether every line arrived, once and in
//! order. Whatever differs is an error.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, FollowOptions, WaitFor};
use crate::model::{Entry, RunId, Submission};
use crate::program;

/// What the program prints: enough for a daemon to be killed, started again and resumed from in the middle.
const LINES: usize = 400;
/// After so many of its lines the observer leaves and the daemon is killed.
const LEAVE_AFTER: usize = 100;
/// No step takes this long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program: it notes each start and each line in files of its own before it prints.
const PROGRAM: &str = r#"#!/bin/sh
cd "$1" || exit 1
echo "started $$" >>starts
n=1
while [ "$n" -le "$2" ]; do
  line="{\"type\":\"response-completed\",\"text\":\"line $n of $2\"}"
  echo "$line" >>printed
  echo "$line"
  [ $((n % 10)) -eq 0 ] && sleep 0.05
  n=$((n + 1))
done
"#;

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Something did not hold that this service promises.
    #[error("NOT SO: {0}")]
    Broken(String),
    /// It could not be shown.
    #[error("{what}: {error}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: String,
    },
}

/// Turns any error into one of the demo, with what was tried.
trait Trying<T> {
    fn trying(self, what: &'static str) -> Result<T, DemoError>;
}

impl<T, E: std::fmt::Display> Trying<T> for Result<T, E> {
    fn trying(self, what: &'static str) -> Result<T, DemoError> {
        self.map_err(|error| DemoError::Failed { what, error: error.to_string() })
    }
}

fn hold(so: bool, what: impl FnOnce() -> String) -> Result<(), DemoError> {
    if so { Ok(()) } else { Err(DemoError::Broken(what())) }
}

/// Runs it. `say` gets a line for each step.
///
/// # Errors
/// Anything that does not hold, or could not be shown.
pub async fn demo(mut say: impl FnMut(&str)) -> Result<serde_json::Value, DemoError> {
    let begun = Instant::now();
    let scratch = Scratch::new().trying("making a scratch directory")?;
    say(&format!("a scratch spool, socket and configuration in {}", scratch.path.display()));
    let mut daemon = Daemon::start(&scratch)?;
    say(&format!("the service runs as process {}; no bus, no service manager", daemon.child.id()));

    let client = Client::connect_socket(&scratch.socket()).await.trying("connecting")?;
    let submission = scratch.submission();
    let run_id = submission.run_id();
    let input = b"what the program reads".to_vec();
    client.submit(&submission, Some(input.clone())).await.trying("submitting")?;
    say(&format!(
        "submitted session {run_id}: a shell script that prints {LINES} lines, noting each in a file of its own"
    ));

    let mut seen = Vec::new();
    let cursor = observe(&client, run_id, "start", &mut seen, Some(LEAVE_AFTER)).await?;
    drop(client);
    say(&format!("an observer saw {} records, and left at cursor {cursor}", seen.len()));

    let started = scratch.lines("starts")?;
    daemon.kill()?;
    say("the service was killed with SIGKILL; the program goes on");
    let printed = scratch.lines("printed")?.len();
    hold(printed < LINES, || "the program was over before the kill: nothing was shown".into())?;
    daemon = Daemon::start(&scratch)?;
    say(&format!("a new service runs as process {}, and adopted the session", daemon.child.id()));

    let client = Client::connect_socket(&scratch.socket()).await.trying("connecting again")?;
    let again = client.submit(&submission, Some(input.clone())).await.trying("submitting the same again")?;
    hold(again.status.run_id().is_ok_and(|id| id == run_id), || {
        "the same submission became another session".into()
    })?;
    let mut changed = submission.clone();
    changed.label = Some("changed".into());
    match client.submit(&changed, Some(input.clone())).await {
        Err(error) if error.refusal() == Some("SubmissionChanged") => {}
        _ => {
            return Err(DemoError::Broken(
                "a changed submission under the same run_id was not refused".into(),
            ));
        }
    }
    say("the same submission again was answered with the same session; a changed one was refused");

    observe(&client, run_id, &cursor, &mut seen, None).await?;
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.trying("waiting for the end")?;
    hold(status.end() == Some("completed"), || format!("the session ended as {:?}", status.end()))?;
    say(&format!("the observer resumed by its cursor and read to the end: {} records in all", seen.len()));

    let last = client.submit(&submission, Some(input)).await.trying("submitting after the end")?;
    hold(last.status.end() == Some("completed"), || "a retry after the end got another answer".into())?;
    let checked = check(&scratch, &seen, &started)?;
    drop(client);
    daemon.stop()?;
    say(&format!(
        "the program ran once ({}), and all {LINES} lines are there, once, in order",
        checked.trim()
    ));
    let took = begun.elapsed();
    say(&format!("all of it held, in {:.1} s", took.as_secs_f64()));
    Ok(json!({
        "run_id": run_id, "lines": LINES, "executions": 1, "records": seen.len(), "held": true,
        "milliseconds": took.as_millis() as u64,
    }))
}

/// Reads records from `cursor` on until enough were seen or the session ended. Returns the cursor after the last.
async fn observe(
    client: &Client,
    run_id: RunId,
    cursor: &str,
    seen: &mut Vec<Entry>,
    enough: Option<usize>,
) -> Result<String, DemoError> {
    let mut follow = client.follow(run_id, cursor, FollowOptions::default()).await.trying("following")?;
    let reading = async {
        while let Some(entry) = follow.next().await? {
            seen.push(entry);
            if enough.is_some_and(|enough| seen.len() >= enough) {
                break;
            }
        }
        Ok::<(), crate::client::Error>(())
    };
    tokio::time::timeout(PATIENCE, reading).await.trying("reading in time")?.trying("reading")?;
    hold(enough.is_some() || follow.ended(), || "the stream ended before the session".into())?;
    Ok(follow.position().to_owned())
}

/// Holds what the observer saw against what the program itself wrote.
fn check(scratch: &Scratch, seen: &[Entry], started: &[String]) -> Result<String, DemoError> {
    let starts = scratch.lines("starts")?;
    hold(starts.len() == 1, || format!("the program was started {} times", starts.len()))?;
    hold(starts == started, || "the program that ended is not the one that was started".into())?;
    let printed = scratch.lines("printed")?;
    hold(printed.len() == LINES, || format!("the program printed {} of {LINES} lines", printed.len()))?;
    let texts: Vec<&str> = seen
        .iter()
        .filter(|entry| entry.kind == "response-completed")
        .filter_map(|entry| entry.details.get("text")?.as_str())
        .collect();
    hold(texts.len() == LINES, || format!("the observer saw {} of {LINES} lines", texts.len()))?;
    for (number, (text, line)) in texts.iter().zip(&printed).enumerate() {
        hold(line.contains(&format!("\"{text}\"")), || {
            format!("line {} is not what was printed", number + 1)
        })?;
    }
    let numbers: Vec<u64> = seen.iter().map(|entry| entry.seq).collect();
    hold(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), || {
        "the records' numbers have a hole".into()
    })?;
    hold(seen.last().is_some_and(|entry| entry.kind == "ended"), || "the last record is not the end".into())?;
    Ok(starts.concat())
}

/// A directory of this demo alone, removed with it.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> std::io::Result<Scratch> {
        let name = format!("sessionctl-demo-{}", &RunId::random().to_string()[..8]);
        let path = std::env::temp_dir().canonicalize()?.join(name);
        fs::DirBuilder::new().create(&path)?;
        let scratch = Scratch { path };
        fs::set_permissions(&scratch.path, Permissions::from_mode(0o700))?;
        let script = scratch.path.join("program.sh");
        fs::write(&script, PROGRAM)?;
        fs::set_permissions(&script, Permissions::from_mode(0o700))?;
        fs::write(scratch.config(), scratch.configuration())?;
        fs::set_permissions(scratch.config(), Permissions::from_mode(0o600))?;
        Ok(scratch)
    }

    fn config(&self) -> PathBuf {
        self.path.join("sessiond.toml")
    }

    fn socket(&self) -> PathBuf {
        self.path.join("run/sessiond.sock")
    }

    fn configuration(&self) -> String {
        let quoted = |path: PathBuf| toml_edit::Value::from(path.display().to_string()).to_string();
        // Root runs the demo only where there is nobody else, such as in a container.
        let root = nix::unistd::geteuid().is_root();
        format!(
            "spool = {}\nsocket = {}\nbus = \"off\"\nallow_root = {root}\non_stop = \"cancel\"\n\n\
             [profiles.demo]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [{}]\n",
            quoted(self.path.join("spool")),
            quoted(self.socket()),
            quoted(self.path.join("program.sh")),
        )
    }

    fn submission(&self) -> Submission {
        let mut submission = Submission::new(RunId::random(), "demo");
        submission.arguments = vec![self.path.display().to_string(), LINES.to_string()];
        submission.directory = Some(self.path.display().to_string());
        submission.label = Some("demo".into());
        submission
    }

    fn lines(&self, name: &str) -> Result<Vec<String>, DemoError> {
        let file = File::open(self.path.join(name)).trying("reading the program's own file")?;
        BufReader::new(file).lines().collect::<Result<_, _>>().trying("reading the program's own file")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A daemon of this demo alone.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(scratch: &Scratch) -> Result<Daemon, DemoError> {
        let program = program::carried(program::DAEMON).trying("finding the daemon's program")?;
        let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).trying("making a pipe")?;
        let inherited = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(&writer, inherited).trying("making a pipe")?;
        let log = File::create(scratch.path.join("daemon.log")).trying("making the daemon's log")?;
        let mut command = Command::new(&program.path);
        {
            use std::os::unix::process::CommandExt;
            command.arg0(program.arg0);
        }
        command
            .arg("--config")
            .arg(scratch.config())
            .arg("--ready-fd")
            .arg(writer.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().trying("starting the daemon")?;
        let daemon = Daemon { child };
        drop(writer);
        daemon.wait_ready(reader, &scratch.path)?;
        Ok(daemon)
    }

    fn wait_ready(&self, reader: OwnedFd, scratch: &Path) -> Result<(), DemoError> {
        let mut line = String::new();
        BufReader::new(File::from(reader)).read_line(&mut line).trying("waiting for the daemon")?;
        if line.trim() == "ready" {
            return Ok(());
        }
        let log = fs::read_to_string(scratch.join("daemon.log")).unwrap_or_default();
        let error = if line.is_empty() { log } else { line };
        Err(DemoError::Failed { what: "starting the daemon", error })
    }

    fn kill(&mut self) -> Result<(), DemoError> {
        self.child.kill().trying("killing the daemon")?;
        self.child.wait().trying("killing the daemon").map(drop)
    }

    fn stop(mut self) -> Result<(), DemoError> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).trying("stopping the daemon")?;
        let status = self.child.wait().trying("stopping the daemon")?;
        hold(status.success(), || format!("the daemon stopped with {status}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After a failure the daemon may still run: it is ours, and so is what it started.
        if let Ok(None) = self.child.try_wait() {
            let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}
