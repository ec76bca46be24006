//! Claude Code: `claude -p --output-format stream-json --verbose`, with one prompt or with messages on its standard input,
//! with and without `--include-partial-messages`.
//!
//! - Every turn begins with `system/init` and ends with `result`. A turn may begin before the earlier one's result is
//!   printed (a sub-agent or a command in the background that ends), so inits are counted against results: while one is
//!   missing there is no verdict.
//! - A turn succeeded if its result has the subtype `success` and `is_error` is not set; an API error has that subtype too.
//! - The answer is the result's own text; where a turn fails, the last text that was not cut by an interrupt. Texts with
//!   `parent_tool_use_id` are a sub-agent's, and those of the model `<synthetic>` are the program's own words.
//! - With a schema the answer is `structured_output` of the result.
//! - Usage is the sum of `model_usage_since_last_result`, which sub-agents are part of; `usage`, in versions without it, is
//!   the turn's.
//! - SIGINT ends it with its tools and a last `result`; SIGTERM ends it without one.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

use super::json::{Joiner, Line, Piece, flag, number, parse_object, text, text_at, texts};
use super::ledger::{Ledger, ToolEnd};
use super::limit::usage_limit;
use super::{
    Capture, Dialect, Features, Interrupt, Launch, Occasion, Reader, Reading, Stdin, Unable, launch,
};
use crate::model::kind::notice;
use crate::model::{Event, Part, Usage, VerdictResult};

/// Messages whose beginning is remembered, so that it is told once.
const STARTED_MESSAGES: usize = 64;
/// The longest id of a message that is remembered, in bytes.
const MESSAGE_ID: usize = 256;
/// The kernel's limit on one argument, in bytes, with the zero byte at its end.
const ARGUMENT: usize = 128 << 10;
/// Texts that may end within a surrogate pair at the same time.
const OPEN_STREAMS: usize = 64;

/// `claude -p --output-format stream-json --verbose`.
#[derive(Debug)]
pub(super) struct Claude;

impl Dialect for Claude {
    fn name(&self) -> &'static str {
        "claude"
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: ["-p", "--output-format", "stream-json", "--verbose"].map(str::to_owned).to_vec(),
            stdin: Stdin::InputThenClose,
            capture: Capture::Pipe,
            environment: vec![("DISABLE_AUTOUPDATER", "1")],
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(ClaudeReader::default())
    }

    fn features(&self) -> Features {
        Features { output_schema: true, resume: true, ..Features::default() }
    }

    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        if !occasion.attachments.is_empty() {
            let instead = "use a profile with the dialect claude-stream";
            return Err(Unable { dialect: self.name(), what: "attachments", instead });
        }
        arguments(self.name(), own, more, occasion)
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        input.map_or(Ok(()), |input| launch::needs_words(self.name(), input))
    }

    fn interrupt(&self) -> Interrupt {
        Interrupt::Signal(libc::SIGINT)
    }

    fn commands(&self) -> &'static [&'static str] {
        &["claude"]
    }
}

/// The whole arguments, in both ways: a conversation and a schema are named by options. Attachments are not arguments.
pub(super) fn arguments(
    dialect: &'static str,
    own: &[String],
    more: &[String],
    occasion: &Occasion<'_>,
) -> Result<Vec<String>, Unable> {
    let mut added = Vec::new();
    if let Some(conversation) = occasion.conversation {
        added.extend(["--resume".to_owned(), launch::uuid(dialect, conversation)?.to_owned()]);
    }
    if let Some(schema) = &occasion.schema {
        if schema.text.len() >= ARGUMENT {
            let what = "output schema of 128 KiB or more";
            return Err(Unable { dialect, what, instead: "it is an argument there; give a shorter one" });
        }
        added.extend(["--json-schema".to_owned(), schema.text.to_owned()]);
    }
    Ok(launch::with(own, more, added))
}

/// Reads both ways: with one prompt, and with messages.
#[derive(Debug, Default)]
pub(super) struct ClaudeReader {
    ledger: Ledger,
    /// Turns that began and have no result.
    pending: u64,
    usage: Usage,
    /// The last messages whose beginning was told.
    started: VecDeque<String>,
    /// Texts that are being streamed and end with half of a surrogate pair.
    streams: Vec<Stream>,
    /// Hashes of the texts that were told since no turn was pending.
    told: Vec<u64>,
    hasher: RandomState,
    /// The turn was cut by the limit on an answer's length.
    length: bool,
    /// The account's limit is reached, and when it ends, as the last line about it says.
    limit: Option<String>,
}

