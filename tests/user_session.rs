//! Promises 3, 5 and 6 in a real user session: scopes of the user manager, the unit that is restarted under running
//! sessions, the last logout. The tests in `inside` run as an unprivileged account; the outer ones start them.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What happens in the session is the same whichever broker serves its bus: nothing here may depend on it.
#[test]
fn sessions_under_a_user_manager_with_dbus_daemon() {
    let directory = tempfile::tempdir().expect("scratch directory");
    support::user_session::run("dbus-daemon", "inside::", directory.path());
}

#[test]
fn sessions_under_a_user_manager_with_dbus_broker() {
    let directory = tempfile::tempdir().expect("scratch directory");
    support::user_session::run("dbus-broker", "inside::", directory.path());
}

#[test]
fn the_last_logout_ends_sessions_as_stopped_with_the_service() {
    let directory = tempfile::tempdir().expect("scratch directory");
    let left = directory.path().join("left");
    fs::create_dir(&left).expect("scratch directory");
    fs::set_permissions(&left, Permissions::from_mode(0o1777)).expect("modes");
    if !support::user_session::run("dbus-daemon", "logout::", directory.path()) {
        return;
    }
    // Everything of the user session is gone now; what its executor wrote tells how it went.
    let outcome = outcome_below(&left).expect("an outcome was written before all was killed");
    assert_eq!(outcome["end"], "stopped-with-service", "{outcome}");
    assert_eq!(outcome.get("leftovers"), None, "{outcome}");
    assert_eq!(outcome["activity-complete"], true, "{outcome}");
}

fn outcome_below(directory: &Path) -> Option<serde_json::Value> {
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = outcome_below(&path) {
                return Some(found);
            }
        } else if path.ends_with("outcome.json") {
            return serde_json::from_str(&fs::read_to_string(path).ok()?).ok();
        }
    }
    None
}

/// What the tests inside share: the daemon as a unit of the user manager.
mod unit {
    use std::process::{Command, Output};

    use super::support::{Bench, program, text};

    /// A transient unit, stopped when it is dropped.
    pub struct Unit {
        pub name: String,
    }

    impl Unit {
        pub fn start(bench: &Bench) -> Unit {
            Unit::start_with(bench, &[])
        }

        pub fn start_with(bench: &Bench, properties: &[&str]) -> Unit {
            let name = format!("sessiond-test-{}", bench.path().file_name().expect("a name").display());
            let name = name.replace('.', "-");
            let output = Command::new("systemd-run")
                .args(["--user", "--quiet", "-p", "Type=notify", &format!("--unit={name}")])
                .args(properties.iter().flat_map(|property| ["-p", property]))
                .arg("-p")
                .arg(format!("StandardError=append:{}", bench.path().join("daemon.log").display()))
                .arg(program("airouter-sessiond"))
                .arg("--config")
                .arg(bench.config())
                .output()
                .expect("systemd-run");
            assert!(output.status.success(), "{}\n{}", text(&output.stderr), bench.log());
            Unit { name }
        }

        pub fn main_pid(&self) -> String {
            text(&systemctl(&["show", "-P", "MainPID", &self.name]).stdout).trim().to_owned()
        }
    }

    impl Drop for Unit {
        fn drop(&mut self) {
            systemctl(&["stop", &self.name]);
        }
    }

    pub fn systemctl(arguments: &[&str]) -> Output {
        Command::new("systemctl").arg("--user").args(arguments).output().expect("systemctl")
    }

    pub fn is_active(unit: &str) -> bool {
        systemctl(&["is-active", "--quiet", unit]).status.success()
    }
}

mod logout {
    use airouter_sessiond::client::WaitFor;

    use super::support::{Bench, PATIENCE};
    use super::unit::Unit;

