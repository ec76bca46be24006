//! Several hosts, one queue: runs and leases in a real PostgreSQL, each host with a service, a bus and a controller of its
//! own.

use super::framework::{APPLICATION, WORKER};
use super::*;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use airouter_sessiond::model::{Binding, RunId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A PostgreSQL of a test's own, on a Unix socket alone. It ends with it.
struct Postgres {
    programs: PathBuf,
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Postgres {
    /// `None`, said aloud, where PostgreSQL is not installed.
    fn start() -> Option<Postgres> {
        let Some(programs) = programs() else {
            eprintln!("SKIPPED: there is no PostgreSQL here; tests/tools/prepare installs it");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("postgres-").tempdir().expect("scratch directory");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("modes");
        if let Some(nobody) = unprivileged() {
            std::os::unix::fs::chown(dir.path(), Some(nobody.0), Some(nobody.1)).expect("owner");
        }
        let mut postgres = Postgres { programs, dir, server: None };
        let made = postgres
            .command("initdb")
            .args(["--auth=trust", "--username=framework", "--no-sync", "--pgdata"])
            .arg(postgres.dir.path().join("data"))
            .output()
            .expect("initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        postgres.serve();
        Some(postgres)
    }

    /// It runs as no root: it refuses to.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = match unprivileged() {
            None => Command::new(program),
            Some((uid, gid)) => {
                let mut command = Command::new("setpriv");
                command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups", "--"]);
                command.arg(program);
                command
            }
        };
        command.current_dir(self.dir.path()).env_clear().env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    fn serve(&mut self) {
        let log = fs::File::create(self.dir.path().join("log")).expect("log");
        let server = self
            .command("postgres")
            .arg("-D")
            .arg(self.dir.path().join("data"))
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses=", "-c", "log_min_messages=warning"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres");
        self.server = Some(server);
        let ready = || {
            let mut command = self.command("pg_isready");
            command.arg("-q").arg("-h").arg(self.dir.path()).args(["-U", "framework"]);
            command.status().expect("pg_isready").success()
        };
        until("PostgreSQL is ready", ready);
    }

    /// Ends it at once, as a power loss does.
    fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        // SIGQUIT is "immediate shutdown": nothing is written any more (postgres(1)).
        kill(Pid::from_raw(server.id() as i32), Signal::SIGQUIT).expect("signal");
        server.wait().expect("ends");
    }

    fn database(&self) -> String {
        format!("postgres:host={} user=framework dbname=postgres", self.dir.path().display())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.kill();
        }
    }
}

/// Where the server's programs are: Debian keeps them out of PATH.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = versions.chain(std::env::split_paths(&path)).collect();
    all.retain(|directory| directory.join("initdb").exists() && directory.join("postgres").exists());
    all.into_iter().next()
}

/// An account without privileges, where this is root.
fn unprivileged() -> Option<(u32, u32)> {
    nix::unistd::geteuid().is_root().then(|| {
        let nobody = nix::unistd::User::from_name("nobody").ok().flatten();
        nobody.map_or((65534, 65534), |nobody| (nobody.uid.as_raw(), nobody.gid.as_raw()))
    })
}

/// A host: its bus, its controller, its service.
struct Host {
    framework: Framework,
    bench: Bench,
    name: &'static str,
}

impl Host {
    fn start(postgres: &Postgres, name: &'static str, lease_seconds: u64) -> Host {
        let mut framework = Framework::prepared();
        framework.database = postgres.database();
        let bench = Bench::with(&framework.configuration_for(name, lease_seconds));
        let mut host = Host { framework, bench, name };
        host.serve(lease_seconds);
        host
    }

    /// Its controller serves, and takes runs from the queue.
    fn serve(&mut self, lease_seconds: u64) {
        let socket = self.bench.socket().display().to_string();
        let seconds = lease_seconds.to_string();
        let queue = ["--submit-to", &socket, "--application", APPLICATION, "--host", self.name];
        let more = ["--worker", WORKER, "--slots", "3", "--lease-seconds", &seconds];
        self.framework.serve_with(&[], &[&queue[..], &more[..]].concat());
    }

    /// Nothing of it is left: controller, daemon, executors, and the programs too.
    fn lose(&mut self) {
        self.framework.kill();
        self.bench.kill();
        let needle = self.bench.spool().display().to_string();
        for (pid, line) in processes() {
            if line.contains(&needle) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        until("its executors are gone", || !processes().any(|(_, line)| line.contains(&needle)));
    }
}

fn processes() -> impl Iterator<Item = (Pid, String)> {
    let ours = nix::unistd::geteuid().as_raw();
    fs::read_dir("/proc").expect("proc").flatten().filter_map(move |entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        (entry.metadata().ok()?.uid() == ours)
            .then(|| (Pid::from_raw(pid), String::from_utf8_lossy(&line).into_owned()))
    })
}

