//! Acknowledging, removing, pruning and exporting over the real service: nothing goes that was not asked for, and no crash
//! leaves half a session or lets a removed one run again.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use airouter_sessiond::client::{Client, Delivery, FollowOptions, PrunePolicy, Pruned, WaitFor};
use airouter_sessiond::model::{End, Entry, PruneAction, RunId, State, Submission};
use airouter_sessiond::spool::{Record, SessionDir, Spool, digest};
use serde_json::Value;
use support::{Bench, PATIENCE, noted, refusal, starts, text, until};

const FAULTS: &str = "AIROUTER_FAULTS";
/// Every age.
const ALL: PrunePolicy = PrunePolicy {
    dry_run: false,
    acknowledged: false,
    older_than_seconds: Some(0),
    keep_bytes: None,
    limit: None,
};

fn ended(bench: &Bench, run_id: RunId) -> PathBuf {
    bench.spool().join("ended").join(run_id.shard()).join(run_id.to_string())
}

fn actions(answer: &[Pruned]) -> Vec<(RunId, PruneAction)> {
    answer.iter().map(|session| (session.run_id, session.action)).collect()
}

async fn listed(client: &Client) -> BTreeSet<String> {
    let (sessions, next) = client.list(&Default::default()).await.expect("lists");
    assert_eq!(next, "");
    sessions.iter().map(|session| session.text("run_id").to_owned()).collect()
}

/// Sessions that ended in the given order at the given times, put into the spool of a service that does not run.
fn put(bench: &Bench, times: impl IntoIterator<Item = u64>) -> Vec<RunId> {
    let spool = Spool::open(&bench.spool()).expect("spool");
    let end = |time: u64| {
        let submission = Submission::new(RunId::random(), "sh");
        let mut record = Record::admitted(&submission, digest(&submission, None), "jsonl", time);
        (record.state, record.ended, record.end) = (State::Finished, Some(time), Some(End::Completed));
        spool.admit(&submission, None, &record).expect("admits");
        spool.settle(submission.run_id()).expect("settles").run_id()
    };
    times.into_iter().map(end).collect()
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    since.as_micros() as u64
}

#[tokio::test]
async fn an_acknowledgement_is_checked_monotonic_and_survives() {
    let mut bench = Bench::with("on_stop = \"detach\"\n");
    let client = bench.client().await;
    let submission = bench
        .script("for n in 1 2 3 4; do echo \"{\\\"n\\\":$n}\"; done; until [ -e go ]; do sleep 0.02; done");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    let mut follow = client.follow(run_id, "start", FollowOptions::default()).await.expect("follows");
    let mut entries: Vec<Entry> = Vec::new();
    while entries.iter().filter(|entry| entry.kind == "raw").count() < 4 {
        entries.push(follow.next().await.expect("reads").expect("more"));
    }
    let cursor = |index: usize| entries[index].cursor.clone();
    assert_eq!(client.status(run_id).await.expect("status").text("acknowledged"), "");
    for (to, stands) in [(2, 2), (1, 2), (2, 2), (3, 3)] {
        let status = client.acknowledge(run_id, &cursor(to)).await.expect("acknowledges");
        assert_eq!(status.text("acknowledged"), cursor(stands), "to {to}");
    }
    assert_eq!(client.acknowledge(run_id, "start").await.expect("is before").text("acknowledged"), cursor(3));
    let (epoch, offset) = entries[3].cursor.split_once('-').expect("a cursor");
    let offset: u64 = offset.parse().expect("a number");
    for (wrong, name) in [
        ("now".to_owned(), "InvalidCursor.Malformed"),
        (format!("0123456789abcdef-{offset}"), "InvalidCursor.OtherJournal"),
        (format!("{epoch}-{}", offset + (1 << 30)), "InvalidCursor.BeyondHead"),
        (format!("{epoch}-{}", offset - 1), "InvalidCursor.InsideRecord"),
    ] {
        assert_eq!(refusal(client.acknowledge(run_id, &wrong).await), name, "{wrong}");
    }
    assert_eq!(refusal(client.acknowledge(RunId::random(), "end").await), "NotFound");
    // A dead daemon has not forgotten it, and neither does the end.
    bench.kill();
    bench.start();
    let client = bench.client().await;
    assert_eq!(client.status(run_id).await.expect("status").text("acknowledged"), cursor(3));
    bench.write("go", "");
    let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!((status.end(), status.text("acknowledged")), (Some("completed"), cursor(3).as_str()));
    until("it is put away", || ended(&bench, run_id).exists());
    assert_eq!(client.status(run_id).await.expect("status").text("acknowledged"), cursor(3));
    let (sessions, _) = client.list(&Default::default()).await.expect("lists");
    assert_eq!(sessions[0].text("acknowledged"), cursor(3));
    let status = client.acknowledge(run_id, "end").await.expect("all of it");
    assert_eq!(status.text("acknowledged"), status.text("head"));
    let again = client.submit(&submission, None).await.expect("is known").status;
    assert_eq!(again.text("acknowledged"), status.text("head"));
    // As an operator sees it, through the session's own object and in words.
    let object = format!("/org/airouter/Sessions1/session/{}", run_id.path_element());
    let output = bench.busctl(&[
        "--json=short",
        "call",
        "org.airouter.Sessions1",
        &object,
        "org.airouter.Session1",
        "Acknowledge",
        "s",
        "end",
    ]);
    assert!(text(&output.stdout).contains(status.text("head")), "{output:?}");
    let shown = text(&bench.sessionctl(&["acknowledge", &run_id.to_string()]).stdout);
    assert!(shown.contains("acknowledged  all events"), "{shown}");
}