    /// Leaves a running session behind: the end of this command is the end of the user session.
    #[tokio::test]
    #[ignore = "runs in a user session, started by the_last_logout_ends_sessions_as_stopped_with_the_service"]
    async fn leaves_a_session_running() {
        // Where the outer test looks for what stays.
        let left = std::env::current_dir().expect("a directory").join("left");
        let bench = Bench::prepared_in(&left, "on_stop = \"detach\"\n[limits]\ngrace_ms = 300\n");
        let unit = Unit::start(&bench);
        let client = bench.client().await;
        let submission = bench.script("trap '' TERM; sleep 600 & wait; sleep 600");
        client.submit(&submission, None).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
        std::mem::forget((unit, bench));
    }
}

mod inside {
    use std::fs;
    use std::os::unix::net::UnixStream;

    use airouter_sessiond::client::{SessionStatus, WaitFor};
    use airouter_sessiond::model::{RunId, Submission};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    use nix::unistd::Pid;
    use serde_json::Value;

    use super::support::{Bench, PATIENCE, lives, text, tree, until};
    use super::unit::{Unit, is_active, systemctl};

    const GRACE: &str = "on_stop = \"detach\"\n[limits]\ngrace_ms = 300\n";

    fn scope(run_id: RunId) -> String {
        format!("airouter-exec-{run_id}.scope")
    }

    async fn started(bench: &Bench, submission: &Submission) -> SessionStatus {
        let client = bench.client().await;
        client.submit(submission, None).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts")
    }

