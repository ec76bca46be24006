//! opencode: `opencode run --format json`.
//!
//! - There is no final line. A step that finished with the reason `stop` is a success while no other step begins; an
//!   `error` line is a failure, whatever follows it: the program then exits with 1.
//! - Texts and calls of tools are printed when they are finished, never in deltas.
//! - Usage stands in every `step_finish` and is summed.
//! - In another directory than its own it goes on with a conversation, prints nothing of it, and never ends.
//! - SIGINT is ignored; SIGTERM ends it and leaves its tools running.

use serde_json::Value;

use super::json::{flag, number, parse_object, text, text_at};
use super::ledger::{Ledger, ToolEnd};
use super::{Capture, Dialect, Features, Launch, Occasion, Reader, Reading, Stdin, Unable, launch};
use crate::model::{Event, Usage};

/// `opencode run --format json`.
#[derive(Debug)]
pub(super) struct Opencode;

impl Dialect for Opencode {
    fn name(&self) -> &'static str {
        "opencode"
    }

    fn conversations_stay(&self) -> bool {
        true
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: ["run", "--format", "json"].map(str::to_owned).to_vec(),
            stdin: Stdin::InputThenClose,
            capture: Capture::Pipe,
            environment: vec![("OPENCODE_DISABLE_AUTOUPDATE", "true")],
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(OpencodeReader::default())
    }

    fn features(&self) -> Features {
        Features { attachments: true, resume: true, ..Features::default() }
    }

    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        let mut added = Vec::new();
        if let Some(conversation) = occasion.conversation {
            added.extend(["--session".to_owned(), launch::word(self.name(), conversation)?.to_owned()]);
        }
        let files = occasion.attachments.iter();
        added.extend(files.map(|attached| format!("--file={}", attached.path.to_string_lossy())));
        Ok(launch::with(own, more, added))
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        input.map_or(Ok(()), |input| launch::needs_words(self.name(), input))
    }

    fn commands(&self) -> &'static [&'static str] {
        &["opencode"]
    }
}

#[derive(Debug, Default)]
struct OpencodeReader {
    ledger: Ledger,
    usage: Usage,
    /// An `error` line was read: the run has failed.
    failed: bool,
}

impl Reader for OpencodeReader {
    fn line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let before = events.len();
        if let Some(line) = parse_object(line) {
            self.object(line.value(), events);
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

impl OpencodeReader {
    fn object(&mut self, value: &Value, events: &mut Vec<Event>) {
        if let Some(id) = text(value, "sessionID") {
            self.ledger.conversation(id);
        }
        let kind = text(value, "type");
        if kind == Some("error") {
            return self.error(value, events);
        }
        let Some(part) = value.get("part") else { return };
        let message = text(part, "messageID");
        match kind {
            Some("step_start") => {
                if !self.failed {
                    self.ledger.unsettle();
                }
                events.push(Event::ResponseStarted { message: message.map(str::to_owned), sub: None });
            }
            Some("text") => {
                let words = text(part, "text").unwrap_or_default();
                if flag(part, "synthetic") {
                    // The program's own words to the model, such as "go on" after a compaction.
                    self.ledger.warning(events, words);
                } else {
                    self.ledger.completed(events, words, message, None, false, true);
                }
            }
            Some("reasoning") => {
                let text = text(part, "text").unwrap_or_default().to_owned();
                events.push(Event::Thinking { text, sub: None });
            }
            Some("tool_use") => self.tool(part, events),
            Some("step_finish") => self.step_finish(part, events),
            _ => {}
        }
    }

    fn error(&mut self, value: &Value, events: &mut Vec<Event>) {
        let message = text_at(value, &["error", "data", "message"])
            .or_else(|| text_at(value, &["error", "message"]))
            .or_else(|| text_at(value, &["error", "name"]));
        if self.failed {
            return self.ledger.warning(events, message.unwrap_or_default());
        }
        self.failed = true;
        self.ledger.failed(events, "error line", message);
    }

    fn tool(&mut self, part: &Value, events: &mut Vec<Event>) {
        let (Some(tool), Some(name)) = (text(part, "callID"), text(part, "tool")) else { return };
        let Some(state) = part.get("state") else { return };
        if !self.ledger.is_open(tool) {
            let input = state.get("input").cloned().unwrap_or_default();
            self.ledger.tool_started(events, tool, name, input, None);
        }
        let error = text(state, "status") == Some("error");
        if !error && text(state, "status") != Some("completed") {
            return;
        }
        let output = text(state, "output").or_else(|| text(state, "error")).unwrap_or_default().to_owned();
        let exit_code = state.get("metadata").and_then(|metadata| metadata.get("exit")?.as_i64());
        self.ledger.tool_finished(events, ToolEnd { tool, error, exit_code, output, sub: None }, Some(name));
    }

    fn step_finish(&mut self, part: &Value, events: &mut Vec<Event>) {
        if let Some(tokens) = part.get("tokens") {
            let sum = &mut self.usage;
            let add = |sum: &mut u64, count: Option<u64>| *sum = sum.saturating_add(count.unwrap_or(0));
            add(&mut sum.input_tokens, number(tokens, "input"));
            add(&mut sum.output_tokens, number(tokens, "output"));
            add(&mut sum.reasoning_tokens, number(tokens, "reasoning"));
            add(&mut sum.cached_tokens, tokens.get("cache").and_then(|cache| number(cache, "read")));
            if let Some(cost) = part.get("cost").and_then(Value::as_f64) {
                sum.cost = Some(sum.cost.unwrap_or(0.0) + cost);
            }
            self.ledger.usage(events, self.usage);
        }
        if self.failed {
            return;
        }
        match text(part, "reason") {
            Some("stop") => self.ledger.succeeded(events, "last step_finish reason stop"),
            Some("length") => self.ledger.failed(events, "length (step_finish reason length)", None),
            Some("tool-calls") | None => {}
            Some(reason) => {
                let rule = format!("last step_finish reason {reason}");
                self.ledger.failed(events, &rule, None);
            }
        }
    }
}
