//! Pi: `pi --mode json` and `pi --mode rpc`.
//!
//! - A run of the agent begins with `agent_start` and ends with `agent_settled`, whatever is retried or follows in between.
//!   It succeeded if it was not aborted and its last message stopped with `stop`. The exit code says nothing of it.
//! - Versions before that line end a run with an `agent_end` that does not say `willRetry`. After an error they may try
//!   again, and say so next: until then, or the next run, or the program's end, such an error is no verdict.
//! - A message may have been cut: `length` cuts an answer that is still one, `aborted` and `error` leave none.
//! - Usage stands in every message of the assistant and is summed.
//! - In another directory than its own it asks whether to fork a conversation, takes silence for no, and ends with 0.
//! - SIGTERM ends it with its tools; SIGINT leaves them running.

use serde_json::Value;

use super::json::{Joiner, Line, flag, number, parse_object, text, text_at, texts};
use super::ledger::{Ledger, ToolEnd};
use super::pi_talk::RpcTalk;
use super::{
    Capture, Dialect, Features, Interrupt, Launch, Occasion, Reader, Reading, Stdin, Talk, Unable, launch,
};
use crate::model::{Event, Part, Usage};

/// `pi --mode json`.
#[derive(Debug)]
pub(super) struct Pi;

/// `pi --mode rpc`.
#[derive(Debug)]
pub(super) struct PiRpc;

impl Dialect for Pi {
    fn name(&self) -> &'static str {
        "pi"
    }

    fn conversations_stay(&self) -> bool {
        true
    }

    fn launch(&self) -> Launch {
        launching("json", Stdin::InputThenClose)
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(PiReader::default())
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
        let mut added = resumed(self.name(), occasion)?;
        added.extend(
            occasion.attachments.iter().map(|attached| format!("@{}", attached.path.to_string_lossy())),
        );
        Ok(launch::with(own, more, added))
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        input.map_or(Ok(()), |input| launch::needs_words(self.name(), input))
    }

    fn commands(&self) -> &'static [&'static str] {
        &["pi"]
    }
}

impl Dialect for PiRpc {
    fn name(&self) -> &'static str {
        "pi-rpc"
    }

    fn family(&self) -> &'static str {
        "pi"
    }

    fn conversations_stay(&self) -> bool {
        true
    }

    fn launch(&self) -> Launch {
        launching("rpc", Stdin::Conversation)
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(PiReader::default())
    }

    fn features(&self) -> Features {
        Features { output_schema: false, ..Features::ALL }
    }

    /// Attachments are said in the conversation.
    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        Ok(launch::with(own, more, resumed(self.name(), occasion)?))
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        launch::needs_text(self.name(), input)
    }

    fn talk(&self, _arguments: &[String]) -> Option<Box<dyn Talk>> {
        Some(Box::new(RpcTalk::default()))
    }

    fn interrupt(&self) -> Interrupt {
        Interrupt::Talk
    }

    fn commands(&self) -> &'static [&'static str] {
        &["pi"]
    }
}

/// The option for a conversation that goes on.
fn resumed(dialect: &'static str, occasion: &Occasion<'_>) -> Result<Vec<String>, Unable> {
    let Some(conversation) = occasion.conversation else { return Ok(Vec::new()) };
    Ok(vec!["--session".to_owned(), launch::word(dialect, conversation)?.to_owned()])
}

fn launching(mode: &str, stdin: Stdin) -> Launch {
    Launch {
        arguments: vec!["--mode".to_owned(), mode.to_owned()],
        stdin,
        capture: Capture::Pipe,
        environment: Vec::new(),
    }
}

#[derive(Debug, Default)]
struct PiReader {
    ledger: Ledger,
    usage: Option<Usage>,
    /// How the last message of the assistant stopped, and its words for an error.
    stop: Option<String>,
    error: Option<String>,
    /// An older version ended a run with an error, and has not said whether it tries again.
    undecided: bool,
    text: Joiner,
    thinking: Joiner,
}

impl Reader for PiReader {
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
        self.finish_streams(events);
        self.decide(events);
        self.ledger.end(events);
    }

    fn reading(&self) -> &Reading {
        self.ledger.reading()
    }
}

impl PiReader {
    fn object(&mut self, line: &Line, events: &mut Vec<Event>) {
        let value = line.value();
        let by_assistant = text_at(value, &["message", "role"]) == Some("assistant");
        match text(value, "type") {
            Some("session") => {
                if let Some(id) = text(value, "id") {
                    self.ledger.conversation(id);
                }
            }
            Some("agent_start") => {
                self.decide(events);
                self.ledger.turn_started();
                (self.stop, self.error) = (None, None);
            }
            Some("message_start") if by_assistant => {
                self.finish_streams(events);
                events.push(Event::ResponseStarted { message: None, sub: None });
            }
            Some("message_update") => self.update(line, events),
            Some("message_end") if by_assistant => self.message_end(&value["message"], events),
            Some("tool_execution_start") => {
                let (Some(tool), Some(name)) = (text(value, "toolCallId"), text(value, "toolName")) else {
                    return;
                };
                let input = value.get("args").cloned().unwrap_or_default();
                self.ledger.tool_started(events, tool, name, input, None);
            }
            Some("tool_execution_end") => self.tool_end(value, events),
            Some("agent_end") if value.get("willRetry").is_none() => match self.stop.as_deref() {
                Some("error") => self.undecided = true,
                _ => self.verdict("agent_end", events),
            },
            Some("auto_retry_end") => self.decide(events),
            Some("auto_retry_start") => {
                self.undecided = false;
                let more = [
                    ("attempt", number(value, "attempt")),
                    ("max-attempts", number(value, "maxAttempts")),
                    ("delay-ms", number(value, "delayMs")),
                ];
                self.ledger.retry(events, text(value, "errorMessage").unwrap_or_default(), more);
            }
            Some("agent_settled") => self.settled(flag(value, "aborted"), events),
            Some("response") => self.response(value, events),
            _ => {}
        }
    }

