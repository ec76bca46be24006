//! Messages on a disk that fails: nothing is acknowledged that is not durable, and nothing is passed on twice.

use super::*;

/// A daemon whose disk fails so, and a session that works.
async fn failing(faults: &str) -> (Talk, Client, RunId) {
    let mut talk = Talk::prepared("");
    talk.bench.environment("AIROUTER_FAULTS", faults);
    talk.bench.start();
    let (client, run_id) = talk.start("work").await;
    (talk, client, run_id)
}

#[tokio::test]
async fn a_message_that_the_disk_did_not_take_can_be_sent_again() {
    for (faults, name) in [
        ("create:inbox.jsonl:1:ENOSPC", "StorageFull"),
        ("write:inbox.jsonl:1:ENOSPC", "StorageFull"),
        ("short:inbox.jsonl:1:EDQUOT", "StorageFull"),
        ("short:inbox.jsonl:1:EIO", "StorageFailed"),
    ] {
        let (talk, client, run_id) = failing(faults).await;
        assert_eq!(refusal(client.steer(run_id, "m", "done").await), name, "{faults}");
        client.steer(run_id, "m", "done").await.unwrap_or_else(|error| panic!("{faults}: {error}"));
        assert_eq!(ended(&client, run_id).await.end(), Some("completed"), "{faults}");
        assert_eq!(talk.times("steer m  done"), 1, "{faults}");
        receipt(&client, run_id, "m", "done", Receipt::Seen).await;
    }
}

#[tokio::test]
async fn after_a_failed_fsync_nothing_is_acknowledged_any_more() {
    let (mut talk, client, run_id) = failing("fsync:inbox.jsonl:1:EIO").await;
    for id in ["m1", "m1", "m2"] {
        assert_eq!(refusal(client.steer(run_id, id, "done").await), "StorageFailed", "{id}");
    }
    talk.bench.kill();
    let bench = talk.bench.without_environment();
    talk = Talk { bench };
    talk.bench.start();
    let client = talk.bench.client().await;
    // Sent again, it is the same message: taken once, whatever the disk kept of it.
    client.steer(run_id, "m1", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.times("steer m1  done"), 1);
    assert_eq!(talk.heard().iter().filter(|heard| heard.starts_with("steer m2")).count(), 0);
}

#[tokio::test]
async fn an_inbox_that_cannot_be_read_for_a_moment_is_read_again() {
    let (talk, client, run_id) = failing("read:inbox.reading:1:EIO,read:inbox.reading:2:EMFILE").await;
    client.steer(run_id, "m", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.times("steer m  done"), 1);
    let warnings = talk.bench.events(run_id).await.into_iter().filter(|event| {
        event
            .details
            .get("text")
            .and_then(|text| text.as_str())
            .is_some_and(|text| text.contains("cannot be read"))
    });
    assert_eq!(warnings.count(), 1, "told once");
}

#[tokio::test]
async fn what_an_executor_cannot_read_or_sync_comes_back_and_holds_nothing_up() {
    for faults in ["read:inbox.reading:1+:EIO", "fsync:inbox.reading:1:EIO", "fsync:inbox.reading:1+:EIO"] {
        let mut talk = Talk::prepared("");
        talk.bench.environment("AIROUTER_FAULTS", faults);
        talk.bench.start();
        let (client, run_id) = talk.start("wait done").await;
        client.steer(run_id, "m", "hello").await.expect("is stored");
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(client.steer(run_id, "m", "hello").await.expect("known").receipt, Receipt::Stored);
        talk.bench.write("go", "");
        assert_eq!(ended(&client, run_id).await.end(), Some("completed"), "{faults}");
        receipt(&client, run_id, "m", "hello", Receipt::Undeliverable).await;
        assert_eq!(talk.times("steer m  hello"), 0, "{faults}");
    }
}

#[tokio::test]
async fn a_message_is_taken_once_whatever_fails_while_it_is_stored() {
    for operation in ["create", "write", "short", "fsync", "truncate"] {
        for which in ["1", "2", "1+", "2+"] {
            for what in ["ENOSPC", "EIO", "KILL"] {
                let faults = format!("{operation}:inbox.jsonl:{which}:{what}");
                survives(&faults).await;
            }
        }
    }
}

