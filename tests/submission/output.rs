//! Structured output.

use std::time::{Duration, Instant};

use airouter_sessiond::client::{SessionStatus, WaitFor};
use airouter_sessiond::model::{RunId, Submission};
use serde_json::{Value, json};

use super::support::{Bench, PATIENCE, text};
use super::{agent, bench, prompt, refusal, spool, submit};

/// What ended a session, as its journal says.
async fn ended_record(bench: &Bench, run_id: RunId) -> serde_json::Map<String, Value> {
    let last = bench.events(run_id).await.pop().expect("events");
    assert_eq!(last.kind, "ended");
    last.details
}

/// A shell script whose answer is this text.
fn answering(bench: &Bench, answer: &str, schema: &Value) -> Submission {
    bench.write("answer", &json!({"type": "response-completed", "text": answer}).to_string());
    let mut submission = bench.script("cat answer; echo");
    submission.output_schema = Some(schema.to_string());
    submission
}

async fn run(bench: &Bench, submission: &Submission) -> SessionStatus {
    bench.run_submission(submission, None).await.1
}

#[tokio::test]
async fn an_answer_that_fits_is_a_value() {
    let bench = bench("");
    let schema = json!({
        "type": "object", "required": ["names"], "additionalProperties": false,
        "properties": {"names": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}}
    });
    let submission = answering(&bench, "\n {\"names\": [\"a\", \"b\"]} ", &schema);
    let status = run(&bench, &submission).await;
    assert_eq!((status.end(), status.text("error")), (Some("completed"), ""));
    let value = json!({"names": ["a", "b"]});
    assert_eq!(ended_record(&bench, submission.run_id()).await["value"], value);
    let folder = super::ended(&bench, submission.run_id());
    let outcome = std::fs::read_to_string(folder.join("outcome.json")).expect("an outcome");
    assert_eq!(serde_json::from_str::<Value>(&outcome).expect("JSON")["value"], value);
    let kept = std::fs::read_to_string(folder.join("output-schema.json")).expect("a schema");
    assert_eq!(serde_json::from_str::<Value>(&kept).expect("JSON"), schema);
    let page = bench.client().await.events(submission.run_id(), "start", 0).await.expect("a page");
    assert_eq!(page.records.last().expect("the end").details["value"], value, "over the bus too");
    let output = bench.sessionctl(&["--json", "follow", &submission.run_id().to_string()]);
    let printed = text(&output.stdout);
    assert!(printed.contains(r#""value":{"names":["a","b"]}"#), "{printed}");
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_an_end_of_its_own() {
    let bench = bench("");
    let schema = json!({"properties": {"list": {"items": {"type": "integer"}}}});
    for (answer, why) in [
        (r#"{"list": [1, "topsecret"]}"#, "at /list/1: type is not satisfied"),
        ("Here it is: {}", "not JSON and nothing else"),
        ("```json\n{}\n```", "not JSON and nothing else"),
        ("", "not JSON and nothing else"),
        (&"[".repeat(100_000), "not JSON and nothing else: recursion limit"),
    ] {
        let submission = answering(&bench, answer, &schema);
        let status = run(&bench, &submission).await;
        assert_eq!(status.end(), Some("invalid-output"), "{answer:.30}");
        let error = status.text("error");
        assert!(error.contains(why) && !error.contains("topsecret"), "{error}");
        let record = ended_record(&bench, submission.run_id()).await;
        assert_eq!((&record["end"], record.get("value")), (&json!("invalid-output"), None));
        assert_eq!(status.number("exit-code"), Some(0), "how it exited stays a fact of its own");
    }
    let mut silent = bench.script("true");
    silent.output_schema = Some("true".into());
    let status = run(&bench, &silent).await;
    assert_eq!((status.end(), status.text("error").contains("no answer")), (Some("invalid-output"), true));
    let mut failed = bench.script("exit 3");
    failed.output_schema = Some("true".into());
    assert_eq!(run(&bench, &failed).await.end(), Some("failed"), "only what completed is checked");
}

#[tokio::test]
async fn schemas_that_cannot_be_used_are_refused_and_leave_nothing() {
    let bench = bench("");
    let client = bench.client().await;
    let before = spool(&bench);
    for (schema, why) in [
        ("{", "is not JSON"),
        ("7", "at its top"),
        (r#"{"properties": {"a": {"type": "topsecret"}}}"#, "at /properties/a/type"),
        (r#"{"$ref": "https://127.0.0.1:1/topsecret"}"#, "refers to something that is not in it"),
        (r#"{"$ref": "file:///etc/hostname"}"#, "refers to something that is not in it"),
        (r#"{"pattern": "(?=topsecret)"}"#, "has a pattern at /pattern"),
        (&"[".repeat(200_000), "is not JSON"),
        (&" ".repeat(262_145), "is longer than 262144 characters"),
    ] {
        let mut submission = bench.script("true");
        submission.output_schema = Some(schema.to_owned());
        let text = refusal(client.submit(&submission, None).await);
        assert!(text.contains("InvalidSubmission: output-schema: ") && text.contains(why), "{text}");
        assert!(!text.contains("topsecret"), "{text}");
    }
    // It would be an argument, and longer than one can be.
    let mut long = Submission { profile: "claude".into(), ..agent(&bench) };
    long.output_schema = Some(json!({"title": "x".repeat(200_000)}).to_string());
    let text = refusal(submit(&client, &long, &[]).await);
    assert!(text.contains("InvalidSubmission: output-schema: "), "{text}");
    assert_eq!(spool(&bench), before);
}

/// Programs are given its file: what they do to it changes nothing.
#[tokio::test]
async fn an_answer_is_held_against_the_schema_that_was_submitted() {
    let bench = bench("");
    let schema = json!({ "type": "array" });
    for (harm, answer, end) in [
        ("echo true >\"$SCHEMA\"", "7", "invalid-output"),
        ("echo false >\"$SCHEMA\"", "[7]", "completed"),
        ("rm \"$SCHEMA\"", "[7]", "completed"),
        ("head -c 300 /dev/urandom >\"$SCHEMA\"", "[7]", "completed"),
    ] {
        let mut submission = answering(&bench, answer, &schema);
        let folder = bench.spool().join("active").join(submission.run_id().to_string());
        let file = folder.join("output-schema.json").display().to_string();
        submission.environment.insert("SCHEMA".into(), file);
        submission.arguments[0].insert_str(0, &format!("{harm}; "));
        let status = run(&bench, &submission).await;
        assert_eq!(status.end(), Some(end), "{harm}: {:?}", status.json());
    }
}

#[tokio::test]
async fn neither_a_pattern_nor_a_schema_holds_anything_up() {
    let bench = bench("");
    let begun = Instant::now();
    let submission = answering(
        &bench,
        &format!("\"{}!\"", "a".repeat(100_000)),
        &json!({"pattern": "^(a+)+$", "type": "string"}),
    );
    let status = run(&bench, &submission).await;
    assert!(status.text("error").contains("pattern"), "{:?}", status.json());
    assert!(begun.elapsed() < Duration::from_secs(20));

    // Every level doubles the time: 2^60.
    let mut definitions = serde_json::Map::new();
    for level in 0..60 {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        definitions.insert(format!("d{level}"), json!({"anyOf": [next, next]}));
    }
    definitions.insert("d60".into(), json!({"type": "string"}));
    let submission = answering(&bench, "1", &json!({"$ref": "#/$defs/d0", "$defs": definitions}));
    let client = bench.client().await;
    client.submit(&submission, None).await.expect("what it takes shows only with an answer");
    // Others do not notice.
    let other = run(&bench, &bench.script("true")).await;
    assert_eq!(other.end(), Some("completed"));
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("invalid-output"));
    assert!(status.text("error").contains("more time or memory"), "{}", status.text("error"));
}

#[tokio::test]
async fn a_value_that_is_too_long_is_left_out_and_said_so() {
    let bench = bench("");
    let submission = answering(&bench, &json!("x".repeat(1 << 20)).to_string(), &json!({"type": "string"}));
    let status = run(&bench, &submission).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(ended_record(&bench, submission.run_id()).await.get("value"), None);
    let events = bench.events(submission.run_id()).await;
    let said = |e: &airouter_sessiond::model::Entry| {
        e.kind == "notice" && e.details["text"].as_str().is_some_and(|text| text.contains("1048578 bytes"))
    };
    assert!(events.iter().any(said), "{:?}", events.last());
}

#[tokio::test]
async fn an_end_that_is_rebuilt_from_the_journal_keeps_the_value() {
    let mut bench = super::prepared("");
    let killed = bench.path().join("killed").display().to_string();
    bench.environment("AIROUTER_CRASH_AT", &format!("executor.ended:{killed}"));
    bench.start();
    if !cfg!(feature = "crash-points") {
        eprintln!("SKIPPED: needs --features crash-points");
        return;
    }
    let submission = answering(&bench, "{\"n\": 1}", &json!({"type": "object"}));
    let status = run(&bench, &submission).await;
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert!(bench.path().join("killed").exists(), "it died before its receipt");
    let outcome = super::ended(&bench, submission.run_id()).join("outcome.json");
    let outcome: Value =
        serde_json::from_str(&std::fs::read_to_string(outcome).expect("rebuilt")).expect("JSON");
    assert_eq!(outcome["value"], json!({"n": 1}));
}

#[tokio::test]
async fn a_schema_is_part_of_the_content_and_reaches_programs_that_take_one() {
    let bench = bench("");
    let client = bench.client().await;
    let mut submission = agent(&bench);
    submission.environment.insert("ANSWER".into(), json!("[1]").to_string());
    submission.output_schema = Some(r#"{"type": "array"}"#.into());
    submit(&client, &submission, &[]).await.expect("submits");
    let changed = Submission { output_schema: Some("true".into()), ..submission.clone() };
    assert!(refusal(submit(&client, &changed, &[]).await).contains("SubmissionChanged"));
    let status = client.wait(submission.run_id(), WaitFor::Finished, PATIENCE).await.expect("ends");
    assert_eq!(status.end(), Some("completed"), "{:?}", status.json());
    assert_eq!(ended_record(&bench, submission.run_id()).await["value"], json!([1]));
    let got = bench.read(&format!("got-{}-output-schema.json", submission.run_id()));
    assert_eq!(got, r#"{"type": "array"}"#);
    let again = client.submit_with(&submission, prompt(), &[]).await.expect("the same");
    assert_eq!(again.status.end(), Some("completed"));
}

#[test]
fn sessionctl_takes_a_schema_and_its_exit_tells_of_a_misfit() {
    let bench = bench("");
    bench.write("schema.json", r#"{"type": "array"}"#);
    let run = |answer: &str| {
        let script = format!("echo '{}'", json!({"type": "response-completed", "text": answer}));
        bench.sessionctl(&["run", "--profile", "sh", "--output-schema", "schema.json", "--", &script])
    };
    let output = run("[]");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run("{}");
    assert!(!output.status.success());
    let said = text(&output.stderr) + &text(&output.stdout);
    assert!(said.contains("invalid-output") && said.contains("type is not satisfied"), "{said}");
}
