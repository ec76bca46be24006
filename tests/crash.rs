//! Promises 3, 4 and 5: the daemon's death changes no session, and nothing that was printed is lost or repeated.

mod support;

use std::collections::BTreeSet;

use airouter_sessiond::client::{Delivery, FollowOptions, WaitFor};
use nix::sys::signal::Signal;
use support::{Bench, PATIENCE, executor_of, lives, until};

/// A program that prints 10 000 numbered lines, the same into a file, over about two seconds.
const TEN_THOUSAND: &str = r#"echo $$ >>starts
awk 'BEGIN { for (n = 1; n <= 10000; n++) {
  line = sprintf("{\"n\":%d}", n); print line; print line >"printed"
  if (n % 100 == 0) { fflush(); system("sleep 0.01") } } }'"#;

#[tokio::test]
async fn ten_thousand_lines_survive_kills_of_the_daemon_and_a_subscriber_sees_each_once() {
    let mut bench = Bench::new();
    let submission = bench.script(TEN_THOUSAND);
    let run_id = submission.run_id();
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    let mut seen = Vec::new();
    let mut cursor = "start".to_owned();
    let mut client = Some(client);
    for kill in 0..5 {
        let connected = match client.take() {
            Some(client) => client,
            None => bench.client().await,
        };
        let mut subscription = connected.subscribe(run_id, &cursor).await.expect("subscribes");
        let enough = seen.len() + 400;
        while seen.len() < enough {
            match subscription.next().await.expect("delivers") {
                Some(Delivery::Activity { records, .. }) => seen.extend(records),
                other => panic!("{other:?} before the end, at kill {kill}"),
            }
        }
        cursor = subscription.position().to_owned();
        bench.kill();
        bench.start();
    }
    let connected = bench.client().await;
    let mut follow =
        connected.follow(run_id, &cursor, FollowOptions { raw: true, live: true }).await.expect("follows");
    let mut numbers: Vec<String> = seen.iter().filter(|r| r.kind == "raw").map(raw_of).collect();
    while let Some(entry) = follow.next().await.expect("reads") {
        if entry.kind == "raw" {
            numbers.push(entry.raw.expect("is UTF-8"));
        }
    }
    let printed = bench.read("printed");
    assert_eq!(printed.lines().count(), 10_000);
    assert!(numbers.iter().map(String::as_str).eq(printed.lines()), "each once, in order: {}", numbers.len());
    assert_eq!(bench.read("starts").lines().count(), 1);
    let status = connected.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
    assert_eq!(status.json().get("activity-complete"), Some(&true.into()));
}

fn raw_of(record: &airouter_sessiond::client::Record) -> String {
    record.details.get("raw").and_then(|raw| raw.as_str()).expect("the line itself").to_owned()
}

#[tokio::test]
async fn an_ended_session_is_delivered_by_the_next_daemon() {
    let mut bench = Bench::new();
    let submission = bench.script("until [ -e go ]; do sleep 0.02; done; echo done >>done; exit 3");
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    bench.kill();
    bench.write("go", "");
    let folder = bench.spool().join("active").join(submission.run_id().to_string());
    until("the outcome is saved without a daemon", || folder.join("outcome.json").exists());
    bench.start();
    let status =
        bench.client().await.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.number("exit-code")), (Some("failed"), Some(3)));
    assert!(!folder.exists(), "it was put away");
}

