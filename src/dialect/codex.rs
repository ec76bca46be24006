//! Codex: `codex exec --json`. What `codex app-server` prints is read too (see the module `codex_app`).
//!
//! - A turn ends with `turn.completed` or `turn.failed`; an `error` line alone ends nothing. It is a retry where it says
//!   `Reconnecting...`, and a warning or the reason of the failure that follows otherwise.
//! - There are no text deltas. The answer is the last `agent_message` of the turn.
//! - Usage is that of the whole thread, also of what earlier processes used. Only the arguments tell whether there was
//!   anything earlier; where they do not, the numbers are marked as the conversation's total.
//! - SIGINT ends it with its tools; SIGTERM leaves them running.

use serde_json::Value;

use super::codex_app::AppServer;
use super::json::{Line, number, parse_object, text, text_at, texts};
use super::ledger::{Ledger, ToolEnd};
use super::{
    Capture, Dialect, Features, Interrupt, Launch, Occasion, Reader, Reading, Stdin, Unable, launch,
};
use crate::model::{Event, Usage};

/// The most characters that it takes in one message.
const INPUT: usize = 1 << 20;

/// `codex exec --json`.
#[derive(Debug)]
pub(super) struct Codex;

impl Dialect for Codex {
    fn name(&self) -> &'static str {
        "codex"
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: ["exec", "--json", "--skip-git-repo-check"].map(str::to_owned).to_vec(),
            stdin: Stdin::InputThenClose,
            capture: Capture::Pipe,
            environment: Vec::new(),
        }
    }

    fn reader(&self, arguments: &[String]) -> Box<dyn Reader> {
        Box::new(CodexReader { exec: Exec { fresh: is_fresh(arguments) }, ..CodexReader::default() })
    }

    fn features(&self) -> Features {
        Features { attachments: true, output_schema: true, resume: true, ..Features::default() }
    }

    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        let mut added = Vec::new();
        if occasion.conversation.is_some() {
            added.push("resume".to_owned());
        }
        if let Some(schema) = &occasion.schema {
            added.extend(["--output-schema".to_owned(), schema.path.to_string_lossy().into_owned()]);
        }
        for attached in &occasion.attachments {
            let path = attached.path.to_string_lossy();
            if path.contains(',') {
                let what = "attachments below a directory with a comma in its name";
                return Err(Unable { dialect: self.name(), what, instead: "move the spool" });
            }
            // After `resume`: before it, the option takes that word and the name for files too.
            added.push(format!("--image={path}"));
        }
        if let Some(conversation) = occasion.conversation {
            // The name of anything but a thread begins a new one without a word.
            added.push(launch::uuid(self.name(), conversation)?.to_owned());
            if !own.iter().chain(more).any(|word| word == "--") {
                // The prompt is on standard input. Else it follows there.
                added.push("-".to_owned());
            }
        }
        Ok(launch::with(own, more, added))
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        let Some(input) = input else { return Ok(()) };
        let utf16 = input.starts_with(b"\xff\xfe") || input.starts_with(b"\xfe\xff");
        if !utf16 && std::str::from_utf8(input).is_err() {
            return Err(Unable {
                dialect: self.name(),
                what: "input that is not UTF-8",
                instead: "convert it",
            });
        }
        check_input(self.name(), input)
    }

    fn interrupt(&self) -> Interrupt {
        Interrupt::Signal(libc::SIGINT)
    }

    fn commands(&self) -> &'static [&'static str] {
        &["codex"]
    }
}

/// Checks an input of either way.
pub(super) fn check_input(dialect: &'static str, input: &[u8]) -> Result<(), Unable> {
    launch::needs_words(dialect, input)?;
    if input.len() > INPUT && std::str::from_utf8(input).is_ok_and(|input| input.chars().count() > INPUT) {
        let what = "input of more than 1048576 characters";
        return Err(Unable { dialect, what, instead: "put it into a file and name the file" });
    }
    Ok(())
}

/// Whether these arguments begin a new thread for certain.
fn is_fresh(arguments: &[String]) -> bool {
    let mut words = arguments.iter().map(String::as_str);
    words.any(|word| word == "exec" || word == "e") && !words.any(|word| word == "resume" || word == "fork")
}

/// Reads both ways in which Codex prints: the two share no line.
#[derive(Debug, Default)]
pub(super) struct CodexReader {
    ledger: Ledger,
    exec: Exec,
    app: AppServer,
}

impl Reader for CodexReader {
    fn line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let before = events.len();
        if let Some(line) = parse_object(line) {
            if line.value().get("type").is_some() {
                self.exec.line(&line, &mut self.ledger, events);
            } else {
                self.app.line(&line, &mut self.ledger, events);
            }
        }
        if events.len() == before {
            events.push(Event::Raw {});
        }
    }

    fn end(&mut self, events: &mut Vec<Event>) {
        self.ledger.end(events);
    }

    fn reading(&self) -> &Reading {
        self.ledger.reading()
    }
}

/// The lines of `codex exec --json`.
#[derive(Debug, Default)]
struct Exec {
    /// The thread began in this run.
    fresh: bool,
}

