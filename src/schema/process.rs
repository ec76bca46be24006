//! The checker: how it is asked, and what it is.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_dumpable;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Fault, Schema, VALUE_MAX};
use crate::program::{EXECUTOR, OWN_EXECUTABLE};

/// The argument by which the executor's program is the checker.
const ARGUMENT: &str = "--check-output";
/// The processor time that one check may take, in seconds.
const CPU_SECONDS: u64 = 5;
/// How long one check may take on a machine that has no time for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The memory that one check may map, in bytes.
const MEMORY: u64 = 1 << 30;
/// The stack of the check, in bytes: enough for the nesting that is read, 128 levels, many times over.
const STACK: usize = 64 << 20;
/// What it exits with when the check panics.
const BROKEN: u8 = 3;
/// The longest reply, in bytes: the value, and words around it.
const REPLY_MAX: u64 = VALUE_MAX as u64 + (64 << 10);

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    schema: String,
    /// Absent: the schema alone is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
enum Reply {
    Fine,
    Fits { value: Value },
    FitsTooLong { bytes: u64 },
    Fault { text: String },
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// It fits, and is this.
    Fits(Value),
    /// It fits, and is more JSON than [`VALUE_MAX`]: this many bytes.
    TooLong(u64),
    /// It does not.
    Misfit(Fault),
}

/// Why there is no finding.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It took more time or memory than a check may.
    #[error("it takes more time or memory to check than {CPU_SECONDS} s and {} MiB", MEMORY >> 20)]
    TooMuch,
    /// The check itself broke off.
    #[error("the check of it breaks off")]
    Broken,
    /// The checker cannot be started or asked.
    #[error("the checker cannot be asked: {0}")]
    Checker(#[from] io::Error),
}

/// How the checker is started.
#[derive(Debug, Clone)]
pub struct Checker {
    path: PathBuf,
    arg0: String,
}

impl Checker {
    /// The executor's program at `path`, with `arg0` as its own name, is it.
    pub fn new(path: impl Into<PathBuf>, arg0: impl Into<String>) -> Checker {
        Checker { path: path.into(), arg0: arg0.into() }
    }

    /// The running program is it: of an executor.
    pub fn ourselves() -> Checker {
        Checker::new(OWN_EXECUTABLE, EXECUTOR)
    }

    /// Looks at a schema alone. Blocks, at most for half a minute.
    ///
    /// # Errors
    /// It could not be looked at.
    pub fn schema(&self, schema: &str) -> Result<Result<(), Fault>, Failure> {
        match self.ask(&Request { schema: schema.to_owned(), answer: None })? {
            Reply::Fine => Ok(Ok(())),
            Reply::Fault { text } => Ok(Err(Fault(text))),
            _ => Err(unexpected()),
        }
    }