#[derive(Debug)]
struct Stream {
    sub: Option<String>,
    part: Part,
    joiner: Joiner,
}

impl Reader for ClaudeReader {
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
        while let Some(mut stream) = self.streams.pop() {
            finish(&mut stream, events);
        }
        self.ledger.end(events);
    }

    fn reading(&self) -> &Reading {
        self.ledger.reading()
    }
}

impl ClaudeReader {
    fn object(&mut self, line: &Line, events: &mut Vec<Event>) {
        let value = line.value();
        let sub = text(value, "parent_tool_use_id");
        match text(value, "type") {
            Some("system") => self.system(value, events),
            Some("stream_event") => self.stream_event(line, sub, events),
            Some("assistant") => self.assistant(value, sub, events),
            Some("user") => self.user(value, sub, events),
            Some("rate_limit_event") => self.rate_limit(value, events),
            Some("result") => self.result(value, events),
            _ => {}
        }
    }

    fn system(&mut self, value: &Value, events: &mut Vec<Event>) {
        match text(value, "subtype") {
            Some("init") => {
                if let Some(id) = text(value, "session_id") {
                    self.ledger.conversation(id);
                }
                self.pending += 1;
                self.length = false;
                self.ledger.turn_started();
            }
            Some("api_retry") => {
                let delay =
                    value.get("retry_delay_ms").and_then(Value::as_f64).map(|delay| delay.max(0.0) as u64);
                let more = [
                    ("attempt", number(value, "attempt")),
                    ("max-attempts", number(value, "max_retries")),
                    ("delay-ms", delay),
                ];
                let status =
                    number(value, "error_status").map(|status| format!(" ({status})")).unwrap_or_default();
                let error = text(value, "error").unwrap_or("unknown");
                self.ledger.retry(events, &format!("{error}{status}"), more);
            }
            Some("permission_denied") => {
                let tool = text(value, "tool_name").unwrap_or("a tool");
                self.ledger.warning(events, &format!("the use of {tool} was denied without asking"));
            }
            _ => {}
        }
    }

    fn stream_event(&mut self, line: &Line, sub: Option<&str>, events: &mut Vec<Event>) {
        let Some(event) = line.value().get("event") else { return };
        match text(event, "type") {
            Some("message_start") => {
                self.finish_streams(sub, events);
                self.response_started(text_at(event, &["message", "id"]), sub, events);
            }
            Some("content_block_delta") => {
                let (key, part) = match text_at(event, &["delta", "type"]) {
                    Some("text_delta") => ("text", Part::Text),
                    Some("thinking_delta") => ("thinking", Part::Thinking),
                    _ => return,
                };
                let Some(piece) = line.piece(&["event", "delta", key]) else { return };
                let text = self.join(sub, part, piece, events);
                let message =
                    text_at(line.value(), &["api_message_id"]).or(self.started.back().map(String::as_str));
                if !text.is_empty() {
                    let (message, sub) = (message.map(str::to_owned), sub.map(str::to_owned));
                    events.push(Event::Preview { text, part, message, sub });
                }
            }
            Some("content_block_start" | "content_block_stop" | "message_stop") => {
                self.finish_streams(sub, events);
            }
            _ => {}
        }
    }

    /// What `piece` adds to the text of this part. Only texts that end within a pair are remembered.
    fn join(&mut self, sub: Option<&str>, part: Part, piece: Piece, events: &mut Vec<Event>) -> String {
        let of_this = |stream: &Stream| stream.sub.as_deref() == sub && stream.part == part;
        let found = self.streams.iter().position(of_this).map(|at| self.streams.remove(at));
        let mut joiner = found.map(|stream| stream.joiner).unwrap_or_default();
        let text = joiner.push(piece);
        if joiner.is_waiting() {
            if self.streams.len() >= OPEN_STREAMS {
                finish(&mut self.streams.remove(0), events);
            }
            self.streams.push(Stream { sub: sub.map(str::to_owned), part, joiner });
        }
        text
    }

    fn finish_streams(&mut self, sub: Option<&str>, events: &mut Vec<Event>) {
        self.streams.retain_mut(|stream| {
            let other = stream.sub.as_deref() != sub;
            if !other {
                finish(stream, events);
            }
            other
        });
    }

