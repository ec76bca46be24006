//! Errors injected into single system calls of the daemon and of the executor.

use std::time::{Duration, Instant};

use airouter_sessiond::client::WaitFor;

use super::support::{Bench, PATIENCE};
use super::{noted, refusal, settled, starts};

const VARIABLE: &str = "AIROUTER_FAULTS";
/// Between two looks at a session that may never end on such a disk.
const STEP: Duration = Duration::from_millis(200);
/// A session's folder, by its name.
const FOLDER: &str = "*-*-*-*-*";

/// Runs one session on a disk that fails so, then again on one that does not, and holds every promise against what is
/// seen. Tells how it ended while the disk failed, or why it was refused, and how it ended at last.
async fn survives(faults: &str) -> (String, String) {
    let mut bench = Bench::prepared("[limits]\nfree_space = 0\n");
    bench.environment(VARIABLE, faults);
    bench.start();
    let client = bench.client().await;
    let submission = noted(&bench, "echo '{\"n\":1}'; echo '{\"n\":2}'");
    let run_id = submission.run_id();
    let first = match client.submit(&submission, None).await {
        Err(error) => {
            let why = error.refusal().unwrap_or_else(|| panic!("{faults}: {error}")).to_owned();
            assert!(["StorageFull", "StorageFailed"].contains(&why.as_str()), "{faults}: {error}");
            assert_eq!(refusal(client.status(run_id).await), "NotFound", "{faults}: refused is not admitted");
            assert_eq!(starts(&bench, run_id), 0, "{faults}");
            let left = std::fs::read_dir(bench.spool().join("active")).expect("active").count();
            assert_eq!(left, 0, "{faults}: nothing is left behind");
            why
        }
        Ok(_) => {
            let begun = Instant::now();
            let status = loop {
                let status = client.wait(run_id, WaitFor::Finished, STEP).await.expect("waits");
                if status.is_over() || status.is_uncertain() || status.text("error").contains("waits") {
                    break status;
                }
                assert!(begun.elapsed() < PATIENCE, "{faults}: {:?}", status.json());
            };
            status.end().unwrap_or(status.state()).to_owned()
        }
    };
    let seen = match is_an_end(&first) {
        true => bench.events(run_id).await,
        false => Vec::new(),
    };
    bench.kill();
    let mut bench = bench.without_environment();
    bench.start();
    let client = bench.client().await;
    // Taken or not, the same submission is the same session now.
    let again = client.submit(&submission, None).await.unwrap_or_else(|e| panic!("{faults}: {e}"));
    assert_eq!(again.status.run_id().expect("run_id"), run_id);
    let status = settled(&client, run_id).await;
    let end =
        status.end().unwrap_or_else(|| panic!("{faults}: {:?}\n{}", status.json(), bench.log())).to_owned();
    assert!(starts(&bench, run_id) <= 1, "{faults}: once");
    if is_an_end(&first) {
        assert_eq!(end, first, "{faults}: one end for ever");
        let events = bench.events(run_id).await;
        assert_eq!(events, seen, "{faults}: what was shown stays what it is");
    }
    if end == "completed" {
        assert_eq!(starts(&bench, run_id), 1, "{faults}");
        let events = bench.events(run_id).await;
        let lines: Vec<_> = events.iter().filter_map(|e| e.raw.as_deref()).collect();
        assert_eq!(lines, ["{\"n\":1}", "{\"n\":2}"], "{faults}");
    }
    (first, end)
}

fn is_an_end(word: &str) -> bool {
    !["StorageFull", "StorageFailed", "reconciliation-required", "queued", "accepted"].contains(&word)
}

/// What faults led to: while the disk failed, and at last.
type Led = (String, (String, String));

/// Every combination, with an error that can pass and one that cannot; what each led to.
async fn all(steps: &[(&str, &str, &[&str])]) -> Vec<Led> {
    let mut led = Vec::new();
    for (operation, name, times) in steps {
        for which in *times {
            for errno in ["ENOSPC", "EIO"] {
                let faults = format!("{operation}:{name}:{which}:{errno}");
                let ends = survives(&faults).await;
                led.push((faults, ends));
            }
        }
    }
    led
}