    /// Whether an answer fits a schema. Blocks, at most for half a minute.
    ///
    /// # Errors
    /// It could not be found out.
    pub fn answer(&self, schema: &str, answer: &str) -> Result<Finding, Failure> {
        match self.ask(&Request { schema: schema.to_owned(), answer: Some(answer.to_owned()) })? {
            Reply::Fits { value } => Ok(Finding::Fits(value)),
            Reply::FitsTooLong { bytes } => Ok(Finding::TooLong(bytes)),
            Reply::Fault { text } => Ok(Finding::Misfit(Fault(text))),
            Reply::Fine => Err(unexpected()),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        // In memory, not through a pipe: nothing to wait for while it is written.
        let mut stdin = File::from(memfd_create(c"check", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
        stdin.write_all(&serde_json::to_vec(request).map_err(io::Error::from)?)?;
        stdin.rewind()?;
        let mut child = Command::new(&self.path)
            .arg0(&self.arg0)
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let reply = read_reply(&mut child);
        if !matches!(reply, Ok(Some(_))) {
            let _ = child.kill();
        }
        let status = child.wait()?;
        let Some(reply) = reply? else { return Err(Failure::TooMuch) };
        match status.code() {
            Some(0) => serde_json::from_slice(&reply).map_err(|_| unexpected()),
            Some(code) if code == i32::from(BROKEN) => Err(Failure::Broken),
            Some(code) => Err(io::Error::other(format!("it exited with code {code}")).into()),
            // Killed by its limits, or by what it ran into because of them.
            None => Err(Failure::TooMuch),
        }
    }
}

/// Everything that it prints; `None` if that takes too long.
fn read_reply(child: &mut Child) -> io::Result<Option<Vec<u8>>> {
    let Some(stdout) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
    let stdout = File::from(OwnedFd::from(stdout));
    let deadline = Instant::now() + PATIENCE;
    let mut reply = Vec::new();
    let mut limited = (&stdout).take(REPLY_MAX);
    let mut chunk = [0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(None),
            Ok(_) => {}
        }
        match limited.read(&mut chunk) {
            Ok(0) => return Ok(Some(reply)),
            Ok(n) => reply.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn unexpected() -> Failure {
    Failure::Checker(io::Error::new(io::ErrorKind::InvalidData, "its reply is not to what it was asked"))
}

/// Whether this process was started as the checker.
pub fn is_checker() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT)
}

/// The checker: one request on standard input, one reply on standard output.
pub fn checker_main() -> ExitCode {
    serve().unwrap_or(ExitCode::FAILURE)
}

fn serve() -> io::Result<ExitCode> {
    // What dies of its limits here may hold somebody's answer: it leaves no core.
    set_dumpable(false)?;
    for (resource, most) in
        [(Resource::RLIMIT_CORE, 0), (Resource::RLIMIT_CPU, CPU_SECONDS), (Resource::RLIMIT_AS, MEMORY)]
    {
        let (_, hard) = getrlimit(resource)?;
        setrlimit(resource, most.min(hard), most.min(hard))?;
    }
    // Where memory is short, this process goes, not the executor beside it. It is only a preference.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let request: Request = serde_json::from_slice(&request)?;
    let work = std::thread::Builder::new().stack_size(STACK).spawn(move || reply(&request))?;
    let Ok(reply) = work.join() else { return Ok(ExitCode::from(BROKEN)) };
    io::stdout().lock().write_all(&serde_json::to_vec(&reply)?)?;
    Ok(ExitCode::SUCCESS)
}

fn reply(request: &Request) -> Reply {
    let fault = |fault: Fault| Reply::Fault { text: fault.0 };
    let schema = match Schema::compile(&request.schema) {
        Ok(schema) => schema,
        Err(what) => return fault(what),
    };
    let Some(answer) = &request.answer else { return Reply::Fine };
    match schema.check(answer) {
        Err(what) => fault(what),
        Ok(value) => match serde_json::to_vec(&value).map_or(usize::MAX, |json| json.len()) {
            bytes if bytes > VALUE_MAX => Reply::FitsTooLong { bytes: bytes as u64 },
            _ => Reply::Fits { value },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_value_has_a_bound() {
        let ask = |answer: String| reply(&Request { schema: "true".into(), answer: Some(answer) });
        let text = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert!(matches!(ask(text(VALUE_MAX - 2)), Reply::Fits { .. }));
        assert!(
            matches!(ask(text(VALUE_MAX - 1)), Reply::FitsTooLong { bytes } if bytes == VALUE_MAX as u64 + 1)
        );
        assert!(matches!(ask("{".into()), Reply::Fault { .. }));
    }

    #[test]
    fn a_checker_that_dies_or_panics_says_so() {
        let directory = tempfile::tempdir().unwrap();
        for (script, failure) in [("kill -9 $$", "more time or memory"), ("exit 3", "breaks off")] {
            let path = directory.path().join("checker");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            // Another test's fork may still have the file open for writing.
            let busy = |failure: &Failure| matches!(failure, Failure::Checker(e) if e.kind() == io::ErrorKind::ExecutableFileBusy);
            let told = loop {
                match Checker::new(&path, "x").answer("true", "1").expect_err("no finding") {
                    failure if busy(&failure) => std::thread::yield_now(),
                    failure => break failure.to_string(),
                }
            };
            assert!(told.contains(failure), "{told}");
        }
    }

    #[test]
    fn a_program_that_is_no_checker_is_no_finding() {
        for program in ["/bin/true", "/bin/false", "/does/not/exist"] {
            let failure = Checker::new(program, "x").schema("true").expect_err("no checker");
            assert!(matches!(failure, Failure::Checker(_)), "{program}: {failure}");
        }
    }
}
