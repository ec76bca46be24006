//! Two-way programs driven by their talks.

use airouter_sessiond::dialect::talk::Attachment;
use airouter_sessiond::dialect::{Deed, Opening};
use airouter_sessiond::model::{Event, MessageMode, VerdictResult};
use serde_json::{Value, json};

use super::direct::Direct;
use super::world::{PICTURE, World};
use super::{TWO_WAY, prompt};

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn prompts_are_answered_and_the_program_ends() {
    let world = World::new();
    for dialect in TWO_WAY {
        let agent = world.agent(dialect);
        for (case, words) in
            [("plain", "Hello from the stub model."), ("tool", "All done after 1 tool result")]
        {
            let mut run = Direct::prompt(&world, &agent, &prompt(case));
            let reading = run.finish();
            assert_eq!(reading.verdict.result, VerdictResult::Success, "{dialect}: {reading:?}");
            assert!(reading.text.expect("an answer").starts_with(words), "{dialect}");
            assert!(reading.conversation.is_some(), "{dialect}");
        }
        let reading = Direct::prompt(&world, &agent, &prompt("e401")).finish();
        assert_eq!(reading.verdict.result, VerdictResult::Failure, "{dialect}: {reading:?}");
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn running_programs_take_messages() {
    let world = World::new();
    for dialect in TWO_WAY {
        let mut run = Direct::prompt(&world, &world.agent(dialect), &prompt("tools3"));
        run.until_tool();
        run.message(MessageMode::Steer, "steer", &prompt("tool"));
        let last = prompt("plain");
        run.message(MessageMode::FollowUp, "follow-up", &last);
        let reading = run.finish();
        assert_eq!(reading.verdict.result, VerdictResult::Success, "{dialect}: {reading:?}");
        assert!(run.took("steer") && run.took("follow-up"), "{dialect}: {:#?}", run.deeds);
        let case = last.rsplit("STUB:").next().expect("a case");
        assert!(reading.text.expect("an answer").contains(case), "{dialect}");
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn a_message_while_the_answer_is_printed_is_read_too() {
    let world = World::new();
    for dialect in TWO_WAY {
        let mut run = Direct::prompt(&world, &world.agent(dialect), &prompt("slow5"));
        match dialect {
            "claude-stream" => run.until("the turn", |run| !run.events.is_empty()),
            _ => run
                .until("a text", |run| run.events.iter().any(|event| matches!(event, Event::Preview { .. }))),
        }
        run.message(MessageMode::Steer, "steer", &prompt("plain"));
        let reading = run.finish();
        assert_eq!(reading.verdict.result, VerdictResult::Success, "{dialect}: {reading:?}");
        assert!(run.took("steer"), "{dialect}: {:#?}", run.deeds);
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn questions_are_asked_and_answers_count() {
    let world = World::new();
    let file = world.work().join("touched-by-the-tool");
    for dialect in TWO_WAY {
        for allowed in [false, true] {
            let _ = std::fs::remove_file(&file);
            let case = if dialect == "codex-app" { "escalate" } else { "touch" };
            let mut run = Direct::prompt(&world, &world.asking(dialect), &prompt(case));
            let asked = run.until_asked();
            assert!(asked.text.contains("touch") || asked.details.to_string().contains("touch"), "{asked:?}");
            let choice = match (dialect, allowed) {
                ("pi-rpc", true) => "yes",
                ("pi-rpc", false) => "no",
                (_, true) => "allow",
                (_, false) => "deny",
            };
            run.choose(&asked.key, choice);
            let reading = run.finish();
            assert_eq!(reading.verdict.result, VerdictResult::Success, "{dialect}: {reading:?}");
            let ran =
                run.events.iter().any(|event| matches!(event, Event::ToolFinished { error: false, .. }));
            assert_eq!((file.exists(), ran), (allowed, allowed), "{dialect}: {:#?}", run.events);
        }
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn claude_asks_which_and_reads_the_answer() {
    let world = World::new();
    let mut run = Direct::prompt(&world, &world.asking("claude-stream"), &prompt("ask"));
    let asked = run.until_asked();
    assert_eq!(asked.text, "Which color?");
    run.choose(&asked.key, "2");
    run.finish();
    let answered = run.events.iter().any(|event| {
        matches!(event, Event::ToolFinished { output, .. } if output.contains("\"Which color?\"=\"Blue\""))
    });
    assert!(answered, "{:#?}", run.events);
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn claude_takes_messages_while_something_runs_in_the_background() {
    let world = World::new();
    let mut run = Direct::prompt(&world, &world.agent("claude-stream"), &prompt("bgbash"));
    run.until("a verdict", |run| run.events.iter().any(|event| matches!(event, Event::Verdict { .. })));
    run.message(MessageMode::Steer, "steer", &prompt("plain"));
    let reading = run.finish();
    assert!(run.took("steer"), "{:#?}", run.deeds);
    assert_eq!((reading.verdict.result, reading.progress.turns), (VerdictResult::Success, 3), "{reading:?}");
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn an_interrupt_ends_the_turn_and_nothing_follows() {
    let world = World::new();
    for dialect in TWO_WAY {
        let mut run = Direct::prompt(&world, &world.agent(dialect), &prompt("toolsleep"));
        run.until_tool();
        run.message(MessageMode::FollowUp, "follow-up", &prompt("plain"));
        run.interrupt();
        let reading = run.finish();
        assert_eq!(reading.verdict.result, VerdictResult::Failure, "{dialect}: {reading:?}");
        let back = |deed: &Deed| matches!(deed, Deed::GaveBack { message, .. } if message == "follow-up");
        assert!(run.deeds.iter().any(back), "{dialect}: {:#?}", run.deeds);
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn conversations_go_on() {
    let world = World::new();
    for dialect in TWO_WAY {
        let agent = world.agent(dialect);
        let first = Direct::prompt(&world, &agent, &prompt("plain")).finish();
        let opening = Opening {
            prompt: prompt("tool"),
            conversation: first.conversation.clone(),
            ..Opening::default()
        };
        let second = Direct::start(&world, &agent, opening).finish();
        assert_eq!(second.verdict.result, VerdictResult::Success, "{dialect}: {second:?}");
        assert!(first.conversation.is_some() && second.conversation == first.conversation, "{dialect}");
    }
}

#[test]
#[ignore = "needs the real programs: make test-agents"]
fn pictures_and_schemas_reach_the_model() {
    for dialect in TWO_WAY {
        let world = World::new();
        let picture = Attachment {
            name: "red.png".into(),
            media_type: "image/png".into(),
            path: world.picture(),
            bytes: world.picture_bytes(),
        };
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
            "additionalProperties": false});
        let structured = dialect == "claude-stream";
        let case = if structured { "structured" } else { "json" };
        let opening = Opening {
            prompt: prompt(case),
            attachments: vec![picture],
            schema: (dialect != "pi-rpc").then_some(schema),
            ..Opening::default()
        };
        let reading = Direct::start(&world, &world.agent(dialect), opening).finish();
        assert_eq!(reading.verdict.result, VerdictResult::Success, "{dialect}: {reading:?}");
        let answer: Value = serde_json::from_str(&reading.text.expect("an answer")).expect("JSON");
        assert_eq!(answer, json!({"a": "b"}), "{dialect}");
        assert!(world.model_saw(PICTURE), "{dialect}");
        assert_eq!(world.model_saw("json_schema"), dialect == "codex-app");
    }
}
