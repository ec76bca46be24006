//! Staging on a disk that fails, and deaths while staging.

use airouter_sessiond::client::{Attachment, WaitFor};

use super::attachments::png;
use super::support::PATIENCE;
use super::{agent, ended, prepared, spool, submit};

/// A submission with everything that it can bring, on a disk that fails so: what became of it.
async fn refused(faults: &str) -> String {
    let mut bench = prepared("[limits]\nfree_space = 0\n");
    bench.environment("AIROUTER_FAULTS", faults);
    bench.start();
    let before = spool(&bench);
    let mut submission = agent(&bench);
    submission.output_schema = Some("true".into());
    submission.environment.insert("ANSWER".into(), "\"[1]\"".into());
    let sent = [Attachment::new("a.png", png(100_000)), Attachment::new("b.png", png(100))];
    let answer = submit(&bench.client().await, &submission, &sent).await;
    let why = answer.expect_err("it cannot be stored").refusal().unwrap_or(faults).to_owned();
    assert_eq!(spool(&bench), before, "{faults}: nothing is left behind");
    // When the disk works again, so does the same submission.
    let client = bench.client().await;
    submit(&client, &submission, &sent).await.expect("submits");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{faults}: {:?}\n{}", status.json(), bench.log());
    assert_eq!(bench.read(&format!("starts-{}", submission.run_id())), "start\n");
    why
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_disk_that_fails_while_files_are_staged_leaves_nothing() {
    for step in [
        "mkdir:attachments:1",
        "create:*.png:1",
        "create:*.png:2",
        "short:*.png:1",
        "short:*.png:2",
        "fsync:*.png:2",
        "dirsync:attachments:1",
        "create:output-schema.json:1",
        "short:output-schema.json:1",
        "fsync:output-schema.json:1",
    ] {
        assert_eq!(refused(&format!("{step}:ENOSPC")).await, "StorageFull", "{step}");
        assert_eq!(refused(&format!("{step}:EIO")).await, "StorageFailed", "{step}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "faults"), ignore = "needs --features faults")]
async fn a_death_while_files_are_staged_is_a_submission_that_never_was() {
    for step in ["create:*.png:2", "dirsync:attachments:1", "fsync:output-schema.json:1"] {
        let mut bench = prepared("");
        bench.environment("AIROUTER_FAULTS", &format!("{step}:KILL"));
        bench.start();
        let mut submission = agent(&bench);
        submission.output_schema = Some("true".into());
        submission.environment.insert("ANSWER".into(), "\"[1]\"".into());
        let sent = [Attachment::new("a.png", png(100_000)), Attachment::new("b.png", png(100))];
        submit(&bench.client().await, &submission, &sent).await.expect_err("nobody answers");
        bench.reap();
        let mut bench = bench.without_environment();
        bench.start();
        let active = std::fs::read_dir(bench.spool().join("active")).expect("active").count();
        assert_eq!(active, 0, "{step}");
        let client = bench.client().await;
        submit(&client, &submission, &sent).await.expect("submits");
        let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
        assert_eq!(status.end(), Some("completed"), "{step}: {:?}", status.json());
        let kept = ended(&bench, submission.run_id()).join("attachments");
        assert_eq!(std::fs::read_dir(kept).expect("kept").count(), 2);
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "crash-points"), ignore = "needs --features crash-points")]
async fn an_admission_that_nobody_was_told_of_is_carried_out_with_its_files() {
    let mut bench = prepared("");
    bench.environment("AIROUTER_CRASH_AT", "daemon.admitted");
    bench.start();
    let submission = agent(&bench);
    let sent = [Attachment::new("a.png", png(100_000))];
    submit(&bench.client().await, &submission, &sent).await.expect_err("nobody answers");
    bench.reap();
    let mut bench = bench.without_environment();
    bench.start();
    let client = bench.client().await;
    submit(&client, &submission, &sent).await.expect("the same session");
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(bench.read(&format!("starts-{}", submission.run_id())), "start\n");
    let got = format!("got-{}-{}.png", submission.run_id(), airouter_sessiond::spool::sha256(&png(100_000)));
    assert_eq!(std::fs::read(bench.path().join(got)).expect("it got there"), png(100_000));
}
