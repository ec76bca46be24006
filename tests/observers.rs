//! Observers own nothing: they come, go, lag and resume, and a session does not notice.

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use airouter_sessiond::client::{
    AllDelivery, AllSubscription, Client, Delivery, FollowOptions, Record, WaitFor,
};
use airouter_sessiond::model::RunId;
use support::{Bench, PATIENCE, text, until};

#[tokio::test]
async fn pages_follow_and_subscription_tell_the_same() {
    let bench = Bench::new();
    let (run_id, _) = bench.run("for n in 1 2 3 4 5 6 7 8 9; do echo \"{\\\"type\\\":\\\"preview\\\",\\\"text\\\":\\\"$n\\\"}\"; done").await;
    let followed = bench.events(run_id).await;
    let client = bench.client().await;
    let mut paged = Vec::new();
    let mut cursor = "start".to_owned();
    loop {
        let page = client.events(run_id, &cursor, 2).await.expect("a page");
        assert!(page.records.len() <= 2);
        cursor = page.next;
        paged.extend(page.records);
        if !page.more {
            break;
        }
    }
    let mut subscription = client.subscribe(run_id, "start").await.expect("subscribes");
    let mut subscribed = Vec::new();
    while subscribed.len() < followed.len() {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records, .. }) => subscribed.extend(records),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(paged, subscribed);
    let of_paged: Vec<_> = paged.iter().map(|r| (&r.cursor, r.time, &r.kind)).collect();
    let of_followed: Vec<_> = followed.iter().map(|e| (&e.cursor, e.time, &e.kind)).collect();
    assert_eq!(of_paged, of_followed);
    assert_eq!(client.status(run_id).await.expect("status").text("head"), cursor);
}

#[tokio::test]
async fn the_five_wrong_cursors_are_five_errors() {
    let bench = Bench::new();
    let (run_id, _) = bench.run("echo '{}'").await;
    let (other, _) = bench.run("echo '{}'").await;
    let client = bench.client().await;
    let cursor = client.events(run_id, "start", 1).await.expect("a page").next;
    let foreign = client.events(other, "start", 1).await.expect("a page").next;
    let (epoch, offset) = cursor.rsplit_once('-').expect("epoch and offset");
    let offset: u64 = offset.parse().expect("a number");
    let mut names = std::collections::BTreeSet::new();
    for wrong in [
        "now".to_owned(),
        foreign,
        format!("{epoch}-99999999"),
        format!("{epoch}-{}", offset - 1),
        String::new(),
    ] {
        let error = client.events(run_id, &wrong, 1).await.expect_err(&wrong);
        names.insert(error.refusal().expect("a name of ours").to_owned());
        let follow = client.follow(run_id, &wrong, FollowOptions::default()).await.expect_err(&wrong);
        assert_eq!(error.refusal(), follow.refusal());
        let subscribe = client.subscribe(run_id, &wrong).await.expect_err(&wrong);
        assert_eq!(error.refusal(), subscribe.refusal());
    }
    assert_eq!(names.len(), 4, "malformed (twice), foreign, beyond, inside: {names:?}");
    let unknown = client.events(RunId::random(), "start", 1).await.expect_err("unknown");
    assert_eq!(unknown.refusal(), Some("NotFound"));
}

