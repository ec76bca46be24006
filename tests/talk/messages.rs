//! Messages: at most once, for ever the same, never lost without a word.

use super::*;

#[tokio::test]
async fn a_steer_reaches_the_program_and_its_receipts_advance() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("work").await;
    let sent = client.steer(run_id, "m1", "look left").await.expect("is stored");
    assert_eq!(sent.request_id, "m1");
    talk.hears("steer m1");
    receipt(&client, run_id, "m1", "look left", Receipt::Seen).await;
    client.follow_up(run_id, "m2", "done").await.expect("is stored");
    let status = ended(&client, run_id).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(
        talk.heard(),
        ["start", "prompt   work", "steer m1  look left", "follow-up m2  done", "end of file"]
    );
    let said = talk.said(run_id, "message").await;
    let of = |id: &str| said.iter().filter(|said| said.ends_with(id)).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of("m1").first().unwrap().as_str(), of("m1").last().unwrap().as_str()),
        ("stored m1", "seen m1")
    );
    // The same again: after the end, and after a restart.
    for restart in [false, true] {
        let client = if restart { talk.another_daemon().await } else { talk.bench.client().await };
        receipt(&client, run_id, "m1", "look left", Receipt::Seen).await;
        let changed = client.steer(run_id, "m1", "look right").await;
        assert_eq!(refusal(changed), "MessageChanged");
        assert_eq!(refusal(client.follow_up(run_id, "m1", "look left").await), "MessageChanged");
        assert_eq!(refusal(client.steer(run_id, "m3", "too late").await), "NotRunning");
    }
    assert_eq!(talk.times("steer m1  look left"), 1);
}

#[tokio::test]
async fn repetition_is_nothing_while_it_runs_also_through_a_killed_daemon() {
    let mut talk = Talk::new();
    let (mut client, run_id) = talk.start("work").await;
    for restart in [false, true, false] {
        if restart {
            client = talk.another_daemon().await;
        }
        client.steer(run_id, "m1", "look left").await.expect("is stored");
        receipt(&client, run_id, "m1", "look left", Receipt::Seen).await;
        assert_eq!(refusal(client.steer(run_id, "m1", "other").await), "MessageChanged");
    }
    client.steer(run_id, "m2", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.times("steer m1  look left"), 1);
    assert_eq!(talk.times("start"), 1);
}

#[tokio::test]
async fn a_message_to_a_queued_session_comes_when_it_starts() {
    let mut talk = Talk::with("[limits]\nactive = 1\n");
    let client = talk.bench.client().await;
    let first = talk.bench.script("until [ -e free ]; do sleep 0.02; done");
    client.submit(&first, None).await.expect("submits");
    let (second, third) = (talk.submission(), talk.submission());
    for queued in [&second, &third] {
        client.submit(queued, Some(b"work".to_vec())).await.expect("submits");
    }
    let sent = client.steer(second.run_id(), "early", "done").await.expect("is stored");
    assert_eq!(sent.receipt, Receipt::Stored);
    client.steer(third.run_id(), "never", "done").await.expect("is stored");
    // It is stored, whoever keeps the queue.
    let client = talk.another_daemon().await;
    client.cancel(third.run_id()).await.expect("cancelled");
    ended(&client, third.run_id()).await;
    receipt(&client, third.run_id(), "never", "done", Receipt::Undeliverable).await;
    receipt(&client, second.run_id(), "early", "done", Receipt::Stored).await;
    talk.bench.write("free", "");
    assert_eq!(ended(&client, second.run_id()).await.end(), Some("completed"));
    receipt(&client, second.run_id(), "early", "done", Receipt::Seen).await;
    assert_eq!(talk.times("steer early  done"), 1);
}

#[tokio::test]
async fn what_a_family_cannot_do_and_what_is_too_much_is_refused() {
    let talk = Talk::with("[limits]\nmessages = 2\nmessage = 8\n");
    let client = talk.bench.client().await;
    let jsonl = talk.bench.script("until [ -e free ]; do sleep 0.02; done");
    client.submit(&jsonl, None).await.expect("submits");
    let error = client.steer(jsonl.run_id(), "m", "hello").await.expect_err("it cannot");
    assert!(error.to_string().contains("jsonl-talk"), "{error}");
    assert!(!talk.bench.spool().join("active").join(jsonl.run_id().to_string()).join("inbox.jsonl").exists());
    talk.bench.write("free", "");
    let (client, run_id) = talk.start("work").await;
    assert_eq!(refusal(client.steer(run_id, "m", "123456789").await), "InvalidArgument");
    assert_eq!(refusal(client.steer(RunId::random(), "m", "hello").await), "NotFound");
    client.steer(run_id, "m1", "one").await.expect("is stored");
    client.steer(run_id, "m2", "two").await.expect("is stored");
    assert_eq!(refusal(client.steer(run_id, "m3", "three").await), "TooManyMessages");
    client.steer(run_id, "m2", "two").await.expect("the same is no more");
    client.cancel(run_id).await.expect("cancels");
    ended(&client, run_id).await;
}

