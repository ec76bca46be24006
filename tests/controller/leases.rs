//! The lease: kept, lost, taken by others, and the framework away while it holds.

use super::*;
use std::time::{Duration, Instant};

use airouter_sessiond::model::Submission;
use nix::sys::signal::Signal;

/// Runs until it is told to go, or is stopped.
const LONG: &str = "until [ -e go ]; do sleep 0.05; done";

async fn started(bench: &Bench, submission: &Submission) {
    let client = bench.client().await;
    client.submit(submission, None).await.expect("submits");
    client.wait(submission.run_id(), WaitFor::Started, PATIENCE).await.expect("starts");
    until("its program runs", || starts(bench, submission.run_id()) == 1);
}

async fn ended(bench: &Bench, submission: &Submission) -> SessionStatus {
    let client = bench.client().await;
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert!(status.is_over(), "{:?}\n{}", status.json(), bench.log());
    assert_eq!(starts(bench, submission.run_id()), 1);
    status
}

#[tokio::test]
async fn a_lease_that_is_renewed_outlasts_its_time() {
    let framework = Framework::start();
    let bench = Bench::with(&framework.configuration(3));
    let submission = submission(&bench, "sleep 5");
    framework.add(&submission, 3);
    let (_, status) = bench.run_submission(&submission, None).await;
    assert_eq!(
        (status.end(), framework.phase(submission.run_id()).as_str()),
        (Some("completed"), "complete")
    );
}

#[tokio::test]
async fn a_lost_lease_stops_the_session() {
    for fault in [
        "",
        "RenewLease:*:refuse=ForeignLease",
        "RenewLease:*:refuse=Terminal",
        "RenewLease:*:refuse=UnknownRun",
    ] {
        let mut framework = Framework::start();
        let bench = Bench::with(&framework.configuration(6));
        let submission = bound(&bench, &framework, LONG);
        started(&bench, &submission).await;
        let begun = Instant::now();
        if fault.is_empty() {
            framework.tell("take-back", submission.run_id());
        } else {
            framework.kill();
            framework.serve(&[fault]);
        }
        let status = ended(&bench, &submission).await;
        assert_eq!((status.state(), status.end()), ("finished", Some("lease-lost")), "{fault}");
        assert!(begun.elapsed() < Duration::from_secs(6), "at the next renewal, not at the end of the lease");
        assert_eq!(
            framework.end(submission.run_id()),
            Some("lease-lost".into()),
            "it is reported all the same"
        );
    }
}

#[tokio::test]
async fn an_outage_shorter_than_the_lease_changes_nothing() {
    for outage in ["dead", "stopped", "its bus is gone"] {
        let mut framework = Framework::start();
        let bench = Bench::with(&framework.configuration(6));
        let submission = bound(&bench, &framework, LONG);
        started(&bench, &submission).await;
        match outage {
            "stopped" => framework.signal(Signal::SIGSTOP),
            "dead" => framework.kill(),
            _ => {
                framework.broker.kill();
                framework.died();
            }
        }
        tokio::time::sleep(Duration::from_secs(4)).await;
        match outage {
            "stopped" => framework.signal(Signal::SIGCONT),
            "dead" => framework.serve(&[]),
            _ => {
                framework.broker.restart();
                framework.serve(&[]);
            }
        }
        tokio::time::sleep(Duration::from_secs(4)).await;
        bench.write("go", "");
        let status = ended(&bench, &submission).await;
        assert_eq!((status.state(), status.end()), ("finished", Some("completed")), "{outage}");
    }
}