    async fn ended(bench: &Bench, run_id: RunId) -> SessionStatus {
        let status = bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
        assert!(status.is_over(), "{:?}\n{}", status.json(), bench.log());
        status
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn a_session_is_a_scope_and_stopping_it_ends_the_session_as_stopped_with_service() {
        let bench = Bench::with(&format!("containment = \"systemd-scope\"\n{GRACE}"));
        let submission = bench.script("echo $$ >main; sleep 600 & wait");
        let run_id = submission.run_id();
        let status = started(&bench, &submission).await;
        assert_eq!(status.json()["containment"], "systemd-scope");
        let shown = text(&systemctl(&["show", &scope(run_id)]).stdout);
        for property in ["ActiveState=active", "Slice=app.slice", "Delegate=yes", "KillSignal=23"] {
            assert!(shown.lines().any(|line| line == property), "{property} in\n{shown}");
        }
        assert!(shown.contains(&format!("Description=airouter session {run_id}")), "{shown}");
        until("the program runs", || !bench.read("main").is_empty());
        let cgroup =
            fs::read_to_string(format!("/proc/{}/cgroup", bench.read("main").trim())).expect("lives");
        assert!(cgroup.trim_end().ends_with(&format!("/{}/payload", scope(run_id))), "{cgroup}");
        assert!(systemctl(&["stop", &scope(run_id)]).status.success());
        // The manager's answer means that nobody is left in the scope.
        assert!(!lives(&bench.read("main")));
        let status = ended(&bench, run_id).await;
        assert_eq!(status.end(), Some("stopped-with-service"), "{:?}", status.json());
        assert_eq!(status.json().get("leftovers"), None);
        assert_eq!(status.json()["activity-complete"], true);
        let kinds: Vec<String> = bench.events(run_id).await.into_iter().map(|e| e.kind).collect();
        assert_eq!(kinds.last().map(String::as_str), Some("ended"));
        assert!(!is_active(&scope(run_id)));
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn a_program_is_not_touched_by_the_stop_of_its_scope_before_its_executor_acts() {
        let bench = Bench::with(&format!("containment = \"systemd-scope\"\n{GRACE}"));
        // It says what it gets, and needs a moment to end in order.
        let submission = bench.script(
            "trap 'echo term >>got; sleep 0.1; echo done >>got; exit 0' TERM; trap 'echo urg >>got' URG
             echo >ready; while :; do sleep 0.02; done",
        );
        started(&bench, &submission).await;
        until("its traps are set", || bench.path().join("ready").exists());
        systemctl(&["stop", &scope(submission.run_id())]);
        let status = ended(&bench, submission.run_id()).await;
        assert_eq!(status.end(), Some("stopped-with-service"));
        assert_eq!(status.json()["exit-code"], 0);
        assert_eq!(
            bench.read("got").lines().filter(|line| *line != "urg").collect::<Vec<_>>(),
            ["term", "done"]
        );
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn restarting_the_unit_leaves_sessions_running_and_adopted() {
        let bench = Bench::prepared(GRACE);
        let unit = Unit::start(&bench);
        let submission = bench.script("echo $$ >>starts; until [ -e go ]; do sleep 0.02; done; echo '{}'");
        let status = started(&bench, &submission).await;
        assert_eq!(status.json()["containment"], "systemd-scope");
        let (before, run_id) = (unit.main_pid(), submission.run_id());
        for round in 0..3 {
            assert!(systemctl(&["restart", &unit.name]).status.success(), "{}", bench.log());
            assert_ne!(unit.main_pid(), before, "another daemon in round {round}");
            let status = bench.client().await.status(run_id).await.expect("known");
            assert_eq!((status.state(), status.end()), ("driving", None), "{:?}", status.json());
            assert!(is_active(&scope(run_id)));
        }
        // Stopped is not only restarted: nobody is there for a while.
        assert!(systemctl(&["stop", &unit.name]).status.success());
        assert!(lives(&bench.read("starts")), "it runs with no service");
        drop(unit);
        let _unit = Unit::start(&bench);
        bench.write("go", "");
        let status = ended(&bench, run_id).await;
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
        assert_eq!(bench.read("starts").lines().count(), 1, "started once");
        until("the scope is gone", || !is_active(&scope(run_id)));
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn two_hundred_processes_that_hide_are_gone_and_proven_gone() {
        for containment in ["systemd-scope", "process-group"] {
            let bench = Bench::with(&format!("containment = \"{containment}\"\n{GRACE}"));
            tree::is_stopped(&bench, containment).await;
        }
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn a_dead_executors_tree_is_killed_through_its_scope() {
        let bench = Bench::with(&format!("containment = \"systemd-scope\"\n{GRACE}"));
        let run_id = tree::outlives_its_executor(&bench).await;
        until("the scope is gone", || !is_active(&scope(run_id)));
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn sigterm_to_the_executor_is_stopped_with_service() {
        for containment in ["systemd-scope", "process-group"] {
            let bench = Bench::with(&format!("containment = \"{containment}\"\n{GRACE}"));
            tree::ends_with_its_executors_term(&bench).await;
        }
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn what_is_left_on_purpose_keeps_its_scope() {
        let bench = Bench::with(&format!("containment = \"systemd-scope\"\n{GRACE}"));
        let (run_id, pid) = tree::leaves_a_server(&bench).await;
        assert!(is_active(&scope(run_id)), "an operator sees it, and can stop it");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("signals");
        until("the scope is gone with it", || !is_active(&scope(run_id)));
    }

    /// An account without privileges, and the cgroup that the manager gave its unit.
    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn sessions_live_in_the_delegated_cgroup_of_the_unit_and_outlive_its_restart() {
        let delegated = || {
            let bench = Bench::prepared(&format!("containment = \"cgroup\"\n{GRACE}"));
            let unit = Unit::start_with(&bench, &["Delegate=yes", "KillMode=process"]);
            (bench, unit)
        };
        let (bench, unit) = delegated();
        tree::is_stopped(&bench, "cgroup").await;
        drop(unit);
        let (bench, unit) = delegated();
        tree::outlives_its_executor(&bench).await;
        drop(unit);
        let (bench, unit) = delegated();
        let submission = bench.script("echo $$ >>starts; until [ -e go ]; do sleep 0.02; done; echo '{}'");
        let run_id = submission.run_id();
        started(&bench, &submission).await;
        until("it runs", || bench.read("starts").ends_with('\n'));
        let cgroup =
            fs::read_to_string(format!("/proc/{}/cgroup", bench.read("starts").trim())).expect("lives");
        assert!(
            cgroup.trim_end().ends_with(&format!("/{}.service/exec-{run_id}/payload", unit.name)),
            "{cgroup}"
        );
        for round in 0..2 {
            assert!(systemctl(&["restart", &unit.name]).status.success(), "{}", bench.log());
            let status = bench.client().await.status(run_id).await.expect("known");
            assert_eq!(status.state(), "driving", "round {round}: {:?}", status.json());
        }
        bench.write("go", "");
        let status = ended(&bench, run_id).await;
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
        assert_eq!(bench.read("starts").lines().count(), 1, "started once");
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn a_session_is_held_otherwise_when_the_manager_is_silent() {
        let bench = Bench::with(GRACE);
        let runtime = std::env::var("XDG_RUNTIME_DIR").expect("a user session");
        let socket = UnixStream::connect(format!("{runtime}/systemd/private")).expect("the manager listens");
        let manager = Pid::from_raw(getsockopt(&socket, PeerCredentials).expect("peer").pid());
        kill(manager, Signal::SIGSTOP).expect("signals");
        let submission = bench.script("exit 0");
        let client = bench.client().await;
        client.submit(&submission, None).await.expect("submits");
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await;
        kill(manager, Signal::SIGCONT).expect("signals");
        let status = status.expect("ends");
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
        assert_eq!(status.json()["containment"], "process-group");
        let events = bench.events(submission.run_id()).await;
        assert_eq!(events[0].details["containment"], "process-group");
        let notice = events.iter().find(|event| event.kind == "notice").expect("a notice");
        let said = notice.details["text"].as_str().expect("a text");
        assert!(said.contains("systemd-scope failed") && said.contains("did not answer"), "{said}");
        // The next one has a scope again.
        let (_, status) = bench.run("true").await;
        assert_eq!(status.json()["containment"], "systemd-scope");
    }

    #[tokio::test]
    #[ignore = "runs in a user session, started by the outer tests"]
    async fn limits_that_nothing_enforces_are_named() {
        let bench = Bench::with(&format!("containment = \"systemd-scope\"\n{GRACE}"));
        let mut submission = bench.script("sleep 600");
        (submission.limits.memory_max, submission.limits.tasks_max) = (Some(100 << 20), Some(100));
        started(&bench, &submission).await;
        let run_id = submission.run_id();
        let shown = text(&systemctl(&["show", &scope(run_id)]).stdout);
        let property = |name: &str| {
            let value = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse::<u64>().ok()).expect("a number")
        };
        assert!(property("MemoryMax") >= 100 << 20 && property("TasksMax") >= 100, "{shown}");
        bench.client().await.cancel(run_id).await.expect("cancels");
        ended(&bench, run_id).await;
        let events = bench.events(run_id).await;
        let unenforced = events.iter().find_map(|event| event.details.get("limits"));
        // What the kernel has is enforced, what it lacks is named; one of the two for each.
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").expect("cgroup v2");
        let has = |name: &str| controllers.split_whitespace().any(|there| there == name);
        let missing: Vec<&str> = [("memory", "memory-max"), ("pids", "tasks-max")]
            .into_iter()
            .filter(|(controller, _)| !has(controller))
            .map(|(_, key)| key)
            .collect();
        assert_eq!(
            unenforced.cloned().unwrap_or_else(|| Value::from(Vec::<&str>::new())),
            Value::from(missing)
        );
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn a_forced_backend_that_cannot_be_had_is_a_start_error() {
        // This command's own cgroup belongs to root.
        let mut bench = Bench::prepared(&format!("containment = \"cgroup\"\n{GRACE}"));
        let error = bench.try_start().expect_err("not to be had");
        assert!(error.contains("containment = \"cgroup\" cannot be had"), "{error}");
        assert!(error.contains("Permission denied"), "{error}");
    }
}