#[tokio::test]
async fn a_session_is_removed_when_it_has_ended_and_known_for_ever() {
    let mut bench = Bench::new();
    let client = bench.client().await;
    let submission = noted(&bench, "until [ -e go ]; do sleep 0.02; done; exit 3");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    assert_eq!(refusal(client.remove(run_id).await), "NotSettled");
    bench.write("go", "");
    client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    until("it is put away", || ended(&bench, run_id).exists());
    client.remove(run_id).await.expect("removes");
    client.remove(run_id).await.expect("a lost reply is retried");
    assert_eq!(refusal(client.remove(RunId::random()).await), "NotFound");
    for round in 0..2 {
        let client = bench.client().await;
        assert!(!ended(&bench, run_id).exists());
        assert_eq!(refusal(client.status(run_id).await), "Removed");
        assert_eq!(refusal(client.events(run_id, "start", 0).await), "Removed");
        assert_eq!(refusal(client.acknowledge(run_id, "end").await), "Removed");
        assert!(listed(&client).await.is_empty());
        let again = client.submit(&submission, None).await.expect("is recognised").status;
        assert_eq!((again.state(), again.end()), ("finished", Some("failed")));
        let mut changed = submission.clone();
        changed.arguments.push("more".into());
        assert_eq!(refusal(client.submit(&changed, None).await), "SubmissionChanged");
        client.remove(run_id).await.expect("it is gone");
        assert_eq!(starts(&bench, run_id), 1, "round {round}");
        bench.kill();
        bench.start();
    }
}

#[tokio::test]
async fn a_reader_finishes_on_a_session_that_is_removed() {
    let bench = Bench::new();
    let client = bench.client().await;
    let (run_id, _) =
        bench.run("awk 'BEGIN { for (n = 1; n <= 30000; n++) printf \"{\\\"n\\\":%d}\\n\", n }'").await;
    until("it is put away", || ended(&bench, run_id).exists());
    let options = FollowOptions { raw: true, live: true };
    let mut follow = client.follow(run_id, "start", options).await.expect("follows");
    let mut subscription = client.subscribe(run_id, "start").await.expect("subscribes");
    follow.next().await.expect("reads").expect("more");
    client.remove(run_id).await.expect("removes");
    let mut lines = 0;
    while let Some(entry) = follow.next().await.expect("reads on") {
        lines += u64::from(entry.kind == "raw");
    }
    assert!(follow.ended(), "to its last record");
    assert_eq!(lines, 30_000);
    let (mut records, mut ended) = (0, false);
    while !ended {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records: more, .. }) => {
                records += more.iter().filter(|record| record.kind == "raw").count();
                ended = more.iter().any(|record| record.kind == "ended");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(records, 30_000);
    assert_eq!(refusal(client.follow(run_id, "start", options).await), "Removed");
}

