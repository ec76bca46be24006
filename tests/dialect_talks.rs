//! What is said to programs, against what was said to them in the recordings, and against lines of any kind.

use std::fs;
use std::path::{Path, PathBuf};

use airouter_sessiond::dialect::talk::{Asked, Attachment, Reply};
use airouter_sessiond::dialect::{Deed, Interrupt, Occasion, Opening, Reader, Stdin, Talk, find};
use airouter_sessiond::model::{About, Answer, Message, MessageMode};
use proptest::prelude::*;
use serde_json::{Value, json};

const TWO_WAY: [&str; 3] = ["claude-stream", "codex-app", "pi-rpc"];

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn recorded(name: &str) -> Vec<Value> {
    let text = fs::read(recordings().join(format!("{name}.jsonl"))).expect("the recording");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

/// What the recording's script wrote.
fn said(name: &str) -> Vec<Value> {
    let meta = fs::read(recordings().join(format!("{name}.meta.json"))).expect("how it was made");
    let meta: Value = serde_json::from_slice(&meta).expect("JSON");
    let script = meta["script"].as_array().expect("a script").iter();
    let sent = script.filter(|step| step[1] == "send").map(|step| match &step[2] {
        Value::String(line) => serde_json::from_str(line).expect("JSON"),
        line => line.clone(),
    });
    sent.collect()
}

/// A talk with its reader, and all that came of it.
struct Run {
    talk: Box<dyn Talk>,
    reader: Box<dyn Reader>,
    deeds: Vec<Deed>,
    written: Vec<Value>,
}

impl Run {
    fn new(dialect: &str, opening: Opening) -> Run {
        let dialect = find(dialect).expect("a dialect");
        let talk = dialect.talk(&[]).expect("a talk");
        let mut run = Run { talk, reader: dialect.reader(&[]), deeds: Vec::new(), written: Vec::new() };
        run.act(|talk, deeds| talk.open(opening, deeds));
        run
    }

    fn prompt(dialect: &str, prompt: &str) -> Run {
        let directory = PathBuf::from("/home/user/work");
        Run::new(dialect, Opening { prompt: prompt.to_owned(), directory, ..Opening::default() })
    }

    fn act(&mut self, act: impl FnOnce(&mut Box<dyn Talk>, &mut Vec<Deed>)) -> Vec<Deed> {
        let mut deeds = Vec::new();
        act(&mut self.talk, &mut deeds);
        for deed in &deeds {
            if let Deed::Write { line, .. } = deed {
                assert!(!line.contains(&b'\n'));
                self.written.push(serde_json::from_slice(line).expect("JSON"));
            }
        }
        self.deeds.extend(deeds.clone());
        deeds
    }

    fn heard(&mut self, line: &Value) -> Vec<Deed> {
        let line = line.to_string().into_bytes();
        self.reader.line(&line, &mut Vec::new());
        self.act(|talk, deeds| talk.heard(&line, deeds))
    }

    fn hear(&mut self, lines: &[Value]) -> Vec<Deed> {
        lines.iter().flat_map(|line| self.heard(line)).collect()
    }

    /// Hears lines up to and with the first that holds these words; how many.
    fn hear_until(&mut self, lines: &[Value], words: &str) -> usize {
        let at = lines.iter().position(|line| line.to_string().contains(words)).expect(words) + 1;
        self.hear(&lines[..at]);
        at
    }

    fn message(&mut self, mode: MessageMode, id: &str, text: &str) -> Vec<Deed> {
        let message = Message { request_id: id.to_owned(), mode, text: text.to_owned() };
        self.act(|talk, deeds| talk.message(&message, deeds))
    }

    fn steer(&mut self, id: &str, text: &str) -> Vec<Deed> {
        self.message(MessageMode::Steer, id, text)
    }

    fn choose(&mut self, key: &str, choice: &str) -> Vec<Deed> {
        let answer = Answer { choice: Some(choice.to_owned()), text: None };
        self.act(|talk, deeds| talk.answer(key, Reply::Answer(&answer), deeds))
    }

    /// What the executor closes standard input for.
    fn is_over(&self) -> bool {
        self.reader.reading().settled && self.talk.is_idle()
    }

    fn last(&self) -> &Value {
        self.written.last().expect("something was written")
    }
}

fn took(id: &str) -> Deed {
    Deed::Took(id.to_owned())
}

fn asked(deeds: &[Deed]) -> &Asked {
    let asked = deeds.iter().find_map(|deed| match deed {
        Deed::Ask(asked) => Some(asked),
        _ => None,
    });
    asked.unwrap_or_else(|| panic!("no question in {deeds:?}"))
}

fn gave_back(deeds: &[Deed]) -> Vec<&str> {
    let given = deeds.iter().filter_map(|deed| match deed {
        Deed::GaveBack { message, .. } => Some(message.as_str()),
        _ => None,
    });
    given.collect()
}

fn picture() -> Attachment {
    Attachment {
        name: "red.png".into(),
        media_type: "image/png".into(),
        path: "/spool/attachments/a.png".into(),
        bytes: b"not really".to_vec(),
    }
}

#[test]
fn two_way_dialects_say_so() {
    for name in airouter_sessiond::dialect::NAMES {
        let dialect = find(name).expect("a dialect");
        let two_way = dialect.talk(&[]).is_some();
        assert_eq!(dialect.launch().stdin == Stdin::Conversation, two_way, "{name}");
        assert_eq!(dialect.interrupt() == Interrupt::Talk, two_way, "{name}");
        if TWO_WAY.contains(&name) {
            let features = dialect.features();
            assert!(two_way && features.steer && features.follow_up && features.questions, "{name}");
            assert!(dialect.check_input(Some(b"\xff x")).is_err(), "{name}");
            assert!(dialect.check_input(None).is_err() && dialect.check_input(Some(b"x")).is_ok(), "{name}");
        }
    }
}

// codex app-server

#[test]
fn codex_is_told_what_the_recording_told_it() {
    for (name, mode) in [("appserver_plain", "plain"), ("appserver_e401", "e401")] {
        let name = format!("codex/{name}");
        let sent = said(&name);
        let prompt = sent[3]["params"]["input"][0]["text"].as_str().expect("a prompt");
        let mut run = Run::prompt("codex-app", prompt);
        assert!(!run.talk.is_idle());
        for line in recorded(&name) {
            let over = line["method"] == "turn/completed";
            run.heard(&line);
            assert!(over || !run.is_over(), "{mode}: {line}");
        }
        assert!(run.is_over(), "{mode}");
        assert_eq!(run.written.len(), sent.len());
        let thread = run.reader.reading().conversation.clone().expect("a thread");
        for (ours, theirs) in run.written.iter().zip(&sent) {
            assert_eq!((&ours["method"], ours.get("id")), (&theirs["method"], theirs.get("id")));
        }
        assert_eq!(run.written[2]["params"], json!({"cwd": "/home/user/work"}));
        assert_eq!(run.last()["params"], json!({"threadId": thread, "input": sent[3]["params"]["input"]}));
    }
}

#[test]
fn codex_is_steered_as_in_the_recording() {
    let (lines, sent) = (recorded("codex/appserver_steer"), said("codex/appserver_steer"));
    let text = sent[4]["params"]["input"][0]["text"].as_str().expect("a text");
    let mut run = Run::prompt("codex-app", "do it");
    let at = run.hear_until(&lines, "commandExecution");
    let deeds = run.steer("s1", text);
    assert!(matches!(&deeds[..], [Deed::Write { message: Some(id), .. }] if id == "s1"));
    let steer = run.last().clone();
    assert_eq!((&steer["method"], &steer["id"]), (&sent[4]["method"], &sent[4]["id"]));
    assert_eq!(steer["params"]["input"], sent[4]["params"]["input"]);
    let ended = lines.iter().find(|line| line["method"] == "turn/completed").expect("the end");
    assert_eq!(steer["params"]["expectedTurnId"], ended["params"]["turn"]["id"]);
    assert!(!run.talk.is_idle());
    let deeds = run.hear(&lines[at..]);
    assert_eq!(deeds, [took("s1")]);
    assert!(run.is_over());
}

#[test]
fn codex_is_interrupted_as_in_the_recording() {
    let (lines, sent) = (recorded("codex/appserver_interrupt_tool"), said("codex/appserver_interrupt_tool"));
    let mut run = Run::prompt("codex-app", "do it");
    let at = run.hear_until(&lines, "commandExecution");
    run.message(MessageMode::FollowUp, "f1", "and then");
    let deeds = run.act(|talk, deeds| talk.interrupt(deeds));
    assert_eq!(gave_back(&deeds), ["f1"]);
    assert_eq!((&run.last()["method"], &run.last()["id"]), (&sent[4]["method"], &sent[4]["id"]));
    let ended = lines.iter().find(|line| line["method"] == "turn/completed").expect("the end");
    assert_eq!(run.last()["params"]["turnId"], ended["params"]["turn"]["id"]);
    run.hear(&lines[at..]);
    assert!(run.is_over());
    assert_eq!(gave_back(&run.message(MessageMode::FollowUp, "f2", "more")), ["f2"]);
}

/// A thread with a running turn `u1`, as the handshake leaves it.
fn codex() -> Run {
    let mut run = Run::prompt("codex-app", "do it");
    run.hear(&[
        json!({"id": 0, "result": {"userAgent": "x"}}),
        json!({"id": 1, "result": {"thread": {"id": "t"}}}),
        json!({"id": 2, "result": {"turn": {"id": "u1"}}}),
        turn("started", "u1"),
    ]);
    run
}

fn turn(what: &str, id: &str) -> Value {
    let status = if what == "completed" { "completed" } else { "inProgress" };
    json!({"method": format!("turn/{what}"), "params": {"threadId": "t", "turn": {"id": id, "status": status}}})
}

fn user_message(client: &Value) -> Value {
    let item = json!({"type": "userMessage", "id": "i", "clientId": client, "content": []});
    json!({"method": "item/started", "params": {"threadId": "t", "turnId": "u", "item": item}})
}

#[test]
fn a_follow_up_waits_for_the_turns_end() {
    let mut run = codex();
    assert!(run.message(MessageMode::FollowUp, "f", "next").is_empty());
    let before = run.written.len();
    run.heard(&turn("completed", "u1"));
    assert!(run.reader.reading().settled && !run.talk.is_idle(), "a turn is about to begin");
    assert_eq!(run.written.len(), before + 1);
    assert_eq!(
        (&run.last()["method"], &run.last()["params"]["input"][0]["text"]),
        (&json!("turn/start"), &json!("next"))
    );
    let client = run.last()["params"]["clientUserMessageId"].clone();
    run.hear(&[json!({"id": 3, "result": {"turn": {"id": "u2"}}}), turn("started", "u2")]);
    assert_eq!(run.heard(&user_message(&client)), [took("f")]);
    run.heard(&turn("completed", "u2"));
    assert!(run.is_over());
}

#[test]
fn a_steer_that_comes_too_late_is_the_next_turn() {
    // The server says so before, or after, the end of the turn.
    for refused_first in [true, false] {
        let mut run = codex();
        run.steer("s", "stop");
        let refusal = json!({"id": 3, "error": {"code": -32600, "message": "no active turn to steer"}});
        let mut lines = [refusal, turn("completed", "u1")];
        if !refused_first {
            lines.reverse();
        }
        run.hear(&lines);
        assert!(!run.talk.is_idle());
        assert_eq!(
            (&run.last()["method"], &run.last()["params"]["input"][0]["text"]),
            (&json!("turn/start"), &json!("stop"))
        );
        run.heard(&json!({"id": 4, "error": {"code": -1, "message": "no more"}}));
        let Some(Deed::GaveBack { message, why }) = run.deeds.last() else { panic!("it comes back") };
        assert_eq!((message.as_str(), why.as_str()), ("s", "the program refused it: no more"));
        assert!(run.talk.is_idle());
    }
}

#[test]
fn a_steer_that_is_refused_or_never_read_comes_back() {
    let mut run = codex();
    run.steer("s", "stop");
    let refusal = json!({"id": 3, "error": {"code": -32600, "message": "this turn cannot be steered"}});
    assert_eq!(gave_back(&run.heard(&refusal)), ["s"]);
    run.steer("s2", "stop");
    run.heard(&json!({"id": 4, "result": {"turnId": "u1"}}));
    assert!(!run.talk.is_idle());
    assert_eq!(gave_back(&run.heard(&turn("completed", "u1"))), ["s2"]);
    assert!(run.is_over());
}

#[test]
fn a_turn_that_ended_before_its_start_was_answered_has_ended() {
    let mut run = Run::prompt("codex-app", "do it");
    run.hear(&[
        json!({"id": 0, "result": {}}),
        json!({"id": 1, "result": {"thread": {"id": "t"}}}),
        turn("started", "u1"),
        turn("completed", "u1"),
        json!({"id": 2, "result": {"turn": {"id": "u1"}}}),
    ]);
    assert!(run.is_over());
}

#[test]
fn a_handshake_that_fails_is_the_end() {
    for (lines, words) in [
        (vec![json!({"id": 0, "error": {"code": -1, "message": "too old"}})], "too old"),
        (
            vec![json!({"id": 0, "result": {}}), json!({"id": 1, "error": {"message": "no rollout found"}})],
            "no rollout found",
        ),
        (vec![json!({"id": 0, "result": {}}), json!({"id": 1, "result": {}})], "no id"),
    ] {
        let directory = PathBuf::from("/home/user/work");
        let conversation = Some("c1".to_owned());
        let mut run = Run::new(
            "codex-app",
            Opening { prompt: "x".into(), conversation, directory, ..Opening::default() },
        );
        run.steer("s", "early");
        let deeds = run.hear(&lines);
        let fail = deeds.iter().find_map(|deed| match deed {
            Deed::Fail(why) => Some(why.as_str()),
            _ => None,
        });
        assert!(fail.is_some_and(|why| why.contains(words)), "{deeds:?}");
        assert_eq!(gave_back(&deeds), ["s"]);
        if lines.len() > 1 {
            let resume = json!({"threadId": "c1", "cwd": "/home/user/work", "excludeTurns": true});
            assert_eq!((&run.last()["method"], &run.last()["params"]), (&json!("thread/resume"), &resume));
        }
    }
}

#[test]
fn codex_gets_pictures_and_the_schema() {
    let schema = json!({"type": "object"});
    let mut run = Run::new(
        "codex-app",
        Opening {
            prompt: "see".into(),
            attachments: vec![picture()],
            schema: Some(schema.clone()),
            ..Opening::default()
        },
    );
    run.hear(&[json!({"id": 0, "result": {}}), json!({"id": 1, "result": {"thread": {"id": "t"}}})]);
    let params = &run.last()["params"];
    assert_eq!(params["outputSchema"], schema);
    let image = json!({"type": "localImage", "path": "/spool/attachments/a.png"});
    assert_eq!(params["input"], json!([{"type": "text", "text": "see"}, image]));
}

#[test]
fn codex_waits_for_an_answer_and_gets_one() {
    let mut run = codex();
    let request = json!({"method": "item/commandExecution/requestApproval", "id": 0, "params": {
        "threadId": "t", "turnId": "u1", "itemId": "call", "command": "rm -r x", "reason": "it is large",
        "availableDecisions": ["accept", "cancel"]}});
    let deeds = run.heard(&request);
    let asked = asked(&deeds).clone();
    assert_eq!((asked.about, asked.tool.as_deref()), (About::Permission, Some("command")));
    assert_eq!(asked.text, "May it run a command: rm -r x? (it is large)");
    assert!(!run.talk.is_idle());
    run.choose(&asked.key, "deny");
    assert_eq!(run.last(), &json!({"jsonrpc": "2.0", "id": 0, "result": {"decision": "decline"}}));
    assert!(run.choose(&asked.key, "allow").is_empty());
    run.heard(&json!({"method": "serverRequest/resolved", "params": {"threadId": "t", "requestId": 0}}));
    run.heard(&turn("completed", "u1"));
    assert!(run.is_over());
    run.heard(&json!({"method": "unheard/of", "id": "z", "params": {}}));
    assert_eq!(run.last()["error"]["code"], -32601);
}

// claude

#[test]
fn claude_is_told_what_the_recording_told_it() {
    let sent = said("claude/sj_image").remove(0);
    let content = &sent["message"]["content"];
    let source = &content[1]["source"];
    let mut picture = picture();
    picture.bytes = base64(source["data"].as_str().expect("the picture"));
    let mut run = Run::new(
        "claude-stream",
        Opening {
            prompt: content[0]["text"].as_str().expect("a prompt").to_owned(),
            attachments: vec![picture],
            ..Opening::default()
        },
    );
    assert_eq!((&run.last()["type"], &run.last()["message"]), (&sent["type"], &sent["message"]));
    for line in recorded("claude/sj_image") {
        assert!(!run.is_over());
        run.heard(&line);
    }
    assert!(run.is_over(), "a version without command_lifecycle");
}

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| {
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|d| *d == c)
    };
    let bits = text.bytes().filter_map(value).fold((Vec::new(), 0u32, 0), |(mut out, bits, count), six| {
        let (bits, count) = (bits << 6 | six as u32, count + 6);
        if count >= 8 {
            out.push((bits >> (count - 8)) as u8);
            return (out, bits & ((1 << (count - 8)) - 1), count - 8);
        }
        (out, bits, count)
    });
    bits.0
}