#[tokio::test]
async fn a_killed_executor_is_uncertain_until_somebody_reconciles() {
    for daemon_too in [false, true] {
        let mut bench = Bench::new();
        let submission = bench.script(
            "echo $$ >main; (setsid sh -c 'trap \"\" TERM; echo $$ >hidden; exec sleep 600' &) ; echo '{\"type\":\"response-completed\",\"text\":\"half\"}'; sleep 600",
        );
        let run_id = submission.run_id();
        let client = bench.client().await;
        client.submit(&submission, None).await.expect("submits");
        until("the tree is there", || {
            bench.read("hidden").ends_with('\n') && bench.read("main").ends_with('\n')
        });
        let half =
            |e: &airouter_sessiond::client::Record| e.details.get("text").is_some_and(|text| text == "half");
        while !client.events(run_id, "start", 0).await.expect("a page").records.iter().any(half) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let executor = executor_of(&bench.read("main"));
        if daemon_too {
            bench.kill();
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(executor), Signal::SIGKILL).expect("kill");
        if daemon_too {
            bench.start();
        }
        let client = bench.client().await;
        let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
        assert_eq!(status.state(), "reconciliation-required", "{:?}", status.json());
        assert_eq!((status.end(), status.phase()), (None, "running"), "neither failure nor success");
        assert!(
            !lives(&bench.read("main")) && !lives(&bench.read("hidden")),
            "the tree is gone before it is said"
        );
        let settled = client.reconcile(run_id).await.expect("reconciles");
        assert_eq!((settled.end(), settled.state()), (Some("interrupted"), "finished"));
        let evidence = settled.json().get("evidence").and_then(|e| e.as_array()).expect("evidence").clone();
        let sources: BTreeSet<&str> =
            evidence.iter().filter_map(|fact| fact.get("source")?.as_str()).collect();
        let wanted = ["boot", "claim", "controller", "journal", "lock", "outcome", "processes"];
        assert_eq!(sources, BTreeSet::from(wanted), "{evidence:?}");
        assert!(evidence.iter().all(|fact| fact["finding"].as_str().is_some_and(|text| !text.is_empty())));
        let events = bench.events(run_id).await;
        let of =
            |source: &str| &evidence.iter().find(|fact| fact["source"] == source).expect("there")["value"];
        // The journal's end as it was before the settling.
        let [.., before, _] = &events[..] else { panic!("{events:?}") };
        let last = &of("journal")["last"];
        assert_eq!(
            (&last["seq"], &last["kind"]),
            (&before.seq.into(), &before.kind.as_str().into()),
            "{last}"
        );
        assert_eq!((&last["cursor"], &of("journal")["torn"]), (&before.cursor.as_str().into(), &0.into()));
        let controller = of("controller");
        assert_eq!((&controller["name"], &controller["delivered"]), (&"embedded".into(), &false.into()));
        assert!(events.iter().any(|e| e.details.get("text").is_some_and(|text| text == "half")));
        assert_eq!(events.last().map(|e| e.kind.as_str()), Some("ended"));
        assert_eq!(bench.read("main").lines().count(), 1, "nothing was started again");
    }
}

/// The parent of a session's main process.
#[tokio::test]
async fn a_stopped_daemon_is_not_dead_and_nothing_is_lost_meanwhile() {
    let mut bench = Bench::new();
    let submission =
        bench.script("sleep 0.3; for n in 1 2 3; do echo \"{\\\"n\\\":$n}\"; done; echo done >done");
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    bench.signal(Signal::SIGSTOP);
    until("the session goes on", || !bench.read("done").is_empty());
    let mut second = Bench::prepared("");
    let config = std::fs::read_to_string(second.config()).expect("config");
    let ours = second.spool().display().to_string();
    std::fs::write(second.config(), config.replace(&ours, &bench.spool().display().to_string()))
        .expect("config");
    second.try_start().expect_err("slow is not dead");
    bench.signal(Signal::SIGCONT);
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
    assert_eq!(bench.events(submission.run_id()).await.iter().filter(|e| e.kind == "raw").count(), 3);
    bench.stop();
}

#[tokio::test]
async fn detach_leaves_sessions_running_and_cancel_stops_them_first() {
    let mut bench = Bench::with("on_stop = \"detach\"\n");
    let submission = bench.script("echo $$ >main; sleep 600");
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("main").ends_with('\n'));
    bench.stop();
    assert!(lives(&bench.read("main")), "it goes on without a daemon");
    bench.configure("on_stop = \"cancel\"\n", "");
    bench.start();
    let status = bench.client().await.status(submission.run_id()).await.expect("adopted");
    assert_eq!(status.state(), "driving");
    bench.stop();
    assert!(!lives(&bench.read("main")), "it was stopped before the daemon ended");
    bench.start();
    let status = bench.client().await.status(submission.run_id()).await.expect("ended");
    assert_eq!(status.end(), Some("stopped-with-service"), "{:?}", status.json());
}

#[tokio::test]
async fn a_journal_that_is_gone_does_not_make_a_started_program_unstarted() {
    let bench = Bench::new();
    let submission = bench.script("echo start >>starts; until [ -e go ]; do sleep 0.02; done; rm \"$FOLDER\"/journal.jsonl; kill -9 $PPID");
    let folder = bench.spool().join("active").join(submission.run_id().to_string());
    let mut submission = submission;
    submission.environment.insert("FOLDER".into(), folder.display().to_string());
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    bench.write("go", "");
    let status = client.wait(submission.run_id(), WaitFor::Attention, PATIENCE).await.expect("waits");
    assert_eq!(status.state(), "reconciliation-required", "{:?}", status.json());
    let settled = client.reconcile(submission.run_id()).await.expect("reconciles");
    assert_eq!(settled.end(), Some("interrupted"), "{:?}", settled.json());
    assert!(format!("{:?}", settled.json()).contains("missing, though a start is recorded"));
    assert_eq!(bench.read("starts"), "start\n");
}