/// What is told of it, how it is done, and how it is undone.
type Harm<'a> = (&'static str, &'a dyn Fn(), &'a dyn Fn());

#[tokio::test]
async fn what_is_not_the_session_s_own_keeps_it() {
    let bench = Bench::new();
    let client = bench.client().await;
    let (run_id, _) = bench.run("true").await;
    until("it is put away", || ended(&bench, run_id).exists());
    let folder = ended(&bench, run_id);
    let private = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("modes");
    let notes = folder.join("notes.txt");
    let other = bench.path().join("second");
    let cases: [Harm<'_>; 4] = [
        (
            "unknown file \"notes.txt\"",
            &|| {
                fs::write(&notes, "mine").expect("writes");
                private(&notes);
            },
            &|| fs::remove_file(&notes).expect("removes"),
        ),
        ("2 hard links", &|| fs::hard_link(folder.join("journal.jsonl"), &other).expect("links"), &|| {
            fs::remove_file(&other).expect("removes")
        }),
        (
            "unknown file \"link\"",
            &|| std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).expect("links"),
            &|| fs::remove_file(folder.join("link")).expect("removes"),
        ),
        (
            "mode 0644",
            &|| {
                fs::set_permissions(folder.join("outcome.json"), fs::Permissions::from_mode(0o644))
                    .expect("modes");
            },
            &|| private(&folder.join("outcome.json")),
        ),
    ];
    for (why, harm, mend) in cases {
        harm();
        let answer = client.prune(&ALL).await.expect("prunes");
        assert_eq!(actions(&answer), [(run_id, PruneAction::Kept)]);
        assert!(answer[0].why.as_deref().is_some_and(|said| said.contains(why)), "{why}: {:?}", answer[0]);
        let refused = client.remove(run_id).await.expect_err(why);
        assert_eq!(refused.refusal(), Some("Kept"), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(folder.join("journal.jsonl").exists());
        mend();
        client.status(run_id).await.expect("it is as it was");
    }
    assert_eq!(actions(&client.prune(&ALL).await.expect("prunes")), [(run_id, PruneAction::Removed)]);
    assert!(!folder.exists());
}

#[tokio::test]
async fn pruning_takes_what_the_policy_says_the_first_ended_first() {
    let mut bench = Bench::prepared("");
    let day = 86_400_000_000;
    // The clock was set back after the second: it is younger by its time, and older by its place.
    let ages = [10, 2, 8, 6, 4];
    let sessions = put(&bench, ages.map(|days| now() - days * day));
    let future = put(&bench, [now() + 1000 * day])[0];
    bench.start();
    let client = bench.client().await;
    assert_eq!(
        refusal(client.prune(&PrunePolicy { older_than_seconds: None, ..ALL }).await),
        "InvalidArgument"
    );
    // Nothing of them was acknowledged, and nothing goes without being asked for twice.
    let five_days = PrunePolicy { older_than_seconds: Some(5 * 86_400), ..PrunePolicy::default() };
    let due = |action| vec![(sessions[0], action), (sessions[2], action), (sessions[3], action)];
    let with_future = |mut expected: Vec<(RunId, PruneAction)>| {
        expected.push((future, PruneAction::Kept));
        expected
    };
    let answer = client.prune(&five_days).await.expect("looks");
    assert_eq!(actions(&answer), with_future(due(PruneAction::Kept)));
    assert!(answer[0].why.as_deref().is_some_and(|why| why.contains("not acknowledged")), "{answer:?}");
    assert!(answer[3].why.as_deref().is_some_and(|why| why.contains("in the future")), "{answer:?}");
    let dry = PrunePolicy { acknowledged: false, ..five_days.clone() };
    let answer = client.prune(&dry).await.expect("looks");
    assert_eq!(actions(&answer), with_future(due(PruneAction::WouldRemove)));
    assert_eq!(listed(&client).await.len(), 6);
    let one = PrunePolicy { dry_run: false, limit: Some(1), ..dry.clone() };
    assert_eq!(actions(&client.prune(&one).await.expect("prunes")), [(sessions[0], PruneAction::Removed)]);
    // The rest by size, in the order of their ends and not of their times.
    let bytes = |run_id| {
        answer.iter().find(|s: &&Pruned| s.run_id == run_id).and_then(|s| s.bytes).expect("measured")
    };
    let storage = client.storage().await.expect("storage");
    assert_eq!((storage.ended, storage.active, storage.damaged), (5, 0, 0));
    assert_eq!(storage.oldest, Some(end_of(&bench, sessions[1])));
    assert!(storage.free_bytes > 0 && storage.retention.is_none());
    let keep = PrunePolicy {
        dry_run: false,
        older_than_seconds: None,
        keep_bytes: Some(storage.ended_bytes - bytes(sessions[2]) - 1),
        ..dry
    };
    let gone = actions(&client.prune(&keep).await.expect("prunes"));
    assert_eq!(
        gone,
        [
            (sessions[1], PruneAction::Removed),
            (sessions[2], PruneAction::Removed),
            (future, PruneAction::Kept)
        ]
    );
    let left: BTreeSet<String> = [sessions[3], sessions[4], future].iter().map(RunId::to_string).collect();
    assert_eq!(listed(&client).await, left);
    assert_eq!(refusal(client.prune(&PrunePolicy { limit: Some(0), ..ALL }).await), "InvalidArgument");
}