#[test]
fn claude_is_interrupted_as_in_the_recording() {
    let (lines, sent) = (recorded("claude/sj_interrupt_tool"), said("claude/sj_interrupt_tool"));
    let mut run = Run::prompt("claude-stream", "do it");
    let uuid = run.last()["uuid"].clone();
    run.heard(&lifecycle(&uuid, "started"));
    let at = run.hear_until(&lines, "tool_use");
    run.act(|talk, deeds| talk.interrupt(deeds));
    assert_eq!((&run.last()["type"], &run.last()["request"]), (&sent[1]["type"], &sent[1]["request"]));
    assert_eq!(run.written.len(), 2);
    run.hear_until(&lines[at..], "error_during_execution");
    assert!(!run.talk.is_idle());
    run.heard(&lifecycle(&uuid, "cancelled"));
    assert!(run.is_over());
}

fn lifecycle(uuid: &Value, state: &str) -> Value {
    json!({"type": "command_lifecycle", "command_uuid": uuid, "state": state, "uuid": "x", "session_id": "s"})
}

fn claude_result() -> Value {
    json!({"type": "result", "subtype": "success", "is_error": false, "result": "done", "session_id": "s"})
}

fn claude_init() -> Value {
    json!({"type": "system", "subtype": "init", "session_id": "s"})
}

