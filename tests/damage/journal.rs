//! Damage to journals, read through the daemon: what is shown is right, and what is not shown is told.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use airouter_sessiond::client::{Client, Record, WaitFor};
use airouter_sessiond::model::{Entry, RunId, Submission};
use serde_json::{Map, Value};

use super::support::{Bench, PATIENCE, lives, until};
use super::{active, ended, noted, settled, starts};

/// What of a record must never change.
type Fact = (u64, String, Map<String, Value>);

fn facts(entries: &[Entry]) -> Vec<Fact> {
    entries
        .iter()
        .filter(|e| !is_told(&e.kind, &e.details))
        .map(|e| (e.time, e.kind.clone(), e.details.clone()))
        .collect()
}

/// A notice that stands for something that is missing.
fn is_told(kind: &str, details: &Map<String, Value>) -> bool {
    let reason = details.get("reason").and_then(Value::as_str);
    kind == "notice" && matches!(reason, Some("damaged" | "repaired"))
}

/// Everything in it, page by page.
async fn pages(client: &Client, run_id: RunId) -> Vec<Record> {
    let mut all = Vec::new();
    let mut cursor = "start".to_owned();
    loop {
        let page = client.events(run_id, &cursor, 3).await.expect("a page");
        all.extend(page.records);
        if !page.more {
            return all;
        }
        assert_ne!(page.next, cursor, "goes on");
        cursor = page.next;
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_told_in_pages_and_in_follow() {
    let bench = Bench::new();
    let (run_id, _) = bench.run("for n in 1 2 3; do echo \"{\\\"n\\\":$n}\"; done").await;
    let client = bench.client().await;
    let right = pages(&client, run_id).await;
    let followed = facts(&bench.events(run_id).await);
    let path = ended(&bench, run_id).join("journal.jsonl");
    let bytes = fs::read(&path).expect("read");
    let file = File::options().write(true).open(&path).expect("opens");
    let header = bytes.iter().position(|&b| b == b'\n').expect("a header") + 1;
    for (at, &byte) in bytes.iter().enumerate() {
        file.write_all_at(&[byte ^ (1 << (at % 8))], at as u64).expect("written");
        let shown = pages(&client, run_id).await;
        let (told, kept): (Vec<_>, Vec<_>) = shown.iter().partition(|r| is_told(&r.kind, &r.details));
        assert_eq!(told.len(), 1, "byte {at}: told once");
        assert!(kept.len() + 2 >= right.len(), "byte {at}: {} left", kept.len());
        assert!(kept.iter().all(|record| right.contains(record)), "byte {at}: nothing wrong is shown");
        if at >= header {
            assert!(kept.len() < right.len(), "byte {at}: what was damaged is not shown");
        }
        if at % 16 == 0 {
            let entries = bench.events(run_id).await;
            let shown = facts(&entries);
            assert_eq!(entries.len(), shown.len() + 1, "byte {at}: told in Follow too");
            assert!(shown.iter().all(|fact| followed.contains(fact)), "byte {at}");
        }
        file.write_all_at(&[byte], at as u64).expect("written");
    }
    assert_eq!(pages(&client, run_id).await, right);
}

#[tokio::test]
async fn a_cut_journal_of_an_ended_session_is_told_at_every_length() {
    let bench = Bench::new();
    let (run_id, status) = bench.run("echo '{\"n\":1}'; echo '{\"n\":2}'").await;
    let client = bench.client().await;
    let right = pages(&client, run_id).await;
    let path = ended(&bench, run_id).join("journal.jsonl");
    let bytes = fs::read(&path).expect("read");
    let file = File::options().write(true).open(&path).expect("opens");
    for length in (0..bytes.len()).rev() {
        file.set_len(length as u64).expect("cut");
        let shown = pages(&client, run_id).await;
        let (last, kept) = shown.split_last().expect("at least a notice");
        assert!(is_told(&last.kind, &last.details), "{length}: never a clean end");
        assert_eq!(kept, &right[..kept.len()], "{length}: a beginning of what was there");
        if length % 32 == 0 {
            assert_eq!(
                client.status(run_id).await.expect("known").json(),
                status.json(),
                "the receipt stands"
            );
        }
    }
    file.write_all_at(&bytes, 0).expect("written");
    assert_eq!(pages(&client, run_id).await, right);
}

/// A spool as it was when daemon and executor died while the program ran.
struct Interrupted {
    bench: Bench,
    submission: Submission,
    right: Vec<Fact>,
    /// A cursor after the second record.
    cursor: String,
}

impl Interrupted {
    async fn new() -> Interrupted {
        let mut bench = Bench::new();
        let client = bench.client().await;
        let submission = noted(&bench, "echo $PPID >executor; echo '{\"n\":1}'; echo '{\"n\":2}'; sleep 45");
        let run_id = submission.run_id();
        client.submit(&submission, None).await.expect("submits");
        let mut subscription = client.subscribe(run_id, "start").await.expect("subscribes");
        let mut seen = 0;
        while seen < 3 {
            match subscription.next().await.expect("delivers").expect("goes on") {
                airouter_sessiond::client::Delivery::Activity { records, .. } => seen += records.len(),
                other => panic!("{other:?}"),
            }
        }
        let entries = bench.events(run_id).await;
        bench.kill();
        let executor = bench.read("executor").trim().parse().expect("a pid");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(executor), nix::sys::signal::Signal::SIGKILL)
            .expect("kill");
        until("it is gone", || !lives(&bench.read("executor")));
        let this =
            Interrupted { right: facts(&entries), cursor: entries[1].cursor.clone(), bench, submission };
        this.copy(&this.bench.spool(), &this.kept());
        this
    }

    fn kept(&self) -> std::path::PathBuf {
        self.bench.path().join("kept")
    }

    fn copy(&self, from: &std::path::Path, to: &std::path::Path) {
        let _ = fs::remove_dir_all(to);
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().expect("cp");
        assert!(done.success());
    }

    fn journal(&self) -> std::path::PathBuf {
        active(&self.bench, self.submission.run_id()).join("journal.jsonl")
    }

    /// Starts on a copy with this journal, reconciles, and holds what is shown against what is right.
    async fn with(&mut self, journal: &[u8], what: &str) -> Vec<Entry> {
        self.copy(&self.kept(), &self.bench.spool());
        fs::write(self.journal(), journal).expect("written");
        self.bench.start();
        let client = self.bench.client().await;
        let run_id = self.submission.run_id();
        let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
        assert!(status.is_uncertain(), "{what}: {:?}", status.json());
        let status = settled(&client, run_id).await;
        assert_eq!(status.end(), Some("interrupted"), "{what}: {:?}\n{}", status.json(), self.bench.log());
        assert_eq!(status.json().get("activity-complete"), Some(&false.into()), "{what}");
        let entries = self.bench.events(run_id).await;
        let last = entries.last().unwrap_or_else(|| panic!("{what}: nothing"));
        assert_eq!(last.kind, "ended", "{what}");
        let shown = facts(&entries[..entries.len() - 1]);
        assert!(shown.iter().all(|fact| self.right.contains(fact)), "{what}: {shown:?}");
        // The same after a restart, from a fresh look.
        self.bench.kill();
        self.bench.start();
        assert_eq!(self.bench.events(run_id).await, entries, "{what}");
        assert_eq!(starts(&self.bench, run_id), 1, "{what}");
        entries
    }

    /// Reads on from the cursor that an observer had.
    async fn after_cursor(&self) -> Result<Vec<Record>, airouter_sessiond::client::Error> {
        let client = self.bench.client().await;
        client.events(self.submission.run_id(), &self.cursor, 0).await.map(|page| page.records)
    }
}

#[tokio::test]
async fn an_interrupted_journal_torn_anywhere_is_cut_kept_and_told() {
    let mut interrupted = Interrupted::new().await;
    let bytes = fs::read(interrupted.journal()).expect("read");
    let ends: Vec<usize> = (1..=bytes.len()).filter(|&at| bytes[at - 1] == b'\n').collect();
    let mut lengths: Vec<usize> = ends.iter().flat_map(|&end| [end - 1, end, end + 1]).collect();
    lengths.extend([0, 1, ends[0] / 2, (ends[1] + ends[2]) / 2]);
    lengths.retain(|&length| length <= bytes.len());
    for length in lengths {
        let entries = interrupted.with(&bytes[..length], &format!("{length} bytes")).await;
        let whole = ends.iter().filter(|&&end| end <= length).count();
        let torn = !ends.contains(&length);
        let told: Vec<_> = entries.iter().filter(|e| is_told(&e.kind, &e.details)).collect();
        assert_eq!(told.len(), usize::from(torn), "{length}: {told:?}");
        let shown = facts(&entries[..entries.len() - 1]);
        assert_eq!(shown, interrupted.right[..whole.saturating_sub(1)], "{length}");
        if torn {
            let kept = ended(&interrupted.bench, interrupted.submission.run_id()).join("journal.torn-1");
            let from = ends.iter().rev().find(|&&end| end <= length).copied().unwrap_or(0);
            assert_eq!(fs::read(kept).expect("kept"), &bytes[from..length], "{length}");
        }
        match interrupted.after_cursor().await {
            Ok(records) => {
                assert!(whole >= 3, "{length}: the cursor's place is gone");
                assert_eq!(records.last().map(|r| r.kind.as_str()), Some("ended"));
            }
            Err(error) => {
                assert!(whole < 3, "{length}: {error}");
                assert!(error.refusal().is_some_and(|name| name.starts_with("InvalidCursor")), "{error}");
            }
        }
        interrupted.bench.kill();
    }
}

#[tokio::test]
async fn an_interrupted_journal_damaged_in_the_middle_keeps_what_verifies() {
    let mut interrupted = Interrupted::new().await;
    let bytes = fs::read(interrupted.journal()).expect("read");
    let ends: Vec<usize> = (1..=bytes.len()).filter(|&at| bytes[at - 1] == b'\n').collect();
    let line = |n: usize| &bytes[ends[n - 1]..ends[n]];
    let zeroed = |from: usize, to: usize| {
        let mut bytes = bytes.clone();
        bytes[from..to].fill(0);
        bytes
    };
    let variants: Vec<(&str, Vec<u8>)> = vec![
        ("zeros in the middle", zeroed(ends[1] + 20, ends[1] + 60)),
        ("zeros over a line's end", zeroed(ends[1] - 10, ends[1] + 10)),
        ("a zeroed header", zeroed(0, ends[0])),
        ("a missing line", [&bytes[..ends[1]], &bytes[ends[2]..]].concat()),
        ("a foreign line", [&bytes[..ends[1]], b"{\"hello\":1}\n", &bytes[ends[1]..]].concat()),
        ("a doubled line", [&bytes[..ends[1]], line(1), &bytes[ends[1]..]].concat()),
        ("swapped lines", [&bytes[..ends[0]], line(2), line(1), &bytes[ends[2]..]].concat()),
    ];
    for (what, journal) in variants {
        let entries = interrupted.with(&journal, what).await;
        let told = entries.iter().filter(|e| is_told(&e.kind, &e.details)).count();
        assert!(told >= 1, "{what}: the hole is told");
        interrupted.bench.kill();
    }
}