impl Exec {
    fn line(&mut self, line: &Line, ledger: &mut Ledger, events: &mut Vec<Event>) {
        let value = line.value();
        match text(value, "type") {
            Some("thread.started") => {
                if let Some(id) = text(value, "thread_id") {
                    ledger.conversation(id);
                }
            }
            Some("turn.started") => {
                ledger.turn_started();
                events.push(Event::ResponseStarted { message: None, sub: None });
            }
            Some("turn.completed") => {
                if let Some(usage) = value.get("usage") {
                    ledger.usage(events, thread_usage(usage, self.fresh));
                }
                ledger.succeeded(events, "turn.completed");
            }
            Some("turn.failed") => {
                let message = text_at(value, &["error", "message"]);
                let rule =
                    if message.is_some_and(is_length) { "length (turn.failed)" } else { "turn.failed" };
                ledger.failed(events, rule, message);
            }
            Some("error") => {
                let message = text(value, "message").unwrap_or_default();
                match reconnecting(message) {
                    Some(more) => ledger.retry(events, message, more),
                    None => ledger.warning(events, message),
                }
            }
            Some("item.started") => item(value, ledger, events, false),
            Some("item.completed") => item(value, ledger, events, true),
            _ => {}
        }
    }
}

fn item(value: &Value, ledger: &mut Ledger, events: &mut Vec<Event>, completed: bool) {
    let Some(item) = value.get("item") else { return };
    let (Some(id), Some(kind)) = (text(item, "id"), text(item, "type")) else { return };
    match kind {
        "agent_message" if completed => {
            let text = text(item, "text").unwrap_or_default();
            ledger.completed(events, text, Some(id), None, false, true);
        }
        "reasoning" if completed => {
            let text = text(item, "text").unwrap_or_default().to_owned();
            events.push(Event::Thinking { text, sub: None });
        }
        "error" if completed => {
            ledger.warning(events, text(item, "message").unwrap_or_default());
        }
        "agent_message" | "reasoning" | "error" | "todo_list" => {}
        _ => tool(item, id, kind, None, ledger, events, completed),
    }
}

/// Every other item is something that the agent does: commands, patches, searches, calls of MCP servers and what later
/// versions add.
pub(super) fn tool(
    item: &Value,
    id: &str,
    kind: &str,
    sub: Option<&str>,
    ledger: &mut Ledger,
    events: &mut Vec<Event>,
    completed: bool,
) {
    if !ledger.is_open(id) {
        let name = match (text(item, "server"), text(item, "tool")) {
            (Some(server), Some(tool)) => format!("{server}.{tool}"),
            (None, Some(tool)) => tool.to_owned(),
            _ => kind.to_owned(),
        };
        ledger.tool_started(events, id, &name, tool_input(item), sub);
    }
    if completed {
        let exit_code = ["exit_code", "exitCode"].iter().find_map(|key| item.get(key)?.as_i64());
        let error = matches!(text(item, "status"), Some("failed" | "declined"))
            || exit_code.is_some_and(|code| code != 0)
            || item.get("error").is_some_and(|error| !error.is_null());
        let end = ToolEnd { tool: id, error, exit_code, output: tool_output(item), sub };
        ledger.tool_finished(events, end, None);
    }
}

fn tool_input(item: &Value) -> Value {
    ["command", "changes", "arguments", "query", "prompt"]
        .iter()
        .find_map(|key| item.get(key))
        .cloned()
        .unwrap_or_default()
}

fn tool_output(item: &Value) -> String {
    if let Some(output) = text(item, "aggregated_output").or_else(|| text(item, "aggregatedOutput")) {
        return output.to_owned();
    }
    if let Some(message) = text_at(item, &["error", "message"]) {
        return message.to_owned();
    }
    let content = item.get("result").and_then(|result| result.get("content")?.as_array());
    content.map(|parts| texts(parts)).unwrap_or_default()
}

fn thread_usage(usage: &Value, fresh: bool) -> Usage {
    let count = |key| number(usage, key).unwrap_or(0);
    Usage {
        input_tokens: count("input_tokens"),
        output_tokens: count("output_tokens"),
        cached_tokens: count("cached_input_tokens"),
        reasoning_tokens: count("reasoning_output_tokens"),
        cost: None,
        conversation_total: !fresh,
    }
}

/// Whether these words say that the answer was cut by the limit on its length.
pub(super) fn is_length(message: &str) -> bool {
    message.starts_with("Incomplete response returned") && message.contains("max_output_tokens")
}

/// What `Reconnecting... 2/5 (why)` says: which attempt of how many.
pub(super) fn reconnecting(message: &str) -> Option<[(&'static str, Option<u64>); 3]> {
    let rest = message.strip_prefix("Reconnecting...")?.trim_start();
    let counts = rest.split_whitespace().next().and_then(|word| word.split_once('/'));
    let (attempt, most) = counts.map_or((None, None), |(a, b)| (a.parse().ok(), b.parse().ok()));
    Some([("attempt", attempt), ("max-attempts", most), ("delay-ms", None)])
}