#[test]
fn claude_tells_what_became_of_messages() {
    let mut run = Run::prompt("claude-stream", "do it");
    let prompt = run.last()["uuid"].clone();
    run.hear(&[lifecycle(&prompt, "queued"), lifecycle(&prompt, "started"), claude_init()]);
    run.steer("s", "also this");
    let steer = run.last().clone();
    assert_eq!(
        (&steer["priority"], &steer["message"]["content"][0]["text"]),
        (&json!("next"), &json!("also this"))
    );
    run.message(MessageMode::FollowUp, "f", "then that");
    let follow_up = run.last().clone();
    assert_eq!(follow_up["priority"], "later");
    run.message(MessageMode::FollowUp, "g", "and that");
    let (steer, follow_up, third) = (&steer["uuid"], &follow_up["uuid"], &run.last()["uuid"].clone());
    run.hear(&[lifecycle(steer, "queued"), lifecycle(follow_up, "queued"), lifecycle(third, "queued")]);
    assert_eq!(run.hear(&[lifecycle(steer, "started"), lifecycle(steer, "completed")]), [took("s")]);
    run.heard(&claude_result());
    assert!(run.reader.reading().settled && !run.talk.is_idle(), "the next turn is about to begin");
    run.heard(&lifecycle(&prompt, "completed"));
    assert_eq!(run.heard(&lifecycle(follow_up, "started")), [took("f")]);
    assert!(run.reader.reading().settled && !run.talk.is_idle(), "it begins");
    run.hear(&[claude_init(), claude_result(), lifecycle(follow_up, "completed")]);
    assert!(!run.talk.is_idle());
    assert_eq!(gave_back(&run.heard(&lifecycle(third, "cancelled"))), ["g"]);
    assert!(run.is_over());
}

