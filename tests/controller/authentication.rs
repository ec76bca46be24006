//! The token: who we are to the framework, after every connection and every start of it.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

fn with_token(framework: &Framework, token: &std::path::Path) -> String {
    format!("{}token_file = \"{}\"\n", framework.configuration(30), token.display())
}

#[tokio::test]
async fn the_token_is_named_to_every_framework_that_comes() {
    let mut framework = Framework::prepared();
    let token = framework.token("right");
    framework.serve(&[]);
    let bench = Bench::with(&with_token(&framework, &token));
    for round in 0..3 {
        let submission = bound(&bench, &framework, "true");
        let (run_id, status) = bench.run_submission(&submission, None).await;
        assert_eq!(
            (status.state(), framework.deliveries(run_id)),
            ("finished", 1),
            "{round}: {}",
            bench.log()
        );
        match round {
            0 => framework.kill(),
            _ => {
                framework.broker.kill();
                framework.broker.restart();
                until("the framework leaves with its bus", || framework.is_dead());
                framework.kill();
            }
        }
        framework.serve(&[]);
    }
    // One that forgets us is named the token again.
    framework.kill();
    framework.serve(&["ReadHost:1:refuse=NotAuthenticated", "DeliverOutcome:1:refuse=NotAuthenticated"]);
    let submission = bound(&bench, &framework, "true");
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!((status.state(), framework.deliveries(run_id)), ("finished", 1));
}

#[tokio::test]
async fn a_wrong_or_missing_token_lets_nothing_in() {
    let mut framework = Framework::prepared();
    let right = framework.token("right");
    framework.serve(&[]);
    let wrong = framework.path().join("wrong");
    fs::write(&wrong, "wrong-secret\n").expect("token");
    fs::set_permissions(&wrong, Permissions::from_mode(0o600)).expect("modes");
    for configuration in [with_token(&framework, &wrong), framework.configuration(30)] {
        let bench = Bench::with(&configuration);
        let submission = bound(&bench, &framework, "true");
        let error = bench.client().await.submit(&submission, None).await.expect_err("is refused");
        assert_eq!(error.refusal(), Some("ControllerUnavailable"), "{error}");
        assert!(!format!("{error}{}", bench.log()).contains("wrong-secret"));
    }
    // A new token in the file needs no restart, and one that others can read by now is not used.
    let bench = Bench::with(&with_token(&framework, &wrong));
    fs::set_permissions(&wrong, Permissions::from_mode(0o640)).expect("modes");
    let submission = bound(&bench, &framework, "true");
    let error = bench.client().await.submit(&submission, None).await.expect_err("is refused");
    assert!(error.to_string().contains("0640"), "{error}");
    fs::copy(&right, &wrong).expect("copies");
    fs::set_permissions(&wrong, Permissions::from_mode(0o600)).expect("modes");
    let (_, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.state(), "finished");
}

#[tokio::test]
async fn a_token_file_that_others_can_use_is_refused_at_the_start() {
    let mut framework = Framework::prepared();
    let token = framework.token("secret-word");
    let link = framework.path().join("link");
    symlink(&token, &link).expect("link");
    let refused = |path: &std::path::Path, what: &str| {
        let mut bench = Bench::prepared(&with_token(&framework, path));
        let error = bench.try_start().expect_err("is refused");
        assert!(error.contains("controller.token_file") && error.contains(what), "{error}");
        assert!(!error.contains("secret-word"), "{error}");
    };
    for mode in [0o644, 0o640, 0o604, 0o620] {
        fs::set_permissions(&token, Permissions::from_mode(mode)).expect("modes");
        refused(&token, &format!("{mode:04o}"));
    }
    fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("modes");
    refused(&link, "symbolic link");
    let folder = framework.path().join("folder");
    fs::create_dir(&folder).expect("folder");
    refused(&folder, "regular file");
    refused(&framework.path().join("none"), "cannot be read");
}

/// Somebody else's process may own the name on a bus that lets it, or the bus itself may be somebody else's.
#[tokio::test]
async fn nothing_is_sent_to_another_account() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: needs root, to be another account");
        return;
    }
    let mut framework = Framework::prepared();
    let token = framework.token("secret-word");
    framework.broker.open_to_all();
    fs::set_permissions(framework.path(), Permissions::from_mode(0o755)).expect("modes");
    let mut thief = framework.thief();
    let bench = Bench::with(&with_token(&framework, &token));
    let submission = bound(&bench, &framework, "true");
    let error = bench.client().await.submit(&submission, None).await.expect_err("is refused");
    assert_eq!(error.refusal(), Some("ControllerUnavailable"), "{error}");
    assert!(error.to_string().contains("account 65534"), "{error}");
    assert!(thief.try_wait().expect("waits").is_none(), "it was not called");
    thief.kill().expect("kill");
    thief.wait().expect("ends");
    framework.serve(&[]);
    let (_, status) = bench.run_submission(&submission, None).await;
    assert_eq!(status.state(), "finished");
}
