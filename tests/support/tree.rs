//! Trees of processes that do not want to be stopped.

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::RunId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Bench, PATIENCE, lives, until};

/// How many of them.
const MANY: usize = 200;

/// `MANY` processes with sessions of their own, forked twice, that ignore SIGTERM, moved to another directory.
fn script(bench: &Bench, command: &str) -> String {
    let pids = bench.path().join("pids").display().to_string();
    format!(
        "trap '' TERM INT HUP
         n=0; while [ $n -lt {MANY} ]; do n=$((n+1))
           ( setsid sh -c 'trap \"\" TERM HUP INT; cd /; echo $$ >>{pids}; exec {command}' & )
         done
         echo $$ >main; while :; do sleep 0.1; done"
    )
}

async fn grown(bench: &Bench, command: &str) -> RunId {
    let submission = bench.script(&script(bench, command));
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("the tree is there", || {
        bench.read("pids").lines().count() == MANY && !bench.read("main").is_empty()
    });
    submission.run_id()
}

fn assert_gone(bench: &Bench) {
    for pid in bench.read("pids").lines().chain([bench.read("main").trim()]) {
        assert!(!lives(pid), "{pid} is gone");
    }
}

/// A cancel ends all of them, and nothing is named as left.
pub async fn is_stopped(bench: &Bench, containment: &str) {
    let run_id = grown(bench, "sleep 600").await;
    let client = bench.client().await;
    client.cancel(run_id).await.expect("cancels");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("cancelled"), "{:?}", status.json());
    assert_eq!(status.json()["containment"], containment);
    assert_eq!(status.json().get("leftovers"), None);
    assert_gone(bench);
}

/// The executor of the session.
pub fn executor(run_id: RunId) -> Pid {
    let of = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let executor = line.starts_with("airouter-native-exec") && line.contains(&run_id.to_string());
        executor.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    let pid = std::fs::read_dir("/proc").expect("proc").flatten().find_map(of);
    Pid::from_raw(pid.expect("the executor lives"))
}

/// The executor is killed: the tree, whose processes replaced their environment, is killed and proven gone before
/// anything is said, and Reconcile tells what that rests on.
pub async fn outlives_its_executor(bench: &Bench) -> RunId {
    let run_id = grown(bench, "env -i sleep 600").await;
    kill(executor(run_id), Signal::SIGKILL).expect("signals");
    let client = bench.client().await;
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("is noticed");
    assert_eq!(status.state(), "reconciliation-required", "{:?}", status.json());
    assert_gone(bench);
    let status = client.reconcile(run_id).await.expect("reconciles");
    assert_eq!(status.end(), Some("interrupted"), "{:?}", status.json());
    assert_eq!(status.json().get("leftovers"), None);
    let evidence = status.json()["evidence"].as_array().expect("evidence");
    let cgroup = evidence.iter().find(|fact| fact["source"] == "cgroup").expect("the cgroup was looked at");
    assert_eq!(cgroup["value"]["populated"], false, "{cgroup}");
    run_id
}

/// SIGTERM to the executor alone.
pub async fn ends_with_its_executors_term(bench: &Bench) {
    let submission = bench.script("echo $$ >victim; sleep 600 & wait");
    let (client, run_id) = (bench.client().await, submission.run_id());
    client.submit(&submission, None).await.expect("submits");
    until("it runs", || !bench.read("victim").is_empty());
    kill(executor(run_id), Signal::SIGTERM).expect("signals");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("stopped-with-service"), "{:?}", status.json());
    assert_eq!(status.json().get("leftovers"), None);
    assert!(!lives(&bench.read("victim")));
}

/// A session that is to leave its server running, and has ended: the server lives, and is named. Its pid.
pub async fn leaves_a_server(bench: &Bench) -> (RunId, i32) {
    let mut submission = bench.script("setsid sleep 600 >/dev/null 2>&1 & echo $! >server; exit 0");
    submission.leave_descendants = true;
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let pid: i32 = bench.read("server").trim().parse().expect("a pid");
    assert!(lives(&pid.to_string()), "it was left running");
    let left = status.json()["leftovers"].as_array().expect("it is named");
    assert!(left.iter().any(|left| left["pid"] == pid && left["command"].is_string()), "{left:?}");
    (run_id, pid)
}
