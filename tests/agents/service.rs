//! The programs as sessions of the service.

use airouter_sessiond::client::{Client, FollowOptions, WaitFor};
use airouter_sessiond::dialect::launch::Attached;
use airouter_sessiond::dialect::{Occasion, find};
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

/// What an occasion adds to the arguments.
fn added(world: &World, dialect: &str, occasion: &Occasion<'_>) -> Vec<String> {
    let own = world.agent(dialect).arguments;
    let whole = find(dialect).expect("a dialect").arguments(&own, &[], occasion).expect("arguments");
    whole[own.len()..].to_vec()
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
async fn conversations_go_on_and_pictures_are_seen() {
    for dialect in ONE_WAY {
        let world = World::new();
        let bench = bench(&world);
        let input = Some(prompt("plain").into_bytes());
        let (first, status) = bench.run_submission(&submission(&world, dialect), input).await;
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        let outcome = bench.spool().join("ended").join(&first.to_string()[..2]).join(first.to_string());
        let outcome = std::fs::read(outcome.join("outcome.json")).expect("an outcome");
        let outcome: serde_json::Value = serde_json::from_slice(&outcome).expect("JSON");
        let conversation = outcome["conversation"].as_str().expect("a conversation");
        let path = world.picture();
        let attached = Attached { name: "red", media_type: "image/png", path: &path };
        let pictures = find(dialect).expect("a dialect").features().attachments;
        let occasion = Occasion {
            conversation: Some(conversation),
            attachments: if pictures { vec![attached] } else { Vec::new() },
            ..Occasion::default()
        };
        let mut second = submission(&world, dialect);
        second.arguments = added(&world, dialect, &occasion);
        let (second, status) = bench.run_submission(&second, Some(prompt("tool").into_bytes())).await;
        assert_eq!(status.end(), Some("completed"), "{dialect}: {:?}", status.json());
        assert_eq!(world.model_saw(PICTURE), pictures, "{dialect}");
        let entries = bench.events(second).await;
        assert!(answer(&entries).contains("1 tool result"), "{dialect}: {entries:#?}");
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
