//! Every recording of a real program, played again as a session of the whole service: what the program printed is in the
//! journal byte for byte, and what the service says of it is the right answer in `tests/recordings/expected.jsonl`.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use airouter_sessiond::client::{SessionStatus, WaitFor};
use airouter_sessiond::dialect;
use airouter_sessiond::model::{
    Entry, Event, Exit, Outcome, RunId, Submission, Verdict, VerdictResult, derive_end,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{Bench, PATIENCE};

/// Recordings whose failure is a usage limit.
const LIMITS: [&str; 1] = ["codex/equota"];

/// Sessions that run at once, by default.
const PLACES: usize = 8;

struct Recording {
    name: String,
    dialect: &'static str,
    /// The arguments with which the program was started.
    arguments: Vec<String>,
    file: PathBuf,
    expected: Value,
}

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn recordings() -> Vec<Recording> {
    let expected = fs::read_to_string(at("tests/recordings/expected.jsonl")).expect("the right answers");
    let recordings = expected.lines().map(|line| {
        let expected: Value = serde_json::from_str(line).expect("JSON");
        let name = format!("{}/{}", text(&expected, "cli"), text(&expected, "case"));
        let dialect = match (text(&expected, "cli"), text(&expected, "mode")) {
            (_, "app-server") => "codex-app",
            (_, "rpc") => "pi-rpc",
            (cli, _) => cli,
        };
        let dialect = dialect::NAMES.into_iter().find(|known| *known == dialect).expect("a dialect");
        let meta = fs::read(at(&format!("tests/recordings/{name}.meta.json"))).expect("how it was started");
        let meta: Value = serde_json::from_slice(&meta).expect("JSON");
        let arguments = serde_json::from_value(meta["arguments"].clone()).expect("words");
        Recording { file: at(&format!("tests/recordings/{name}.jsonl")), name, dialect, arguments, expected }
    });
    recordings.collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is a text"))
}

impl Recording {
    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).expect("the recording")
    }

    /// The player as the program, and what the program was started with after the player's own arguments.
    fn submission(&self, bench: &Bench) -> Submission {
        let mut submission = Submission::new(RunId::random(), self.dialect);
        let own = [self.file.display().to_string(), "--no-wait".to_owned(), "--".to_owned()];
        submission.arguments = own.into_iter().chain(self.arguments.iter().cloned()).collect();
        submission.directory = Some(bench.path().display().to_string());
        submission.label = Some(self.name.clone());
        submission
    }

    /// Two-way programs are told something; the player does not listen.
    fn input(&self) -> Option<Vec<u8>> {
        let talks = dialect::find(self.dialect).is_some_and(|dialect| dialect.talk(&[]).is_some());
        talks.then(|| b"as recorded".to_vec())
    }

    fn exit(&self) -> Exit {
        match (self.expected["exit_code"].as_i64(), self.expected["killed_by_signal"].as_str()) {
            (Some(code), None) => Exit::Code(i32::try_from(code).expect("a code")),
            (None, Some("SIGTERM")) => Exit::Signal(15),
            (None, Some("SIGKILL")) => Exit::Signal(9),
            other => panic!("{}: ended by {other:?}", self.name),
        }
    }

    fn verdict(&self) -> VerdictResult {
        match text(&self.expected, "verdict") {
            "success" => VerdictResult::Success,
            "failure" => VerdictResult::Failure,
            _ => VerdictResult::None,
        }
    }

    fn check_status(&self, status: &SessionStatus) {
        let name = &self.name;
        let limited = LIMITS.contains(&name.as_str());
        let verdict =
            Verdict { result: self.verdict(), limit: limited.then(String::new), ..Verdict::default() };
        let has_verdicts = dialect::find(self.dialect).expect("a dialect").has_verdicts();
        let end = derive_end(&verdict, Some(self.exit()), has_verdicts);
        let status = status.typed().expect("a status of this version");
        assert_eq!(status.end, Some(end), "{name}");
        assert_eq!(status.exit, Some(self.exit()), "{name}");
        assert_eq!(status.verdict.unwrap_or_default(), self.verdict(), "{name}: verdict");
        assert!(status.activity_complete && status.leftovers.is_empty(), "{name}: {status:?}");
    }

    fn check_outcome(&self, outcome: &Outcome) {
        let (name, expected) = (&self.name, &self.expected);
        assert_eq!(outcome.text.as_deref(), expected["final_text"].as_str(), "{name}: text");
        assert!(!outcome.text_cut, "{name}: the text is whole");
        let message = expected["limit_or_error_text"].as_str();
        assert_eq!(outcome.verdict.message.as_deref(), message, "{name}: message");
        assert_eq!(outcome.conversation.as_deref(), expected["conversation_id"].as_str(), "{name}");
        assert_eq!(Some(outcome.progress.turns), expected["turns"].as_u64(), "{name}: turns");
        assert!(outcome.activity_complete, "{name}: complete");
        let usage = outcome.usage.map(|usage| {
            [usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens]
        });
        let total = outcome.usage.is_some_and(|usage| usage.conversation_total);
        let right = match (&expected["usage_this_run"], total) {
            (Value::Null, true) => &expected["usage_reported"],
            (Value::Null, false) => &expected["usage_lower_bound"],
            (usage, total) => {
                assert!(!total, "{name}: the usage is this run's");
                usage
            }
        };
        let count = |key: &str| right[key].as_u64().unwrap_or(0);
        let right = (!right.is_null()).then(|| ["input", "output", "cached", "reasoning"].map(count));
        assert_eq!(usage, right, "{name}: usage");
    }

    /// Every byte that the program printed, in order.
    fn check_lines(&self, entries: &[Entry]) {
        let mut printed = Vec::new();
        for entry in entries.iter().filter(|entry| entry.kind != "stderr") {
            match (&entry.raw, &entry.raw64) {
                (Some(raw), _) => printed.extend_from_slice(raw.as_bytes()),
                (None, Some(raw64)) => printed.extend(STANDARD.decode(raw64).expect("base64")),
                (None, None) => continue,
            }
            if entry.details.get("partial") != Some(&Value::Bool(true)) {
                printed.push(b'\n');
            }
        }
        assert!(printed == self.bytes(), "{}: {} bytes in the journal", self.name, printed.len());
    }

    fn check_stderr(&self, entries: &[Entry]) {
        let printed = fs::read_to_string(self.file.with_extension("stderr")).unwrap_or_default();
        let told: Vec<&str> = entries
            .iter()
            .filter(|entry| entry.kind == "stderr")
            .map(|entry| entry.details["text"].as_str().expect("a text"))
            .collect();
        assert_eq!(told, printed.lines().collect::<Vec<_>>(), "{}: standard error", self.name);
    }

    fn check_tools(&self, entries: &[Entry]) {
        let mut tools: Vec<Value> = Vec::new();
        for Entry { kind, details, .. } in entries {
            if kind == "tool-started" {
                let sub = details.contains_key("sub");
                tools.push(
                    json!({"id": details["tool"], "name": details["name"], "sub": sub, "finished": false}),
                );
            } else if kind == "tool-finished" {
                let open = |tool: &&mut Value| tool["id"] == details["tool"] && tool["finished"] == false;
                let tool = tools.iter_mut().rev().find(open).expect("what ends has begun");
                let output = details["output"].as_str().expect("a text");
                let digest: String =
                    Sha256::digest(output).iter().map(|byte| format!("{byte:02x}")).collect();
                let told = json!({
                    "finished": true, "error": details["error"], "output_bytes": output.len(), "output_sha256": digest,
                    "exit_code": details.get("exit-code").unwrap_or(&Value::Null)
                });
                tool.as_object_mut().expect("an object").extend(told.as_object().expect("one").clone());
            }
        }
        let right = self.expected["tools"].as_array().expect("tools");
        assert_eq!(tools.len(), right.len(), "{}: {tools:?}", self.name);
        for (tool, right) in tools.iter().zip(right) {
            for key in ["id", "name", "sub", "finished"] {
                assert_eq!(tool[key], right[key], "{}: {key} of {tool}", self.name);
            }
            for key in ["error", "exit_code", "output_bytes", "output_sha256"] {
                // What is null there was not told by the program.
                if right["finished"] == true && !right[key].is_null() {
                    assert_eq!(tool[key], right[key], "{}: {key} of {tool}", self.name);
                }
            }
        }
    }

    /// What the service journals of the lines is what the dialect reads in them, no more and no less.
    fn check_events(&self, entries: &[Entry]) {
        let mut reader = dialect::find(self.dialect).expect("a dialect").reader(&self.arguments);
        let mut events = Vec::new();
        let bytes = self.bytes();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            reader.line(line.strip_suffix(b"\n").unwrap_or(line), &mut events);
        }
        reader.end(&mut events);
        let read: Vec<Value> = events.iter().map(value).collect();
        let told: Vec<Value> = entries
            .iter()
            .filter(|entry| !["started", "stderr", "exited", "ended"].contains(&entry.kind.as_str()))
            .map(|entry| {
                let mut details = entry.details.clone();
                details.remove("partial");
                details.insert("kind".to_owned(), entry.kind.as_str().into());
                Value::Object(details)
            })
            .collect();
        for (at, (told, read)) in told.iter().zip(&read).enumerate() {
            assert_eq!(told, read, "{}: event {at}", self.name);
        }
        assert_eq!(told.len(), read.len(), "{}: events", self.name);
        let kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&"started"), Some(&"ended")), "{}", self.name);
        assert_eq!(kinds.iter().filter(|kind| **kind == "ended").count(), 1, "{}: one end", self.name);
        assert!(entries.iter().zip(1..).all(|(entry, seq)| entry.seq == seq), "{}: numbers", self.name);
    }
}

