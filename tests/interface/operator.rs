//! What an operator sees of messages and questions: `sessionctl` over a service whose sessions do as the test wants.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::fake::question;
use super::*;

/// A session to talk to.
struct Operator {
    private: Private,
    run_id: RunId,
}

impl Operator {
    async fn new() -> Operator {
        let private = Private::serve().await;
        let run_id = RunId::random();
        call(&private.client().await, "Submit", &(minimal(run_id),)).await.expect("is taken");
        Operator { private, run_id }
    }

    /// Runs `sessionctl` with `input` on its standard input.
    async fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sessionctl"));
        command.arg("--socket").arg(&self.private.path).args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let run = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("runs");
            // One that does not read its input ends without it.
            let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
            child.wait_with_output().expect("ends")
        });
        soon(run).await.expect("no panic")
    }

    async fn good(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input).await;
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        serde_json::from_str(&self.good(&all, "").await).expect("JSON")
    }

    /// The exit status, and the error as JSON.
    async fn refused(&self, arguments: &[&str]) -> (i32, Value) {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let output = self.run(&all, "").await;
        let error = serde_json::from_slice(&output.stderr).expect("JSON alone");
        (output.status.code().expect("exits"), error)
    }
}

#[tokio::test]
async fn a_message_comes_from_the_command_line_or_a_pipe_and_is_named() {
    let operator = Operator::new().await;
    let id = operator.run_id.to_string();
    let printed = operator.good(&["steer", &id, "- begin like an option"], "").await;
    let (receipt, request_id) = printed.trim().split_once("  ").expect("two words");
    assert_eq!((receipt, request_id.len()), ("stored", 36), "{printed}");
    let again = ["steer", &id, "- begin like an option", "--request-id", request_id];
    assert_eq!(operator.good(&again, "").await, format!("seen  {request_id}\n"));
    assert_eq!(
        operator.good(&["follow-up", &id[..8], "--request-id", "b"], "from a pipe\n").await,
        "stored  b\n"
    );
    let sent = operator.json(&["follow-up", &id, "from a pipe", "--request-id", "b"]).await;
    assert_eq!(sent, json!({"request-id": "b", "mode": "follow-up", "receipt": "seen"}));
    operator.good(&["steer", &id, "-", "--request-id", "lost"], "in vain").await;
    let lost = operator.run(&["steer", &id, "in vain", "--request-id", "lost"], "").await;
    assert_eq!((lost.status.code(), lost.stdout.as_slice()), (Some(43), b"undeliverable  lost\n".as_slice()));
    let texts: Vec<String> =
        operator.private.engine.messages.lock().unwrap().iter().map(|sent| sent.text.clone()).collect();
    assert_eq!(texts, ["- begin like an option", "from a pipe", "in vain"]);

    let (exit, error) = operator.refused(&["steer", &id, "other", "--request-id", "b"]).await;
    assert_eq!((exit, &error["error"]), (50, &json!("MessageChanged")));
    let (exit, error) = operator.refused(&["steer", &id, "too much"]).await;
    assert_eq!((exit, &error["error"]), (50, &json!("TooManyMessages")));
}

#[tokio::test]
async fn questions_are_listed_with_what_answers_them() {
    let operator = Operator::new().await;
    let id = operator.run_id.to_string();
    let none = operator.run(&["questions"], "").await;
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");

    let engine = &operator.private.engine;
    engine.push("question", json!({"question": "q0", "about": "text", "text": "Settled long ago?"}));
    engine.push("preview", json!({"text": "the word \"question\" in a text", "part": "text"}));
    let choices = json!([{"id": "allow", "label": "Allow once"}, {"id": "deny it", "label": "Deny"}]);
    engine.push(
        "question",
        json!({
            "question": "q1", "about": "permission", "tool": "Bash", "text": "May I run this?", "choices": choices,
            "takes-text": true, "details": {"command": "rm -rf build"}
        }),
    );
    let mut asked = question("q1", &["allow", "deny it"]);
    (asked.tool, asked.takes_text) = (Some("Bash".into()), true);
    engine.ask(operator.run_id, asked);
    engine.ask(operator.run_id, question("q2", &[]));

    for arguments in [vec!["questions"], vec!["questions", &id[..8]]] {
        let listed = operator.good(&arguments, "").await;
        for line in [
            "    May I run this?".to_owned(),
            "    | rm -rf build".to_owned(),
            format!("    Allow once: sessionctl answer {id} q1 allow [--text TEXT]"),
            format!("    Deny: sessionctl answer {id} q1 'deny it' [--text TEXT]"),
            format!("    sessionctl answer {id} q2 --text TEXT"),
        ] {
            assert!(listed.lines().any(|listed| listed == line), "{line}\n{listed}");
        }
        assert!(!listed.contains("Settled long ago"), "{listed}");
    }
    let listed = operator.good(&["--json", "questions", &id], "").await;
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&listed[0]["run_id"], &listed[1]["question"]), (&json!(id), &json!("q2")));
    assert_eq!(
        (&listed[0]["text"], &listed[0]["choices"]),
        (&json!("May I run this?"), &json!(["allow", "deny it"]))
    );
    assert_eq!(listed[0]["labels"], json!({"allow": "Allow once", "deny it": "Deny"}));
    assert!(operator.good(&["list"], "").await.contains("attention (2 questions)"));
    let status = operator.good(&["status", &id], "").await;
    assert!(status.contains("q1: permission, Bash") && status.contains("sessionctl questions"), "{status}");

    let (exit, error) = operator.refused(&["answer", &id, "q1", "maybe"]).await;
    assert_eq!((exit, &error["error"]), (50, &json!("InvalidArgument")));
    assert!(error["text"].as_str().unwrap().contains("allow, deny it"), "{error}");
    let (exit, error) = operator.refused(&["answer", &id, "q9", "allow"]).await;
    assert_eq!((exit, &error["error"]), (50, &json!("UnknownQuestion")));

    assert_eq!(operator.good(&["answer", &id, "q1", "allow"], "").await, "stored  the answer to q1\n");
    let stored = json!({"run_id": id, "question": "q1", "stored": true});
    assert_eq!(operator.json(&["answer", &id, "q1", "allow"]).await, stored, "the same again");
    operator.good(&["answer", &id, "q2", "--text", "-"], "- blue\n").await;
    assert_eq!(engine.answers.lock().unwrap()["q2"].text.as_deref(), Some("- blue"));
    let (exit, error) = operator.refused(&["answer", &id, "q1", "deny it"]).await;
    assert_eq!((exit, &error["error"]), (50, &json!("QuestionSettled")));
    assert!(operator.good(&["questions", &id], "").await.is_empty());
}
