//! A service of a test's own: scratch directory, configuration, daemon, clients. Everything it started ends with it.

#![allow(dead_code)]

pub mod broker;
pub mod cgroup;
pub mod dbus_broker;
pub mod random;
pub mod stuck;
pub mod tree;
pub mod user_session;
pub mod virtual_machine;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, FollowOptions, SessionStatus, WaitFor};
use airouter_sessiond::model::{Entry, RunId, Submission};

/// No step of a test takes this long where everything works.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
pub struct Bench {
    pub dir: tempfile::TempDir,
    daemon: Option<Child>,
    environment: Vec<(String, String)>,
    /// The `cgroup.procs` that the daemon starts in.
    cgroup: Option<PathBuf>,
    /// Where the daemon's program stands.
    daemon_program: PathBuf,
    /// The account that daemons run as, where it is another one.
    account: Option<u32>,
}

impl Bench {
    /// A running service on the private socket alone, with the profile `sh`: `/bin/sh -c ARGUMENT`.
    pub fn new() -> Bench {
        Bench::with("")
    }

    /// The same with more configuration before the profiles.
    pub fn with(configuration: &str) -> Bench {
        let mut bench = Bench::prepared(configuration);
        bench.start();
        bench
    }

    /// The same, not started yet.
    pub fn prepared(configuration: &str) -> Bench {
        Bench::prepared_in(&std::env::temp_dir(), configuration)
    }

    /// The same in a scratch directory in that directory.
    pub fn prepared_in(parent: &Path, configuration: &str) -> Bench {
        let dir =
            tempfile::Builder::new().prefix("sessiond-test-").tempdir_in(parent).expect("scratch directory");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("modes");
        let bench = Bench {
            dir,
            daemon: None,
            environment: Vec::new(),
            cgroup: None,
            daemon_program: program("airouter-sessiond"),
            account: None,
        };
        bench.configure(configuration, "");
        bench
    }

    /// Writes the configuration: top-level keys and tables first, then more profiles than `sh`.
    pub fn configure(&self, configuration: &str, profiles: &str) {
        let bus = if configuration.contains("bus =") { "" } else { "bus = \"off\"\n" };
        let stop = if configuration.contains("on_stop =") { "" } else { "on_stop = \"cancel\"\n" };
        let text = format!(
            "spool = \"{}\"\nsocket = \"{}\"\nallow_root = {}\n{bus}{stop}{configuration}\n\
             [profiles.sh]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\n{profiles}",
            self.spool().display(),
            self.socket().display(),
            nix::unistd::geteuid().is_root(),
        );
        fs::write(self.config(), text).expect("configuration");
        fs::set_permissions(self.config(), Permissions::from_mode(0o600)).expect("modes");
    }