/// Adds a run to the queue: a script that notes its start in a file that all hosts share.
fn queue(host: &Host, shared: &std::path::Path, script: &str) -> RunId {
    let run_id = RunId::random();
    let noted = format!("echo {run_id} >>{}/starts; {script}", shared.display());
    let mut submission = host.bench.script(&noted);
    submission.directory = Some(shared.display().to_string());
    submission.binding = Binding {
        application: Some(APPLICATION.into()),
        task_id: Some(format!("task-{run_id}")),
        operation: Some(format!("operation-{run_id}")),
        ..Binding::of_run(run_id)
    };
    host.framework.add(&submission, 60);
    run_id
}

fn starts_of(shared: &std::path::Path, run_id: RunId) -> usize {
    let starts = fs::read_to_string(shared.join("starts")).unwrap_or_default();
    starts.lines().filter(|line| *line == run_id.to_string()).count()
}

fn is_over(host: &Host, run_id: RunId) -> bool {
    !matches!(host.framework.phase(run_id).as_str(), "pending" | "running")
}

#[test]
fn two_hosts_serve_one_queue_and_each_run_once() {
    let Some(mut postgres) = Postgres::start() else { return };
    let shared = tempfile::tempdir().expect("scratch directory");
    let hosts = [Host::start(&postgres, "host-a", 20), Host::start(&postgres, "host-b", 20)];
    let runs: Vec<RunId> =
        (0..20).map(|_| queue(&hosts[0], shared.path(), "echo '{\"n\":1}'; sleep 0.5")).collect();
    until("some have run", || runs.iter().filter(|run| is_over(&hosts[0], **run)).count() >= 4);
    // The database goes away for less than a lease.
    postgres.kill();
    std::thread::sleep(Duration::from_secs(2));
    postgres.serve();
    let mut reconciled = 0;
    until("all are delivered", || {
        // What ended meanwhile waits to be delivered: somebody reconciles.
        for host in &hosts {
            let listed = host.bench.sessionctl(&["list", "--json"]);
            for id in runs.iter().filter(|run| !is_over(&hosts[0], **run)).map(RunId::to_string) {
                if String::from_utf8_lossy(&listed.stdout).contains(&id) {
                    host.bench.sessionctl(&["reconcile", &id]);
                    reconciled += 1;
                }
            }
        }
        runs.iter().all(|run| is_over(&hosts[0], *run))
    });
    let mut by_host = std::collections::BTreeMap::<String, usize>::new();
    for run in &runs {
        let known = hosts[0].framework.run(*run);
        assert_eq!(
            (known["phase"].as_str(), starts_of(shared.path(), *run)),
            (Some("complete"), 1),
            "{known}"
        );
        assert_eq!(hosts[0].framework.end(*run).as_deref(), Some("completed"));
        *by_host.entry(known["host"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    eprintln!("{by_host:?}, {reconciled} reconciled");
    assert_eq!(by_host.len(), 2, "both took part: {by_host:?}");
}

#[test]
fn a_lost_hosts_runs_are_given_up_after_the_lease_and_never_run_twice() {
    let Some(postgres) = Postgres::start() else { return };
    let shared = tempfile::tempdir().expect("scratch directory");
    let mut lost = Host::start(&postgres, "host-b", 6);
    let long: Vec<RunId> =
        (0..3).map(|_| queue(&lost, shared.path(), "until [ -e go ]; do sleep 0.1; done")).collect();
    until("it runs them", || long.iter().all(|run| starts_of(shared.path(), *run) == 1));
    let begun = std::time::Instant::now();
    lost.lose();
    let other = Host::start(&postgres, "host-a", 6);
    let rest: Vec<RunId> = (0..6).map(|_| queue(&other, shared.path(), "echo '{\"n\":1}'")).collect();
    until("the rest of the queue is run elsewhere", || rest.iter().all(|run| is_over(&other, *run)));
    until("the lost host's runs are given up", || long.iter().all(|run| is_over(&other, *run)));
    assert!(begun.elapsed() > Duration::from_secs(2), "not before their lease ran out");
    for run in &long {
        let known = other.framework.run(*run);
        assert_eq!((known["phase"].as_str(), known["host"].as_str()), (Some("failed"), Some("host-b")));
        assert!(known["reported"].as_str().is_some_and(|text| text.contains("host-b")), "{known}");
    }
    fs::write(shared.path().join("go"), "").expect("go");
    // The host comes back: it says what it knows, and that changes nothing of what was reported.
    lost.bench.start();
    lost.serve(6);
    let known = |run: &RunId| other.framework.run(*run);
    for run in &long {
        until("its executor's death is found", || {
            let shown = lost.bench.sessionctl(&["status", &run.to_string(), "--json"]);
            String::from_utf8_lossy(&shown.stdout).contains("reconciliation-required")
        });
        lost.bench.sessionctl(&["reconcile", &run.to_string()]);
        until("it is delivered late", || known(run)["deliveries"] == 1);
        assert_eq!(known(run)["phase"], "failed");
        assert_eq!(other.framework.end(*run).as_deref(), Some("interrupted"));
    }
    for run in long.iter().chain(&rest) {
        assert_eq!(starts_of(shared.path(), *run), 1, "{run} was started once, on whichever host");
    }
}
