//! Promises 1, 4 and 5 at every durable step: whoever dies there, nothing runs twice, every session has one end, and
//! cursors go on.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, SessionStatus, WaitFor};
use airouter_sessiond::crash;
use airouter_sessiond::model::{RunId, Submission};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::random::Random;
use support::{Bench, PATIENCE, starts, until};

/// Notes its start in a file of its own, and prints before and after a pause.
const PROGRAM: &str = "echo start >>\"starts-$ID\"; echo '{\"n\":1}'; sleep 0.2; echo '{\"n\":2}'";

fn submission(bench: &Bench) -> Submission {
    let mut submission = bench.script(PROGRAM);
    submission.environment.insert("ID".into(), submission.run_id().to_string());
    submission
}

/// What every session must show in the end, however it got there.
async fn settled(bench: &Bench, submission: &Submission) -> SessionStatus {
    let client = bench.client().await;
    let run_id = submission.run_id();
    let retried = client.submit(submission, None).await.expect("the same session, or its first admission");
    assert_eq!(retried.status.run_id().expect("run_id"), run_id);
    let mut status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
    if status.is_uncertain() {
        assert_eq!(
            (status.end(), status.phase()),
            (None, "running"),
            "uncertain is neither failure nor success"
        );
        status = client.reconcile(run_id).await.expect("reconciles");
    }
    assert!(status.is_over(), "never without an answer: {:?}\n{}", status.json(), bench.log());
    let events = bench.events(run_id).await;
    let ends = events.iter().filter(|entry| entry.kind == "ended").count();
    assert_eq!((ends, events.last().map(|e| e.kind.as_str())), (1, Some("ended")), "one terminal record");
    let numbers: Vec<u64> = events.iter().map(|entry| entry.seq).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "no hole: {numbers:?}");
    let end = status.end().expect("has an end");
    assert_eq!(
        events.last().and_then(|e| e.details.get("end")?.as_str()),
        Some(end),
        "journal and status agree"
    );
    assert!(starts(bench, run_id) <= 1, "started at most once");
    if end == "completed" {
        let lines: Vec<_> = events.iter().filter_map(|entry| entry.raw.as_deref()).collect();
        assert_eq!(lines, ["{\"n\":1}", "{\"n\":2}"]);
        assert_eq!(starts(bench, run_id), 1);
    } else {
        assert_eq!((end, status.json().get("activity-complete")), ("interrupted", Some(&false.into())));
    }
    let again = client.submit(submission, None).await.expect("the same session");
    assert_eq!(again.status.end(), Some(end), "the answer stays");
    status
}

/// The executor of a session, by the folder in its arguments.
fn executor(bench: &Bench, run_id: RunId) -> Option<Pid> {
    let folder = bench.spool().join("active").join(run_id.to_string());
    std::fs::read_dir("/proc").expect("proc").flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let mut words = line.split(|&byte| byte == 0);
        let ours = words.next()?.ends_with(b"airouter-native-exec")
            && words.next()? == folder.as_os_str().as_encoded_bytes();
        ours.then(|| Pid::from_raw(pid))
    })
}

#[tokio::test]
async fn a_death_at_every_step_leaves_one_answer() {
    if !cfg!(feature = "crash-points") {
        eprintln!("SKIPPED: needs --features crash-points");
        return;
    }
    for point in crash::ALL {
        let mut bench = Bench::prepared("");
        let reached = bench.path().join("reached");
        bench.environment(crash::VARIABLE, &format!("{point}:{}", reached.display()));
        bench.start();
        let submission = submission(&bench);
        let client = bench.client().await;
        // The daemon may die before it answers: that is a lost reply, and the retry is part of the promise.
        let submitted = client.submit(&submission, None).await;
        assert!(submitted.is_ok() || point == "daemon.admitted", "{point}: {submitted:?}");
        until(point, || reached.exists());
        if point.starts_with("daemon.") {
            bench.reap();
            bench.start();
        }
        let status = settled(&bench, &submission).await;
        let started = starts(&bench, submission.run_id());
        let expected = match point {
            "executor.journal" | "executor.started" => ("interrupted", 0..=0),
            "executor.spawned" => ("interrupted", 0..=1),
            "executor.recorded" | "executor.exited" | "executor.stopped" => ("interrupted", 1..=1),
            _ => ("completed", 1..=1),
        };
        assert_eq!(status.end(), Some(expected.0), "{point}");
        assert!(expected.1.contains(&started), "{point}: {started}");
    }
}

#[tokio::test]
async fn three_hundred_random_kills_in_a_row() {
    let mut bench = Bench::new();
    let begun = Instant::now();
    let mut random = Random::seeded();
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..300 {
        let submission = submission(&bench);
        let client = bench.client().await;
        client.submit(&submission, None).await.expect("submits");
        let cursor = first_cursor(&client, submission.run_id()).await;
        tokio::time::sleep(Duration::from_micros(random.below(300_000))).await;
        let whom = random.below(3);
        let victim = executor(&bench, submission.run_id());
        if whom != 1 {
            bench.kill();
        }
        if let (1 | 2, Some(victim)) = (whom, victim) {
            // It may have ended by itself meanwhile, but nothing else has its pid so soon.
            let _ = kill(victim, Signal::SIGKILL);
        }
        if whom != 1 {
            bench.start();
        }
        let status = settled(&bench, &submission).await;
        let page = bench.client().await.events(submission.run_id(), &cursor, 1).await;
        assert!(page.is_ok(), "cursors go on: {page:?}");
        *ends.entry(status.end().unwrap_or_default().to_owned()).or_default() += 1;
    }
    eprintln!("seed {}: {ends:?} in {:?}", random.seed, begun.elapsed());
    assert!(ends.len() == 2, "both kinds of end were reached: {ends:?}");
    assert_no_process_is_left(bench.path());
}

async fn first_cursor(client: &Client, run_id: RunId) -> String {
    client.events(run_id, "start", 1).await.expect("a page").next
}

fn assert_no_process_is_left(scratch: &Path) {
    let needle = scratch.as_os_str().as_encoded_bytes().to_vec();
    let left = || {
        std::fs::read_dir("/proc").expect("proc").flatten().any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            line.starts_with(b"airouter-native-exec") && line.windows(needle.len()).any(|part| part == needle)
        })
    };
    until("no executor is left", || !left());
}
