//! The programs as sessions of the service.

use airouter_sessiond::client::{Attachment, Client, FollowOptions, WaitFor};
use airouter_sessiond::dialect::find;
use airouter_sessiond::model::{Answer, Entry, RunId, Submission};
use serde_json::json;

use super::support::{Bench, PATIENCE};
use super::world::{Agent, PICTURE, World};
use super::{TWO_WAY, prompt};

/// The dialects of programs that are given a prompt and left alone.
const ONE_WAY: [&str; 5] = ["codex", "claude", "pi", "gemini", "opencode"];

/// All of them.
fn dialects() -> impl Iterator<Item = &'static str> {
    ONE_WAY.into_iter().chain(TWO_WAY)
}

fn bench(world: &World) -> Bench {
    let mut bench = Bench::prepared_in(world.home(), "");
    let plain = dialects().map(|name| profile(name, &world.agent(name)));
    let asking = TWO_WAY.into_iter().map(|name| profile(&format!("{name}-asking"), &world.asking(name)));
    let profiles: Vec<String> = plain.chain(asking).collect();
    bench.configure("", &profiles.concat());
    bench.start();
    bench
}

fn profile(name: &str, agent: &Agent) -> String {
    let environment = agent.environment.iter();
    let environment: Vec<String> =
        environment.map(|(key, value)| format!("{} = {}\n", json!(key), json!(value))).collect();
    format!(
        "[profiles.{name}]\nprogram = {}\ndialect = {}\narguments = {}\n[profiles.{name}.environment]\n{}",
        json!(agent.program),
        json!(agent.dialect),
        json!(agent.arguments),
        environment.concat()
    )
}

fn submission(world: &World, dialect: &str) -> Submission {
    let mut submission = Submission::new(RunId::random(), dialect);
    submission.directory = Some(world.work().display().to_string());
    submission
}

