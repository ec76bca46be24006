//! Questions: stored, listed, replayed, answered exactly once.

use airouter_sessiond::client::{Delivery, FollowOptions};

use super::*;

#[tokio::test]
async fn a_question_waits_for_its_answer_whoever_looks() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("ask").await;
    let id = asked(&client, run_id).await;
    assert_eq!(id, "q1");
    // Whoever asked to be told leaves; nothing changes.
    let mut watcher = talk.bench.client().await.subscribe(run_id, "start").await.expect("subscribes");
    assert!(matches!(watcher.next().await, Ok(Some(Delivery::Activity { .. }))));
    drop((watcher, client));
    let client = talk.bench.client().await;
    let status = client.status(run_id).await.expect("status").typed().expect("known words");
    let open = &status.questions[0];
    assert_eq!(
        (open.choices.as_slice(), open.tool.as_deref()),
        (&["allow".to_owned(), "deny".into()][..], Some("rm"))
    );
    assert!(open.expires.is_some_and(|expires| expires > open.asked));
    // A late observer has it by replay.
    let options = FollowOptions { raw: false, live: false };
    let mut replay = client.follow(run_id, "start", options).await.expect("follows");
    let mut question = None;
    while let Some(entry) = replay.next().await.expect("reads") {
        question = (entry.kind == "question").then_some(entry).or(question);
    }
    assert_eq!(question.expect("there").details.get("text"), Some(&"May I?".into()));
    for (answer, name) in [
        (choose("maybe"), "InvalidArgument"),
        (say("yes"), "InvalidArgument"),
        (Answer::default(), "InvalidArgument"),
    ] {
        assert_eq!(refusal(client.answer(run_id, &id, &answer).await), name);
    }
    assert_eq!(refusal(client.answer(run_id, "q2", &choose("allow")).await), "UnknownQuestion");
    client.answer(run_id, &id, &choose("allow")).await.expect("is stored");
    // Whether or not it was carried out yet.
    assert_eq!(refusal(client.answer(run_id, &id, &choose("deny")).await), "QuestionSettled");
    client.answer(run_id, &id, &choose("allow")).await.expect("the same");
    talk.hears("answer p1 allow");
    client.steer(run_id, "m", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    for restart in [false, true] {
        let client = if restart { talk.another_daemon().await } else { talk.bench.client().await };
        client.answer(run_id, &id, &choose("allow")).await.expect("the same, after the end");
        assert_eq!(refusal(client.answer(run_id, &id, &choose("deny")).await), "QuestionSettled");
        assert_eq!(refusal(client.answer(run_id, "q2", &choose("deny")).await), "UnknownQuestion");
    }
    assert_eq!(talk.times("answer p1 allow"), 1);
    assert_eq!(talk.said(run_id, "question-settled").await, ["answered q1"]);
}