#[tokio::test]
async fn a_lease_that_nobody_renews_ends_the_session_without_a_daemon() {
    let mut bench = Bench::with("lease_seconds = 3\non_stop = \"detach\"\n");
    let renewed = bench.script("sleep 600");
    let client = bench.client().await;
    client.submit(&renewed, None).await.expect("submits");
    client.wait(renewed.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    let early = client.wait(renewed.run_id(), WaitFor::Finished, std::time::Duration::from_secs(5)).await;
    assert_eq!(early.expect("waits").end(), None, "while a daemon renews it, it goes on");
    bench.kill();
    let folder = bench.spool().join("active").join(renewed.run_id().to_string());
    until("its executor ends it by itself", || folder.join("outcome.json").exists());
    bench.start();
    let status =
        bench.client().await.wait(renewed.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("lease-lost"), "{:?}", status.json());
}

/// Slow is not dead, also of an executor.
#[tokio::test]
async fn a_stopped_executor_is_not_dead_and_goes_on_where_it_was() {
    let mut bench = Bench::with("on_stop = \"detach\"\n[limits]\ngrace_ms = 300\n");
    let client = bench.client().await;
    let goes_on = bench.script("echo $$ >goes-on; until [ -e go ]; do sleep 0.02; done; echo '{\"n\":1}'");
    let cancelled = bench.script("echo $$ >cancelled; sleep 600");
    let mut late = bench.script("echo $$ >late; sleep 600");
    late.deadline_seconds = Some(4);
    let all = [(&goes_on, "goes-on"), (&cancelled, "cancelled"), (&late, "late")];
    let mut executors = Vec::new();
    for (submission, name) in all {
        client.submit(submission, None).await.expect("submits");
        until("it runs", || bench.read(name).ends_with('\n'));
        executors.push(nix::unistd::Pid::from_raw(executor_of(&bench.read(name))));
    }
    for executor in &executors {
        nix::sys::signal::kill(*executor, Signal::SIGSTOP).expect("signals");
    }
    bench.write("go", "");
    for restart in [false, true] {
        if restart {
            bench.kill();
            bench.start();
        }
        let client = bench.client().await;
        client.cancel(cancelled.run_id()).await.expect("the wish is stored");
        for (submission, _) in all {
            let waited = std::time::Duration::from_millis(1500);
            let status = client.wait(submission.run_id(), WaitFor::Finished, waited).await.expect("waits");
            assert_eq!((status.end(), status.state()), (None, "driving"), "{restart}: {:?}", status.json());
            let evidence = client.reconcile(submission.run_id()).await.expect("explains");
            assert_eq!(evidence.end(), None, "{:?}", evidence.json());
        }
    }
    for executor in &executors {
        nix::sys::signal::kill(*executor, Signal::SIGCONT).expect("signals");
    }
    let client = bench.client().await;
    for ((submission, name), end) in all.into_iter().zip(["completed", "cancelled", "deadline"]) {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some(end), "{:?}", status.json());
        assert_eq!(bench.read(name).lines().count(), 1, "started once");
        assert!(!lives(&bench.read(name)));
    }
}

/// Neither a daemon, nor an executor, nor what it left running: whoever holds the lock decides.
#[tokio::test]
async fn a_lock_that_a_stranger_holds_is_waited_for() {
    let mut bench = Bench::new();
    let submission = bench.script("echo $$ >main; sleep 600");
    let run_id = submission.run_id();
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("main").ends_with('\n'));
    bench.kill();
    let executor = nix::unistd::Pid::from_raw(executor_of(&bench.read("main")));
    nix::sys::signal::kill(executor, Signal::SIGKILL).expect("kills");
    let folder = bench.spool().join("active").join(run_id.to_string());
    let session = airouter_sessiond::spool::SessionDir::open(&folder).expect("opens");
    let mut held = None;
    until("its lock is free", || match session.lock_owner() {
        Ok(airouter_sessiond::spool::Ownership::Taken(lock)) => held.replace(lock).is_none(),
        _ => false,
    });
    bench.start();
    let client = bench.client().await;
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    assert_eq!((status.state(), status.end()), ("reconciliation-required", None), "{:?}", status.json());
    assert!(status.text("error").contains("held by a process that does not answer"), "{:?}", status.json());
    assert!(lives(&bench.read("main")), "nothing is stopped that somebody may own");
    let status = client.reconcile(run_id).await.expect("explains");
    assert_eq!((status.state(), status.end()), ("reconciliation-required", None), "{:?}", status.json());
    drop(held);
    until("its tree is stopped when the lock is free", || !lives(&bench.read("main")));
    let status = client.reconcile(run_id).await.expect("reconciles");
    assert_eq!(status.end(), Some("interrupted"), "{:?}", status.json());
    assert_eq!(bench.read("main").lines().count(), 1);
}

