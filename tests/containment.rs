//! Promise 6: asking for cancellation, stopping, and being stopped are three facts; a session has ended only when its
//! whole tree is known to be gone.

mod support;

use std::fs;
use std::path::PathBuf;

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::RunId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::cgroup::Scratch;
use support::stuck::Stuck;
use support::{Bench, PATIENCE, lives, tree, until, virtual_machine};

const GRACE: &str = "[limits]\ngrace_ms = 300\n";

#[tokio::test]
async fn helpers_of_helpers_are_stopped_and_proven_gone() {
    let bench = Bench::with(GRACE);
    // Sessions of their own, double forks, TERM ignored, names and directories changed.
    let submission = bench.script(
        r#"trap '' TERM INT
        for n in 1 2 3 4 5 6 7 8; do
          ( setsid sh -c 'trap "" TERM HUP INT; cd /; (echo $$ >>'"$PWD"'/pids; exec sleep 600) & exec sleep 600' & )
        done
        echo $$ >main
        while :; do sleep 0.1; done"#,
    );
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    until("the tree is there", || bench.read("pids").lines().count() == 8);
    let status = client.cancel(submission.run_id()).await.expect("cancels");
    assert_eq!(status.json().get("cancel-requested"), Some(&true.into()), "requested is a fact of its own");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.phase()), (Some("cancelled"), "cancelled"), "{:?}", status.json());
    assert_eq!(status.json().get("leftovers"), None);
    for pid in bench.read("pids").lines().chain([bench.read("main").as_str()]) {
        assert!(!lives(pid), "{pid} is gone");
    }
}

#[tokio::test]
async fn cancel_before_the_start_settles_at_once_and_after_the_end_answers_with_that_end() {
    let bench = Bench::with(&format!("{GRACE}active = 1\n"));
    let client = bench.client().await;
    let running = bench.script("sleep 600");
    let queued = bench.script("echo started >>starts");
    client.submit(&running, None).await.expect("runs");
    client.submit(&queued, None).await.expect("waits");
    let status = client.cancel(queued.run_id()).await.expect("cancels");
    assert_eq!((status.end(), status.state()), (Some("cancelled"), "finished"));
    let kinds: Vec<String> = bench.events(queued.run_id()).await.into_iter().map(|e| e.kind).collect();
    assert_eq!(kinds, ["ended"], "exactly one terminal record");
    for _ in 0..2 {
        client.cancel(running.run_id()).await.expect("twice is once");
    }
    let ended = client.wait(running.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(ended.end(), Some("cancelled"));
    let after = client.cancel(running.run_id()).await.expect("answers");
    assert_eq!(after.json(), ended.json());
    let (run_id, completed) = bench.run("true").await;
    let after = client.cancel(run_id).await.expect("answers");
    assert_eq!((after.end(), after.json()), (Some("completed"), completed.json()));
    assert_eq!(bench.read("starts"), "");
}

#[tokio::test]
async fn a_cancel_that_races_the_exit_gives_one_end() {
    let bench = Bench::with(GRACE);
    let client = bench.client().await;
    for round in 0..20 {
        let submission = bench.script(&format!("sleep 0.0{round:02}"));
        client.submit(&submission, None).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
        client.cancel(submission.run_id()).await.expect("cancels");
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        let end = status.end().expect("has an end").to_owned();
        assert!(["completed", "cancelled"].contains(&end.as_str()), "{end}");
        let events = bench.events(submission.run_id()).await;
        let ends: Vec<_> = events.iter().filter(|e| e.kind == "ended").collect();
        assert_eq!(ends.len(), 1, "exactly one terminal record");
        assert_eq!(ends[0].details.get("end"), Some(&end.as_str().into()), "status and journal agree");
    }
}

/// The daemon in a cgroup of the test's own, with the backend `cgroup`.
fn with_cgroup(scratch: &Scratch, configuration: &str) -> Bench {
    let mut bench = Bench::prepared(&format!("containment = \"cgroup\"\n{configuration}"));
    bench.in_cgroup(&scratch.path);
    bench.start();
    bench
}

fn session_cgroup(scratch: &Scratch, run_id: RunId) -> PathBuf {
    scratch.path.join(format!("exec-{run_id}"))
}

#[tokio::test]
async fn two_hundred_processes_that_hide_are_gone_in_a_process_group() {
    let bench = Bench::with(&format!("containment = \"process-group\"\n{GRACE}"));
    tree::is_stopped(&bench, "process-group").await;
    tree::ends_with_its_executors_term(&bench).await;
}

#[tokio::test]
async fn two_hundred_processes_that_hide_are_gone_in_a_cgroup() {
    let Some(scratch) = Scratch::new("two-hundred") else { return };
    let bench = with_cgroup(&scratch, GRACE);
    tree::is_stopped(&bench, "cgroup").await;
    until("no session's cgroup is left", || sessions_in(&scratch).is_empty());
}

fn sessions_in(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(&scratch.path).expect("lists").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("exec-") || name.starts_with("probe-"))
        .collect()
}