#[test]
fn claude_is_not_done_while_something_runs_in_the_background() {
    let mut run = Run::prompt("claude-stream", "do it");
    let prompt = run.last()["uuid"].clone();
    let tasks =
        |tasks: &[&str]| json!({"type": "system", "subtype": "background_tasks_changed", "tasks": tasks});
    run.hear(&[lifecycle(&prompt, "started"), claude_init(), tasks(&["t"]), claude_result()]);
    run.heard(&lifecycle(&prompt, "completed"));
    assert!(run.reader.reading().settled && !run.talk.is_idle());
    run.hear(&[json!({"type": "system", "subtype": "task_notification"}), tasks(&[])]);
    assert!(run.reader.reading().settled && !run.talk.is_idle(), "its turn is about to begin");
    run.hear(&[claude_init(), claude_result()]);
    assert!(run.is_over());
    run.heard(&tasks(&["t"]));
    assert!(!run.talk.is_idle());
    run.act(|talk, deeds| talk.interrupt(deeds));
    assert!(run.talk.is_idle());
}

#[test]
fn versions_that_repeat_messages_tell_it_so() {
    let mut run = Run::prompt("claude-stream", "do it");
    let prompt = run.last()["uuid"].clone();
    run.steer("s", "also this");
    let steer = run.last()["uuid"].clone();
    let replay =
        |uuid: &Value| json!({"type": "user", "isReplay": true, "uuid": uuid, "message": {"content": "x"}});
    run.hear(&[claude_init(), replay(&prompt)]);
    run.heard(&claude_result());
    assert!(!run.talk.is_idle());
    assert_eq!(run.hear(&[claude_init(), replay(&steer)]), [took("s")]);
    run.heard(&claude_result());
    assert!(run.is_over());
}

