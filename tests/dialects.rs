//! Every recording of a real program, read by its dialect, against the right answers in
//! `tests/recordings/expected.jsonl`: as it is, and spoiled in the ways in which output is spoiled.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use airouter_sessiond::dialect::{Dialect, Reading, find};
use airouter_sessiond::model::{End, Event, Exit, Part, VerdictResult, derive_end, kind::notice};
use serde_json::Value;
use sha2::{Digest, Sha256};

struct Case {
    name: String,
    dialect: &'static dyn Dialect,
    arguments: Vec<String>,
    expected: Value,
    bytes: Vec<u8>,
}

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("a file of the recordings is JSON")
}

fn cases() -> Vec<Case> {
    let expected = fs::read_to_string(recordings().join("expected.jsonl")).expect("the right answers");
    expected.lines().map(|line| case(json(line.as_bytes()))).collect()
}

fn case(expected: Value) -> Case {
    let (cli, case) = (string(&expected, "cli"), string(&expected, "case"));
    let name = match string(&expected, "mode").as_str() {
        "app-server" => "codex-app",
        "rpc" => "pi-rpc",
        _ => cli.as_str(),
    };
    let file = |suffix| recordings().join(&cli).join(format!("{case}.{suffix}"));
    let meta = json(&fs::read(file("meta.json")).expect("how it was started"));
    let arguments = meta["arguments"].as_array().expect("arguments");
    Case {
        name: format!("{cli}/{case}"),
        dialect: find(name).expect("a dialect"),
        arguments: arguments.iter().map(|word| word.as_str().expect("a word").to_owned()).collect(),
        expected,
        bytes: fs::read(file("jsonl")).expect("the recording"),
    }
}

fn string(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is a text")).to_owned()
}

/// The lines as the executor cuts them; an unterminated rest is one too.
fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    lines
}

fn read(case: &Case, dialect: &dyn Dialect, lines: &[Vec<u8>]) -> (Vec<Event>, Reading) {
    let mut reader = dialect.reader(&case.arguments);
    let mut events = Vec::new();
    for line in lines {
        let before = events.len();
        reader.line(line, &mut events);
        assert!(events.len() > before, "{}: a line without an event", case.name);
    }
    reader.end(&mut events);
    (events, reader.reading().clone())
}

#[derive(Debug, PartialEq)]
struct Tool {
    id: String,
    name: String,
    finished: bool,
    error: bool,
    exit_code: Option<i64>,
    output: Option<(u64, String)>,
    sub: bool,
}

fn tools(events: &[Event]) -> Vec<Tool> {
    let mut tools: Vec<Tool> = Vec::new();
    for event in events {
        match event {
            Event::ToolStarted { tool, name, sub, .. } => tools.push(Tool {
                id: tool.clone(),
                name: name.clone(),
                finished: false,
                error: false,
                exit_code: None,
                output: None,
                sub: sub.is_some(),
            }),
            Event::ToolFinished { tool, name, error, exit_code, output, sub } => {
                let open = tools.iter_mut().rev().find(|open| open.id == *tool && !open.finished);
                let open = open.unwrap_or_else(|| panic!("{tool} ended and never began"));
                assert_eq!((&open.name, open.sub), (name, sub.is_some()));
                open.finished = true;
                open.error = *error;
                open.exit_code = *exit_code;
                let digest: String =
                    Sha256::digest(output).iter().map(|byte| format!("{byte:02x}")).collect();
                open.output = Some((output.len() as u64, digest));
            }
            _ => {}
        }
    }
    tools
}

fn expected_tools(expected: &Value, found: &[Tool]) -> Vec<Tool> {
    let tools = expected["tools"].as_array().expect("tools");
    let tools = tools.iter().enumerate().map(|(at, tool)| Tool {
        id: string(tool, "id"),
        name: string(tool, "name"),
        finished: tool["finished"].as_bool().expect("finished"),
        error: tool["error"].as_bool().unwrap_or(false),
        exit_code: tool["exit_code"].as_i64(),
        output: match tool["output_bytes"].as_u64() {
            Some(bytes) => Some((bytes, string(tool, "output_sha256"))),
            // Not told there: nothing to compare with.
            None => found.get(at).and_then(|found| found.output.clone()),
        },
        sub: tool["sub"].as_bool().expect("sub"),
    });
    tools.collect()
}

