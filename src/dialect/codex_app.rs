//! Codex as a server: `codex app-server`, JSON-RPC lines on standard input and output.
//!
//! - A turn ends with `turn/completed`, whose `status` is the verdict; an `error` with `willRetry` is a retry.
//! - A message that was cut by a steer has deltas and never a completed item.
//! - Usage comes as the thread's total. What the thread had before this run is taken off: the first total is compared with
//!   the request that it came with, or is all of the past if it belongs to a turn that did not begin here.
//! - Lines of a thread other than the first are a sub-agent's, named by that thread.

use serde_json::Value;

use super::codex::{CodexReader, check_input, is_length, reconnecting, tool};
use super::codex_talk::AppTalk;
use super::json::{Line, flag, number, text, text_at};
use super::ledger::Ledger;
use super::{Capture, Dialect, Features, Interrupt, Launch, Occasion, Reader, Stdin, Talk, Unable, launch};
use crate::model::{Event, Part, Usage};

/// `codex app-server`.
#[derive(Debug)]
pub(super) struct CodexApp;

impl Dialect for CodexApp {
    fn name(&self) -> &'static str {
        "codex-app"
    }

    fn family(&self) -> &'static str {
        "codex"
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: vec!["app-server".to_owned()],
            stdin: Stdin::Conversation,
            capture: Capture::Pipe,
            environment: Vec::new(),
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(CodexReader::default())
    }

    fn features(&self) -> Features {
        Features {
            steer: true,
            follow_up: true,
            questions: true,
            attachments: true,
            output_schema: true,
            resume: true,
        }
    }

    /// All of an occasion is said in the conversation.
    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        if let Some(conversation) = occasion.conversation {
            launch::uuid(self.name(), conversation)?;
        }
        Ok([own, more].concat())
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        launch::needs_text(self.name(), input)?;
        check_input(self.name(), input.unwrap_or_default())
    }

    fn talk(&self, _arguments: &[String]) -> Option<Box<dyn Talk>> {
        Some(Box::new(AppTalk::default()))
    }

    /// SIGTERM then ends it at once, with its tools.
    fn interrupt(&self) -> Interrupt {
        Interrupt::Talk
    }

    fn has_verdicts(&self) -> bool {
        true
    }

    fn commands(&self) -> &'static [&'static str] {
        &["codex"]
    }
}

/// The lines of the server.
#[derive(Debug, Default)]
pub(super) struct AppServer {
    /// The first thread.
    thread: Option<String>,
    /// The turn of that thread that began last.
    turn: Option<String>,
    /// What the thread had used before this run.
    before: Option<Usage>,
}

impl AppServer {
    pub fn line(&mut self, line: &Line, ledger: &mut Ledger, events: &mut Vec<Event>) {
        let value = line.value();
        if let Some(id) = text_at(value, &["result", "thread", "id"]) {
            self.thread_started(id, ledger);
        }
        let (Some(method), Some(params)) = (text(value, "method"), value.get("params")) else { return };
        let sub =
            text(params, "threadId").filter(|id| self.thread.as_deref().is_some_and(|main| main != *id));
        match method {
            "thread/started" => {
                if let Some(id) = text_at(params, &["thread", "id"]) {
                    self.thread_started(id, ledger);
                }
            }
            "turn/started" => {
                if sub.is_none() {
                    self.turn = text_at(params, &["turn", "id"]).map(str::to_owned);
                    ledger.turn_started();
                }
                events.push(Event::ResponseStarted { message: None, sub: sub.map(str::to_owned) });
            }
            "turn/completed" if sub.is_none() => turn_completed(params, ledger, events),
            "item/started" => item(params, sub, ledger, events, false),
            "item/completed" => item(params, sub, ledger, events, true),
            "item/agentMessage/delta" => delta(params, Part::Text, sub, events),
            "item/reasoning/textDelta" | "item/reasoning/summaryTextDelta" => {
                delta(params, Part::Thinking, sub, events);
            }
            "thread/tokenUsage/updated" if sub.is_none() => self.usage(params, ledger, events),
            "error" => error(params, ledger, events),
            "warning" => ledger.warning(events, text(params, "message").unwrap_or_default()),
            "configWarning" => ledger.warning(events, text(params, "summary").unwrap_or_default()),
            _ => {}
        }
    }