#[test]
fn claude_is_answered_as_in_the_recordings() {
    for (name, choice) in [("sj_perm_allow", "allow"), ("sj_perm_deny", "deny")] {
        let lines = recorded(&format!("claude/{name}"));
        let mut run = Run::prompt("claude-stream", "do it");
        let at = lines.iter().position(|line| line["type"] == "control_request").expect("a request");
        run.hear(&lines[..at]);
        let deeds = run.heard(&lines[at]);
        let asked = asked(&deeds).clone();
        let request = &lines[at]["request"];
        assert_eq!(
            (&asked.details, asked.tool.as_deref()),
            (&request["input"], request["tool_name"].as_str())
        );
        assert!(!run.talk.is_idle());
        run.choose(&asked.key, choice);
        let response = &run.last()["response"];
        assert_eq!(
            (&response["subtype"], &response["request_id"]),
            (&json!("success"), &lines[at]["request_id"])
        );
        match choice {
            "allow" => assert_eq!(
                response["response"],
                json!({"behavior": "allow", "updatedInput": request["input"]})
            ),
            _ => assert_eq!(response["response"]["behavior"], "deny"),
        }
        assert!(run.choose(&asked.key, "allow").is_empty(), "one answer");
        run.hear(&lines[at + 1..]);
        assert!(run.is_over());
    }
}

