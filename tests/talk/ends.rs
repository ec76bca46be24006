//! How sessions end that somebody talks to.

use super::*;

#[tokio::test]
async fn a_cancelled_program_is_asked_in_its_own_words_first() {
    let talk = Talk::new();
    let (client, run_id) = talk.start("ask").await;
    asked(&client, run_id).await;
    client.cancel(run_id).await.expect("cancels");
    let status = ended(&client, run_id).await;
    assert_eq!(
        (status.end(), status.number("exit-code")),
        (Some("cancelled"), Some(0)),
        "{:?}",
        status.json()
    );
    assert_eq!(talk.heard()[2..], ["interrupt", "interrupted", "end of file"]);
    assert_eq!(talk.said(run_id, "question-settled").await, ["ended q1"]);
    assert!(!status.asks());
}

#[tokio::test]
async fn a_program_that_does_not_listen_is_stopped_by_signals() {
    let talk = Talk::with("[limits]\ngrace_ms = 300\n");
    let (client, run_id) = talk.start("stubborn").await;
    client.cancel(run_id).await.expect("cancels");
    let status = ended(&client, run_id).await;
    assert_eq!((status.end(), status.number("exit-signal")), (Some("cancelled"), Some(15)));
}

#[tokio::test]
async fn an_input_that_is_no_text_is_refused_before_anything_starts() {
    let talk = Talk::new();
    let client = talk.bench.client().await;
    let submission = talk.submission();
    let answer = client.submit(&submission, Some(vec![b'a', 0xff])).await;
    let text = answer.expect_err("is refused").to_string();
    assert!(text.contains("InvalidSubmission: input: is not UTF-8"), "{text}");
    assert_eq!(refusal(client.status(submission.run_id()).await), "NotFound");
    assert!(talk.heard().is_empty());
}

#[tokio::test]
async fn of_a_killed_executor_no_more_is_said_than_is_known() {
    for daemon_too in [false, true] {
        let mut talk = Talk::new();
        let (mut client, run_id) = talk.start("ask").await;
        let id = asked(&client, run_id).await;
        client.steer(run_id, "m1", "hello").await.expect("is stored");
        receipt(&client, run_id, "m1", "hello", Receipt::Seen).await;
        client.steer(run_id, "m2", "stubborn").await.expect("is stored");
        receipt(&client, run_id, "m2", "stubborn", Receipt::Seen).await;
        // More than a pipe holds: the last of them cannot have been written.
        let long = "x".repeat(16_000);
        for n in 0..20 {
            client.steer(run_id, &format!("long{n}"), &long).await.expect("is stored");
        }
        if daemon_too {
            talk.bench.kill();
        }
        kill_executor(run_id);
        if daemon_too {
            talk.bench.start();
            client = talk.bench.client().await;
        }
        let begun = std::time::Instant::now();
        while !client.status(run_id).await.expect("status").is_uncertain() {
            assert!(begun.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for settled in [false, true] {
            if settled {
                assert_eq!(client.reconcile(run_id).await.expect("reconciles").end(), Some("interrupted"));
            }
            receipt(&client, run_id, "m1", "hello", Receipt::Seen).await;
            let last = client.steer(run_id, "long19", &long).await.expect("known").receipt;
            assert!(matches!(last, Receipt::Stored | Receipt::Undeliverable), "{last:?}");
            assert!(!client.status(run_id).await.expect("status").asks());
            assert_eq!(refusal(client.steer(run_id, "new", "hello").await), "NotRunning");
            // The events tell how it was settled only when it is.
            let refused = if settled { "QuestionSettled" } else { "NotRunning" };
            assert_eq!(refusal(client.answer(run_id, &id, &choose("allow")).await), refused);
        }
        assert_eq!(talk.said(run_id, "question-settled").await, ["ended q1"]);
    }
}

#[cfg(feature = "crash-points")]
#[tokio::test]
async fn an_executor_that_dies_right_after_it_wrote_an_answer_does_not_write_it_again() {
    let mut talk = Talk::prepared("");
    let mark = talk.bench.path().join("reached").display().to_string();
    talk.bench.environment("AIROUTER_CRASH_AT", &format!("executor.answered:{mark}"));
    talk.bench.start();
    let (client, run_id) = talk.start("ask").await;
    let id = asked(&client, run_id).await;
    client.answer(run_id, &id, &choose("allow")).await.expect("is stored");
    until("it dies", || talk.bench.path().join("reached").exists());
    let begun = std::time::Instant::now();
    while !client.status(run_id).await.expect("status").is_uncertain() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.answer(run_id, &id, &choose("allow")).await.expect("the same");
    assert_eq!(refusal(client.answer(run_id, &id, &choose("deny")).await), "QuestionSettled");
    assert_eq!(client.reconcile(run_id).await.expect("reconciles").end(), Some("interrupted"));
    client.answer(run_id, &id, &choose("allow")).await.expect("the same");
    assert_eq!(talk.said(run_id, "question-settled").await, ["answered q1"]);
    assert!(talk.times("answer p1 allow") <= 1);
}