#[tokio::test]
async fn a_dead_executors_tree_is_killed_through_its_cgroup() {
    let Some(scratch) = Scratch::new("dead-executor") else { return };
    let bench = with_cgroup(&scratch, GRACE);
    tree::outlives_its_executor(&bench).await;
    until("no session's cgroup is left", || sessions_in(&scratch).is_empty());
}

#[tokio::test]
async fn sigterm_to_an_executor_in_a_cgroup_is_stopped_with_service() {
    let Some(scratch) = Scratch::new("term") else { return };
    tree::ends_with_its_executors_term(&with_cgroup(&scratch, GRACE)).await;
}

#[tokio::test]
async fn a_tree_is_killed_when_executor_and_daemon_died_and_another_daemon_comes() {
    let Some(scratch) = Scratch::new("both-died") else { return };
    let mut bench = with_cgroup(&scratch, GRACE);
    let submission = bench.script("(setsid env -i sleep 600 & echo $! >hidden); echo $$ >main; sleep 600");
    let run_id = submission.run_id();
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("it runs", || !bench.read("main").is_empty());
    bench.kill();
    kill(tree::executor(run_id), Signal::SIGKILL).expect("signals");
    assert!(lives(&bench.read("hidden")) && lives(&bench.read("main")), "nobody stopped them yet");
    bench.start();
    let status = bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("is noticed");
    assert_eq!(status.state(), "reconciliation-required", "{:?}", status.json());
    assert!(!lives(&bench.read("hidden")) && !lives(&bench.read("main")));
    assert_eq!(bench.read("main").lines().count(), 1);
}

#[tokio::test]
async fn a_process_that_moved_itself_out_of_the_payload_is_stopped_all_the_same() {
    let Some(scratch) = Scratch::new("moved-out") else { return };
    let bench = with_cgroup(&scratch, GRACE);
    let submission = bench.script(&format!(
        "trap '' TERM
         (trap '' TERM; setsid sh -c 'echo $$ >{}/cgroup.procs; echo $$ >outside; exec env -i sleep 600' & )
         echo $$ >main; sleep 600; sleep 600",
        scratch.path.display()
    ));
    let (client, run_id) = (bench.client().await, submission.run_id());
    client.submit(&submission, None).await.expect("submits");
    until("it moved", || !bench.read("outside").is_empty() && !bench.read("main").is_empty());
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", bench.read("outside").trim())).expect("lives");
    assert!(!cgroup.contains("payload"), "{cgroup}");
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", bench.read("main").trim())).expect("lives");
    assert!(cgroup.trim_end().ends_with(&format!("exec-{run_id}/payload")), "{cgroup}");
    client.cancel(run_id).await.expect("cancels");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.json().get("leftovers")), (Some("cancelled"), None));
    assert!(!lives(&bench.read("outside")) && !lives(&bench.read("main")));
}

#[tokio::test]
async fn processes_in_cgroups_that_the_program_made_are_stopped() {
    let Some(scratch) = Scratch::new("below") else { return };
    let bench = with_cgroup(&scratch, GRACE);
    let below = |run_id: RunId| session_cgroup(&scratch, run_id).join("payload/tool/more");
    let mut submission = bench.script("");
    let run_id = submission.run_id();
    submission.arguments = vec![format!(
        "mkdir -p {0}; trap '' TERM; sh -c 'echo $$ >{0}/cgroup.procs; echo $$ >deep; exec sleep 600' & wait; sleep 600",
        below(run_id).display()
    )];
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    until("it is deep", || !bench.read("deep").is_empty());
    client.cancel(run_id).await.expect("cancels");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.json().get("leftovers")), (Some("cancelled"), None));
    assert!(!lives(&bench.read("deep")));
    until("no session's cgroup is left", || sessions_in(&scratch).is_empty());
}

#[tokio::test]
async fn what_is_left_on_purpose_stays_in_its_cgroup_until_it_ends() {
    let Some(scratch) = Scratch::new("left") else { return };
    let mut bench = with_cgroup(&scratch, &format!("on_stop = \"detach\"\n{GRACE}"));
    let (run_id, pid) = tree::leaves_a_server(&bench).await;
    assert!(session_cgroup(&scratch, run_id).join("payload").is_dir());
    // A restart of the service changes nothing, and the one after its end clears up.
    bench.stop();
    bench.start();
    assert!(lives(&pid.to_string()) && session_cgroup(&scratch, run_id).is_dir());
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("signals");
    until("it is gone", || !lives(&pid.to_string()));
    bench.stop();
    bench.start();
    assert!(sessions_in(&scratch).is_empty());
}