#[test]
fn claude_asks_which() {
    let mut run = Run::prompt("claude-stream", "do it");
    let input = json!({"questions": [{"question": "Which color?", "header": "Color", "multiSelect": false,
        "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]}]});
    let request = |id: &str| {
        json!({"type": "control_request", "request_id": id, "request": {
            "subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": input, "tool_use_id": "u"}})
    };
    let deeds = run.heard(&request("r1"));
    let question = asked(&deeds).clone();
    assert_eq!((question.about, question.text.as_str()), (About::Choice, "Which color?"));
    run.choose(&question.key, "2");
    let mut answered = input.clone();
    answered["answers"] = json!({"Which color?": "Blue"});
    assert_eq!(run.last()["response"]["response"], json!({"behavior": "allow", "updatedInput": answered}));
    let deeds = run.heard(&request("r2"));
    let key = asked(&deeds).key.clone();
    run.act(|talk, deeds| talk.answer(&key, Reply::Expired, deeds));
    assert_eq!(run.last()["response"]["response"]["behavior"], "deny");
    let deeds = run.heard(&request("r3"));
    let key = asked(&deeds).key.clone();
    let deeds = run.heard(&json!({"type": "control_cancel_request", "request_id": "r3"}));
    assert_eq!(deeds, [Deed::Withdraw(key.clone())]);
    assert!(run.choose(&key, "1").is_empty());
    run.heard(
        &json!({"type": "control_request", "request_id": "h", "request": {"subtype": "hook_callback"}}),
    );
    assert_eq!(run.last()["response"]["subtype"], "error");
}

// pi

/// The recording with the names that our commands have: those of the recording's script are numbers.
fn renamed(lines: Vec<Value>, names: &[(&str, &str)]) -> Vec<Value> {
    let rename = |mut line: Value| {
        if line["type"] == "response"
            && let Some((_, ours)) = names.iter().find(|(theirs, _)| line["id"] == *theirs)
        {
            line["id"] = (*ours).into();
        }
        line
    };
    lines.into_iter().map(rename).collect()
}

#[test]
fn pi_is_told_what_the_recording_told_it() {
    let sent = said("pi/rpc_image").remove(0);
    let image = &sent["images"][0];
    let mut picture = picture();
    picture.bytes = base64(image["data"].as_str().expect("the picture"));
    let prompt = sent["message"].as_str().expect("a prompt").to_owned();
    let mut run = Run::new("pi-rpc", Opening { prompt, attachments: vec![picture], ..Opening::default() });
    assert_eq!(run.written[0]["type"], "get_state");
    let mut ours = run.last().clone();
    ours["id"] = sent["id"].clone();
    assert_eq!(ours, sent);
    for line in renamed(recorded("pi/rpc_image"), &[("1", "sessiond-2")]) {
        assert!(!run.is_over(), "{line}");
        run.heard(&line);
    }
    assert!(run.is_over());
}

#[test]
fn pi_is_steered_as_in_the_recording() {
    let names = [("1", "sessiond-2"), ("2", "sessiond-3")];
    let lines = renamed(recorded("pi/rpc_steer_tool"), &names);
    let sent = said("pi/rpc_steer_tool");
    let mut run = Run::prompt("pi-rpc", "do it");
    let at = run.hear_until(&lines, "tool_execution_start");
    run.steer("s", sent[1]["message"].as_str().expect("a text"));
    assert_eq!(
        (&run.last()["message"], &run.last()["streamingBehavior"]),
        (&sent[1]["message"], &json!("steer"))
    );
    assert!(!run.talk.is_idle());
    assert_eq!(run.hear(&lines[at..]), [took("s")]);
    assert!(run.is_over());
}

#[test]
fn pi_takes_follow_ups_one_by_one() {
    let names = [("1", "sessiond-2"), ("2", "sessiond-3"), ("3", "sessiond-4")];
    let lines = renamed(recorded("pi/rpc_follow_up"), &names);
    let sent = said("pi/rpc_follow_up");
    let mut run = Run::prompt("pi-rpc", "do it");
    let at = run.hear_until(&lines, "text_delta");
    for (id, sent) in [("f", &sent[1]), ("g", &sent[2])] {
        run.message(MessageMode::FollowUp, id, sent["message"].as_str().expect("a text"));
    }
    assert_eq!(run.last()["streamingBehavior"], "followUp");
    let taken: Vec<Deed> =
        run.hear(&lines[at..]).into_iter().filter(|deed| matches!(deed, Deed::Took(_))).collect();
    assert_eq!(taken, [took("f"), took("g")]);
    assert!(run.is_over());
}

fn response(id: u64, command: &str, data: Value) -> Value {
    json!({"id": format!("sessiond-{id}"), "type": "response", "command": command, "success": true, "data": data})
}

fn pi() -> Run {
    let mut run = Run::prompt("pi-rpc", "do it");
    run.hear(&[
        response(1, "get_state", json!({"sessionId": "p"})),
        response(2, "prompt", json!({"disposition": "started"})),
    ]);
    assert!(!run.talk.is_idle(), "a run is about to begin");
    run.heard(&json!({"type": "agent_start"}));
    run
}

fn user_said(text: &str) -> Value {
    json!({"type": "message_start", "message": {"role": "user", "content": [{"type": "text", "text": text}]}})
}

fn settled(aborted: bool) -> Value {
    json!({"type": "agent_settled", "aborted": aborted})
}

#[test]
fn a_message_that_pi_gets_between_runs_starts_one() {
    let mut run = pi();
    run.steer("s", "late");
    run.heard(&settled(false));
    assert!(!run.talk.is_idle());
    assert_eq!(run.heard(&response(3, "prompt", json!({"disposition": "started"}))), [took("s")]);
    assert!(run.reader.reading().settled && !run.talk.is_idle(), "a run is about to begin");
    run.hear(&[json!({"type": "agent_start"}), user_said("late"), settled(false)]);
    assert!(run.is_over());
}

#[test]
fn what_a_run_left_in_pis_queue_comes_back() {
    let mut run = pi();
    run.steer("s", "one");
    run.message(MessageMode::FollowUp, "f", "/two");
    assert_eq!(run.written.len(), 3, "one at a time");
    run.heard(&response(3, "prompt", json!({"disposition": "queued"})));
    run.heard(&response(4, "prompt", json!({"disposition": "queued"})));
    run.heard(&settled(true));
    assert_eq!(run.last()["type"], "clear_queue");
    assert!(!run.talk.is_idle());
    assert_eq!(gave_back(&run.heard(&response(5, "clear_queue", json!({})))), ["s", "f"]);
    assert!(run.is_over());
}

#[test]
fn pi_is_interrupted_with_its_queue_cleared() {
    let mut run = pi();
    run.steer("s", "one");
    run.message(MessageMode::FollowUp, "f", "two");
    run.heard(&response(3, "prompt", json!({"disposition": "queued"})));
    let before = run.written.len();
    let deeds = run.act(|talk, deeds| talk.interrupt(deeds));
    assert!(gave_back(&deeds).is_empty());
    let kinds: Vec<&Value> = run.written[before..].iter().map(|line| &line["type"]).collect();
    assert_eq!(kinds, ["clear_queue", "abort"]);
    run.heard(&response(4, "prompt", json!({"disposition": "queued"})));
    let deeds =
        run.hear(&[response(5, "clear_queue", json!({})), settled(true), response(6, "abort", Value::Null)]);
    assert_eq!(gave_back(&deeds), ["s", "f"]);
    assert!(run.is_over());
}

#[test]
fn a_prompt_that_pi_does_not_run_is_said() {
    let mut run = Run::prompt("pi-rpc", "do it");
    let no = json!({"id": "sessiond-2", "type": "response", "command": "prompt", "success": false, "error": "no model"});
    let deeds = run.heard(&no);
    assert_eq!(deeds, [Deed::Fail("pi refused the prompt: no model".into())]);
    let mut run = Run::prompt("pi-rpc", "/do it");
    run.heard(&response(2, "prompt", json!({"disposition": "handled"})));
    assert!(!run.talk.is_idle());
    let deeds = run.heard(&response(3, "get_state", json!({"isStreaming": false, "pendingMessageCount": 0})));
    assert!(matches!(&deeds[..], [Deed::Fail(_)]));
}

#[test]
fn dialogs_of_pis_extensions_are_questions() {
    let mut run = pi();
    let dialog = |id: &str, method: &str, more: Value| {
        let mut line =
            json!({"type": "extension_ui_request", "id": id, "method": method, "title": "Really?"});
        line.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        line
    };
    let deeds = run.heard(&dialog("a", "select", json!({"options": ["Allow", "Block"]})));
    assert_eq!(asked(&deeds).choices.len(), 3);
    run.choose("a", "2");
    assert_eq!(run.last(), &json!({"type": "extension_ui_response", "id": "a", "value": "Block"}));
    run.heard(&dialog("b", "confirm", json!({"message": "All is lost."})));
    run.choose("b", "yes");
    assert_eq!(run.last(), &json!({"type": "extension_ui_response", "id": "b", "confirmed": true}));
    let deeds = run.heard(&dialog("c", "input", json!({"placeholder": "a name"})));
    assert_eq!((asked(&deeds).about, asked(&deeds).takes_text), (About::Text, true));
    let answer = Answer { choice: None, text: Some("x".into()) };
    run.act(|talk, deeds| talk.answer("c", Reply::Answer(&answer), deeds));
    assert_eq!(run.last(), &json!({"type": "extension_ui_response", "id": "c", "value": "x"}));
    run.heard(&dialog("d", "editor", json!({})));
    run.act(|talk, deeds| talk.answer("d", Reply::Expired, deeds));
    assert_eq!(run.last(), &json!({"type": "extension_ui_response", "id": "d", "cancelled": true}));
    assert!(run.heard(&dialog("e", "notify", json!({}))).is_empty());
    run.heard(&dialog("f", "confirm", json!({"timeout": 1000})));
    assert!(!run.talk.is_idle());
    assert_eq!(run.heard(&json!({"type": "turn_end"})), [Deed::Withdraw("f".into())]);
    run.heard(&settled(false));
    assert!(run.is_over());
}

// Arguments

#[test]
fn one_way_families_name_what_they_get() {
    let path = Path::new("/spool/x y/a.png");
    let attached = airouter_sessiond::dialect::launch::Attached { name: "a", media_type: "image/png", path };
    let schema =
        airouter_sessiond::dialect::launch::Schema { path: Path::new("/spool/schema.json"), text: "{}" };
    let id = "01a22ca6-386c-7071-a05d-b989233d4fc6";
    let whole = Occasion { attachments: vec![attached], schema: Some(schema), conversation: Some(id) };
    let arguments = |name: &str, occasion: &Occasion<'_>| {
        find(name).expect("a dialect").arguments(&["own".into()], &["more".into()], occasion)
    };
    for (name, words) in [
        (
            "codex",
            vec!["resume", "--output-schema", "/spool/schema.json", "--image=/spool/x y/a.png", id, "-"],
        ),
        ("pi", vec!["--session", id, "@/spool/x y/a.png"]),
        ("gemini", vec!["--resume", id, "--include-directories=/spool/x y", "--prompt=@/spool/x\\ y/a.png"]),
        ("opencode", vec!["--session", id, "--file=/spool/x y/a.png"]),
        ("claude-stream", vec!["--resume", id, "--json-schema", "{}"]),
        ("codex-app", vec![]),
        ("pi-rpc", vec!["--session", id]),
    ] {
        let mut expected = vec!["own", "more"];
        expected.extend(words);
        assert_eq!(arguments(name, &whole).expect(name), expected, "{name}");
    }
    let refused = arguments("claude", &whole).expect_err("no pictures").to_string();
    assert!(refused.contains("claude-stream"), "{refused}");
    let refused = arguments("jsonl", &whole).expect_err("nothing").to_string();
    assert!(refused.contains("jsonl-talk"), "{refused}");
    let odd = Occasion { conversation: Some("--last"), ..Occasion::default() };
    for name in airouter_sessiond::dialect::NAMES {
        // It says so in its first line.
        assert_eq!(arguments(name, &odd).is_err(), name != "jsonl-talk", "{name}");
        assert_eq!(arguments(name, &Occasion::default()).expect(name), ["own", "more"]);
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let check = |name: &str, input: Option<&[u8]>| find(name).expect("a dialect").check_input(input);
    for name in ["codex", "claude", "pi", "gemini", "opencode"] {
        assert!(check(name, Some(b" \n")).is_err() && check(name, None).is_ok(), "{name}");
        assert!(check(name, Some(b"- x")).is_ok(), "{name}");
    }
    assert!(check("codex", Some(b"\xff x")).is_err() && check("codex", Some(b"\xff\xfex\0")).is_ok());
    let large = "ä".repeat(1 << 20).into_bytes();
    for name in ["codex", "codex-app"] {
        assert!(check(name, Some(&large)).is_ok(), "{name}");
        assert!(check(name, Some(&[&large[..], b"x"].concat())).is_err(), "{name}");
    }
    let large = vec![b'x'; 5_000_000];
    for name in ["claude", "claude-stream", "pi", "pi-rpc", "opencode"] {
        assert!(check(name, Some(&large)).is_ok(), "{name}");
    }
    assert!(check("gemini", Some(&large)).is_err());
    assert!(check("jsonl", Some(b"")).is_ok());
}

// Anything

/// A line as some program might print it: of a recording, with parts of it changed, or anything else.
fn lines() -> impl Strategy<Value = String> {
    let mut known: Vec<String> = Vec::new();
    for name in [
        "codex/appserver_steer",
        "codex/appserver_interrupt_tool",
        "claude/sj_perm_allow",
        "claude/sj_interrupt_tool",
        "pi/rpc_prompt_midturn",
        "pi/rpc_abort_queued",
    ] {
        known.extend(recorded(name).iter().map(Value::to_string).filter(|line| !line.contains("_update")));
    }
    for kind in ["select", "confirm", "input", "editor"] {
        let options = json!(["a", "b"]);
        known.push(
            json!({"type": "extension_ui_request", "id": "d", "method": kind, "options": options})
                .to_string(),
        );
    }
    for method in [
        "item/commandExecution/requestApproval",
        "item/fileChange/requestApproval",
        "execCommandApproval",
        "item/permissions/requestApproval",
        "mcpServer/elicitation/request",
        "item/tool/requestUserInput",
        "x/y",
    ] {
        let questions = json!([{"id": "q", "question": "?", "options": [{"label": "l"}]}]);
        known.push(json!({"method": method, "id": 9, "params": {"questions": questions}}).to_string());
    }
    for state in ["queued", "started", "completed", "cancelled"] {
        known.push(json!({"type": "command_lifecycle", "command_uuid": "@", "state": state}).to_string());
    }
    for id in 0..8 {
        known.push(json!({"id": id, "result": {"thread": {"id": "t"}, "turn": {"id": "u"}}}).to_string());
        known.push(json!({"id": id, "error": {"message": "no active turn to steer"}}).to_string());
        let disposition = ["started", "queued", "handled"][id % 3];
        known.push(response(id as u64, "prompt", json!({"disposition": disposition})).to_string());
    }
    known.extend([turn("started", "u").to_string(), turn("completed", "u").to_string()]);
    prop_oneof![
        8 => prop::sample::select(known.clone()),
        1 => (prop::sample::select(known), any::<prop::sample::Index>()).prop_map(|(line, at)| {
            let mut at = at.index(line.len().max(1));
            while !line.is_char_boundary(at) {
                at -= 1;
            }
            line[..at].to_owned()
        }),
        1 => r#"[\[\]{}:," a-z\\ud8D9-]{0,60}"#,
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Line(String),
    Message(bool, String),
    /// To the question of this place among all that were asked.
    Answer(prop::sample::Index, u8),
    Interrupt,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => lines().prop_map(Step::Line),
        3 => (any::<bool>(), "[a-z/]{1,8}").prop_map(|(steer, text)| Step::Message(steer, text)),
        3 => (any::<prop::sample::Index>(), 0u8..6).prop_map(|(at, how)| Step::Answer(at, how)),
        1 => Just(Step::Interrupt),
    ];
    prop::collection::vec(step, 0..60)
}

/// Runs the steps. A question that was answered or withdrawn is not answered again, and a message has one end at most.
fn bear(dialect: &str, steps: Vec<Step>) {
    let mut run = Run::prompt(dialect, "do it");
    let mut keys: Vec<String> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut messages = 0;
    for step in steps {
        let uuids: Vec<Value> = run.written.iter().filter_map(|line| line.get("uuid").cloned()).collect();
        let deeds = match step {
            Step::Line(line) => {
                let uuid = uuids.last().and_then(Value::as_str).unwrap_or_default();
                let line = line.replace('@', uuid).into_bytes();
                run.reader.line(&line, &mut Vec::new());
                run.act(|talk, deeds| talk.heard(&line, deeds))
            }
            Step::Message(steer, text) => {
                messages += 1;
                let mode = if steer { MessageMode::Steer } else { MessageMode::FollowUp };
                run.message(mode, &format!("m{messages}"), &text)
            }
            Step::Answer(at, how) if !keys.is_empty() => {
                let key = keys[at.index(keys.len())].clone();
                let choices = ["allow", "deny", "1", "yes", "other"];
                let answer = Answer {
                    choice: choices.get(usize::from(how)).map(|&choice| choice.to_owned()),
                    text: (how % 2 == 0).then(|| "so".to_owned()),
                };
                let reply = if how == 5 { Reply::Expired } else { Reply::Answer(&answer) };
                let deeds = run.act(|talk, deeds| talk.answer(&key, reply, deeds));
                let written = deeds.iter().filter(|deed| matches!(deed, Deed::Write { .. })).count();
                assert!(written <= usize::from(open.contains(&key)), "{key}: {deeds:?}");
                open.retain(|known| *known != key);
                deeds
            }
            Step::Answer(..) => Vec::new(),
            Step::Interrupt => run.act(|talk, deeds| talk.interrupt(deeds)),
        };
        for deed in deeds {
            match deed {
                Deed::Ask(asked) => {
                    assert!(!open.contains(&asked.key), "{} is asked twice", asked.key);
                    assert!(!asked.choices.is_empty() || asked.takes_text);
                    open.push(asked.key.clone());
                    keys.push(asked.key);
                }
                Deed::Withdraw(key) => {
                    assert!(open.contains(&key), "{key} is withdrawn and was not open");
                    open.retain(|known| *known != key);
                }
                _ => {}
            }
        }
        assert!(open.is_empty() || !run.talk.is_idle());
    }
    run.act(|talk, deeds| talk.close(deeds));
    let message = run.message(MessageMode::Steer, "late", "x");
    assert_eq!(gave_back(&message), ["late"]);
    for number in 1..=messages {
        let id = format!("m{number}");
        let ends = run.deeds.iter().filter(|deed| match deed {
            Deed::Took(message) | Deed::GaveBack { message, .. } => *message == id,
            _ => false,
        });
        assert!(ends.count() <= 1, "{id}: {:?}", run.deeds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn talks_bear_anything(steps in steps(), which in 0..TWO_WAY.len()) {
        bear(TWO_WAY[which], steps);
    }
}