#[tokio::test]
async fn a_subscription_before_the_start_sees_everything_and_the_end() {
    let bench = Bench::with("[limits]\nactive = 1\n");
    let client = bench.client().await;
    let first = bench.script("until [ -e go ]; do sleep 0.02; done");
    let second = bench.script("echo '{\"n\":1}'");
    client.submit(&first, None).await.expect("runs");
    client.submit(&second, None).await.expect("waits");
    let mut subscription = client.subscribe(second.run_id(), "start").await.expect("subscribes");
    let mut follow =
        client.follow(second.run_id(), "end", FollowOptions::default()).await.expect("follows from its end");
    bench.write("go", "");
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "ended") {
        match subscription.next().await.expect("delivers") {
            Some(Delivery::Activity { records, .. }) => kinds.extend(records.into_iter().map(|r| r.kind)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(kinds, ["started", "raw", "exited", "ended"]);
    let mut followed = Vec::new();
    while let Some(entry) = follow.next().await.expect("reads") {
        followed.push(entry.kind);
    }
    assert_eq!(followed, kinds);
    assert!(follow.ended());
}

#[tokio::test]
async fn a_replay_that_is_not_live_ends_where_the_journal_ends_now() {
    let bench = Bench::with("[limits]\nactive = 1\n");
    let client = bench.client().await;
    let running = bench.script("echo '{}'; sleep 600");
    let waiting = bench.script("true");
    client.submit(&running, None).await.expect("runs");
    client.submit(&waiting, None).await.expect("waits");
    let head = loop {
        let status = client.status(running.run_id()).await.expect("status");
        let page = client.events(running.run_id(), "start", 0).await.expect("a page");
        if page.records.len() == 2 && status.text("head") == page.next {
            break page.next;
        }
    };
    for (run_id, cursor, records) in [
        (running.run_id(), "start", 2),
        (running.run_id(), "end", 0),
        (running.run_id(), &head, 0),
        (waiting.run_id(), "start", 0),
    ] {
        let options = FollowOptions { raw: false, live: false };
        let mut follow = client.follow(run_id, cursor, options).await.expect("follows");
        let mut seen = 0;
        while tokio::time::timeout(PATIENCE, follow.next())
            .await
            .expect("does not wait")
            .expect("reads")
            .is_some()
        {
            seen += 1;
        }
        assert_eq!(seen, records, "{cursor}");
    }
}

#[tokio::test]
async fn readers_that_stop_or_leave_hold_up_nobody() {
    let bench = Bench::new();
    let before = open_pipes(bench.daemon_pid());
    let client = bench.client().await;
    let submission = bench
        .script("until [ -e go ]; do sleep 0.02; done; awk 'BEGIN { for (n = 0; n < 50000; n++) print n }'");
    client.submit(&submission, None).await.expect("submits");
    // Never read; dropped at once; and one that reads.
    let options = FollowOptions { raw: false, live: true };
    let stopped = client.follow(submission.run_id(), "start", options).await.expect("follows");
    drop(client.follow(submission.run_id(), "start", options).await.expect("follows"));
    let unread = client.subscribe(submission.run_id(), "start").await.expect("subscribes");
    bench.write("go", "");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
    let lines = bench.events(submission.run_id()).await.iter().filter(|e| e.kind == "raw").count();
    assert_eq!(lines, 50_000);
    drop((stopped, unread));
    until("the daemon lets go of the pipes", || open_pipes(bench.daemon_pid()) <= before);
}

#[tokio::test]
async fn streams_have_a_bound_and_make_room_when_their_readers_leave() {
    let bench = Bench::new();
    let client = bench.client().await;
    let submission = bench.script("sleep 600");
    client.submit(&submission, None).await.expect("submits");
    let run_id = submission.run_id();
    let before = open_pipes(bench.daemon_pid());
    let mut open = Vec::new();
    let refused = loop {
        match client.follow(run_id, "start", FollowOptions::default()).await {
            Ok(follow) => open.push(follow),
            Err(error) => break error,
        }
        assert!(open.len() <= 64, "streams are opened without bound");
    };
    assert_eq!((open.len(), refused.refusal()), (64, Some("AtCapacity")));
    drop(open);
    until("the daemon sees that the readers left", || open_pipes(bench.daemon_pid()) <= before);
    client.follow(run_id, "start", FollowOptions::default()).await.expect("there is room again");
    client.cancel(run_id).await.expect("cancels");
}

#[test]
fn silent_connections_in_a_loop_lock_nobody_out_and_do_not_fill_the_log() {
    let bench = Bench::new();
    let stop = AtomicBool::new(false);
    let (opened, failed) = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut open = VecDeque::new();
            let mut opened = 0;
            while !stop.load(Ordering::Relaxed) {
                open.extend(UnixStream::connect(bench.socket()));
                opened += 1;
                if open.len() > 200 {
                    open.pop_front();
                }
            }
            opened
        });
        let lists = (0..50).map(|_| bench.sessionctl(&["list"]));
        let failed: Vec<String> =
            lists.filter(|list| !list.status.success()).map(|list| text(&list.stderr)).collect();
        stop.store(true, Ordering::Relaxed);
        (flood.join().expect("ends"), failed)
    });
    assert!(failed.is_empty(), "{} of 50 calls failed: {:?}", failed.len(), failed.first());
    assert!(opened > 1000, "no flood: {opened} connections");
    let log = bench.log();
    let told = log.lines().filter(|line| line.contains("did not finish their handshake")).count();
    // Once a minute.
    assert!((1..10).contains(&told), "{told} lines for {opened} connections");
    assert!(log.lines().count() < 100, "{} lines for {opened} connections", log.lines().count());
}

fn open_pipes(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("our own process")
        .flatten()
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:")))
        .count()
}

#[tokio::test]
async fn waiting_never_touches_the_session_and_listing_shows_it() {
    let bench = Bench::new();
    let client = bench.client().await;
    let mut submission = bench.script("sleep 600");
    submission.label = Some("a long one".into());
    client.submit(&submission, None).await.expect("submits");
    let status = client
        .wait(submission.run_id(), WaitFor::Finished, std::time::Duration::from_millis(50))
        .await
        .expect("waits");
    assert!(!status.is_over(), "running out of time is no error");
    let filter = airouter_sessiond::client::Filter::default();
    let one = airouter_sessiond::client::Filter { limit: Some(1), ..Default::default() };
    for filter in [&filter, &one] {
        let (all, next) = client.list(filter).await.expect("lists");
        assert_eq!((all.len(), next.as_str()), (1, ""), "no page is announced that is not there");
    }
    let (all, _) = client.list(&filter).await.expect("lists");
    assert_eq!(all[0].text("label"), "a long one");
    client.cancel(submission.run_id()).await.expect("cancels");
    client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    let (all, _) = client.list(&filter).await.expect("lists");
    assert_eq!(all[0].end(), Some("cancelled"));
}