#[tokio::test]
async fn a_run_stays_its_frameworks_while_none_is_configured() {
    let framework = Framework::start();
    let mut bench = Bench::with(&framework.configuration(3));
    let submission = bound(&bench, &framework, LONG);
    started(&bench, &submission).await;
    bench.kill();
    bench.configure("", "");
    bench.start();
    let status = ended(&bench, &submission).await;
    assert_eq!((status.state(), status.end()), ("reconciliation-required", Some("lease-lost")));
    assert!(status.text("error").contains("[controller]"), "{:?}", status.json());
    bench.kill();
    bench.configure(&framework.configuration(3), "");
    bench.start();
    until("it is delivered by the start", || framework.end(submission.run_id()) == Some("lease-lost".into()));
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_ends_the_session_when_it_runs_out() {
    let mut framework = Framework::start();
    let bench = Bench::with(&framework.configuration(4));
    let submission = bound(&bench, &framework, LONG);
    started(&bench, &submission).await;
    framework.kill();
    let begun = Instant::now();
    let status = ended(&bench, &submission).await;
    let lasted = begun.elapsed();
    assert_eq!((status.state(), status.end()), ("reconciliation-required", Some("lease-lost")));
    assert!(lasted > Duration::from_secs(2), "not lost before it ran out: {lasted:?}");
    assert!(lasted < Duration::from_secs(8), "{lasted:?}");
    framework.serve(&[]);
    let status = bench.client().await.reconcile(submission.run_id()).await.expect("delivers");
    assert_eq!((status.state(), status.end()), ("finished", Some("lease-lost")));
    assert_eq!(framework.end(submission.run_id()), Some("lease-lost".into()));
}

#[tokio::test]
async fn without_a_daemon_the_executor_ends_it_when_the_lease_runs_out() {
    let framework = Framework::start();
    let mut bench = Bench::with(&framework.configuration(3));
    let submission = bound(&bench, &framework, LONG);
    started(&bench, &submission).await;
    bench.kill();
    let folder = bench.spool().join("active").join(submission.run_id().to_string());
    until("its executor ended it", || folder.join("outcome.json").exists());
    bench.start();
    let status = ended(&bench, &submission).await;
    assert_eq!(status.end(), Some("lease-lost"));
    until("it is delivered by the start", || framework.end(submission.run_id()) == Some("lease-lost".into()));
}

#[tokio::test]
async fn a_daemon_that_comes_back_adopts_at_once_and_renewal_decides() {
    for (away, lost) in [(false, false), (true, false), (false, true)] {
        let mut framework = Framework::start();
        let mut bench = Bench::with(&framework.configuration(9));
        let submission = bound(&bench, &framework, LONG);
        started(&bench, &submission).await;
        bench.kill();
        if lost {
            framework.tell("take-back", submission.run_id());
        }
        if away {
            framework.kill();
        }
        bench.start();
        let client = bench.client().await;
        assert_eq!(client.status(submission.run_id()).await.expect("known").state(), "driving");
        if away {
            tokio::time::sleep(Duration::from_secs(3)).await;
            framework.serve(&[]);
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        if !lost {
            bench.write("go", "");
        }
        let status = ended(&bench, &submission).await;
        let end = if lost { "lease-lost" } else { "completed" };
        assert_eq!((status.state(), status.end()), ("finished", Some(end)), "{away} {lost}");
    }
}

/// One runs, one waits for its place.
async fn queued(bench: &Bench, framework: &Framework) -> (Submission, Submission) {
    let first = bound(bench, framework, LONG);
    let second = submission(bench, "true");
    framework.add(&second, 6);
    started(bench, &first).await;
    let status = bench.client().await.submit(&second, None).await.expect("submits").status;
    assert_eq!(status.state(), "queued");
    (first, second)
}

#[tokio::test]
async fn in_the_queue_the_lease_is_kept_and_its_loss_noticed() {
    let framework = Framework::start();
    let bench = Bench::with(&format!("{}[limits]\nactive = 1\n", framework.configuration(6)));
    let (first, second) = queued(&bench, &framework).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    framework.tell("take-back", second.run_id());
    let client = bench.client().await;
    let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
    assert_eq!((status.state(), status.end()), ("finished", Some("lease-lost")));
    assert_eq!(
        (starts(&bench, second.run_id()), framework.end(second.run_id())),
        (0, Some("lease-lost".into()))
    );
    bench.write("go", "");
    assert_eq!(ended(&bench, &first).await.end(), Some("completed"));
}

#[tokio::test]
async fn what_was_never_started_starts_after_a_crash_only_if_its_lease_stands() {
    for (away, lost) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut framework = Framework::start();
        let mut bench = Bench::with(&format!("{}[limits]\nactive = 1\n", framework.configuration(9)));
        let (first, second) = queued(&bench, &framework).await;
        bench.kill();
        if lost {
            framework.tell("take-back", second.run_id());
        }
        if away {
            framework.kill();
        }
        bench.write("go", "");
        bench.start();
        let client = bench.client().await;
        if away {
            until("it waits", || bench.log().contains("waits to be started"));
            assert_eq!(starts(&bench, second.run_id()), 0);
            framework.serve(&[]);
        }
        let status = client.wait(second.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        let expected = if lost { ("lease-lost", 0) } else { ("completed", 1) };
        assert_eq!(
            (status.end(), starts(&bench, second.run_id())),
            (Some(expected.0), expected.1),
            "{away} {lost}"
        );
        assert_eq!(framework.end(second.run_id()), Some(expected.0.into()));
        assert_eq!(starts(&bench, first.run_id()), 1);
    }
}

#[tokio::test]
async fn cancellation_comes_from_the_framework() {
    let framework = Framework::start();
    let bench = Bench::with(&format!("{}[limits]\nactive = 1\n", framework.configuration(3)));
    let (first, second) = queued(&bench, &framework).await;
    for submission in [&second, &first] {
        framework.tell("cancel", submission.run_id());
        let client = bench.client().await;
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(
            (status.state(), status.phase(), status.end()),
            ("finished", "cancelled", Some("cancelled"))
        );
        assert_eq!(status.json().get("cancel-requested"), Some(&true.into()));
        assert_eq!(framework.phase(submission.run_id()), "cancelled");
    }
    assert_eq!(starts(&bench, second.run_id()), 0);
}

#[tokio::test]
async fn cancellation_goes_to_the_framework_and_does_not_wait_for_it() {
    for (away, waiting) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut framework = Framework::start();
        let bench = Bench::with(&format!("{}[limits]\nactive = 1\n", framework.configuration(30)));
        let (first, second) = queued(&bench, &framework).await;
        let submission = if waiting { &second } else { &first };
        if away {
            framework.kill();
        }
        let client = bench.client().await;
        client.cancel(submission.run_id()).await.expect("the wish is stored");
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("cancelled"), "{away} {waiting}");
        if away {
            assert_eq!(status.state(), "reconciliation-required");
            framework.serve(&[]);
            let status = client.reconcile(submission.run_id()).await.expect("delivers");
            assert_eq!((status.state(), status.phase()), ("finished", "cancelled"));
        } else {
            until("the framework knows of the wish", || {
                framework.run(submission.run_id())["cancel-requested"] == true
            });
        }
        assert_eq!(framework.phase(submission.run_id()), "cancelled");
        bench.write("go", "");
        client.cancel(first.run_id()).await.expect("answers");
    }
}