#[tokio::test]
async fn a_program_may_refuse_a_message_and_one_that_stays_quiet_has_it_written() {
    let talk = Talk::new();
    let (client, run_id) = talk.start("quiet").await;
    client.steer(run_id, "m1", "hello").await.expect("is stored");
    receipt(&client, run_id, "m1", "hello", Receipt::Written).await;
    client.steer(run_id, "refused", "refuse").await.expect("is stored");
    receipt(&client, run_id, "refused", "refuse", Receipt::Undeliverable).await;
    client.steer(run_id, "m2", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    receipt(&client, run_id, "m1", "hello", Receipt::Written).await;
}

#[tokio::test]
async fn a_program_that_does_not_read_delays_nothing_but_its_messages() {
    let talk = Talk::new();
    let (client, run_id) = talk.start("wait done").await;
    let long = "x".repeat(16_000);
    for n in 0..100 {
        client.steer(run_id, &format!("m{n}"), &long).await.expect("is stored");
    }
    let last = client.steer(run_id, "m99", &long).await.expect("known");
    assert_eq!(last.receipt, Receipt::Stored, "more than a pipe holds");
    // It is stopped all the same, and what was not written comes back.
    client.cancel(run_id).await.expect("cancels");
    assert_eq!(ended(&client, run_id).await.end(), Some("cancelled"));
    receipt(&client, run_id, "m99", &long, Receipt::Undeliverable).await;
    let receipts = talk.said(run_id, "message").await;
    for n in 0..100 {
        let last = receipts.iter().rev().find(|said| said.ends_with(&format!(" m{n}"))).expect("has one");
        assert!(last.starts_with("written") || last.starts_with("undeliverable"), "{last}");
    }
}

#[tokio::test]
async fn messages_come_back_from_a_program_that_closes_its_standard_input() {
    let talk = Talk::new();
    let (client, run_id) = talk.start("deaf wait exit").await;
    talk.hears("deaf");
    client.steer(run_id, "m1", "hello").await.expect("is stored");
    receipt(&client, run_id, "m1", "hello", Receipt::Undeliverable).await;
    assert_eq!(client.status(run_id).await.expect("status").state(), "driving", "it goes on");
    talk.bench.write("go", "");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert!(talk.said(run_id, "message").await.contains(&"undeliverable m1".to_owned()));
}

#[tokio::test]
async fn a_message_that_races_the_end_is_taken_or_comes_back() {
    let talk = Talk::new();
    for round in 0..12 {
        let client = talk.bench.client().await;
        let submission = talk.submission();
        let run_id = submission.run_id();
        client.submit(&submission, Some(b"done".to_vec())).await.expect("submits");
        client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        let mut stored = Vec::new();
        for n in 0.. {
            match client.steer(run_id, &format!("r{round}-{n}"), "done").await {
                Ok(_) => stored.push(n),
                Err(error) => {
                    let over = ["NotRunning", "TooManyMessages"].map(Some).contains(&error.refusal());
                    assert!(over, "{error}");
                    break;
                }
            }
        }
        assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
        for n in stored {
            let sent = client.steer(run_id, &format!("r{round}-{n}"), "done").await.expect("known");
            let taken = talk.times(&format!("steer r{round}-{n}  done"));
            match sent.receipt {
                Receipt::Undeliverable => assert_eq!(taken, 0, "round {round}, {n}"),
                Receipt::Written | Receipt::Seen => assert_eq!(taken, 1, "round {round}, {n}"),
                Receipt::Stored => panic!("round {round}: {n} is neither taken nor given back"),
            }
        }
    }
}

/// Sends until there is an answer, whatever becomes of the daemon.
async fn insist(socket: &std::path::Path, run_id: RunId, id: &str) {
    let begun = std::time::Instant::now();
    loop {
        if let Ok(client) = Client::connect_socket(socket).await
            && client.steer(run_id, id, "on").await.is_ok()
        {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{id} is never taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_hundred_messages_through_killed_daemons_are_each_taken_once_and_in_order() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("work").await;
    drop(client);
    let socket = talk.bench.socket();
    let sender = tokio::spawn(async move {
        for n in 0..100 {
            insist(&socket, run_id, &format!("m{n}")).await;
        }
    });
    let mut kills = 0;
    while !sender.is_finished() {
        // At any moment of any message.
        tokio::time::sleep(Duration::from_millis(7 + kills * 11 % 40)).await;
        talk.bench.kill();
        talk.bench.start();
        kills += 1;
    }
    sender.await.expect("all are sent");
    let client = talk.bench.client().await;
    for n in 0..100 {
        receipt(&client, run_id, &format!("m{n}"), "on", Receipt::Seen).await;
    }
    client.steer(run_id, "last", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    let heard: Vec<String> = talk.heard().into_iter().filter(|heard| heard.ends_with("  on")).collect();
    let wanted: Vec<String> = (0..100).map(|n| format!("steer m{n}  on")).collect();
    assert_eq!(heard, wanted, "after {kills} kills");
}