/// The executor of an earlier daemon is not heard yet: nothing is said of its questions that is not known.
#[tokio::test]
async fn an_answer_to_a_session_that_was_just_found_again_is_not_refused_as_unknown() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("ask ask").await;
    asked(&client, run_id).await;
    talk.hears("prompt");
    let executor = Pid::from_raw(executors(run_id)[0]);
    let signal = |signal| nix::sys::signal::kill(executor, signal).expect("signals");
    signal(Signal::SIGSTOP);
    let client = talk.another_daemon().await;
    assert_eq!(refusal(client.answer(run_id, "q1", &choose("allow")).await), "Internal");
    // It is stored, whoever is slow.
    let sent = client.steer(run_id, "m", "hello").await.expect("is stored");
    assert_eq!(sent.receipt, Receipt::Stored);
    let answering = {
        let client = talk.bench.client().await;
        tokio::spawn(async move { client.answer(run_id, "q1", &choose("allow")).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal(Signal::SIGCONT);
    answering.await.expect("no panic").expect("is stored when the executor is heard");
    talk.hears("answer p1 allow");
    receipt(&client, run_id, "m", "hello", Receipt::Seen).await;
    // At once after a restart.
    for answer in ["q2", "q3"] {
        let client = talk.another_daemon().await;
        match answer {
            "q2" => client.answer(run_id, "q2", &choose("allow")).await.expect("it was asked"),
            _ => assert_eq!(refusal(client.answer(run_id, "q3", &choose("allow")).await), "UnknownQuestion"),
        }
    }
    client_done(&talk, run_id).await;
    assert_eq!((talk.times("answer p1 allow"), talk.times("answer p2 allow")), (1, 1));
}

async fn client_done(talk: &Talk, run_id: RunId) {
    let client = talk.bench.client().await;
    client.steer(run_id, "done", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
}

#[tokio::test]
async fn a_daemon_that_dies_between_question_and_answer_changes_nothing() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("ask-text").await;
    let id = asked(&client, run_id).await;
    let client = talk.another_daemon().await;
    assert_eq!(asked(&client, run_id).await, id);
    client.answer(run_id, &id, &say("Ada")).await.expect("is stored");
    talk.hears("answer p1  Ada");
    client.steer(run_id, "m", "done").await.expect("is stored");
    let status = ended(&client, run_id).await;
    assert_eq!(status.end(), Some("completed"));
    assert!(!status.asks(), "{:?}", status.json());
    assert_eq!(talk.times("start"), 1);
}

#[cfg(feature = "crash-points")]
#[tokio::test]
async fn an_answer_that_was_stored_before_the_daemon_died_is_carried_out_once() {
    let mut talk = Talk::prepared("");
    let mark = talk.bench.path().join("reached").display().to_string();
    talk.bench.environment("AIROUTER_CRASH_AT", &format!("daemon.told:{mark}"));
    talk.bench.start();
    let (client, run_id) = talk.start("ask").await;
    let id = asked(&client, run_id).await;
    client.answer(run_id, &id, &choose("allow")).await.expect_err("the daemon dies");
    talk.bench.reap();
    // Its executor was not told.
    assert_eq!(talk.times("answer p1 allow"), 0);
    talk.bench.start();
    let client = talk.bench.client().await;
    client.answer(run_id, &id, &choose("allow")).await.expect("the same");
    talk.hears("answer p1 allow");
    assert_eq!(refusal(client.answer(run_id, &id, &choose("deny")).await), "QuestionSettled");
    client.steer(run_id, "m", "done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.times("answer p1 allow"), 1);
}

#[tokio::test]
async fn an_answer_is_carried_out_with_no_daemon_about() {
    let mut talk = Talk::new();
    let (client, run_id) = talk.start("ask").await;
    let id = asked(&client, run_id).await;
    client.answer(run_id, &id, &choose("deny")).await.expect("is stored");
    talk.bench.kill();
    talk.bench.start();
    talk.hears("answer p1 deny");
    let client = talk.bench.client().await;
    client.cancel(run_id).await.expect("cancels");
    ended(&client, run_id).await;
    assert_eq!(talk.times("answer p1 deny"), 1);
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_refused_in_the_end() {
    let talk = Talk::with("question_seconds = 1\n");
    let (client, run_id) = talk.start("ask").await;
    let id = asked(&client, run_id).await;
    talk.hears("answer p1");
    assert_eq!(talk.times("answer p1"), 1, "without a choice");
    let begun = std::time::Instant::now();
    while client.status(run_id).await.expect("status").asks() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(refusal(client.answer(run_id, &id, &choose("allow")).await), "QuestionSettled");
    client.steer(run_id, "m", "ask withdraw done").await.expect("is stored");
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.said(run_id, "question").await, ["q1", "q2"]);
    assert_eq!(talk.said(run_id, "question-settled").await, ["expired q1", "withdrawn q2"]);
    assert_eq!(refusal(client.answer(run_id, "q2", &choose("allow")).await), "QuestionSettled");
}

#[tokio::test]
async fn neither_idleness_nor_a_last_word_ends_a_program_that_waits_for_people() {
    let talk = Talk::with("[limits]\nlinger_ms = 300\n");
    let client = talk.bench.client().await;
    let mut submission = talk.submission();
    submission.idle_seconds = Some(1);
    let run_id = submission.run_id();
    client.submit(&submission, Some(b"ask done".to_vec())).await.expect("submits");
    let id = asked(&client, run_id).await;
    let status = client.wait(run_id, WaitFor::Finished, Duration::from_secs(2)).await.expect("waits");
    assert_eq!(status.end(), None, "the question is open");
    client.answer(run_id, &id, &choose("allow")).await.expect("is stored");
    // Its last word was said before, so that its standard input is closed now.
    assert_eq!(ended(&client, run_id).await.end(), Some("completed"));
    assert_eq!(talk.heard().last().map(String::as_str), Some("end of file"));
}
