//! The framework of a test: its bus, its runs, and the process that serves them.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use airouter_sessiond::model::{Binding, RunId, Submission};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::support::broker::Broker;
use super::support::{Bench, until};

pub const NAME: &str = "org.example.Framework";
pub const PATH: &str = "/org/example/Framework";
pub const APPLICATION: &str = "app";
pub const HOST: &str = "host-a";
pub const WORKER: &str = "worker-1";

/// See the module. The process ends with it.
pub struct Framework {
    pub broker: Broker,
    pub database: String,
    dir: tempfile::TempDir,
    token: Option<PathBuf>,
    child: Option<Child>,
}

impl Framework {
    /// One that keeps its runs in SQLite and serves them without faults.
    pub fn start() -> Framework {
        let mut framework = Framework::prepared();
        framework.serve(&[]);
        framework
    }

    /// The same, not serving yet.
    pub fn prepared() -> Framework {
        let dir = tempfile::Builder::new().prefix("framework-").tempdir().expect("scratch directory");
        let broker = Broker::start(dir.path());
        let database = dir.path().join("runs.db").display().to_string();
        Framework { broker, database, dir, token: None, child: None }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whoever calls must name this token.
    pub fn token(&mut self, token: &str) -> PathBuf {
        let path = self.path().join("token");
        fs::write(&path, format!("{token}\n")).expect("token");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("modes");
        self.token = Some(path.clone());
        path
    }

    /// The daemon's configuration for it.
    pub fn configuration(&self, lease_seconds: u64) -> String {
        self.configuration_for(HOST, lease_seconds)
    }

    pub fn configuration_for(&self, host: &str, lease_seconds: u64) -> String {
        format!(
            "bus = \"off\"\napplication = \"{APPLICATION}\"\nhost = \"{host}\"\n[controller]\nbus = \"{}\"\nname = \"{NAME}\"\n\
             path = \"{PATH}\"\nlease_seconds = {lease_seconds}\ncall_seconds = 1\n",
            self.broker.address()
        )
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reference-controller"));
        command.args(["--database", &self.database]).env_clear().stdin(Stdio::null());
        command
    }

    /// Serves, with these faults, from now on.
    pub fn serve(&mut self, faults: &[&str]) {
        self.serve_with(faults, &[]);
    }

    pub fn serve_with(&mut self, faults: &[&str], arguments: &[&str]) {
        assert!(self.child.is_none(), "one at a time");
        let mut command = self.command();
        command.args(["serve", "--bus", &self.broker.address(), "--name", NAME, "--path", PATH]);
        for fault in faults {
            command.args(["--fault", fault]);
        }
        if let Some(token) = &self.token {
            command.arg("--token-file").arg(token);
        }
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).spawn().expect("the reference controller");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readiness");
        assert_eq!(line, "ready\n");
        self.child = Some(child);
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it serves");
        let _ = child.kill();
        child.wait().expect("ends");
    }

    /// Whether it has died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("waits").is_some())
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().expect("it serves").id();
        kill(Pid::from_raw(pid as i32), signal).expect("signal");
    }

    /// A framework of the account `nobody` that owns the name, and dies of the first call.
    pub fn thief(&self) -> Child {
        let folder = self.path().join("thief");
        fs::create_dir(&folder).expect("folder");
        std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).expect("owner");
        // Other accounts need not be able to enter the directory that it was built in.
        let program = folder.join("reference-controller");
        fs::copy(env!("CARGO_BIN_EXE_reference-controller"), &program).expect("copies");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
        command.arg("--database").arg(folder.join("runs.db"));
        command.args(["serve", "--bus", &self.broker.address(), "--name", NAME, "--path", PATH]);
        command.args(["--fault", "Authenticate:*:exit-before", "--fault", "ReadHost:*:exit-before"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("setpriv");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readiness");
        assert_eq!(line, "ready\n");
        child
    }

    /// Adds the run of a submission, with its lease.
    pub fn add(&self, submission: &Submission, lease_seconds: u64) {
        let Binding { run_id, application, host, task_id, lease_id, worker, operation } = &submission.binding;
        let mut command = self.command();
        command.args(["add", "--run-id", &run_id.to_string(), "--lease-seconds", &lease_seconds.to_string()]);
        for (flag, value) in [
            ("--application", application),
            ("--host", host),
            ("--task-id", task_id),
            ("--lease-id", lease_id),
            ("--worker", worker),
            ("--operation", operation),
        ] {
            if let Some(value) = value {
                command.args([flag, value]);
            }
        }
        let body = serde_json::to_value(submission).expect("JSON");
        assert!(command.args(["--submission", &body.to_string()]).status().expect("runs").success());
    }

    /// A run as the framework has it.
    pub fn run(&self, run_id: RunId) -> Value {
        let output = self.command().args(["show", &run_id.to_string()]).output().expect("runs");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
        })
    }

    pub fn phase(&self, run_id: RunId) -> String {
        self.run(run_id)["phase"].as_str().expect("a phase").to_owned()
    }

    /// The end that was delivered.
    pub fn end(&self, run_id: RunId) -> Option<String> {
        let outcome: Value = serde_json::from_str(self.run(run_id)["outcome"].as_str()?).expect("JSON");
        Some(outcome["end"].as_str()?.to_owned())
    }

    pub fn deliveries(&self, run_id: RunId) -> i64 {
        self.run(run_id)["deliveries"].as_i64().expect("a number")
    }

    /// `cancel` or `take-back`.
    pub fn tell(&self, what: &str, run_id: RunId) {
        assert!(self.command().args([what, &run_id.to_string()]).status().expect("runs").success());
    }

    /// Waits until it has died of a fault.
    pub fn died(&mut self) {
        until("the framework dies", || self.is_dead());
        self.kill();
    }
}

impl Drop for Framework {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A script that notes its start, under a whole binding of its own.
pub fn submission(bench: &Bench, script: &str) -> Submission {
    let mut submission = bench.script(&format!("echo start >>\"starts-$ID\"; {script}"));
    let run_id = submission.run_id();
    submission.environment.insert("ID".into(), run_id.to_string());
    submission.binding = Binding {
        run_id,
        application: Some(APPLICATION.into()),
        host: Some(HOST.into()),
        task_id: Some(format!("task-{run_id}")),
        lease_id: Some(format!("lease-{run_id}")),
        worker: Some(WORKER.into()),
        operation: Some(format!("operation-{run_id}")),
    };
    submission
}

/// The same, and the framework has the run.
pub fn bound(bench: &Bench, framework: &Framework, script: &str) -> Submission {
    let submission = submission(bench, script);
    framework.add(&submission, 60);
    submission
}
