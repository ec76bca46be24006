//! Promise 1: a session's program is started at most once, and the same submission is the same session for ever.

mod support;

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::RunId;
use support::{Bench, PATIENCE};

#[tokio::test]
async fn a_hundred_racing_submits_start_one_process() {
    let bench = Bench::new();
    let submission = bench.script("echo started >>starts; sleep 0.3");
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = bench.client().await;
        let submission = submission.clone();
        racing.spawn(async move {
            let answer = client.submit(&submission, None).await.expect("the same session");
            (answer.object, answer.status.run_id().expect("run_id"))
        });
    }
    let mut answers = std::collections::BTreeSet::new();
    while let Some(answer) = racing.join_next().await {
        answers.insert(answer.expect("task"));
    }
    assert_eq!(answers.len(), 1, "one session, one answer: {answers:?}");
    let client = bench.client().await;
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"));
    assert_eq!(bench.read("starts"), "started\n");
}

#[tokio::test]
async fn a_retry_is_the_same_session_while_it_runs_after_its_end_and_after_a_restart() {
    let mut bench = Bench::new();
    let submission = bench.script("echo started >>starts; cat; read -r line </dev/null; sleep 0.2");
    let input = Some(b"one\n".to_vec());
    let client = bench.client().await;
    client.submit(&submission, input.clone()).await.expect("first");
    client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    client.submit(&submission, input.clone()).await.expect("while it runs");
    client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    let ended = client.submit(&submission, input.clone()).await.expect("after its end");
    assert_eq!(ended.status.end(), Some("completed"));
    bench.stop();
    bench.start();
    let client = bench.client().await;
    let again = client.submit(&submission, input).await.expect("after a restart");
    assert_eq!(again.status.json(), ended.status.json());
    assert_eq!(bench.read("starts"), "started\n");
}

#[tokio::test]
async fn one_byte_changed_is_refused_naming_the_session() {
    let mut bench = Bench::new();
    let submission = bench.script("echo started >>starts; cat");
    let client = bench.client().await;
    client.submit(&submission, Some(b"one".to_vec())).await.expect("first");
    client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    for round in 0..2 {
        let client = bench.client().await;
        let mut other = submission.clone();
        other.arguments[0].push(' ');
        for (what, submission, input) in
            [("arguments", &other, &b"one"[..]), ("input", &submission, b"two"), ("input", &submission, b"")]
        {
            let error = client.submit(submission, Some(input.to_vec())).await.expect_err(what);
            assert_eq!(error.refusal(), Some("SubmissionChanged"), "{what}: {error}");
            assert!(error.to_string().contains(&submission.run_id().to_string()), "{error}");
        }
        if round == 0 {
            bench.stop();
            bench.start();
        }
    }
    assert_eq!(bench.read("starts"), "started\n");
}

#[tokio::test]
async fn what_was_admitted_and_never_started_starts_once_after_a_crash() {
    let mut bench = Bench::with("[limits]\nactive = 1\n");
    let first = bench.script("until [ -e go ]; do sleep 0.02; done");
    let second = bench.script("echo started >>starts");
    let client = bench.client().await;
    client.submit(&first, None).await.expect("first");
    client.wait(first.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    let queued = client.submit(&second, None).await.expect("second");
    assert_eq!(queued.status.state(), "queued");
    assert_eq!(queued.status.number("queue-position"), Some(1));
    bench.kill();
    bench.start();
    let client = bench.client().await;
    assert_eq!(client.status(second.run_id()).await.expect("known").state(), "queued");
    assert_eq!(bench.read("starts"), "");
    bench.write("go", "");
    for submission in [&first, &second] {
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    }
    assert_eq!(bench.read("starts"), "started\n");
}

#[tokio::test]
async fn beyond_the_queue_a_submit_is_refused_and_leaves_nothing() {
    let bench = Bench::with("[limits]\nactive = 1\nqueued = 1\n");
    let client = bench.client().await;
    let wait = bench.script("sleep 600");
    client.submit(&wait, None).await.expect("runs");
    client.submit(&bench.script("true"), None).await.expect("waits");
    let refused = bench.script("true");
    let error = client.submit(&refused, None).await.expect_err("the queue is full");
    assert_eq!(error.refusal(), Some("AtCapacity"), "{error}");
    let error = client.status(refused.run_id()).await.expect_err("it left nothing");
    assert_eq!(error.refusal(), Some("NotFound"), "{error}");
    client.cancel(wait.run_id()).await.expect("cancels");
    client.wait(wait.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    client.submit(&refused, None).await.expect("there is room now");
}

#[tokio::test]
async fn a_second_daemon_on_the_same_spool_is_refused_and_names_the_holder() {
    let bench = Bench::new();
    let link = bench.path().join("another-name");
    std::os::unix::fs::symlink(bench.path(), &link).expect("symlink");
    for spool in [bench.spool(), link.join("spool")] {
        let second = Bench::prepared("");
        let config = std::fs::read_to_string(second.config()).expect("config");
        let config = config.replace(&second.spool().display().to_string(), &spool.display().to_string());
        std::fs::write(second.config(), config).expect("config");
        let mut second = second;
        let error = second.try_start().expect_err("one owner");
        assert!(error.contains(&bench.daemon_pid().to_string()), "names the holder: {error}");
    }
    let status = bench.client().await.status(RunId::random()).await.expect_err("the first still serves");
    assert_eq!(status.refusal(), Some("NotFound"));
}