/// When a session ended, as its record says.
fn end_of(bench: &Bench, run_id: RunId) -> u64 {
    SessionDir::open(&ended(bench, run_id)).expect("opens").record().expect("reads").ended.expect("it ended")
}

#[tokio::test]
async fn only_what_is_acknowledged_to_its_end_goes_by_itself() {
    let mut bench = Bench::new();
    let client = bench.client().await;
    let mut run_ids = Vec::new();
    for _ in 0..3 {
        run_ids.push(bench.run("echo '{\"n\":1}'; echo '{\"n\":2}'").await.0);
    }
    until("they are put away", || run_ids.iter().all(|run_id| ended(&bench, *run_id).exists()));
    let first = bench.events(run_ids[1]).await[0].cursor.clone();
    client.acknowledge(run_ids[0], "end").await.expect("acknowledges");
    client.acknowledge(run_ids[1], &first).await.expect("acknowledges a part");
    bench.stop();
    bench.configure("[retention]\nmax_bytes = 0\n", "");
    bench.start();
    let client = bench.client().await;
    until("the retention took the first", || !ended(&bench, run_ids[0]).exists());
    let storage = client.storage().await.expect("storage");
    let retention = storage.retention.expect("is configured");
    assert_eq!((storage.ended, retention.due, retention.acknowledged_only), (2, 0, true));
    assert!(
        bench.log().contains(&format!("removed by the retention run_id={}", run_ids[0])),
        "{}",
        bench.log()
    );
    // What is acknowledged later goes later, and what ends now with it.
    client.acknowledge(run_ids[1], "end").await.expect("acknowledges");
    until("the retention took the second", || !ended(&bench, run_ids[1]).exists());
    assert_eq!(listed(&client).await, [run_ids[2].to_string()].into());
    // And all of them when that is what the configuration says, without a restart.
    bench.configure("[retention]\nmax_bytes = 0\nacknowledged_only = false\n", "");
    bench.signal(nix::sys::signal::Signal::SIGHUP);
    until("the retention took the last", || !ended(&bench, run_ids[2]).exists());
    assert!(listed(&client).await.is_empty());
}

/// Every step of a removal: before the tombstone, with half of it, before it is durable, before the folder leaves its
/// place, before that is durable, and in the middle of what it held.
const STEPS: [&str; 7] = [
    "write:removed.log:1:KILL",
    "fsync:removed.log:1:KILL",
    "rename:.removing-*:1:KILL",
    "dirsync:??:1:KILL",
    "unlink:journal.jsonl:1:KILL",
    "unlink:record.json:1:KILL",
    "unlink:.removing-*:2:KILL",
];