    fn thread_started(&mut self, id: &str, ledger: &mut Ledger) {
        if self.thread.is_none() {
            self.thread = Some(id.to_owned());
            ledger.conversation(id);
        }
    }

    fn usage(&mut self, params: &Value, ledger: &mut Ledger, events: &mut Vec<Event>) {
        let Some(usage) = params.get("tokenUsage") else { return };
        let (Some(total), Some(last)) = (usage.get("total").map(tokens), usage.get("last").map(tokens))
        else {
            return;
        };
        let of_this_run = self.turn.is_some() && text(params, "turnId") == self.turn.as_deref();
        let past = if of_this_run { minus(total, last) } else { total };
        let before = *self.before.get_or_insert(past);
        ledger.usage(events, minus(total, before));
    }
}

fn tokens(usage: &Value) -> Usage {
    let count = |key| number(usage, key).unwrap_or(0);
    Usage {
        input_tokens: count("inputTokens"),
        output_tokens: count("outputTokens"),
        cached_tokens: count("cachedInputTokens"),
        reasoning_tokens: count("reasoningOutputTokens"),
        ..Usage::default()
    }
}

fn minus(total: Usage, part: Usage) -> Usage {
    Usage {
        input_tokens: total.input_tokens.saturating_sub(part.input_tokens),
        output_tokens: total.output_tokens.saturating_sub(part.output_tokens),
        cached_tokens: total.cached_tokens.saturating_sub(part.cached_tokens),
        reasoning_tokens: total.reasoning_tokens.saturating_sub(part.reasoning_tokens),
        ..Usage::default()
    }
}

fn turn_completed(params: &Value, ledger: &mut Ledger, events: &mut Vec<Event>) {
    let status = text_at(params, &["turn", "status"]).unwrap_or("unknown");
    let message = text_at(params, &["turn", "error", "message"]);
    let rule = format!("turn/completed status {status}");
    if status == "completed" {
        ledger.succeeded(events, &rule);
    } else if message.is_some_and(is_length) {
        ledger.failed(events, &format!("length ({rule})"), message);
    } else {
        ledger.failed(events, &rule, message);
    }
}

fn delta(params: &Value, part: Part, sub: Option<&str>, events: &mut Vec<Event>) {
    let Some(delta) = text(params, "delta") else { return };
    events.push(Event::Preview {
        text: delta.to_owned(),
        part,
        message: text(params, "itemId").map(str::to_owned),
        sub: sub.map(str::to_owned),
    });
}

fn error(params: &Value, ledger: &mut Ledger, events: &mut Vec<Event>) {
    let message = text_at(params, &["error", "message"]).unwrap_or_default();
    if !flag(params, "willRetry") {
        return ledger.warning(events, message);
    }
    let more =
        reconnecting(message).unwrap_or([("attempt", None), ("max-attempts", None), ("delay-ms", None)]);
    let words = match text_at(params, &["error", "additionalDetails"]) {
        Some(details) => format!("{message} ({details})"),
        None => message.to_owned(),
    };
    ledger.retry(events, &words, more);
}

fn item(params: &Value, sub: Option<&str>, ledger: &mut Ledger, events: &mut Vec<Event>, completed: bool) {
    let Some(item) = params.get("item") else { return };
    let (Some(id), Some(kind)) = (text(item, "id"), text(item, "type")) else { return };
    match kind {
        "agentMessage" if completed => {
            ledger.completed(events, text(item, "text").unwrap_or_default(), Some(id), sub, false, true);
        }
        "reasoning" if completed => {
            let parts = ["summary", "content"].into_iter().filter_map(|key| item.get(key)?.as_array());
            let texts: Vec<&str> = parts.flatten().filter_map(Value::as_str).collect();
            events.push(Event::Thinking { text: texts.join("\n\n"), sub: sub.map(str::to_owned) });
        }
        "agentMessage" | "reasoning" | "userMessage" | "hookPrompt" | "plan" | "contextCompaction"
        | "enteredReviewMode" | "exitedReviewMode" => {}
        _ => tool(item, id, kind, sub, ledger, events, completed),
    }
}
