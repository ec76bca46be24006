//! What an operator is told of the framework: by `sessionctl doctor`, which asks it, and by the service, which remembers.

use super::*;
use serde_json::{Value, json};

/// What `doctor` says of that.
fn diagnosis(bench: &Bench, name: &str) -> Value {
    let output = bench.sessionctl_configured(&["--json", "doctor"]);
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = said["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["name"] == name).cloned().unwrap_or_default()
}

fn assert_found(check: &Value, level: &str, text: &str) {
    let found = check["text"].as_str().unwrap_or_default();
    assert!(check["level"] == level && found.contains(text), "{level}, {text}: {check}");
}

async fn controller(bench: &Bench) -> Value {
    bench.client().await.properties().await.expect("properties")["Controller"].clone()
}

#[test]
fn doctor_says_whether_the_framework_answers_and_changes_nothing() {
    let mut framework = Framework::prepared();
    let token = framework.token("right");
    let configuration = framework.configuration(30);
    // Nothing of this needs a service.
    let bench = Bench::prepared(&format!("{configuration}token_file = \"{}\"\n", token.display()));
    assert_found(&diagnosis(&bench, "controller"), "fail", "nobody owns org.example.Framework");
    framework.serve(&[]);
    assert_found(&diagnosis(&bench, "controller"), "ok", "answers, and takes the token of app");
    std::fs::write(&token, "wrong-secret\n").expect("writes");
    let check = diagnosis(&bench, "controller");
    assert_found(&check, "fail", "does not take our token");
    assert!(!check.to_string().contains("secret"), "{check}");
    bench.configure(&configuration, "");
    assert_found(&diagnosis(&bench, "controller"), "fail", "does not take our token");
    let other = configuration.replace("/org/example/Framework", "/org/example/Other");
    bench.configure(&other, "");
    assert_found(&diagnosis(&bench, "controller"), "fail", "the framework");
    bench.configure(&configuration, "");
    framework.signal(nix::sys::signal::Signal::SIGSTOP);
    assert_found(&diagnosis(&bench, "controller"), "fail", "does not answer");
    framework.kill();
    framework.broker.kill();
    assert_found(&diagnosis(&bench, "controller"), "fail", "its bus cannot be reached");
    bench.configure("", "");
    assert_found(&diagnosis(&bench, "controller"), "ok", "embedded");
}

#[tokio::test]
async fn what_waits_for_the_framework_is_counted_until_it_has_it() {
    let mut framework = Framework::start();
    let bench = Bench::with(&framework.configuration(30));
    assert_eq!(controller(&bench).await, json!({"name": "org.example.Framework", "undelivered": 0}));
    assert_eq!(diagnosis(&bench, "outcomes"), Value::Null);
    let submission = bound(&bench, &framework, "until [ -e go ]; do sleep 0.05; done");
    let (client, run_id) = (bench.client().await, submission.run_id());
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    framework.kill();
    bench.write("go", "");
    client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    let told = controller(&bench).await;
    assert_eq!(told["undelivered"], 1);
    assert!(told["problem"].as_str().is_some_and(|problem| problem.contains("nobody owns")), "{told}");
    assert_found(
        &diagnosis(&bench, "outcomes"),
        "warn",
        "1 ended and not delivered to org.example.Framework",
    );
    let status = support::text(&bench.sessionctl_configured(&["status"]).stdout);
    for said in ["org.example.Framework", "did not answer: ", "1 session: ", "sessionctl reconcile"] {
        assert!(status.contains(said), "{said} in\n{status}");
    }
    framework.serve(&[]);
    client.reconcile(run_id).await.expect("delivers");
    assert_eq!(controller(&bench).await, json!({"name": "org.example.Framework", "undelivered": 0}));
    let status = support::text(&bench.sessionctl_configured(&["status"]).stdout);
    assert!(!status.contains("undelivered") && !status.contains("did not answer"), "{status}");
}

#[tokio::test]
async fn a_framework_that_its_bus_can_start_is_started_by_the_first_call() {
    let mut framework = Framework::prepared();
    let command = format!(
        "{} --database {} serve --bus {} --name {} --path {}",
        env!("CARGO_BIN_EXE_reference-controller"),
        framework.database,
        framework.broker.address(),
        framework::NAME,
        framework::PATH
    );
    framework.broker.kill();
    framework.broker.activate(framework::NAME, &command);
    framework.broker.restart();
    let bench = Bench::with(&framework.configuration(30));
    assert_found(&diagnosis(&bench, "controller"), "ok", "its bus starts it with the first call");
    let submission = bound(&bench, &framework, "true");
    assert_found(&diagnosis(&bench, "controller"), "ok", "its bus starts it with the first call");
    let (run_id, status) = bench.run_submission(&submission, None).await;
    assert_eq!((status.state(), framework.deliveries(run_id)), ("finished", 1));
    assert_found(&diagnosis(&bench, "controller"), "ok", "answers, without a token");
}