/// Holds the promises against what is there after a death: each session is whole or removed, and none runs again.
async fn whole_or_removed(bench: &Bench, submissions: &[Submission], what: &str) -> usize {
    let client = bench.client().await;
    let listed = listed(&client).await;
    let mut removed = 0;
    for submission in submissions {
        let run_id = submission.run_id();
        match listed.contains(&run_id.to_string()) {
            true => {
                let status = client.status(run_id).await.expect("is whole");
                assert_eq!(status.end(), Some("completed"), "{what}");
                let events = bench.events(run_id).await;
                assert_eq!(events.last().map(|last| last.kind.as_str()), Some("ended"), "{what}");
                assert_eq!(events.last().expect("is there").cursor, status.text("head"), "{what}");
            }
            false => {
                removed += 1;
                assert_eq!(refusal(client.status(run_id).await), "Removed", "{what}");
            }
        }
        let again = client.submit(submission, None).await.expect("is recognised").status;
        assert_eq!((again.state(), again.end()), ("finished", Some("completed")), "{what}");
        assert_eq!(starts(bench, run_id), 1, "{what}: never again");
    }
    let left = fs::read_dir(bench.spool().join("ended")).expect("ended").flatten();
    let left: Vec<_> =
        left.filter(|entry| entry.file_name().to_string_lossy().starts_with(".removing")).collect();
    assert!(left.is_empty(), "{what}: {left:?}");
    removed
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_death_at_any_step_of_a_removal_leaves_no_half_session() {
    for step in STEPS {
        let mut bench = Bench::new();
        let submission = noted(&bench, "echo '{\"n\":1}'");
        let (run_id, _) = bench.run_submission(&submission, None).await;
        until("it is put away", || ended(&bench, run_id).exists());
        bench.stop();
        bench.environment(FAULTS, step);
        bench.start();
        let client = bench.client().await;
        assert!(client.remove(run_id).await.expect_err(step).is_lost(), "{step}");
        bench.reap();
        let mut bench = bench.without_environment();
        bench.start();
        whole_or_removed(&bench, std::slice::from_ref(&submission), step).await;
        bench.client().await.remove(run_id).await.expect("is finished");
        assert!(!ended(&bench, run_id).exists(), "{step}");
        assert_eq!(whole_or_removed(&bench, &[submission], step).await, 1);
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_death_in_the_middle_of_a_prune_leaves_no_half_session() {
    for step in ["fsync:removed.log:3:KILL", "rename:.removing-*:3:KILL", "unlink:journal.jsonl:3:KILL"] {
        let mut bench = Bench::new();
        let submissions: Vec<Submission> = (0..5).map(|_| noted(&bench, "echo '{\"n\":1}'")).collect();
        for submission in &submissions {
            bench.run_submission(submission, None).await;
        }
        bench.stop();
        bench.environment(FAULTS, step);
        bench.start();
        assert!(bench.client().await.prune(&ALL).await.expect_err(step).is_lost(), "{step}");
        bench.reap();
        let mut bench = bench.without_environment();
        bench.start();
        let removed = whole_or_removed(&bench, &submissions, step).await;
        assert!((2..=3).contains(&removed), "{step}: {removed}");
        bench.client().await.prune(&ALL).await.expect("goes on");
        assert_eq!(whole_or_removed(&bench, &submissions, step).await, 5, "{step}");
        assert!(submissions.iter().all(|one| !ended(&bench, one.run_id()).exists()), "{step}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_disk_that_takes_nothing_removes_and_acknowledges_nothing_it_does_not_say() {
    for (faults, acknowledged, removed) in [
        ("write:acknowledged.json:1:ENOSPC", "StorageFull", ""),
        ("rename:acknowledged.json:1:EIO", "StorageFailed", ""),
        ("write:removed.log:1:ENOSPC", "", "StorageFull"),
        ("fsync:removed.log:1:EIO", "", "StorageFailed"),
        ("rename:.removing-*:1:EIO", "", "StorageFailed"),
        ("unlink:journal.jsonl:1:EIO", "", "StorageFailed"),
    ] {
        let mut bench = Bench::new();
        let submission = noted(&bench, "echo '{\"n\":1}'");
        let (run_id, _) = bench.run_submission(&submission, None).await;
        bench.stop();
        bench.environment(FAULTS, faults);
        bench.start();
        let client = bench.client().await;
        if !acknowledged.is_empty() {
            assert_eq!(refusal(client.acknowledge(run_id, "end").await), acknowledged, "{faults}");
            assert_eq!(client.status(run_id).await.expect("status").text("acknowledged"), "", "{faults}");
            client.acknowledge(run_id, "end").await.expect("the disk takes it again");
        }
        if !removed.is_empty() {
            assert_eq!(refusal(client.remove(run_id).await), removed, "{faults}");
        }
        bench.kill();
        let mut bench = bench.without_environment();
        bench.start();
        whole_or_removed(&bench, std::slice::from_ref(&submission), faults).await;
        bench.client().await.remove(run_id).await.expect("removes");
        assert!(!ended(&bench, run_id).exists(), "{faults}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_death_during_an_acknowledgement_keeps_the_one_before() {
    for step in
        ["write:acknowledged.json:2:KILL", "rename:acknowledged.json:2:KILL", "dirsync:*-*-*-*-*:2:KILL"]
    {
        let mut bench = Bench::new();
        let (run_id, _) = bench.run("echo '{\"n\":1}'").await;
        until("it is put away", || ended(&bench, run_id).exists());
        let first = bench.events(run_id).await[0].cursor.clone();
        bench.stop();
        bench.environment(FAULTS, step);
        bench.start();
        let client = bench.client().await;
        client.acknowledge(run_id, &first).await.expect("acknowledges");
        assert!(client.acknowledge(run_id, "end").await.expect_err(step).is_lost(), "{step}");
        bench.reap();
        let mut bench = bench.without_environment();
        bench.start();
        let client = bench.client().await;
        let status = client.status(run_id).await.expect("status");
        let stands = status.text("acknowledged");
        assert!(stands == first || stands == status.text("head"), "{step}: {stands}");
        // What the crash left of it does not keep the session.
        assert_eq!(actions(&client.prune(&ALL).await.expect("prunes")), [(run_id, PruneAction::Removed)]);
    }
}

#[tokio::test]
async fn more_sessions_than_one_call_removes_go_and_neither_start_nor_list_grow() {
    const SESSIONS: u64 = 1200;
    let mut bench = Bench::prepared("");
    let last = put(&bench, 1..=SESSIONS);
    bench.start();
    let shown = text(&bench.sessionctl(&["prune", "--older-than", "1d", "--unacknowledged"]).stdout);
    assert!(shown.contains("\nwould remove 1 000 sessions, "), "{shown}");
    let output = bench.sessionctl(&["--json", "prune", "--older-than", "1d", "--unacknowledged", "--yes"]);
    let removed: BTreeSet<String> = text(&output.stdout)
        .lines()
        .map(|line| {
            let session: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(session["action"], "removed");
            session["run_id"].as_str().expect("a name").to_owned()
        })
        .collect();
    assert_eq!(removed.len() as u64, SESSIONS);
    assert!(removed.contains(&last[0].to_string()));
    assert!(listed(&bench.client().await).await.is_empty());
    let log = fs::read(bench.spool().join("ended.log")).expect("is there");
    assert!(log.len() < 100_000, "{} bytes for no session", log.len());
    assert_eq!(bench.client().await.storage().await.expect("storage").ended, 0);
}

#[tokio::test]
async fn an_export_is_the_whole_session_or_nothing() {
    let bench = Bench::new();
    let script =
        "echo '{\"n\":1}'; printf '\\377\\n'; until [ -e go ]; do sleep 0.02; done; echo '{\"n\":2}'";
    let submission = bench.script(script);
    let id = submission.run_id().to_string();
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    let mut follow =
        client.follow(submission.run_id(), "start", FollowOptions::default()).await.expect("follows");
    while follow.next().await.expect("reads").expect("more").kind != "raw" {}
    // Of a running session what is durable: the archive's journal is the beginning of the later one.
    let running = bench.path().join("running.tar");
    let output = bench.sessionctl(&["export", &id, "--format", "tar", "-o", &running.display().to_string()]);
    assert!(output.status.success(), "{output:?}");
    bench.write("go", "");
    client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    until("it is put away", || ended(&bench, submission.run_id()).exists());
    let exported = text(&bench.sessionctl(&["export", &id]).stdout);
    let exported: Vec<Entry> =
        exported.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(exported, bench.events(submission.run_id()).await);
    assert!(exported.iter().any(|entry| entry.raw64.is_some()), "with the exact bytes");

    let file = bench.path().join("events.jsonl").display().to_string();
    let output = bench.sessionctl(&["--json", "export", &id, "--output", &file]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&told["format"], &told["bytes"]),
        (&"jsonl".into(), &fs::metadata(&file).expect("is there").len().into())
    );
    assert_eq!(fs::metadata(&file).expect("is there").permissions().mode() & 0o777, 0o600);
    let again = bench.sessionctl(&["export", &id, "--output", &file]);
    assert_eq!(again.status.code(), Some(52), "what is there is not written over");

    let archive = bench.path().join("session.tar");
    let archived =
        bench.sessionctl(&["export", &id, "--format", "tar", "-o", &archive.display().to_string()]);
    assert!(archived.status.success(), "{archived:?}");
    let unpack = |archive: &Path, name: &str| {
        let output = std::process::Command::new("tar")
            .args(["-xOf".as_ref(), archive.as_os_str()])
            .arg(format!("{id}/{name}"))
            .output()
            .expect("tar runs");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let folder = ended(&bench, submission.run_id());
    for name in ["journal.jsonl", "outcome.json", "submission.json", "record.json", "claim.json"] {
        assert_eq!(unpack(&archive, name), fs::read(folder.join(name)).expect("reads"), "{name}");
    }
    let (part, whole) = (unpack(&running, "journal.jsonl"), unpack(&archive, "journal.jsonl"));
    assert!(part.len() < whole.len() && whole.starts_with(&part) && part.ends_with(b"\n"));
    let missing = bench.path().join("missing");
    let output =
        bench.sessionctl(&["export", &RunId::random().to_string(), "-o", &missing.display().to_string()]);
    assert_eq!((output.status.code(), missing.exists()), (Some(50), false));
}

#[tokio::test]
async fn an_operator_keeps_and_removes() {
    let bench = Bench::new();
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(bench.run("true").await.0.to_string());
    }
    let storage = text(&bench.sessionctl(&["storage"]).stdout);
    assert!(storage.contains("retention     off") && storage.contains("first ended"), "{storage}");
    let json: Value = serde_json::from_slice(&bench.sessionctl(&["--json", "storage"]).stdout).expect("JSON");
    assert_eq!((&json["ended"], &json["spool"]), (&2.into(), &bench.spool().display().to_string().into()));
    let nothing = bench.sessionctl(&["prune"]);
    assert_eq!(nothing.status.code(), Some(2), "a condition is wanted");
    let kept = text(&bench.sessionctl(&["prune", "--keep", "0"]).stdout);
    assert!(
        kept.ends_with("would remove 0 sessions, 0 B; 2 kept\n") && kept.contains("not acknowledged"),
        "{kept}"
    );
    assert!(bench.sessionctl(&["acknowledge", &ids[0]]).status.success());
    let dry = bench.sessionctl(&["prune", "--keep", "0"]);
    assert!(
        text(&dry.stdout).contains("would remove 1 session, ") && text(&dry.stderr).contains("--yes"),
        "{dry:?}"
    );
    let done = text(&bench.sessionctl(&["prune", "--keep", "0", "--yes"]).stdout);
    assert!(
        done.contains(&format!("removed       {}", ids[0])) && done.contains("removed 1 session, "),
        "{done}"
    );
    let unknown = RunId::random().to_string();
    let output = bench.sessionctl(&["remove", &unknown, &ids[1], &ids[0]]);
    assert_eq!(output.status.code(), Some(50), "one that is refused keeps no other: {output:?}");
    assert_eq!(text(&output.stdout), format!("removed  {}\nremoved  {}\n", ids[1], ids[0]));
    assert!(text(&bench.sessionctl(&["list"]).stdout).is_empty());
}
