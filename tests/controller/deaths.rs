//! The framework dies at every call, and the daemon at every durable step: one start, one outcome.

use super::*;
use std::time::{Duration, Instant};

use airouter_sessiond::client::Client;
use airouter_sessiond::crash;
use airouter_sessiond::model::Submission;

/// Notes its start, and goes on for long enough to be renewed.
const PROGRAM: &str = "echo '{\"n\":1}'; sleep 1.5; echo '{\"n\":2}'";

/// Submits until it is taken, reconciles until it is delivered, starting again whoever died. Whether the framework did.
async fn carried_through(bench: &mut Bench, framework: &mut Framework, what: &str) -> bool {
    let submission = bound(bench, framework, PROGRAM);
    carry(bench, framework, &submission, what).await
}

async fn carry(bench: &mut Bench, framework: &mut Framework, submission: &Submission, what: &str) -> bool {
    let run_id = submission.run_id();
    let begun = Instant::now();
    let mut died = false;
    let status = loop {
        assert!(begun.elapsed() < PATIENCE, "{what}: never delivered\n{}", bench.log());
        if framework.is_dead() {
            died = true;
            framework.kill();
            framework.serve(&[]);
        }
        if bench.is_dead() {
            bench.reap();
            bench.start();
        }
        // It may die while somebody connects.
        let Ok(client) = Client::connect_socket(&bench.socket()).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        match client.submit(submission, None).await {
            Ok(_) => {}
            Err(error) if error.refusal() == Some("ControllerUnavailable") || error.is_lost() => continue,
            Err(error) => panic!("{what}: {error}\n{}", bench.log()),
        }
        let Ok(status) = client.wait(run_id, WaitFor::Finished, Duration::from_millis(300)).await else {
            continue;
        };
        match status.state() {
            "finished" => break status,
            "reconciliation-required" if !framework.is_dead() => {
                let _ = client.reconcile(run_id).await;
            }
            _ => {}
        }
    };
    let end = status.end().expect("an end");
    assert!(matches!(end, "completed" | "interrupted"), "{what}: {end}");
    let started = starts(bench, run_id);
    assert!(started <= 1, "{what}: started {started} times");
    if end == "completed" {
        assert_eq!(started, 1, "{what}");
    }
    assert_eq!(framework.end(run_id).as_deref(), Some(end), "{what}: the framework has it");
    assert_eq!(status.phase(), framework.phase(run_id), "{what}");
    died
}

#[tokio::test]
async fn the_framework_dies_at_every_call() {
    for (method, calls) in [("ReadHost", 2), ("RenewLease", 2), ("DeliverOutcome", 1), ("Authenticate", 1)] {
        for call in 1..=calls {
            for when in ["exit-before", "exit-after"] {
                let fault = format!("{method}:{call}:{when}");
                let mut framework = Framework::prepared();
                let token = framework.token("secret");
                framework.serve(&[&fault]);
                let configuration = framework.configuration(3);
                let mut bench =
                    Bench::with(&format!("{configuration}token_file = \"{}\"\n", token.display()));
                let died = carried_through(&mut bench, &mut framework, &fault).await;
                assert!(died, "{fault} was never reached");
            }
        }
    }
}

#[tokio::test]
async fn the_framework_dies_while_it_is_told_of_a_cancellation() {
    for when in ["exit-before", "exit-after"] {
        let mut framework = Framework::prepared();
        framework.serve(&[&format!("CancelRun:1:{when}")]);
        let bench = Bench::with(&framework.configuration(30));
        let submission = bound(&bench, &framework, "sleep 600");
        let client = bench.client().await;
        client.submit(&submission, None).await.expect("submits");
        client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
        client.cancel(submission.run_id()).await.expect("stores the wish");
        framework.died();
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("cancelled"));
        framework.serve(&[]);
        let status = client.reconcile(submission.run_id()).await.expect("delivers");
        assert_eq!(
            (status.state(), framework.phase(submission.run_id()).as_str()),
            ("finished", "cancelled")
        );
    }
}

#[tokio::test]
async fn the_daemon_dies_at_every_step() {
    if !cfg!(feature = "crash-points") {
        eprintln!("SKIPPED: needs --features crash-points");
        return;
    }
    for point in crash::ALL {
        let mut framework = Framework::start();
        let mut bench = Bench::prepared(&framework.configuration(9));
        let reached = bench.path().join("reached");
        bench.environment(crash::VARIABLE, &format!("{point}:{}", reached.display()));
        bench.start();
        carried_through(&mut bench, &mut framework, point).await;
        assert!(reached.exists(), "{point}");
    }
}

#[tokio::test]
async fn the_daemon_dies_while_the_framework_is_away() {
    let mut framework = Framework::start();
    let mut bench = Bench::with(&framework.configuration(30));
    let submission = bound(&bench, &framework, "until [ -e go ]; do sleep 0.05; done");
    let run_id = submission.run_id();
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    until("its program runs", || starts(&bench, run_id) == 1);
    framework.kill();
    // At a renewal, at the end, at a delivery that fails, and at the recovery from that.
    bench.kill();
    bench.start();
    bench.write("go", "");
    bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
    for _ in 0..2 {
        bench.kill();
        bench.start();
        let status = bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!((status.state(), status.end()), ("reconciliation-required", Some("completed")));
    }
    bench.kill();
    framework.serve(&[]);
    bench.start();
    until("the start delivers it", || framework.deliveries(run_id) == 1);
    assert_eq!((framework.phase(run_id).as_str(), starts(&bench, run_id)), ("complete", 1));
}

#[tokio::test]
async fn thirty_random_deaths_of_either() {
    let mut framework = Framework::start();
    let mut bench = Bench::with(&framework.configuration(9));
    let mut state = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64) | 1;
    eprintln!("seed {state}");
    let mut random = |bound: u64| {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    };
    for round in 0..30 {
        let submission = bound(&bench, &framework, "echo '{\"n\":1}'; sleep 0.2; echo '{\"n\":2}'");
        bench.client().await.submit(&submission, None).await.expect("submits");
        tokio::time::sleep(Duration::from_micros(random(300_000))).await;
        let whom = random(3);
        if whom != 0 {
            framework.kill();
        }
        if whom != 1 {
            bench.kill();
            bench.start();
        }
        if whom != 0 {
            tokio::time::sleep(Duration::from_micros(random(300_000))).await;
            framework.serve(&[]);
        }
        carry(&mut bench, &mut framework, &submission, &format!("round {round}")).await;
        assert_eq!(framework.end(submission.run_id()).as_deref(), Some("completed"));
    }
}