fn usage_matches(case: &Case, reading: &Reading) {
    let numbers = |key: &str| {
        let usage = &case.expected[key];
        let count = |key: &str| usage[key].as_u64().unwrap_or(0);
        (!usage.is_null()).then(|| (count("input"), count("output"), count("cached"), count("reasoning")))
    };
    let found = reading
        .usage
        .map(|usage| (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens));
    let total = reading.usage.is_some_and(|usage| usage.conversation_total);
    match numbers("usage_this_run") {
        Some(this_run) => assert_eq!((found, total), (Some(this_run), false), "{}: usage", case.name),
        None if total => assert_eq!(found, numbers("usage_reported"), "{}: total usage", case.name),
        None => assert_eq!(found, numbers("usage_lower_bound"), "{}: usage so far", case.name),
    }
}

/// The rule without what the exit code adds to it.
fn rule(reason: &str) -> &str {
    reason.trim_end_matches(", exit 0")
}

fn check(case: &Case, events: &[Event], reading: &Reading) {
    let name = &case.name;
    let expected = &case.expected;
    let result = match string(expected, "verdict").as_str() {
        "success" => VerdictResult::Success,
        "failure" => VerdictResult::Failure,
        _ => VerdictResult::None,
    };
    assert_eq!(reading.text.as_deref(), expected["final_text"].as_str(), "{name}: text");
    assert_eq!(reading.verdict.result, result, "{name}: verdict");
    assert_eq!(reading.verdict.rule, rule(&string(expected, "verdict_reason")), "{name}: rule");
    assert_eq!(
        reading.verdict.message.as_deref(),
        expected["limit_or_error_text"].as_str(),
        "{name}: message"
    );
    assert_eq!(
        reading.settled,
        expected["terminal_event_seen"].as_bool().expect("a flag"),
        "{name}: settled"
    );
    assert_eq!(reading.conversation.as_deref(), expected["conversation_id"].as_str(), "{name}: conversation");
    assert_eq!(Some(reading.progress.turns), expected["turns"].as_u64(), "{name}: turns");
    let found = tools(events);
    assert_eq!(found, expected_tools(expected, &found), "{name}: tools");
    assert_eq!(reading.progress.tool_calls, found.len() as u64, "{name}: tool calls");
    usage_matches(case, reading);
    let retries = events
        .iter()
        .filter(|event| matches!(event, Event::Notice { reason, .. } if reason == notice::RETRY));
    assert_eq!(Some(retries.count() as u64), expected["retries"].as_u64(), "{name}: retries");
    turns_match(case, events);
    end_matches(case, reading);
}

/// One verdict for each turn that ended, and "none" at last where the last turn has none.
fn turns_match(case: &Case, events: &[Event]) {
    let mut verdicts: Vec<String> = Vec::new();
    for event in events {
        if let Event::Verdict { result, .. } = event {
            verdicts.push(result.to_string());
        }
    }
    let turns = case.expected["turn_results"].as_array().expect("turns");
    let mut expected: Vec<String> = turns.iter().map(|turn| string(turn, "verdict")).collect();
    if case.expected["verdict"] == "none" {
        expected.push("none".to_owned());
    }
    assert_eq!(verdicts, expected, "{}: verdicts", case.name);
}

fn end_matches(case: &Case, reading: &Reading) {
    let exit = match (case.expected["exit_code"].as_i64(), case.expected["killed_by_signal"].as_str()) {
        (Some(code), _) => Some(Exit::Code(code as i32)),
        (None, Some("SIGTERM")) => Some(Exit::Signal(15)),
        (None, Some("SIGKILL")) => Some(Exit::Signal(9)),
        (None, other) => panic!("{}: ended by {other:?}", case.name),
    };
    let end = derive_end(&reading.verdict, exit, case.dialect.has_verdicts());
    let completed = case.expected["verdict"] == "success" && exit == Some(Exit::Code(0));
    assert_eq!(end == End::Completed, completed, "{}: {end:?}", case.name);
}

