//! The exact binding, before anything is saved.

use super::*;
use airouter_sessiond::model::{RunId, Submission};

async fn refused(bench: &Bench, submission: &Submission) -> String {
    let client = bench.client().await;
    let error = client.submit(submission, None).await.expect_err("is refused");
    let unknown = client.status(submission.run_id()).await.expect_err("nothing is known of it");
    assert_eq!(unknown.refusal(), Some("NotFound"));
    let left = std::fs::read_dir(bench.spool().join("active")).expect("the spool").count();
    assert_eq!((left, starts(bench, submission.run_id())), (0, 0), "nothing is left behind");
    format!("{}: {error}", error.refusal().unwrap_or_default())
}

#[tokio::test]
async fn a_run_goes_from_the_framework_through_the_service_and_back() {
    let framework = Framework::start();
    let bench = Bench::with(&framework.configuration(30));
    let submission = bound(&bench, &framework, "echo '{\"type\":\"preview\",\"text\":\"a\"}'");
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!((status.state(), status.phase(), status.end()), ("finished", "complete", Some("completed")));
    assert_eq!(
        (framework.phase(run_id).as_str(), framework.end(run_id)),
        ("complete", Some("completed".into()))
    );
    assert_eq!((framework.deliveries(run_id), starts(&bench, run_id)), (1, 1));
    // The same again is the same session, without the framework.
    let again = bench.client().await.submit(&submission, None).await.expect("the same session");
    assert_eq!(again.status.end(), Some("completed"));
    let failing = bound(&bench, &framework, "exit 3");
    let (run_id, status) = bench.run_submission(&failing, None).await;
    assert_eq!((status.phase(), framework.phase(run_id).as_str()), ("failed", "failed"));
}

#[tokio::test]
async fn every_foreign_part_is_refused_by_name_and_leaves_nothing() {
    let framework = Framework::start();
    let bench = Bench::with(&framework.configuration(30));
    let right = bound(&bench, &framework, "true");
    type Part = fn(&mut Submission) -> &mut Option<String>;
    let parts: [(&str, Part); 6] = [
        ("application", |s| &mut s.binding.application),
        ("host", |s| &mut s.binding.host),
        ("task_id", |s| &mut s.binding.task_id),
        ("lease_id", |s| &mut s.binding.lease_id),
        ("worker", |s| &mut s.binding.worker),
        ("operation", |s| &mut s.binding.operation),
    ];
    for (key, part) in parts {
        for (value, name) in
            [(Some("other"), "BindingMismatch"), (Some(""), "InvalidSubmission"), (None, "InvalidSubmission")]
        {
            let mut wrong = right.clone();
            *part(&mut wrong) = value.map(str::to_owned);
            let said = refused(&bench, &wrong).await;
            assert!(said.starts_with(name) && said.contains(&format!("binding.{key}")), "{said}");
        }
    }
    let mut unknown = right.clone();
    unknown.binding.run_id = RunId::random();
    assert!(refused(&bench, &unknown).await.starts_with("BindingMismatch"));
    // None of that kept the right one from running, once.
    let (run_id, status) = bench.run_submission(&right, None).await;
    assert_eq!((status.end(), starts(&bench, run_id)), (Some("completed"), 1));
}

#[tokio::test]
async fn stale_terminal_and_unreachable_runs_are_refused() {
    let mut framework = Framework::start();
    let bench = Bench::with(&framework.configuration(30));
    let stale = bound(&bench, &framework, "true");
    framework.tell("take-back", stale.run_id());
    let said = refused(&bench, &stale).await;
    assert!(said.starts_with("BindingMismatch"), "{said}");

    // Another spool has run it meanwhile.
    let elsewhere = Bench::with(&framework.configuration(30));
    let terminal = bound(&elsewhere, &framework, "true");
    elsewhere.run_submission(&terminal, None).await;
    let said = refused(&bench, &terminal).await;
    assert!(said.starts_with("BindingMismatch") && said.contains("complete"), "{said}");

    let good = bound(&bench, &framework, "true");
    framework.kill();
    assert!(refused(&bench, &good).await.starts_with("ControllerUnavailable"));
    framework.serve(&["ReadHost:1:fail", "ReadHost:2:late=3000"]);
    assert!(refused(&bench, &good).await.starts_with("ControllerUnavailable"));
    let slow = refused(&bench, &good).await;
    assert!(slow.starts_with("ControllerUnavailable") && slow.contains("within 1 s"), "{slow}");
    framework.broker.kill();
    assert!(refused(&bench, &good).await.starts_with("ControllerUnavailable"));
    framework.broker.restart();
    until("the framework leaves with its bus", || framework.is_dead());
    framework.kill();
    framework.serve(&[]);
    let (run_id, status) = bench.run_submission(&good, None).await;
    assert_eq!((status.end(), starts(&bench, run_id)), (Some("completed"), 1));
}

#[tokio::test]
async fn the_spool_takes_no_run_of_a_framework_and_keeps_its_own_under_one() {
    let framework = Framework::start();
    let mut bench = Bench::new();
    let own = bench.script("until [ -e go ]; do sleep 0.05; done");
    bench.client().await.submit(&own, None).await.expect("submits");
    let foreign = bound(&bench, &framework, "true");
    let error = bench.client().await.submit(&foreign, None).await.expect_err("no framework is configured");
    assert_eq!(error.refusal(), Some("InvalidSubmission"), "{error}");
    bench.kill();
    bench.configure(&framework.configuration(30), "");
    bench.start();
    bench.write("go", "");
    let client = bench.client().await;
    let status = client.wait(own.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert_eq!((status.state(), status.end()), ("finished", Some("completed")));
}