    fn update(&mut self, line: &Line, events: &mut Vec<Event>) {
        let kind = text_at(line.value(), &["assistantMessageEvent", "type"]);
        let (joiner, part) = match kind {
            Some("text_delta") => (&mut self.text, Part::Text),
            Some("thinking_delta") => (&mut self.thinking, Part::Thinking),
            Some("text_end" | "thinking_end") => return self.finish_streams(events),
            _ => return,
        };
        let Some(piece) = line.piece(&["assistantMessageEvent", "delta"]) else { return };
        preview(joiner.push(piece), part, events);
    }

    fn finish_streams(&mut self, events: &mut Vec<Event>) {
        for (joiner, part) in [(&mut self.thinking, Part::Thinking), (&mut self.text, Part::Text)] {
            preview(joiner.finish().map(String::from).unwrap_or_default(), part, events);
        }
    }

    fn message_end(&mut self, message: &Value, events: &mut Vec<Event>) {
        self.finish_streams(events);
        let stop = text(message, "stopReason");
        let answer = matches!(stop, Some("stop" | "toolUse" | "length"));
        let cut = !matches!(stop, Some("stop" | "toolUse"));
        let mut whole = None;
        for block in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            if let Some(thinking) = text(block, "thinking") {
                events.push(Event::Thinking { text: thinking.to_owned(), sub: None });
            } else if text(block, "type") == Some("text") {
                let text = text(block, "text").unwrap_or_default();
                whole.get_or_insert_with(String::new).push_str(text);
            }
        }
        if let Some(whole) = whole {
            self.ledger.completed(events, &whole, None, None, cut, answer);
        }
        self.stop = stop.map(str::to_owned);
        self.error = text(message, "errorMessage").map(str::to_owned);
        if let Some(usage) = message.get("usage") {
            let sum = self.usage.get_or_insert_default();
            let add = |sum: &mut u64, key| *sum = sum.saturating_add(number(usage, key).unwrap_or(0));
            add(&mut sum.input_tokens, "input");
            add(&mut sum.output_tokens, "output");
            add(&mut sum.cached_tokens, "cacheRead");
            add(&mut sum.reasoning_tokens, "reasoning");
            if let Some(cost) = usage.get("cost").and_then(|cost| cost.get("total")?.as_f64()) {
                sum.cost = Some(sum.cost.unwrap_or(0.0) + cost);
            }
            let sum = *sum;
            self.ledger.usage(events, sum);
        }
    }

    fn tool_end(&mut self, value: &Value, events: &mut Vec<Event>) {
        let Some(tool) = text(value, "toolCallId") else { return };
        let result = value.get("result");
        let content = result.and_then(|result| result.get("content")?.as_array());
        let output = content.map(|parts| texts(parts)).unwrap_or_default();
        let exit_code = result.and_then(|result| result.get("structuredContent")?.get("exit_code")?.as_i64());
        let end = ToolEnd { tool, error: flag(value, "isError"), exit_code, output, sub: None };
        self.ledger.tool_finished(events, end, text(value, "toolName"));
    }

    fn settled(&mut self, aborted: bool, events: &mut Vec<Event>) {
        self.undecided = false;
        if aborted {
            self.ledger.failed(events, "agent_settled aborted:true", self.error.as_deref());
        } else {
            self.verdict("agent_settled aborted:false", events);
        }
    }

    /// An error that ended a run of an older version is not followed by another try.
    fn decide(&mut self, events: &mut Vec<Event>) {
        if std::mem::take(&mut self.undecided) {
            self.verdict("agent_end", events);
        }
    }

    /// A run that was not aborted ended as its last message did.
    fn verdict(&mut self, by: &str, events: &mut Vec<Event>) {
        let stop = self.stop.as_deref().unwrap_or("unknown");
        let error = self.error.as_deref();
        let rule = format!("{by}, stopReason {stop}");
        match (stop, by.split_once(' ')) {
            ("stop", _) => self.ledger.succeeded(events, &rule),
            ("length", short) => {
                let by = short.map_or(by, |(first, _)| first);
                self.ledger.failed(events, &format!("length ({by}, stopReason length)"), error);
            }
            _ => self.ledger.failed(events, &rule, error),
        }
    }

    fn response(&mut self, value: &Value, events: &mut Vec<Event>) {
        if let Some(id) = text_at(value, &["data", "sessionId"]) {
            self.ledger.conversation(id);
        }
        if value.get("success") == Some(&Value::Bool(false)) {
            let command = text(value, "command").unwrap_or("a message");
            let error = text(value, "error").unwrap_or("without a reason");
            self.ledger.warning(events, &format!("{command} was refused: {error}"));
        }
    }
}

fn preview(text: String, part: Part, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Preview { text, part, message: None, sub: None });
    }
}