/// The deltas of a message, joined, are the whole text that follows them.
fn previews_match(case: &Case, events: &[Event]) {
    let mut joined: HashMap<Option<String>, String> = HashMap::new();
    for event in events {
        match event {
            Event::Preview { text, part: Part::Text, sub, .. } => {
                joined.entry(sub.clone()).or_default().push_str(text);
            }
            Event::ResponseStarted { sub, .. } => {
                joined.remove(sub);
            }
            Event::ResponseCompleted { text, sub, cut: false, .. } => {
                if let Some(joined) = joined.remove(sub) {
                    assert_eq!(&joined, text, "{}: deltas", case.name);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_recording_is_read_right() {
    for case in cases() {
        let (events, reading) = read(&case, case.dialect, &lines(&case.bytes));
        check(&case, &events, &reading);
        previews_match(&case, &events);
    }
}

#[test]
fn there_is_an_answer_for_every_recording() {
    let known: BTreeSet<String> = cases().into_iter().map(|case| case.name).collect();
    let mut found = BTreeSet::new();
    for family in fs::read_dir(recordings()).expect("recordings") {
        let family = family.expect("an entry").path();
        if !family.is_dir() {
            continue;
        }
        for file in fs::read_dir(&family).expect("a family") {
            let file = file.expect("an entry").path();
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                let family = family.file_name().expect("a name").to_string_lossy().into_owned();
                let case = file.file_stem().expect("a name").to_string_lossy().into_owned();
                found.insert(format!("{family}/{case}"));
            }
        }
    }
    assert_eq!(known, found);
}

/// Both ways of a program are read under either of its names.
#[test]
fn a_family_reads_all_of_its_ways() {
    for case in cases() {
        let family = find(&string(&case.expected, "cli")).expect("a dialect");
        let (events, reading) = read(&case, family, &lines(&case.bytes));
        check(&case, &events, &reading);
    }
}

#[test]
fn carriage_returns_change_nothing() {
    for case in cases() {
        let lines: Vec<Vec<u8>> =
            lines(&case.bytes).into_iter().map(|line| [&line[..], b"\r"].concat()).collect();
        let (events, reading) = read(&case, case.dialect, &lines);
        check(&case, &events, &reading);
    }
}

#[test]
fn foreign_and_torn_lines_change_nothing() {
    let foreign: [&[u8]; 9] = [
        b"",
        b"npm warn: something",
        b"\xff\xfe\x00",
        b"{\"type\":",
        b"{\"type\":\"unheard-of\",\"text\":\"x\"}",
        b"[{\"type\":\"result\"}]",
        b"null",
        b"{\"type\":null}",
        b"{\"type\":7,\"message\":[],\"item\":3,\"event\":\"x\",\"params\":{}}",
    ];
    for case in cases() {
        let mut spoiled: Vec<Vec<u8>> = Vec::new();
        for (at, line) in lines(&case.bytes).into_iter().enumerate() {
            spoiled.push(foreign[at % foreign.len()].to_vec());
            spoiled.push(line[..line.len() / 2].to_vec());
            spoiled.push(line[line.len() / 2..].to_vec());
            spoiled.push(line);
        }
        let (events, reading) = read(&case, case.dialect, &spoiled);
        check(&case, &events, &reading);
    }
}

/// Keys in another order (sorted, and so mostly with `type` last), without the spaces that a program may print.
#[test]
fn the_order_of_keys_changes_nothing() {
    for case in cases() {
        let lines: Vec<Vec<u8>> = lines(&case.bytes)
            .into_iter()
            .map(|line| match serde_json::from_slice::<Value>(&line) {
                Ok(value) => format!(" {value} ").into_bytes(),
                Err(_) => line,
            })
            .collect();
        let (events, reading) = read(&case, case.dialect, &lines);
        check(&case, &events, &reading);
    }
}

/// Cut after any line, a run is never a success by mistake: there is a verdict only where the program gave one.
#[test]
fn a_run_that_is_cut_has_no_more_than_was_said() {
    for case in cases() {
        let lines = lines(&case.bytes);
        let most = case.expected["turns"].as_u64().expect("turns");
        for end in 0..lines.len() {
            let (events, reading) = read(&case, case.dialect, &lines[..end]);
            assert!(reading.progress.turns <= most, "{} at {end}", case.name);
            let last = events.iter().rev().find_map(|event| match event {
                Event::Verdict { result, .. } => Some(*result),
                _ => None,
            });
            assert_eq!(last, Some(reading.verdict.result), "{} at {end}", case.name);
            if string(&case.expected, "cli") == "claude" {
                let missing = results_missing(&lines[..end]);
                assert_eq!(reading.verdict.result == VerdictResult::None, missing, "{} at {end}", case.name);
                assert_eq!(reading.settled, !missing, "{} at {end}", case.name);
            }
            if reading.progress.turns == 0 {
                assert_eq!(reading.verdict.result, VerdictResult::None, "{} at {end}", case.name);
                assert!(!reading.settled, "{} at {end}", case.name);
            }
        }
    }
}

/// Whether a turn of claude's began that has no result, or none began at all.
fn results_missing(lines: &[Vec<u8>]) -> bool {
    let count = |what: &str| lines.iter().filter(|line| String::from_utf8_lossy(line).contains(what)).count();
    let (inits, results) = (count(r#""subtype":"init""#), count(r#""type":"result""#));
    inits == 0 || inits > results
}

/// A line of any dialect in front of any other reader: no panic, and always an event.
#[test]
fn readers_bear_each_others_lines() {
    let cases = cases();
    for reader in airouter_sessiond::dialect::NAMES {
        let dialect = find(reader).expect("a dialect");
        assert_eq!(dialect.name(), reader);
        for case in &cases {
            read(case, dialect, &lines(&case.bytes));
        }
    }
}

/// Every key of every kind of line with a value that no program prints there: no panic (also of arithmetic), and an
/// event for every line.
#[test]
fn no_value_of_any_key_is_fatal() {
    let values = [
        Value::Null,
        Value::Bool(true),
        Value::from(-1),
        Value::from(u64::MAX),
        Value::from(1e300),
        Value::from("x"),
        Value::from("Exit code 99999999999999999999999"),
        Value::Array(vec![Value::Null, Value::from(3)]),
        serde_json::json!({"text": 1}),
    ];
    let mut seen = BTreeSet::new();
    for case in cases() {
        let lines = lines(&case.bytes);
        for line in lines.iter().filter(|line| line.len() < 8192) {
            let Ok(line) = serde_json::from_slice::<Value>(line) else { continue };
            if !seen.insert((case.dialect.name(), shape(&line))) {
                continue;
            }
            for at in 0..nodes(&line) {
                let mut reader = case.dialect.reader(&case.arguments);
                let mut events = Vec::new();
                for value in &values {
                    let mut spoiled = line.clone();
                    replace(&mut spoiled, at, value);
                    let before = events.len();
                    reader.line(spoiled.to_string().as_bytes(), &mut events);
                    reader.line(spoiled.to_string().as_bytes(), &mut events);
                    assert!(events.len() >= before + 2, "{}: {spoiled}", case.name);
                }
                reader.end(&mut events);
            }
        }
    }
    assert!(seen.len() > 100, "only {} kinds of lines", seen.len());
}

/// What kind of line it is.
fn shape(line: &Value) -> String {
    let inner = ["type", "subtype", "method"].map(|key| line[key].as_str().unwrap_or_default());
    let deep =
        ["/item/type", "/params/item/type", "/event/type", "/assistantMessageEvent/type", "/message/role"]
            .map(|path| line.pointer(path).and_then(Value::as_str).unwrap_or_default());
    format!("{inner:?} {deep:?}")
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(items) => items.values().map(nodes).sum(),
        _ => 0,
    }
}

/// Replaces the node with this number, counted from the root; returns how many are left to count.
fn replace(value: &mut Value, at: usize, new: &Value) -> Option<usize> {
    if at == 0 {
        *value = new.clone();
        return None;
    }
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(items) => items.values_mut().collect(),
        _ => Vec::new(),
    };
    children.into_iter().try_fold(at - 1, |at, child| replace(child, at, new))
}

fn read_lines(dialect: &str, arguments: &[&str], lines: &[&str]) -> (Vec<Event>, Reading) {
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let mut reader = find(dialect).expect("a dialect").reader(&arguments);
    let mut events = Vec::new();
    for line in lines {
        reader.line(line.as_bytes(), &mut events);
    }
    reader.end(&mut events);
    (events, reader.reading().clone())
}

/// Codex reports what the thread has used. It is this run's only if the thread began in it.
#[test]
fn a_total_of_the_conversation_is_called_one() {
    let line = r#"{"type":"turn.completed","usage":{"input_tokens":7,"output_tokens":2}}"#;
    for (arguments, total) in [
        (&["exec", "--json"][..], false),
        (&["exec", "resume", "--json", "x"], true),
        (&["exec", "--json", "fork", "x"], true),
        (&["wrapper.sh"], true),
        (&[], true),
    ] {
        let usage = read_lines("codex", arguments, &[line]).1.usage.expect("usage");
        assert_eq!((usage.input_tokens, usage.conversation_total), (7, total), "{arguments:?}");
    }
}

#[test]
fn a_usage_limit_is_told_with_its_end() {
    let codex = [
        r#"{"type":"turn.started"}"#,
        r#"{"type":"turn.failed","error":{"message":"You've hit your usage limit. Try again at 12:16 PM."}}"#,
    ];
    let claude_words = [
        r#"{"type":"system","subtype":"init","session_id":"s"}"#,
        r#"{"type":"result","subtype":"success","is_error":true,"result":"Claude AI usage limit reached|1762952400"}"#,
    ];
    let claude_event = [
        r#"{"type":"system","subtype":"init","session_id":"s"}"#,
        r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1762952400}}"#,
        r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error: 429"}"#,
    ];
    for (dialect, lines, until) in [
        ("codex", &codex[..], "12:16 PM"),
        ("claude", &claude_words, "1762952400"),
        ("claude", &claude_event, "1762952400"),
    ] {
        let (events, reading) = read_lines(dialect, &[], lines);
        assert_eq!(reading.verdict.limit.as_deref(), Some(until), "{dialect}");
        assert_eq!(derive_end(&reading.verdict, Some(Exit::Code(1)), true), End::LimitReached);
        assert!(events.iter().any(|event| matches!(
            event,
            Event::Notice { reason, more, .. } if reason == notice::LIMIT && more["until"] == until
        )));
    }
}

/// A limit that the account may exceed, or that is near, is no failure.
#[test]
fn a_limit_that_stops_nothing_is_none() {
    for status in ["allowed", "allowed_warning"] {
        let event = format!(
            r#"{{"type":"rate_limit_event","rate_limit_info":{{"status":"{status}","resetsAt":1}}}}"#
        );
        let lines = [
            event.as_str(),
            r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error: 500"}"#,
        ];
        let (_, reading) = read_lines("claude", &[], &lines);
        assert_eq!(reading.verdict.limit, None, "{status}");
    }
}

/// With a schema the answer is the value, whatever the text beside it says.
#[test]
fn a_structured_answer_is_its_value() {
    let said = r#"{"a": "b"}"#;
    for (result, answer) in [("All done.", r#"{"a":"b"}"#), (said, said)] {
        let result = serde_json::json!({
            "type": "result", "subtype": "success", "is_error": false, "result": result, "structured_output": {"a": "b"},
        });
        let (events, reading) = read_lines("claude", &[], &[&result.to_string()]);
        assert_eq!(reading.text.as_deref(), Some(answer));
        assert!(
            events
                .iter()
                .any(|event| matches!(event, Event::ResponseCompleted { text, .. } if text == answer))
        );
    }
    let none =
        r#"{"type":"result","subtype":"success","is_error":false,"result":"x","structured_output":null}"#;
    assert_eq!(read_lines("claude", &[], &[none]).1.text.as_deref(), Some("x"));
}

/// What the program itself says to its model is not the answer.
#[test]
fn words_of_the_program_are_no_answer() {
    let (_, reading) = read_lines(
        "opencode",
        &[],
        &[
            r#"{"type":"text","sessionID":"s","part":{"type":"text","text":"the answer"}}"#,
            r#"{"type":"text","sessionID":"s","part":{"type":"text","text":"go on","synthetic":true}}"#,
        ],
    );
    assert_eq!(reading.text.as_deref(), Some("the answer"));
    let (_, reading) = read_lines(
        "claude",
        &[],
        &[
            r#"{"type":"assistant","message":{"model":"m","content":[{"type":"text","text":"the answer"}]}}"#,
            r#"{"type":"assistant","message":{"model":"<synthetic>","content":[{"type":"text","text":"API Error"}]}}"#,
            r#"{"type":"assistant","parent_tool_use_id":"t","message":{"content":[{"type":"text","text":"sub"}]}}"#,
        ],
    );
    assert_eq!(reading.text.as_deref(), Some("the answer"));
}
