//! Gemini: `gemini --output-format stream-json`.
//!
//! - There is one turn, and `result` ends it. Without that line it has no verdict: the program exits with 0 after signals too.
//! - The answer comes in deltas only. A call of a tool ends a message and begins the next; the text after the last one is
//!   the answer if the turn succeeds. The text of a dropped try and that of the good one run together without a mark.
//! - Into a pipe it cuts long lines and loses the rest, so it writes to a file.
//! - It knows a conversation only in the directory in which it began.
//! - It starts itself again as a child that no signal reaches; `GEMINI_CLI_NO_RELAUNCH` keeps it one process. No signal
//!   makes it stop its tools.

use serde_json::Value;

use super::json::{Joiner, Line, number, parse_object, text, text_at};
use super::ledger::{Ledger, ToolEnd};
use super::{Capture, Dialect, Features, Launch, Occasion, Reader, Reading, Stdin, Unable, launch};
use crate::model::{Event, Part, Usage};

/// The longest message that is put together, in bytes; a longer one is told as cut.
const MESSAGE: usize = 16 << 20;

/// The most bytes of a prompt: its models take about a million tokens, of about four bytes.
const INPUT: usize = 4_000_000;

/// `gemini --output-format stream-json`.
#[derive(Debug)]
pub(super) struct Gemini;

impl Dialect for Gemini {
    fn name(&self) -> &'static str {
        "gemini"
    }

    fn conversations_stay(&self) -> bool {
        true
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: ["--output-format", "stream-json"].map(str::to_owned).to_vec(),
            stdin: Stdin::InputThenClose,
            capture: Capture::File,
            environment: vec![("GEMINI_CLI_NO_RELAUNCH", "true")],
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(GeminiReader::default())
    }

    fn features(&self) -> Features {
        Features { attachments: true, resume: true, ..Features::default() }
    }

    /// A file is named in the prompt, as `@path`, and must be below a directory that it was told of. The option `--prompt` is
    /// put after what stands on standard input.
    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        let mut added = Vec::new();
        if let Some(conversation) = occasion.conversation {
            added.extend(["--resume".to_owned(), launch::uuid(self.name(), conversation)?.to_owned()]);
        }
        let mut directories: Vec<String> = Vec::new();
        for attached in &occasion.attachments {
            let directory = attached.path.parent().unwrap_or(attached.path).to_string_lossy().into_owned();
            if directory.contains(',') {
                let what = "attachments below a directory with a comma in its name";
                return Err(Unable { dialect: self.name(), what, instead: "move the spool" });
            }
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        added.extend(directories.iter().map(|directory| format!("--include-directories={directory}")));
        if !occasion.attachments.is_empty() {
            let names = occasion.attachments.iter().map(|attached| named(&attached.path.to_string_lossy()));
            added.push(format!("--prompt={}", names.collect::<Vec<_>>().join(" ")));
        }
        Ok(launch::with(own, more, added))
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        let Some(input) = input else { return Ok(()) };
        launch::needs_words(self.name(), input)?;
        if input.len() > INPUT {
            // It would ask no model, print no answer and call that a success.
            let what = "input of more than 4000000 bytes";
            return Err(Unable {
                dialect: self.name(),
                what,
                instead: "put it into a file and name the file",
            });
        }
        Ok(())
    }

    fn commands(&self) -> &'static [&'static str] {
        &["gemini"]
    }
}

#[derive(Debug, Default)]
struct GeminiReader {
    ledger: Ledger,
    /// The message that is being streamed.
    message: Option<String>,
    /// It is longer than [`MESSAGE`].
    too_long: bool,
    joiner: Joiner,
    /// The last words of an `error` line.
    error: Option<String>,
}

impl Reader for GeminiReader {
    fn line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let before = events.len();
        if let Some(line) = parse_object(line) {
            self.object(&line, events);
        }
        if events.len() == before {
            events.push(Event::Raw {});
        }
    }

    fn end(&mut self, events: &mut Vec<Event>) {
        self.finish_message(events, true);
        self.ledger.end(events);
    }

    fn reading(&self) -> &Reading {
        self.ledger.reading()
    }
}

impl GeminiReader {
    fn object(&mut self, line: &Line, events: &mut Vec<Event>) {
        let value = line.value();
        match text(value, "type") {
            Some("init") => {
                if let Some(id) = text(value, "session_id") {
                    self.ledger.conversation(id);
                }
                self.ledger.turn_started();
            }
            Some("message") if text(value, "role") == Some("assistant") => self.message(line, events),
            Some("tool_use") => {
                self.finish_message(events, false);
                let (Some(tool), Some(name)) = (text(value, "tool_id"), text(value, "tool_name")) else {
                    return;
                };
                let input = value.get("parameters").cloned().unwrap_or_default();
                self.ledger.tool_started(events, tool, name, input, None);
            }
            Some("tool_result") => {
                let Some(tool) = text(value, "tool_id") else { return };
                let output = text(value, "output").or_else(|| text_at(value, &["error", "message"]));
                let end = ToolEnd {
                    tool,
                    error: text(value, "status") == Some("error"),
                    output: output.unwrap_or_default().to_owned(),
                    ..ToolEnd::default()
                };
                self.ledger.tool_finished(events, end, None);
            }
            Some("error") => {
                let message = text(value, "message").unwrap_or_default();
                if text(value, "severity") != Some("warning") {
                    self.error = Some(message.to_owned());
                }
                self.ledger.warning(events, message);
            }
            Some("result") => self.result(value, events),
            _ => {}
        }
    }

    fn message(&mut self, line: &Line, events: &mut Vec<Event>) {
        let Some(piece) = line.piece(&["content"]) else { return };
        if self.message.is_none() {
            events.push(Event::ResponseStarted { message: None, sub: None });
        }
        let text = self.joiner.push(piece);
        let message = self.message.get_or_insert_default();
        if !self.too_long && message.len() + text.len() <= MESSAGE {
            message.push_str(&text);
        } else {
            self.too_long = true;
        }
        preview(text, events);
    }

    fn finish_message(&mut self, events: &mut Vec<Event>, cut: bool) {
        let Some(mut message) = self.message.take() else { return };
        if let Some(rest) = self.joiner.finish() {
            message.push(rest);
            preview(rest.to_string(), events);
        }
        let too_long = std::mem::take(&mut self.too_long);
        self.ledger.completed(events, &message, None, None, cut || too_long, !cut);
    }

    fn result(&mut self, value: &Value, events: &mut Vec<Event>) {
        let status = text(value, "status").unwrap_or("unknown");
        self.finish_message(events, status != "success");
        if let Some(stats) = value.get("stats") {
            let count = |key| number(stats, key).unwrap_or(0);
            let usage = Usage {
                input_tokens: count("input_tokens"),
                output_tokens: count("output_tokens"),
                cached_tokens: count("cached"),
                ..Usage::default()
            };
            self.ledger.usage(events, usage);
        }
        let rule = format!("result.status {status}");
        if status == "success" {
            self.ledger.succeeded(events, &rule);
        } else {
            let message = text_at(value, &["error", "message"]).or(self.error.as_deref());
            self.ledger.failed(events, &rule, message);
        }
    }
}

/// A file as a prompt names it.
fn named(path: &str) -> String {
    let mut name = String::from("@");
    for c in path.chars() {
        if !(c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_')) {
            name.push('\\');
        }
        name.push(c);
    }
    name
}

fn preview(text: String, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Preview { text, part: Part::Text, message: None, sub: None });
    }
}