fn answer(entries: &[Entry]) -> String {
    let texts = entries.iter().rev().find(|entry| entry.kind == "response-completed");
    texts.and_then(|entry| entry.details["text"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn sessions_end_as_the_programs_say() {
    let world = World::new();
    let bench = bench(&world);
    for dialect in dialects() {
        for (case, end, words) in [
            ("plain", "completed", "Hello from the stub model."),
            ("tool", "completed", "All done after 1 tool result"),
            ("e401", "failed", ""),
        ] {
            let input = format!("- {}", prompt(case)).into_bytes();
            let (run_id, status) = bench.run_submission(&submission(&world, dialect), Some(input)).await;
            assert_eq!(status.end(), Some(end), "{dialect}, {case}: {:?}", status.json());
            let entries = bench.events(run_id).await;
            assert!(answer(&entries).starts_with(words), "{dialect}, {case}: {entries:#?}");
            let tool = entries.iter().any(|entry| entry.kind == "tool-finished");
            assert_eq!(tool, case == "tool", "{dialect}, {case}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn a_session_is_cancelled_with_its_tools() {
    let world = World::new();
    let bench = bench(&world);
    let client = bench.client().await;
    for dialect in dialects() {
        let submission = submission(&world, dialect);
        let run_id = submission.run_id();
        client.submit(&submission, Some(prompt("toolsleep").into_bytes())).await.expect("submits");
        super::support::until("the tool", || tool_runs(&world));
        client.cancel(run_id).await.expect("cancels");
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("cancelled"), "{dialect}: {:?}", status.json());
        let status = status.typed().expect("a status of this version");
        assert!(status.leftovers.is_empty() && !tool_runs(&world), "{dialect}: {status:?}");
    }
}

/// Whether the sleep of the model's tool runs with the environment of this test.
fn tool_runs(world: &World) -> bool {
    let home = format!("HOME={}", world.home().display());
    let processes = std::fs::read_dir("/proc").expect("processes");
    processes.filter_map(Result::ok).any(|process| {
        let read = |name| std::fs::read(process.path().join(name)).unwrap_or_default();
        read("cmdline") == b"sleep\x00300\x00" && String::from_utf8_lossy(&read("environ")).contains(&home)
    })
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn conversations_go_on_also_in_the_other_way() {
    let world = World::new();
    let bench = bench(&world);
    // The profile that begins, and those that go on with what it began.
    for (dialect, others) in [
        ("codex", &["codex", "codex-app"][..]),
        ("codex-app", &["codex"]),
        ("claude", &["claude", "claude-stream"]),
        ("claude-stream", &["claude"]),
        ("pi", &["pi", "pi-rpc"]),
        ("pi-rpc", &["pi"]),
        ("gemini", &["gemini"]),
        ("opencode", &["opencode"]),
    ] {
        let said = prompt("plain");
        let input = Some(said.clone().into_bytes());
        let (mut last, status) = bench.run_submission(&submission(&world, dialect), input).await;
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        for other in others {
            let mut next = submission(&world, other);
            next.continues = Some(last);
            let asked = prompt("tool");
            let (run_id, status) = bench.run_submission(&next, Some(asked.clone().into_bytes())).await;
            assert_eq!(status.end(), Some("completed"), "{dialect}, {other}: {:?}", status.json());
            let entries = bench.events(run_id).await;
            assert!(answer(&entries).contains("1 tool result"), "{dialect}, {other}: {entries:#?}");
            assert!(
                world.model_saw_together(&[&said, &asked]),
                "{dialect}, {other}: what was said is forgotten"
            );
            last = run_id;
        }
    }
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn pictures_and_schemas_go_along_with_a_submission() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "description": "wanted here"}},
        "required": ["a"], "additionalProperties": false});
    for dialect in dialects() {
        let world = World::new();
        let bench = bench(&world);
        let client = bench.client().await;
        let features = find(dialect).expect("a dialect").features();
        let mut asked = submission(&world, dialect);
        asked.output_schema = Some(schema.to_string());
        let case = if dialect.starts_with("claude") { "structured" } else { "json" };
        let picture = Attachment::new("red ü.png", world.picture_bytes());
        let pictures = if features.attachments { vec![picture.clone()] } else { Vec::new() };
        let input = Some(prompt(case).into_bytes());
        client.submit_with(&asked, input, &pictures).await.expect("submits");
        let status = client.wait(asked.run_id(), WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        let entries = bench.events(asked.run_id()).await;
        let ended = entries.last().expect("the end");
        assert_eq!(ended.details["value"], json!({"a": "b"}), "{dialect}: {entries:#?}");
        assert_eq!(world.model_saw(PICTURE), features.attachments, "{dialect}");
        assert_eq!(world.model_saw("wanted here"), features.output_schema, "{dialect}");

        let mut unfit = submission(&world, dialect);
        unfit.output_schema = Some(json!({"type": "object", "required": ["b"]}).to_string());
        let (_, status) = bench.run_submission(&unfit, Some(prompt("json").into_bytes())).await;
        let end = status.end().map(str::to_owned);
        // Claude asks its model again itself until the value fits, and fails where it never does.
        let unfit_ends: &[&str] =
            if dialect.starts_with("claude") { &["invalid-output", "failed"] } else { &["invalid-output"] };
        assert!(unfit_ends.contains(&end.as_deref().unwrap_or_default()), "{dialect}: {:?}", status.json());

        if !features.attachments {
            let input = Some(prompt("plain").into_bytes());
            let refused = client.submit_with(&submission(&world, dialect), input, &[picture]).await;
            let refused = refused.expect_err("it takes none").to_string();
            assert!(refused.contains("attachments") && refused.contains("claude-stream"), "{refused}");
        }
    }
}

/// Follows the session until it has a record of this kind.
async fn until_record(client: &Client, run_id: RunId, kind: &str) {
    let options = FollowOptions { raw: false, live: true };
    let mut follow = client.follow(run_id, "start", options).await.expect("follows");
    while let Some(entry) = follow.next().await.expect("reads") {
        if entry.kind == kind {
            return;
        }
    }
    panic!("no {kind}");
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn messages_reach_running_sessions() {
    let world = World::new();
    let bench = bench(&world);
    let client = bench.client().await;
    for dialect in TWO_WAY {
        let submission = submission(&world, dialect);
        let run_id = submission.run_id();
        client.submit(&submission, Some(prompt("tools3").into_bytes())).await.expect("submits");
        until_record(&client, run_id, "tool-started").await;
        client.steer(run_id, "steer", &prompt("tool")).await.expect("steers");
        let last = prompt("plain");
        client.follow_up(run_id, "follow-up", &last).await.expect("follows up");
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        let entries = bench.events(run_id).await;
        for id in ["steer", "follow-up"] {
            let of_it =
                entries.iter().filter(|entry| entry.kind == "message" && entry.details["request-id"] == id);
            let receipts: Vec<&str> = of_it.filter_map(|entry| entry.details["receipt"].as_str()).collect();
            assert_eq!(receipts.last(), Some(&"seen"), "{dialect}, {id}: {receipts:?}");
        }
        let case = last.rsplit("STUB:").next().expect("a case");
        assert!(answer(&entries).contains(case), "{dialect}: {entries:#?}");
    }
}

#[tokio::test]
#[ignore = "needs the real programs: make test-agents"]
async fn questions_of_sessions_are_answered() {
    let world = World::new();
    let bench = bench(&world);
    let client = bench.client().await;
    let file = world.work().join("touched-by-the-tool");
    for dialect in TWO_WAY {
        let (case, yes) = match dialect {
            "codex-app" => ("escalate", "allow"),
            "pi-rpc" => ("touch", "yes"),
            _ => ("touch", "allow"),
        };
        let submission = submission(&world, &format!("{dialect}-asking"));
        let run_id = submission.run_id();
        client.submit(&submission, Some(prompt(case).into_bytes())).await.expect("submits");
        let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
        let question = status.questions().next().expect("a question")["question"].as_str().expect("its id");
        assert!(!file.exists(), "{dialect}");
        let choice = Answer { choice: Some(yes.to_owned()), text: None };
        client.answer(run_id, question, &choice).await.expect("answers");
        let status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        std::fs::remove_file(&file).unwrap_or_else(|error| panic!("{dialect}: {error}"));
    }
}