    fn response_started(&mut self, message: Option<&str>, sub: Option<&str>, events: &mut Vec<Event>) {
        let Some(message) = message else { return };
        if message.len() > MESSAGE_ID || self.started.iter().any(|started| started == message) {
            return;
        }
        if self.started.len() >= STARTED_MESSAGES {
            self.started.pop_front();
        }
        self.started.push_back(message.to_owned());
        events
            .push(Event::ResponseStarted { message: Some(message.to_owned()), sub: sub.map(str::to_owned) });
    }

    fn assistant(&mut self, value: &Value, sub: Option<&str>, events: &mut Vec<Event>) {
        let Some(message) = value.get("message") else { return };
        self.finish_streams(sub, events);
        let id = text(message, "id");
        if text(message, "model") == Some("<synthetic>") {
            self.length |= text(value, "error") == Some("max_output_tokens");
            for words in blocks(message).filter_map(|block| text(block, "text")) {
                self.ledger.warning(events, words);
            }
            return;
        }
        self.response_started(id, sub, events);
        let cut = flag(value, "aborted");
        for block in blocks(message) {
            match text(block, "type") {
                Some("text") => {
                    let text = text(block, "text").unwrap_or_default();
                    self.tell(text);
                    self.ledger.completed(events, text, id, sub, cut, !cut);
                }
                Some("thinking") => {
                    let text = text(block, "thinking").unwrap_or_default().to_owned();
                    events.push(Event::Thinking { text, sub: sub.map(str::to_owned) });
                }
                Some("tool_use" | "server_tool_use" | "mcp_tool_use") => {
                    let (Some(tool), Some(name)) = (text(block, "id"), text(block, "name")) else { continue };
                    if !self.ledger.is_open(tool) {
                        let input = block.get("input").cloned().unwrap_or_default();
                        self.ledger.tool_started(events, tool, name, input, sub);
                    }
                }
                Some(kind) if kind.ends_with("tool_result") => self.tool_result(block, sub, events),
                _ => {}
            }
        }
    }

    fn user(&mut self, value: &Value, sub: Option<&str>, events: &mut Vec<Event>) {
        let Some(message) = value.get("message") else { return };
        for block in blocks(message) {
            match text(block, "type") {
                Some("tool_result") => self.tool_result(block, sub, events),
                Some("text") if sub.is_none() => {
                    let words = text(block, "text").unwrap_or_default();
                    if words.starts_with("[Request interrupted by user") || flag(value, "isSynthetic") {
                        self.ledger.warning(events, words);
                    }
                }
                _ => {}
            }
        }
    }