/// What one of them led to.
fn of<'a>(led: &'a [Led], faults: &str) -> &'a str {
    led.iter().find(|(key, _)| key == faults).map_or("", |(_, (first, _))| first)
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn an_admission_that_fails_anywhere_is_refused_and_leaves_nothing() {
    let led = all(&[
        ("mkdir", ".new-*", &["1"]),
        ("create", "submission.json", &["1"]),
        ("short", "submission.json", &["1"]),
        ("fsync", "submission.json", &["1"]),
        ("write", "record.json", &["1"]),
        ("allocate", "outcome.reserve", &["1"]),
        ("dirsync", ".new-*", &["1"]),
        ("rename", FOLDER, &["1"]),
        ("dirsync", "active", &["1"]),
    ])
    .await;
    for (faults, (end, _)) in &led {
        let typed = if faults.ends_with("ENOSPC") { "StorageFull" } else { "StorageFailed" };
        assert_eq!(end, typed, "{faults}");
    }
    for errno in ["EDQUOT", "EROFS"] {
        assert_eq!(survives(&format!("create:submission.json:1:{errno}")).await.0, "StorageFull");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_claim_that_cannot_be_written_starts_nothing() {
    let led = all(&[
        ("create", "claim.json", &["1", "1+"]),
        ("short", "claim.json", &["1"]),
        ("fsync", "claim.json", &["1"]),
        ("rename", "claim.json", &["1"]),
        ("unlink", "claim.json", &["1"]),
    ])
    .await;
    for (faults, (first, at_last)) in &led {
        assert!(["accepted", "reconciliation-required"].contains(&first.as_str()), "{faults}: {first}");
        assert_eq!(at_last, "completed", "{faults}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_record_that_cannot_be_written_changes_no_session() {
    let led = all(&[
        ("write", "record.json", &["2", "3", "4", "2+"]),
        ("fsync", "record.json", &["2", "3"]),
        ("rename", "record.json", &["1", "2", "3", "1+"]),
    ])
    .await;
    for (faults, (end, _)) in &led {
        assert_eq!(end, "completed", "{faults}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn folders_that_cannot_be_synced_are_believed_nothing() {
    all(&[("dirsync", FOLDER, &["1", "2", "3", "4", "5", "6", "1+"])]).await;
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_journal_that_cannot_be_created_starts_no_program() {
    let led = all(&[
        ("create", "journal.jsonl", &["1"]),
        ("write", "journal.jsonl", &["1"]),
        ("fsync", "journal.jsonl", &["1"]),
        ("rename", "journal.jsonl", &["1"]),
    ])
    .await;
    for (faults, (end, _)) in &led {
        assert_eq!(end, "journal-failed", "{faults}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_journal_that_fails_ends_its_session_as_that() {
    let led = all(&[
        ("write", "journal.jsonl", &["2", "3", "2+"]),
        ("short", "journal.jsonl", &["2", "3"]),
        ("fsync", "journal.jsonl", &["2", "3", "2+"]),
    ])
    .await;
    for (faults, (end, _)) in led.iter().filter(|(faults, _)| !faults.contains(":3:")) {
        assert_eq!(end, "journal-failed", "{faults}");
    }
    for spec in ["short:journal.jsonl:2:EIO,truncate:journal.jsonl:1+:EIO", "write:journal.jsonl:3:EDQUOT"] {
        survives(spec).await;
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn an_outcome_that_cannot_be_written_is_told_by_the_journal() {
    let led = all(&[
        ("write", "outcome.reserve", &["1"]),
        ("short", "outcome.reserve", &["1"]),
        ("truncate", "outcome.reserve", &["1"]),
        ("fsync", "outcome.reserve", &["1", "1+"]),
        ("rename", "outcome.json", &["1"]),
    ])
    .await;
    for (faults, (first, at_last)) in &led {
        assert!(["completed", "reconciliation-required"].contains(&first.as_str()), "{faults}: {first}");
        assert_eq!(at_last, "completed", "{faults}");
    }
    assert_eq!(
        of(&led, "write:outcome.reserve:1:ENOSPC"),
        "completed",
        "a new file takes what the reserve did not"
    );
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn an_ended_session_that_cannot_be_put_away_has_ended_all_the_same() {
    let led = all(&[
        ("rename", FOLDER, &["2", "2+"]),
        ("unlink", "*", &["2", "2+"]),
        ("write", "ended.log", &["2", "2+"]),
        ("fsync", "ended.log", &["2"]),
        ("mkdir", "??", &["1", "1+"]),
        ("dirsync", "ended", &["1"]),
        ("dirsync", "active", &["2"]),
    ])
    .await;
    for (faults, (end, _)) in &led {
        assert_eq!(end, "completed", "{faults}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn after_a_failed_sync_nothing_more_of_the_journal_is_shown() {
    let mut bench = Bench::prepared("");
    // The first is of the journal's creation, the second of `started`, the third of the first line.
    bench.environment(VARIABLE, "fsync:journal.jsonl:3:EIO");
    bench.start();
    let client = bench.client().await;
    let submission = noted(&bench, "echo '{\"n\":1}'; sleep 0.3; echo '{\"n\":2}'; sleep 45");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("journal-failed"));
    assert!(status.text("error").contains("journal.jsonl"), "{}", status.text("error"));
    for round in 0..2 {
        let events = bench.events(run_id).await;
        let kinds: Vec<_> = events.iter().map(|e| e.kind.as_str()).collect();
        assert_eq!(kinds, ["started"], "round {round}");
        if round == 0 {
            bench.kill();
            bench.start();
        }
    }
    let written = std::fs::metadata(super::ended(&bench, run_id).join("journal.jsonl")).expect("there").len();
    let head = bench.client().await.status(run_id).await.expect("known");
    let head: u64 = head.text("head").rsplit_once('-').and_then(|(_, at)| at.parse().ok()).expect("a cursor");
    assert!(written > head, "the bytes are there, and are not trusted: {written} {head}");
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_flood_into_a_journal_that_failed_is_drained_and_ends() {
    let mut bench = Bench::prepared("[limits]\ngrace_ms = 3000\n");
    bench.environment(VARIABLE, "fsync:journal.jsonl:3:EIO");
    bench.start();
    // More than the executor holds in memory, from a program that goes on until it is killed.
    let submission = noted(&bench, "trap '' TERM; exec yes $(head -c 4000 /dev/zero | tr '\\0' x)");
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(
        (status.end(), status.number("exit-signal")),
        (Some("journal-failed"), Some(9)),
        "{:?}",
        status.json()
    );
    assert_eq!(status.json().get("activity-complete"), Some(&false.into()));
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_session_that_found_no_room_for_its_claim_is_started_when_there_is_some() {
    let mut bench = Bench::prepared("");
    bench.environment(VARIABLE, "create:claim.json:1:ENOSPC");
    bench.start();
    let client = bench.client().await;
    let submission = noted(&bench, "true");
    client.submit(&submission, None).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.text("error")), (Some("completed"), ""), "{:?}", status.json());
    assert!(bench.log().contains("waits to be started"), "{}", bench.log());
}