#[tokio::test]
async fn sessions_in_a_cgroup_outlive_the_daemon_and_are_adopted() {
    let Some(scratch) = Scratch::new("adopted") else { return };
    let mut bench = with_cgroup(&scratch, GRACE);
    let submission = bench.script("echo $$ >>starts; until [ -e go ]; do sleep 0.02; done");
    let run_id = submission.run_id();
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("it runs", || !bench.read("starts").is_empty());
    bench.kill();
    assert!(lives(&bench.read("starts")));
    bench.start();
    bench.write("go", "");
    let status = bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), &status.json()["containment"]), (Some("completed"), &"cgroup".into()));
    assert_eq!(bench.read("starts").lines().count(), 1);
    until("no session's cgroup is left", || sessions_in(&scratch).is_empty());
}

/// The kernel's count tells it from a kill by anybody else; the service and the others do not notice.
#[tokio::test]
async fn a_session_that_takes_all_its_memory_is_out_of_memory_and_the_others_live() {
    let Some(scratch) = Scratch::new("memory") else { return };
    if !scratch.has("memory") {
        return virtual_machine::run(
            "a_session_that_takes_all_its_memory_is_out_of_memory_and_the_others_live",
        );
    }
    let bench = with_cgroup(&scratch, GRACE);
    let client = bench.client().await;
    let other = bench.script("echo $$ >other; until [ -e go ]; do sleep 0.02; done");
    client.submit(&other, None).await.expect("submits");
    let limited = |script: &str| {
        let mut submission = bench.script(script);
        submission.limits.memory_max = Some(32 << 20);
        submission
    };
    // The main process itself; a part of the answer was printed before.
    let all = "echo '{\"type\":\"result\",\"text\":\"half\"}'; exec tail /dev/zero";
    let (run_id, status) = bench.run_submission(&limited(all), None).await;
    assert_eq!(
        (status.end(), status.number("exit-signal")),
        (Some("out-of-memory"), Some(9)),
        "{:?}",
        status.json()
    );
    assert!(status.text("error").contains("its limit is 33554432 bytes"), "{}", status.text("error"));
    assert_eq!(status.json()["activity-complete"], true);
    let unenforced =
        bench.events(run_id).await.into_iter().find(|event| event.details.contains_key("limits"));
    assert_eq!(unenforced.map(|event| event.details), None);
    // A tool of it: the program lives, and says what it makes of that.
    let (_, status) = bench.run_submission(&limited("tail /dev/zero; echo $? >code; exit 0"), None).await;
    assert_eq!((status.end(), bench.read("code").trim()), (Some("completed"), "137"), "{:?}", status.json());
    // Without the limit's help, a kill is a kill.
    let (_, status) = bench.run_submission(&limited("kill -9 $$"), None).await;
    assert_eq!(status.end(), Some("killed"), "{:?}", status.json());
    assert!(lives(&bench.read("other")));
    bench.write("go", "");
    let status = client.wait(other.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
}

/// What not even SIGKILL ends is named, by pid and command, and is not waited for for ever.
#[tokio::test]
async fn what_cannot_be_stopped_is_named_in_status_and_outcome() {
    let mut bench = Bench::prepared(GRACE);
    let Some(stuck) = Stuck::mount(&bench.path().join("stuck")) else { return };
    bench.start();
    let client = bench.client().await;
    let look = format!("cat {}/file", stuck.at.display());
    let child = bench.script(&format!("{look} & echo $! >child; wait; sleep 600"));
    let main = bench.script(&format!("echo $$ >main; exec {look}"));
    let orphaned = bench.script(&format!("{look} & echo $! >orphaned; wait; sleep 600"));
    let all = [(&child, "child"), (&main, "main"), (&orphaned, "orphaned")];
    for (submission, name) in all {
        client.submit(submission, None).await.expect("submits");
        until("it is stuck", || {
            let pid = bench.read(name);
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            pid.ends_with('\n') && stat.contains("(cat) ") && !stat.contains(") R ")
        });
    }
    // Until its request was taken it could still be killed.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    kill(tree::executor(orphaned.run_id()), Signal::SIGKILL).expect("signals");
    for submission in [&child, &main] {
        client.cancel(submission.run_id()).await.expect("cancels");
    }
    for (submission, name) in all {
        let run_id = submission.run_id();
        let mut status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
        let pid: u64 = bench.read(name).trim().parse().expect("a pid");
        if name == "orphaned" {
            assert!(status.is_uncertain(), "{:?}", status.json());
            assert!(status.text("error").contains(&format!("{pid} (cat")), "{}", status.text("error"));
            status = client.reconcile(run_id).await.expect("reconciles");
        }
        let end = if name == "orphaned" { "interrupted" } else { "cancelled" };
        assert_eq!(status.end(), Some(end), "{:?}", status.json());
        assert!(lives(&pid.to_string()), "nothing can end it");
        let folder = bench.spool().join("ended").join(run_id.shard()).join(run_id.to_string());
        let outcome = fs::read(folder.join("outcome.json")).expect("an outcome");
        let outcome: serde_json::Value = serde_json::from_slice(&outcome).expect("JSON");
        for leftovers in [&status.json()["leftovers"], &outcome["leftovers"]] {
            let [left] = &leftovers.as_array().expect("they are named")[..] else { panic!("{leftovers}") };
            assert_eq!(left["pid"], pid, "{left}");
            assert!(left["command"].as_str().is_some_and(|command| command.starts_with("cat")), "{left}");
        }
    }
    drop(stuck);
    for (_, name) in all {
        until("it is gone", || !lives(&bench.read(name)));
    }
}

/// Of the profile, and of the submission before that. Nothing here enforces them, and that is told of each.
#[tokio::test]
async fn limits_of_profile_and_submission_are_both_asked_for() {
    let mut bench = Bench::prepared("");
    let profile = "[profiles.limited]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\n\
                   [profiles.limited.limits]\nmemory_max = 67108864\ncpu_weight = 50\njournal_max = 131072\n";
    bench.configure("containment = \"process-group\"\n", profile);
    bench.start();
    let mut submission = bench.script("true");
    submission.profile = "limited".into();
    submission.limits.tasks_max = Some(64);
    submission.limits.cpu_weight = Some(70);
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    let events = bench.events(run_id).await;
    let named = events.iter().find_map(|event| event.details.get("limits")).expect("told");
    assert_eq!(*named, serde_json::json!(["memory-max", "tasks-max", "cpu-weight"]));
    let folder = bench.spool().join("ended").join(run_id.shard()).join(run_id.to_string());
    let claim = airouter_sessiond::spool::SessionDir::open(&folder).and_then(|dir| dir.claim());
    let resources = claim.expect("reads").expect("claimed").plan.resources;
    assert_eq!((resources.memory_max, resources.tasks_max), (Some(64 << 20), Some(64)));
    assert_eq!((resources.cpu_weight, resources.journal_max), (Some(70), Some(128 << 10)));
}

/// The kernel has the weight that was asked for.
#[tokio::test]
async fn a_session_has_its_share_of_the_processor() {
    let Some(scratch) = Scratch::new("weight") else { return };
    if !scratch.has("cpu") {
        return virtual_machine::run("a_session_has_its_share_of_the_processor");
    }
    let bench = with_cgroup(&scratch, GRACE);
    let mut submission = bench.script("cat /proc/self/cgroup >where; until [ -e go ]; do sleep 0.02; done");
    submission.limits.cpu_weight = Some(17);
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("where").ends_with('\n'));
    let payload = session_cgroup(&scratch, submission.run_id()).join("payload");
    assert_eq!(fs::read_to_string(payload.join("cpu.weight")).expect("a weight").trim(), "17");
    bench.write("go", "");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
    let unenforced =
        bench.events(submission.run_id()).await.into_iter().find(|e| e.details.contains_key("limits"));
    assert_eq!(unenforced.map(|event| event.details), None);
}