/// Every session's records that a subscription to all gives, until so many have ended.
async fn until_ended(
    subscription: &mut AllSubscription,
    seen: &mut BTreeMap<RunId, Vec<Record>>,
    mut sessions: usize,
) {
    while sessions > 0 {
        match subscription.next().await.expect("delivers") {
            Some(AllDelivery::Activity { run_id, from, records, next }) => {
                let known = seen.entry(run_id).or_default();
                let before = known.last().map_or("start", |last| last.cursor.as_str());
                assert!(from == before || known.is_empty(), "a gap or a repetition: {from} after {before}");
                assert_eq!(records.last().map_or(&next, |last| &last.cursor), &next);
                sessions -= usize::from(records.iter().any(|record| record.kind == "ended"));
                known.extend(records);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What all of a session's records are, as pages have them.
async fn records_of(client: &Client, run_id: RunId) -> Vec<Record> {
    let (mut all, mut cursor) = (Vec::new(), "start".to_owned());
    loop {
        let page = client.events(run_id, &cursor, 0).await.expect("a page");
        all.extend(page.records);
        cursor = page.next;
        if !page.more {
            return all;
        }
    }
}

#[tokio::test]
async fn a_subscription_to_all_misses_and_repeats_nothing_through_restarts() {
    let mut bench = Bench::with("on_stop = \"detach\"\n[limits]\nactive = 16\n");
    let client = bench.client().await;
    let script = "for n in $(seq 200); do echo \"{\\\"n\\\":$n}\"; done; until [ -e go ]; do sleep 0.02; done; echo '{}'";
    let submissions: Vec<_> = (0..8).map(|_| bench.script(script)).collect();
    for submission in &submissions[..4] {
        client.submit(submission, None).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    }
    let (quick, _) = bench.run("echo '{}'").await;
    let mut subscription = client.subscribe_all("start", BTreeMap::new()).await.expect("subscribes");
    let mut seen = BTreeMap::new();
    for submission in &submissions[4..] {
        client.submit(submission, None).await.expect("submits");
    }
    // The connection breaks in the middle; whoever comes back goes on from its places.
    for _ in 0..2 {
        if let Some(AllDelivery::Activity { run_id, records, .. }) =
            subscription.next().await.expect("delivers")
        {
            seen.entry(run_id).or_insert_with(Vec::new).extend(records);
        }
    }
    let positions = subscription.positions().clone();
    drop(subscription);
    bench.kill();
    bench.start();
    let client = bench.client().await;
    let mut subscription = client.subscribe_all("start", positions).await.expect("subscribes again");
    bench.write("go", "");
    until_ended(&mut subscription, &mut seen, 8).await;
    assert!(subscription.positions().is_empty());
    // One that comes and ends now is seen from its start.
    let (late, _) = bench.run("echo '{\"late\":1}'").await;
    until_ended(&mut subscription, &mut seen, 1).await;
    assert!(!seen.contains_key(&quick), "it had ended, and nobody named it");
    let mut names: Vec<RunId> = submissions.iter().map(|submission| submission.run_id()).collect();
    names.push(late);
    assert_eq!(seen.len(), names.len());
    for run_id in names {
        assert_eq!(seen[&run_id], records_of(&client, run_id).await, "{run_id}");
    }
    // An ended one that is named is replayed from its place; one that was removed is refused by name.
    let all = records_of(&client, quick).await;
    let places = BTreeMap::from([(quick, all[0].cursor.clone())]);
    let mut again = client.subscribe_all("end", places.clone()).await.expect("subscribes");
    match again.next().await.expect("delivers") {
        Some(AllDelivery::Activity { run_id, records, .. }) => {
            assert_eq!((run_id, &records[..]), (quick, &all[1..]))
        }
        other => panic!("{other:?}"),
    }
    client.remove(quick).await.expect("removes");
    let refused = client.subscribe_all("end", places).await.expect_err("it is gone");
    assert!(
        refused.refusal() == Some("Removed") && refused.to_string().contains(&quick.to_string()),
        "{refused}"
    );
}

#[tokio::test]
async fn a_subscription_to_all_from_their_ends_tells_where_they_stand() {
    let bench = Bench::new();
    let client = bench.client().await;
    let submission = bench.script("echo '{}'; until [ -e go ]; do sleep 0.02; done; echo '{\"then\":1}'");
    let run_id = submission.run_id();
    client.submit(&submission, None).await.expect("submits");
    let head = loop {
        let page = client.events(run_id, "start", 0).await.expect("a page");
        if page.records.len() == 2 {
            break page.next;
        }
    };
    let mut subscription = client.subscribe_all("end", BTreeMap::new()).await.expect("subscribes");
    match subscription.next().await.expect("delivers") {
        Some(AllDelivery::Activity { run_id: named, from, next, records }) => {
            assert_eq!((named, &from, &next, records.len()), (run_id, &head, &head, 0));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(subscription.positions(), &BTreeMap::from([(run_id, head)]));
    bench.write("go", "");
    let mut seen = BTreeMap::new();
    until_ended(&mut subscription, &mut seen, 1).await;
    let kinds: Vec<&str> = seen[&run_id].iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["raw", "exited", "ended"]);
}
