//! The outcome: kept until the framework has it, delivered again by start-up and by Reconcile, and by nothing else.

use super::*;
use std::time::Duration;

async fn undelivered(bench: &Bench, status: &SessionStatus) {
    assert_eq!((status.state(), status.phase()), ("reconciliation-required", "running"));
    assert_eq!(status.end(), Some("completed"), "how it ended is known");
    assert!(status.text("error").contains("waits for the controller"), "{:?}", status.json());
    let active = bench.spool().join("active").join(status.run_id().expect("run_id").to_string());
    assert!(active.join("outcome.json").exists());
    // Cancelling an ended session answers with its end.
    let client = bench.client().await;
    let answer = client.cancel(status.run_id().expect("run_id")).await.expect("answers");
    assert_eq!((answer.state(), answer.end()), ("reconciliation-required", Some("completed")));
}

#[tokio::test]
async fn a_lost_answer_is_delivered_again_and_taken_down_once() {
    for restart in [false, true] {
        let mut framework = Framework::prepared();
        framework.serve(&["DeliverOutcome:1:exit-after"]);
        let mut bench = Bench::with(&framework.configuration(30));
        let submission = bound(&bench, &framework, "echo '{\"n\":1}'");
        let (run_id, status) = bench.run_submission(&submission, None).await;
        framework.died();
        undelivered(&bench, &status).await;
        // Readers come to the end all the same.
        assert_eq!(bench.events(run_id).await.last().map(|entry| entry.kind.clone()), Some("ended".into()));
        let client = bench.client().await;
        let reconciled = client.reconcile(run_id).await.expect("answers");
        undelivered(&bench, &reconciled).await;
        let evidence = reconciled.json()["evidence"].to_string();
        assert!(evidence.contains("\"controller\"") && evidence.contains("\"answers\":false"), "{evidence}");
        framework.serve(&[]);
        // That it is back delivers nothing.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(
            (client.status(run_id).await.expect("status").state(), framework.deliveries(run_id)),
            ("reconciliation-required", 1)
        );
        if restart {
            bench.kill();
            bench.start();
        } else {
            client.reconcile(run_id).await.expect("reconciles");
        }
        let client = bench.client().await;
        let delivered = || async { client.status(run_id).await.expect("status").state() == "finished" };
        for _ in 0..200 {
            if delivered().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let status = client.status(run_id).await.expect("status");
        assert_eq!(
            (status.state(), status.phase(), status.end()),
            ("finished", "complete", Some("completed"))
        );
        assert_eq!(status.text("error"), "");
        assert_eq!((framework.deliveries(run_id), framework.phase(run_id).as_str()), (2, "complete"));
        assert_eq!(starts(&bench, run_id), 1);
    }
}

#[tokio::test]
async fn a_refused_outcome_is_kept() {
    let mut framework = Framework::prepared();
    framework.serve(&["DeliverOutcome:1:refuse=UnknownRun", "DeliverOutcome:2:fail"]);
    let bench = Bench::with(&framework.configuration(30));
    let submission = bound(&bench, &framework, "true");
    let (run_id, status) = bench.run_submission(&submission, None).await;
    undelivered(&bench, &status).await;
    let client = bench.client().await;
    undelivered(&bench, &client.reconcile(run_id).await.expect("answers")).await;
    let status = client.reconcile(run_id).await.expect("answers");
    assert_eq!((status.state(), framework.deliveries(run_id)), ("finished", 1));
}

#[tokio::test]
async fn undelivered_sessions_take_no_place_in_the_pool() {
    let mut framework = Framework::start();
    let bench = Bench::with(&format!("{}[limits]\nactive = 1\n", framework.configuration(30)));
    let first = bound(&bench, &framework, "until [ -e go ]; do sleep 0.05; done");
    let second = bound(&bench, &framework, "true");
    let client = bench.client().await;
    client.submit(&first, None).await.expect("submits");
    client.submit(&second, None).await.expect("submits");
    client.wait(first.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    framework.kill();
    bench.write("go", "");
    let status = client.wait(first.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    undelivered(&bench, &status).await;
    // The next one has the place, and is not started on the word of nobody.
    until("it waits", || bench.log().contains("waits to be started"));
    assert_eq!(starts(&bench, second.run_id()), 0);
    framework.serve(&[]);
    let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert_eq!((status.state(), starts(&bench, second.run_id())), ("finished", 1));
}