    fn tool_result(&mut self, block: &Value, sub: Option<&str>, events: &mut Vec<Event>) {
        let Some(tool) = text(block, "tool_use_id") else { return };
        let output = match block.get("content") {
            Some(Value::String(output)) => output.clone(),
            Some(Value::Array(parts)) => texts(parts),
            _ => String::new(),
        };
        let error = flag(block, "is_error");
        // The exit code stands only in the text of a failed command.
        let exit_code = output.strip_prefix("Exit code ").filter(|_| error).and_then(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        });
        self.ledger.tool_finished(events, ToolEnd { tool, error, exit_code, output, sub }, None);
    }

    fn result(&mut self, value: &Value, events: &mut Vec<Event>) {
        if let Some(id) = text(value, "session_id") {
            self.ledger.conversation(id);
        }
        self.add_usage(value);
        self.ledger.usage(events, self.usage);
        let subtype = text(value, "subtype").unwrap_or("unknown");
        let structured = structured(value);
        let words = structured.as_deref().or_else(|| text(value, "result"));
        if subtype == "success" && !flag(value, "is_error") {
            if let Some(words) = words {
                if !words.is_empty() && !self.told.contains(&self.hasher.hash_one(words)) {
                    self.ledger.completed(events, words, None, None, false, true);
                }
                self.ledger.answer(Some(words));
            }
            self.ledger.succeeded(events, "result.subtype success, is_error false");
        } else {
            let errors = value.get("errors").and_then(Value::as_array);
            let errors: Vec<&str> = errors.into_iter().flatten().filter_map(Value::as_str).collect();
            let errors = errors.join("\n");
            let message = if errors.is_empty() { words } else { Some(errors.as_str()) };
            let rule = failure_rule(value, subtype, self.length || message.is_some_and(is_length));
            let words = message.and_then(usage_limit);
            let limit = match (&words, &self.limit) {
                (Some(until), Some(at)) if until.is_empty() => Some(at.clone()),
                (None, at) => at.clone(),
                _ => words,
            };
            self.ledger.verdict(events, VerdictResult::Failure, &rule, message, limit);
        }
        self.pending = self.pending.saturating_sub(1);
        self.length = false;
        if self.pending == 0 {
            self.told.clear();
        } else {
            self.ledger.unsettle();
        }
    }

    /// What the account may still use. Only what may stop the program is worth a notice.
    fn rate_limit(&mut self, value: &Value, events: &mut Vec<Event>) {
        let Some(info) = value.get("rate_limit_info") else { return };
        if text(info, "status") != Some("rejected") {
            self.limit = None;
            return;
        }
        let at = number(info, "resetsAt").map(|at| at.to_string());
        let kind = text(info, "rateLimitType").unwrap_or("usage");
        let more = at.iter().map(|at| ("until".to_owned(), at.as_str().into()));
        events.push(Event::Notice {
            reason: notice::LIMIT.to_owned(),
            text: format!("a limit of the account is reached: {kind}"),
            more: more.collect(),
        });
        self.limit = Some(at.unwrap_or_default());
    }

    fn tell(&mut self, text: &str) {
        self.told.push(self.hasher.hash_one(text));
    }

    fn add_usage(&mut self, result: &Value) {
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        let mut turn = Usage::default();
        if let Some(models) = result.get("model_usage_since_last_result").and_then(Value::as_object) {
            for model in models.values() {
                let count = |key| number(model, key).unwrap_or(0);
                add(&mut turn.input_tokens, count("inputTokens"));
                add(&mut turn.output_tokens, count("outputTokens"));
                add(&mut turn.cached_tokens, count("cacheReadInputTokens"));
                add(&mut turn.reasoning_tokens, count("thinkingTokens"));
                if let Some(cost) = model.get("costUSD").and_then(Value::as_f64) {
                    turn.cost = Some(turn.cost.unwrap_or(0.0) + cost);
                }
            }
        } else if let Some(usage) = result.get("usage") {
            let count = |key| number(usage, key).unwrap_or(0);
            turn.input_tokens = count("input_tokens");
            turn.output_tokens = count("output_tokens");
            turn.cached_tokens = count("cache_read_input_tokens");
            let details = usage.get("output_tokens_details");
            turn.reasoning_tokens =
                details.and_then(|details| number(details, "thinking_tokens")).unwrap_or(0);
        }
        let sum = &mut self.usage;
        add(&mut sum.input_tokens, turn.input_tokens);
        add(&mut sum.output_tokens, turn.output_tokens);
        add(&mut sum.cached_tokens, turn.cached_tokens);
        add(&mut sum.reasoning_tokens, turn.reasoning_tokens);
        if let Some(cost) = turn.cost {
            sum.cost = Some(sum.cost.unwrap_or(0.0) + cost);
        }
    }
}

fn finish(stream: &mut Stream, events: &mut Vec<Event>) {
    if let Some(rest) = stream.joiner.finish() {
        let (text, sub) = (rest.to_string(), stream.sub.clone());
        events.push(Event::Preview { text, part: stream.part, message: None, sub });
    }
}

fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    message.get("content").and_then(Value::as_array).into_iter().flatten()
}

/// The answer after a schema, which is a value and not a text; as JSON.
fn structured(result: &Value) -> Option<String> {
    let output = result.get("structured_output").filter(|output| !output.is_null())?;
    let words = text(result, "result")
        .filter(|words| serde_json::from_str::<Value>(words).is_ok_and(|said| said == *output));
    Some(words.map_or_else(|| output.to_string(), str::to_owned))
}

fn failure_rule(result: &Value, subtype: &str, length: bool) -> String {
    let mut rule =
        if subtype == "success" { "result.is_error".to_owned() } else { format!("result.subtype {subtype}") };
    if let Some(reason) = text(result, "terminal_reason") {
        rule.push_str(&format!(", terminal_reason {reason}"));
    }
    if length { format!("length ({rule})") } else { rule }
}

fn is_length(message: &str) -> bool {
    message.contains("output token maximum")
}