/// The same for tasks: a fork bomb stays in its session.
#[tokio::test]
async fn a_session_forks_no_further_than_its_limit() {
    let Some(scratch) = Scratch::new("tasks") else { return };
    if !scratch.has("pids") {
        return virtual_machine::run("a_session_forks_no_further_than_its_limit");
    }
    let bench = with_cgroup(&scratch, GRACE);
    let mut submission =
        bench.script("n=0; while [ $n -lt 100 ]; do n=$((n+1)); sleep 600 & done 2>errors; echo $n >counted");
    submission.limits.tasks_max = Some(20);
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert!(!bench.read("errors").is_empty(), "{:?}", status.json());
    assert_eq!(status.json().get("leftovers"), None, "{:?}", status.json());
    assert!(!session_cgroup(&scratch, run_id).exists() || sessions_in(&scratch).is_empty());
    let (_, status) = bench.run("true").await;
    assert_eq!(status.end(), Some("completed"));
}

#[test]
fn a_machines_root_cgroup_is_nobodys_to_divide() {
    let mut bench = Bench::prepared("containment = \"cgroup\"\n");
    if fs::read_to_string("/proc/self/cgroup").expect("cgroups").lines().all(|line| line != "0::/") {
        eprintln!("SKIPPED a_machines_root_cgroup_is_nobodys_to_divide: this test is not in the root cgroup");
        return;
    }
    let error = bench.try_start().expect_err("not to be had");
    assert!(error.contains("containment = \"cgroup\" cannot be had"), "{error}");
}