    /// What daemons of this bench get in their environment besides nothing.
    pub fn environment(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// The same bench for daemons that get none of that any more.
    pub fn without_environment(mut self) -> Bench {
        self.environment.clear();
        self
    }

    /// Daemons of this bench start in that cgroup.
    pub fn in_cgroup(&mut self, cgroup: &Path) {
        self.cgroup = Some(cgroup.join("cgroup.procs"));
    }

    /// Daemons of this bench are started from the programs in that directory.
    pub fn programs(&mut self, directory: &Path) {
        self.daemon_program = directory.join("airouter-sessiond");
    }

    /// Daemons of this bench run as that account, which the scratch directory is given to, and do not let root in
    /// unless the configuration says so again. For tests that run as root.
    pub fn as_account(&mut self, uid: u32) {
        let programs = self.path().join("programs");
        fs::create_dir(&programs).expect("scratch directory");
        for name in ["airouter-sessiond", "airouter-native-exec"] {
            fs::copy(program(name), programs.join(name)).expect("copies a program");
        }
        self.programs(&programs);
        fs::set_permissions(self.path(), Permissions::from_mode(0o755)).expect("modes");
        let text = fs::read_to_string(self.config()).expect("configuration");
        fs::write(self.config(), text.replace("allow_root = true\n", "")).expect("configuration");
        for path in [self.path(), &self.config()] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("gives it away");
        }
        self.account = Some(uid);
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn spool(&self) -> PathBuf {
        self.path().join("spool")
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("run/sessiond.sock")
    }

    pub fn config(&self) -> PathBuf {
        self.path().join("sessiond.toml")
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket().display())
    }

    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon runs").id()
    }

    /// Starts the daemon and waits until it is ready.
    pub fn start(&mut self) {
        if let Err(error) = self.try_start() {
            panic!("the daemon did not start: {error}\n{}", self.log());
        }
    }

    /// Starts the daemon; its own words if it fails.
    pub fn try_start(&mut self) -> Result<(), String> {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("pipe");
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
            .expect("flags");
        let log =
            File::options().create(true).append(true).open(self.path().join("daemon.log")).expect("log");
        let mut command = match &self.cgroup {
            // The shell is replaced by the daemon: the pid stays.
            Some(procs) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(procs).arg(&self.daemon_program);
                shell
            }
            None => Command::new(&self.daemon_program),
        };
        if let Some(uid) = self.account {
            command.uid(uid).gid(uid);
        }
        let mut child = command
            .args(["--config".as_ref(), self.config().as_os_str()])
            .args(["--ready-fd", &writer.as_raw_fd().to_string()])
            .env_clear()
            .envs(self.environment.clone())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the daemon's program");
        drop(writer);
        let mut line = String::new();
        BufReader::new(File::from(reader)).read_line(&mut line).expect("readiness");
        if line.trim() == "ready" {
            self.daemon = Some(child);
            return Ok(());
        }
        let status = child.wait().expect("ends");
        Err(format!("{} ({status})", line.trim()))
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon runs");
        daemon.kill().expect("kill");
        daemon.wait().expect("ends");
    }

    /// Whether the daemon has died by itself.
    pub fn is_dead(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.try_wait().expect("waits").is_some())
    }

    /// Waits for a daemon that dies by itself.
    pub fn reap(&mut self) {
        let status = self.daemon.take().expect("a daemon runs").wait().expect("ends");
        assert!(!status.success(), "it was killed");
    }

    /// Whether the daemon has died by itself.
    pub fn died(&mut self) -> bool {
        let daemon = self.daemon.as_mut().expect("a daemon was started");
        daemon.try_wait().expect("can be asked").is_some()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.daemon_pid() as i32);
        nix::sys::signal::kill(pid, signal).expect("signal");
    }

    /// Stops the daemon and waits for it.
    pub fn stop(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        let status = self.daemon.take().expect("a daemon runs").wait().expect("ends");
        assert!(status.success(), "{status}\n{}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("daemon.log")).unwrap_or_default()
    }

    pub async fn client(&self) -> Client {
        Client::connect_socket(&self.socket()).await.expect("connects")
    }

    /// A submission of a shell script.
    pub fn script(&self, script: &str) -> Submission {
        let mut submission = Submission::new(RunId::random(), "sh");
        submission.arguments = vec![script.to_owned()];
        submission.directory = Some(self.path().display().to_string());
        submission
    }

    /// Submits a script and waits for its end.
    pub async fn run(&self, script: &str) -> (RunId, SessionStatus) {
        self.run_submission(&self.script(script), None).await
    }

    pub async fn run_submission(
        &self,
        submission: &Submission,
        input: Option<Vec<u8>>,
    ) -> (RunId, SessionStatus) {
        let client = self.client().await;
        client.submit(submission, input).await.expect("submits");
        let run_id = submission.run_id();
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert!(status.is_over(), "did not end: {:?}\n{}", status.json(), self.log());
        (run_id, status)
    }

    /// Everything in a session's journal, with raw lines.
    pub async fn events(&self, run_id: RunId) -> Vec<Entry> {
        let client = self.client().await;
        let options = FollowOptions { raw: true, live: false };
        let mut follow = client.follow(run_id, "start", options).await.expect("follows");
        let mut all = Vec::new();
        while let Some(entry) = follow.next().await.expect("reads") {
            all.push(entry);
        }
        all
    }

    /// `busctl` on the private socket.
    pub fn busctl(&self, arguments: &[&str]) -> Output {
        let address = format!("--address={}", self.address());
        Command::new("busctl").arg(address).args(arguments).output().expect("busctl runs")
    }

    /// `sessionctl` for this service.
    pub fn sessionctl(&self, arguments: &[&str]) -> Output {
        self.sessionctl_command(arguments).output().expect("sessionctl runs")
    }

    /// `sessionctl` that finds the service by the configuration alone.
    pub fn sessionctl_configured(&self, arguments: &[&str]) -> Output {
        self.sessionctl_base().args(arguments).output().expect("sessionctl runs")
    }

    pub fn sessionctl_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sessionctl_base();
        command.args(["--socket".as_ref(), self.socket().as_os_str()]).args(arguments);
        command
    }

    /// `sessionctl` with the configuration alone.
    pub fn sessionctl_base(&self) -> Command {
        let mut command = Command::new(program("sessionctl"));
        command
            .args(["--config".as_ref(), self.config().as_os_str()])
            .current_dir(self.path())
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// A file in the scratch directory.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        let mut file = File::create(&path).expect("creates");
        file.write_all(text.as_bytes()).expect("writes");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("modes");
        path
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        let pid = nix::unistd::Pid::from_raw(daemon.id() as i32);
        // A test may have stopped it.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = daemon.wait();
    }
}

/// One of the programs: from the directory that a test in a user session was given, or as cargo built it.
pub fn program(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os(user_session::PROGRAMS) {
        return PathBuf::from(directory).join(name);
    }
    match name {
        "airouter-sessiond" => env!("CARGO_BIN_EXE_airouter-sessiond"),
        "airouter-native-exec" => env!("CARGO_BIN_EXE_airouter-native-exec"),
        "sessionctl" => env!("CARGO_BIN_EXE_sessionctl"),
        other => panic!("no program {other}"),
    }
    .into()
}

/// Waits until `reached` holds; for things that nothing announces, such as another process's file.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process lives and is no zombie.
pub fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The short name of the refusal of a call.
pub fn refusal<T>(answer: Result<T, airouter_sessiond::client::Error>) -> String {
    match answer {
        Ok(_) => "nothing: it was answered".to_owned(),
        Err(error) => error.refusal().map_or_else(|| error.to_string(), str::to_owned),
    }
}

/// A script that notes its start in a file of its own before anything else.
pub fn noted(bench: &Bench, script: &str) -> Submission {
    let mut submission = bench.script(&format!("echo start >>\"starts-$ID\"; {script}"));
    submission.environment.insert("ID".into(), submission.run_id().to_string());
    submission
}

/// How often a session was started that notes it.
pub fn starts(bench: &Bench, run_id: RunId) -> usize {
    bench.read(&format!("starts-{run_id}")).lines().count()
}

/// The executor of a session, by the pid of its program's main process.
pub fn executor_of(main: &str) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", main.trim())).expect("it lives");
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()).expect("has a parent")
}

/// The text of an output.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