/// A session that runs; daemon and executor are killed. Its program lives.
async fn both_killed(bench: &mut Bench) -> (airouter_sessiond::model::RunId, i32) {
    let submission = bench.script("echo $$ >main; exec sleep 600");
    bench.client().await.submit(&submission, None).await.expect("submits");
    until("it runs", || bench.read("main").ends_with('\n'));
    bench.kill();
    let executor = executor_of(&bench.read("main"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(executor), Signal::SIGKILL).expect("kills");
    until("it is gone", || !std::path::Path::new(&format!("/proc/{executor}")).exists());
    (submission.run_id(), executor)
}

/// The machine was started again: whatever has the numbers, and even the marks, of its processes is not theirs.
#[tokio::test]
async fn after_another_boot_no_process_is_the_sessions() {
    let mut bench = Bench::prepared("containment = \"process-group\"\n");
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can show a daemon another boot");
        return;
    }
    bench.start();
    let (run_id, _) = both_killed(&mut bench).await;
    let other = bench.write("boot_id", "5c4ab3a0-3b4c-4b6f-9f1f-0d1a2b3c4d5e\n");
    let programs = bench.path().join("programs");
    std::fs::create_dir(&programs).expect("a folder");
    let script = format!(
        "#!/bin/sh\nexec /usr/bin/unshare -m /bin/sh -c '/bin/mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"' {} \"$@\"\n",
        other.display(),
        support::program("airouter-sessiond").display()
    );
    bench.write("programs/airouter-sessiond", &script);
    bench.programs(&programs);
    bench.start();
    let client = bench.client().await;
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    assert!(status.is_uncertain(), "{:?}", status.json());
    let status = client.reconcile(run_id).await.expect("reconciles");
    assert_eq!((status.end(), status.json().get("leftovers")), (Some("interrupted"), None));
    let evidence = status.json()["evidence"].as_array().expect("evidence");
    let boot = evidence.iter().find(|fact| fact["source"] == "boot").expect("there");
    assert_eq!(boot["value"]["same"], false, "{boot}");
    let main = bench.read("main");
    assert!(lives(&main), "it is none of this boot's sessions, whatever it carries");
    assert_eq!(main.lines().count(), 1, "nothing was started again");
    let (_, status) = bench.run("true").await;
    assert_eq!(status.end(), Some("completed"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(main.trim().parse().expect("a pid")), Signal::SIGKILL)
        .expect("kills");
}

/// A process that got that number, which is free; `None` where none can be made to.
fn with_pid(wanted: i32) -> Option<std::process::Child> {
    for _ in 0..300 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (wanted - 1).to_string()).ok()?;
        let mut child = std::process::Command::new("/bin/sleep").arg("600").spawn().expect("sleep");
        if child.id() as i32 == wanted {
            return Some(child);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    None
}

#[tokio::test]
async fn a_stranger_with_the_pid_of_a_dead_executor_or_program_is_left_alone() {
    let mut bench = Bench::with("containment = \"process-group\"\n");
    let (run_id, executor) = both_killed(&mut bench).await;
    let main: i32 = bench.read("main").trim().parse().expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(main), Signal::SIGKILL).expect("kills");
    until("it is gone", || !std::path::Path::new(&format!("/proc/{main}")).exists());
    let strangers: Vec<_> = [executor, main].into_iter().filter_map(with_pid).collect();
    if strangers.len() < 2 {
        eprintln!("SKIPPED: pids cannot be chosen here (root, /proc/sys/kernel/ns_last_pid)");
    }
    bench.start();
    let client = bench.client().await;
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    assert!(status.is_uncertain(), "{:?}", status.json());
    let status = client.reconcile(run_id).await.expect("reconciles");
    assert_eq!((status.end(), status.json().get("leftovers")), (Some("interrupted"), None));
    for mut stranger in strangers {
        assert!(matches!(stranger.try_wait(), Ok(None)), "it was not touched");
        let _ = stranger.kill();
        let _ = stranger.wait();
    }
}
