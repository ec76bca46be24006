//! Going on with an earlier conversation.

use airouter_sessiond::client::WaitFor;
use airouter_sessiond::model::{RunId, Submission};

use super::support::{PATIENCE, text};
use super::{THREAD, agent, bench, refusal, spool, submit};

#[tokio::test]
async fn the_program_is_told_the_conversation() {
    let mut bench = bench("");
    let client = bench.client().await;
    let first = agent(&bench);
    submit(&client, &first, &[]).await.expect("submits");
    client.wait(first.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    bench.kill();
    bench.start();
    let client = bench.client().await;
    let second = Submission { continues: Some(first.run_id()), ..agent(&bench) };
    submit(&client, &second, &[]).await.expect("submits");
    let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(status.text("conversation"), THREAD);
    let told = |run_id: RunId| bench.read(&format!("arguments-{run_id}")).lines().any(|word| word == THREAD);
    assert!(!told(first.run_id()) && told(second.run_id()));
    // The one that went on can be gone on with.
    let third = Submission { continues: Some(second.run_id()), ..agent(&bench) };
    submit(&client, &third, &[]).await.expect("submits");
    client.wait(third.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert!(told(third.run_id()));
    // As in every other command, a beginning of its name names it.
    let prefix = &third.run_id().to_string()[..8];
    let fourth = RunId::random();
    let environment = [format!("ID={fourth}"), format!("THREAD={THREAD}")];
    let run = |prefix: &str| {
        let fourth = fourth.to_string();
        bench.sessionctl(&[
            "run",
            "-P",
            "agent",
            "-p",
            "x",
            "-e",
            &environment[0],
            "-e",
            &environment[1],
            "--run-id",
            &fourth,
            "--continues",
            prefix,
        ])
    };
    let refused = text(&run("zzzz").stderr);
    assert!(refused.contains("\"zzzz\" names no session"), "{refused}");
    let output = run(prefix);
    assert!(output.status.success() && told(fourth), "{}", text(&output.stderr));
    let again = submit(&client, &second, &[]).await.expect("the same session");
    assert_eq!(again.status.end(), Some("completed"));
}

#[tokio::test]
async fn what_cannot_go_on_is_refused_and_leaves_nothing() {
    let bench = bench("");
    let client = bench.client().await;
    let told = agent(&bench);
    submit(&client, &told, &[]).await.expect("submits");
    let silent = bench.script("true");
    let named = bench.script("echo '{\"type\":\"conversation\",\"id\":\"c1\"}'");
    for script in [&silent, &named] {
        client.submit(script, None).await.expect("submits");
    }
    for ended in [&told, &silent, &named] {
        client.wait(ended.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    }
    let mut running = agent(&bench);
    running.environment.insert("GATE".into(), "go".into());
    submit(&client, &running, &[]).await.expect("submits");
    client.wait(running.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    let before: Vec<_> = spool(&bench).into_iter().filter(|(path, _)| path.is_dir()).collect();
    let of = |profile: &str, earlier| {
        let mut submission =
            Submission { profile: profile.into(), continues: Some(earlier), ..agent(&bench) };
        submission.arguments = if profile == "sh" { vec!["true".into()] } else { Vec::new() };
        submission
    };
    let itself = agent(&bench);
    for (submission, why) in [
        (of("agent", RunId::random()), "is known here"),
        (of("agent", running.run_id()), "has not ended"),
        (of("other", told.run_id()), "is of the dialect codex"),
        (of("agent", named.run_id()), "is of the dialect jsonl"),
        (of("sh", silent.run_id()), "named no conversation"),
        (of("sh", named.run_id()), "the dialect jsonl takes no earlier conversation"),
        (Submission { continues: Some(itself.run_id()), ..itself }, "is the session itself"),
    ] {
        let text = refusal(submit(&client, &submission, &[]).await);
        assert!(text.contains("InvalidSubmission: continues: ") && text.contains(why), "{why}: {text}");
    }
    let after: Vec<_> = spool(&bench).into_iter().filter(|(path, _)| path.is_dir()).collect();
    assert_eq!(after, before);
    bench.write("go", "");
}

#[tokio::test]
async fn an_interrupted_session_can_be_gone_on_with_once_that_is_settled() {
    let bench = bench("");
    let client = bench.client().await;
    let mut first = agent(&bench);
    first.environment.insert("DIE".into(), "1".into());
    submit(&client, &first, &[]).await.expect("submits");
    let status = client.wait(first.run_id(), WaitFor::Attention, PATIENCE).await.expect("waits");
    assert!(status.is_uncertain(), "{:?}", status.json());
    let second = Submission { continues: Some(first.run_id()), ..agent(&bench) };
    let text = refusal(submit(&client, &second, &[]).await);
    assert!(text.contains("continues: ") && text.contains("has not ended"), "{text}");
    let settled = client.reconcile(first.run_id()).await.expect("reconciles");
    assert_eq!((settled.end(), settled.text("conversation")), (Some("interrupted"), THREAD));
    submit(&client, &second, &[]).await.expect("submits");
    let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
}

#[tokio::test]
async fn one_session_at_a_time_goes_on_with_a_conversation() {
    let bench = bench("[limits]\nactive = 2\n");
    let client = bench.client().await;
    let first = agent(&bench);
    submit(&client, &first, &[]).await.expect("submits");
    client.wait(first.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    let going_on = || {
        let mut submission = Submission { continues: Some(first.run_id()), ..agent(&bench) };
        submission.environment.insert("GATE".into(), "go".into());
        submission
    };
    let racing: Vec<_> = (0..8).map(|_| going_on()).collect();
    let mut calls = Vec::new();
    for submission in racing.clone() {
        let client = bench.client().await;
        calls.push(tokio::spawn(async move { submit(&client, &submission, &[]).await.map(drop) }));
    }
    let mut admitted = 0;
    for call in calls {
        match call.await.expect("no panic") {
            Ok(()) => admitted += 1,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("continues: ") && text.contains("has not ended"), "{text}");
            }
        }
    }
    assert_eq!(admitted, 1);
    bench.write("go", "");
    for submission in &racing {
        let _ = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await;
    }
    let next = going_on();
    submit(&client, &next, &[]).await.expect("it is free again");
}
