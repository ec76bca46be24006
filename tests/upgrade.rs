//! Upgrades: the programs are replaced under running sessions, and daemons and executors of different versions meet.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use airouter_sessiond::client::WaitFor;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{Bench, PATIENCE, executor_of, program, text, until};

/// The programs in a directory of their own, as a package would install them.
struct Installation {
    directory: PathBuf,
}

impl Installation {
    fn new(parent: &Path) -> Installation {
        let installation = Installation { directory: parent.join("bin") };
        fs::create_dir(&installation.directory).expect("a directory");
        installation.install("");
        installation
    }

    /// Replaces every program as an upgrade does, by a rename, with one whose file ends with `mark`: what the kernel
    /// loads of it is the same.
    fn install(&self, mark: &str) {
        for name in ["airouter-sessiond", "airouter-native-exec"] {
            let new = self.directory.join(format!("{name}.new"));
            fs::copy(program(name), &new).expect("copies");
            File::options()
                .append(true)
                .open(&new)
                .expect("opens")
                .write_all(mark.as_bytes())
                .expect("writes");
            fs::rename(&new, self.directory.join(name)).expect("replaces");
        }
    }
}

async fn upgrade_pending(bench: &Bench) -> Value {
    bench.client().await.properties().await.expect("properties")["UpgradePending"].clone()
}

/// The program that runs a session's executor.
fn executor_program(main: &str) -> PathBuf {
    fs::read_link(format!("/proc/{}/exe", executor_of(main))).expect("an executable")
}

#[tokio::test]
async fn programs_are_replaced_under_a_running_session_and_the_next_daemon_adopts_it() {
    let mut bench = Bench::prepared("on_stop = \"detach\"");
    let installation = Installation::new(bench.path());
    bench.programs(&installation.directory);
    bench.start();
    let submission = bench.script(
        "echo $$ >main; echo run >>starts; until [ -e go ]; do sleep 0.02; done; echo '{\"type\":\"result\",\"text\":\"kept\"}'",
    );
    let run_id = submission.run_id();
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("main").ends_with('\n'));
    assert_eq!(upgrade_pending(&bench).await, json!(false));

    installation.install("upgrade");
    assert_eq!(upgrade_pending(&bench).await, json!(true));
    let told = bench.sessionctl(&["status"]);
    assert!(text(&told.stdout).contains("another program is installed"), "{}", text(&told.stdout));
    let told = bench.sessionctl(&["status", &run_id.to_string()]);
    assert!(text(&told.stderr).contains("restart it"), "{}", text(&told.stderr));
    let told = bench.sessionctl(&["doctor"]);
    assert!(text(&told.stdout).contains("another program stands on disk"), "{}", text(&told.stdout));
    assert!(executor_program(&bench.read("main")).ends_with("airouter-native-exec (deleted)"));
    // The old daemon goes on, with the new executor.
    let mid = bench.script("echo $$ >second; until [ -e go ]; do sleep 0.02; done");
    bench.client().await.submit(&mid, None).await.expect("submits");
    until("it runs", || bench.read("second").ends_with('\n'));
    assert_eq!(executor_program(&bench.read("second")), installation.directory.join("airouter-native-exec"));

    bench.stop();
    bench.start();
    assert_eq!(upgrade_pending(&bench).await, json!(false));
    let client = bench.client().await;
    let status = client.status(run_id).await.expect("a status");
    assert_eq!(status.state(), "driving", "{:?}", status.json());
    bench.write("go", "");
    for run_id in [run_id, mid.run_id()] {
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
        assert_eq!(status.json()["activity-complete"], json!(true));
    }
    assert_eq!(bench.read("starts"), "run\n");
    bench.stop();
}

/// An executor of another version: it owns the session's lock and speaks the control protocol by hand.
struct Foreign {
    _lock: File,
    stream: BufReader<UnixStream>,
}

impl Foreign {
    /// Takes the place of a session's dead executor.
    fn take_over(folder: &Path) -> (File, UnixListener) {
        let lock = File::options().read(true).write(true).open(folder.join("owner.lock")).expect("opens");
        // SAFETY: flock(2) on a descriptor that is open.
        until(
            "the lock is free",
            || unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0,
        );
        let socket = folder.join("control.sock");
        let _ = fs::remove_file(&socket);
        (lock, UnixListener::bind(socket).expect("listens"))
    }

    fn accept((lock, listener): (File, UnixListener)) -> Foreign {
        let (stream, _) = listener.accept().expect("a daemon connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Foreign { _lock: lock, stream: BufReader::new(stream) }
    }

    fn report(&mut self, report: &Value) {
        writeln!(self.stream.get_mut(), "{report}").expect("writes");
    }

    fn request(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a request");
        serde_json::from_str(&line).expect("JSON")
    }
}

#[tokio::test]
async fn executors_of_older_and_newer_versions_are_understood() {
    // As version 1 wrote it, and as one may that does not exist yet.
    let older = json!({"version": 1});
    let newer = json!({"version": 99, "mood": {"of": ["any", "kind"]}, "progress": {"turns": 3, "jokes": 2}});
    for other in [older, newer] {
        let mut bench = Bench::prepared("on_stop = \"detach\"");
        bench.start();
        let submission = bench.script("echo $$ >main; sleep 600");
        let run_id = submission.run_id();
        bench.client().await.submit(&submission, None).await.expect("submits");
        until("it runs", || bench.read("main").ends_with('\n'));
        bench.kill();
        let main = bench.read("main");
        let executor = nix::unistd::Pid::from_raw(executor_of(&main));
        let folder = bench.spool().join("active").join(run_id.to_string());
        nix::sys::signal::kill(executor, Signal::SIGKILL).expect("kills");
        let listening = Foreign::take_over(&folder);
        bench.start();
        let mut foreign = Foreign::accept(listening);
        let mut report = json!({
            "run_id": run_id, "pid": std::process::id(), "stage": "running", "head": 0, "activity-complete": true,
        });
        report.as_object_mut().expect("an object").extend(other.as_object().expect("an object").clone());
        foreign.report(&report);
        let client = bench.client().await;
        until("it is adopted", || {
            let status = text(&bench.sessionctl(&["--json", "status", &run_id.to_string()]).stdout);
            status.contains("\"driving\"")
        });
        client.cancel(run_id).await.expect("cancels");
        assert_eq!(foreign.request(), json!({"request": "stop", "end": "cancelled"}), "{other}");
        // Gone without an outcome: uncertain, as with any executor; what it left running is ended first.
        drop(foreign);
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("is over");
        assert_eq!(status.state(), "reconciliation-required", "{:?}", status.json());
        assert!(!support::lives(&main));
        let settled = client.reconcile(run_id).await.expect("reconciles");
        assert_eq!(settled.state(), "finished", "{:?}", settled.json());
        tokio::time::timeout(Duration::from_secs(60), client.wait(run_id, WaitFor::Finished, PATIENCE))
            .await
            .expect("in time")
            .expect("ends");
    }
}