/// Two messages on a disk that fails so, then the same on one that works.
async fn survives(faults: &str) {
    let (mut talk, client, run_id) = failing(faults).await;
    let mut acknowledged = Vec::new();
    for id in ["m1", "m2", "m1"] {
        if client.steer(run_id, id, "on").await.is_ok() {
            acknowledged.push(id);
        }
    }
    // It may have died of it.
    if faults.ends_with("KILL") && client.status(run_id).await.is_err() {
        talk.bench.reap();
    } else {
        talk.bench.kill();
    }
    let mut talk = Talk { bench: talk.bench.without_environment() };
    talk.bench.start();
    let client = talk.bench.client().await;
    for id in ["m1", "m2"] {
        let sent = client.steer(run_id, id, "on").await.unwrap_or_else(|error| panic!("{faults}: {error}"));
        assert!(sent.receipt < Receipt::Undeliverable, "{faults}: {sent:?}");
        receipt(&client, run_id, id, "on", Receipt::Seen).await;
    }
    client.steer(run_id, "last", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"), "{faults}");
    for id in ["m1", "m2"] {
        assert_eq!(
            talk.times(&format!("steer {id}  on")),
            1,
            "{faults}: {acknowledged:?} {:?}",
            talk.heard()
        );
    }
}

/// Damage under an executor that read it, and a daemon that comes afterwards.
#[tokio::test]
async fn an_inbox_that_lost_entries_takes_nothing_more_and_gives_no_receipt_of_another() {
    for left in [0, 1, 2] {
        let mut talk = Talk::new();
        let (client, run_id) = talk.start("work").await;
        for id in ["m1", "m2", "m3"] {
            client.steer(run_id, id, "hello").await.expect("is stored");
            receipt(&client, run_id, id, "hello", Receipt::Seen).await;
        }
        talk.bench.kill();
        let inbox = talk.bench.spool().join("active").join(run_id.to_string()).join("inbox.jsonl");
        let text = std::fs::read_to_string(&inbox).expect("there");
        let kept: String = text.split_inclusive('\n').take(left).collect();
        std::fs::write(&inbox, kept).expect("writes");
        talk.bench.start();
        let client = talk.bench.client().await;
        for n in 1..=4 {
            let answer = client.steer(run_id, &format!("m{n}"), "hello").await;
            match n <= left {
                true => assert_eq!(answer.expect("known").receipt, Receipt::Seen, "{left} left, m{n}"),
                false => assert_eq!(refusal(answer), "Damaged", "{left} left, m{n}"),
            }
        }
        client.cancel(run_id).await.expect("cancels");
        assert_eq!(ended(&client, run_id).await.end(), Some("cancelled"));
        for n in 1..=3 {
            assert_eq!(talk.times(&format!("steer m{n}  hello")), 1);
        }
    }
}

#[tokio::test]
async fn a_doubled_entry_is_not_passed_on_again() {
    let talk = Talk::new();
    let (client, run_id) = talk.start("work").await;
    client.steer(run_id, "m1", "hello").await.expect("is stored");
    receipt(&client, run_id, "m1", "hello", Receipt::Seen).await;
    let inbox = talk.bench.spool().join("active").join(run_id.to_string()).join("inbox.jsonl");
    let text = std::fs::read_to_string(&inbox).expect("there");
    std::fs::write(&inbox, text.repeat(3)).expect("writes");
    // The daemon does not know of them: what it stores is where it believes the end to be.
    let _ = client.steer(run_id, "m2", "hello").await;
    client.cancel(run_id).await.expect("cancels");
    assert_eq!(ended(&client, run_id).await.end(), Some("cancelled"));
    assert_eq!(talk.times("steer m1  hello"), 1, "{:?}", talk.heard());
    receipt(&client, run_id, "m1", "hello", Receipt::Seen).await;
}

#[tokio::test]
async fn a_damaged_inbox_answers_what_it_knows_and_takes_nothing_more() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("work").await;
    for id in ["m1", "m2", "m3"] {
        client.steer(run_id, id, "hello").await.expect("is stored");
        receipt(&client, run_id, id, "hello", Receipt::Seen).await;
    }
    talk.bench.kill();
    let inbox = talk.bench.spool().join("active").join(run_id.to_string()).join("inbox.jsonl");
    let text = std::fs::read_to_string(&inbox).expect("there");
    std::fs::write(&inbox, text.replacen("\"m2\"", "\"mX\"", 1)).expect("writes");
    talk.bench.start();
    let client = talk.bench.client().await;
    receipt(&client, run_id, "m3", "hello", Receipt::Seen).await;
    assert_eq!(refusal(client.steer(run_id, "m2", "hello").await), "Damaged");
    assert_eq!(refusal(client.steer(run_id, "m4", "hello").await), "Damaged");
    client.cancel(run_id).await.expect("cancels");
    assert_eq!(ended(&client, run_id).await.end(), Some("cancelled"));
    assert_eq!(talk.times("steer m2  hello"), 1);
}