fn value(event: &Event) -> Value {
    serde_json::to_value(event).expect("an event is JSON")
}

fn outcome(bench: &Bench, run_id: RunId) -> Outcome {
    let run_id = run_id.to_string();
    let path = bench.spool().join("ended").join(&run_id[..2]).join(&run_id).join("outcome.json");
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).expect("an outcome")
}

fn bench() -> Bench {
    let mut bench = Bench::prepared("");
    let player = at("tests/tools/player.py");
    let profiles: Vec<String> = dialect::NAMES
        .into_iter()
        .map(|name| {
            format!(
                "[profiles.{name}]\nprogram = \"/usr/bin/python3\"\ndialect = \"{name}\"\narguments = [{}]\n",
                json!(player.display().to_string())
            )
        })
        .collect();
    bench.configure("", &profiles.concat());
    bench.start();
    bench
}

/// The most sessions that ran at the same time.
fn most_at_once(statuses: &[SessionStatus]) -> usize {
    let mut changes = BTreeSet::new();
    for (at, status) in statuses.iter().enumerate() {
        changes.insert((status.number("started").expect("started"), at, 1));
        changes.insert((status.number("ended").expect("ended"), at, -1));
    }
    let mut running = 0;
    let counts = changes.into_iter().map(|(_, _, change)| {
        running += change;
        running
    });
    usize::try_from(counts.max().unwrap_or_default()).expect("never negative")
}

