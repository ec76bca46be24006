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