#[tokio::test]
async fn recordings_played_through_the_service_are_told_right() {
    let bench = bench();
    let client = bench.client().await;
    let mut sessions = Vec::new();
    for recording in recordings() {
        let submission = recording.submission(&bench);
        client.submit(&submission, recording.input()).await.expect("submits");
        sessions.push((submission.run_id(), recording));
    }
    let mut statuses = Vec::new();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for (run_id, recording) in &sessions {
        let status = client.wait(*run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert!(status.is_over(), "{}: {:?}", recording.name, status.json());
        recording.check_status(&status);
        recording.check_outcome(&outcome(&bench, *run_id));
        let entries = bench.events(*run_id).await;
        recording.check_lines(&entries);
        recording.check_stderr(&entries);
        recording.check_tools(&entries);
        recording.check_events(&entries);
        *ends.entry(status.end().unwrap_or_default().to_owned()).or_default() += 1;
        statuses.push(status);
    }
    let most = most_at_once(&statuses);
    assert!((2..=PLACES).contains(&most), "{most} at once");
    for end in ["completed", "failed", "killed", "limit-reached"] {
        assert!(ends.contains_key(end), "no recording ends as {end}: {ends:?}");
    }
}

/// What `sessionctl` prints for people of programs that print for other programs.
#[tokio::test]
async fn people_are_shown_what_was_said_and_done() {
    let bench = bench();
    for recording in recordings() {
        if !["claude/partial_tool", "codex/tools3", "gemini/tool"].contains(&recording.name.as_str()) {
            continue;
        }
        let run_id = RunId::random().to_string();
        let mut arguments = vec!["run", "--profile", recording.dialect, "--run-id", &run_id, "--"];
        let submission = recording.submission(&bench);
        arguments.extend(submission.arguments.iter().map(String::as_str));
        let ran = bench.sessionctl(&arguments);
        let name = &recording.name;
        assert!(ran.status.success(), "{name}: {}", support::text(&ran.stderr));
        let shown = support::text(&ran.stdout);
        assert!(!shown.lines().any(|line| line.starts_with('{')), "{name}: {shown}");
        let text = text(&recording.expected, "final_text");
        assert_eq!(shown.matches(text).count(), 1, "{name}: the answer once in {shown}");
        let tools = recording.expected["tools"].as_array().expect("tools");
        for mark in [" > ", " < "] {
            let lines = shown.lines().filter(|line| line.contains(mark)).count();
            assert_eq!(lines, tools.len(), "{name}: {mark} in {shown}");
        }
        assert!(shown.contains("tokens: "), "{name}: {shown}");
        let exact = support::text(&bench.sessionctl(&["events", "--raw", &run_id]).stdout);
        let exact: BTreeSet<&str> = exact.split('\n').collect();
        for line in support::text(&recording.bytes()).lines() {
            assert!(exact.contains(line), "{name}: {line}");
        }
        // The same from the middle, where the record that names the dialect is not among what is shown.
        let entries = bench.events(run_id.parse().expect("an id")).await;
        for command in [&["follow"][..], &["events"]] {
            let later = [command, &["--cursor", &entries[0].cursor, &run_id]].concat();
            let later = support::text(&bench.sessionctl(&later).stdout);
            assert!(!later.lines().any(|line| line.starts_with('{')), "{name}: {later}");
            assert!(later.contains(text), "{name}: {later}");
        }
    }
}
