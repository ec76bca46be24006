//! Codex as a server: `codex app-server`, JSON-RPC lines on standard input and output.
//!
//! - A turn ends with `turn/completed`, whose `status` is the verdict; an `error` with `willRetry` is a retry.
//! - A message that was cut by a steer has deltas and never a completed item.
//! - Usage comes as each thread's total, and is summed over all threads, those of sub-agents too. What a thread had before
//!   this run is taken off: its first total is compared with the request that it came with, or is all of the past if it
//!   belongs to a turn that did not begin here.
//! - The first thread, and every other that the server gave in answer to a request, is the client's own; a turn of any of them
//!   is a turn of the run. Lines of all other threads are a sub-agent's, named by that thread.

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
        Features::ALL
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

    fn commands(&self) -> &'static [&'static str] {
        &["codex"]
    }
}

/// Threads that are remembered. Those that begin after that are read as sub-agents whose usage is not told.
const THREADS: usize = 256;

/// The longest name of a thread that is remembered, in bytes.
const THREAD: usize = 256;

/// The lines of the server.
#[derive(Debug, Default)]
pub(super) struct AppServer {
    /// The threads that used something or are the client's.
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    id: String,
    /// The client began or resumed it.
    own: bool,
    /// Its turn that began last.
    turn: Option<String>,
    /// What it had used before this run.
    before: Option<Usage>,
    /// What it used in this run.
    used: Usage,
}

impl AppServer {
    pub fn line(&mut self, line: &Line, ledger: &mut Ledger, events: &mut Vec<Event>) {
        let value = line.value();
        if let Some(id) = text_at(value, &["result", "thread", "id"]) {
            self.begin(id, ledger);
        }
        let (Some(method), Some(params)) = (text(value, "method"), value.get("params")) else { return };
        let thread = text(params, "threadId");
        if !self.has_own() && matches!(method, "turn/started" | "thread/tokenUsage/updated") {
            // Its beginning was not seen.
            self.begin(thread.unwrap_or_default(), ledger);
        }
        let own = |id: &str| self.threads.iter().any(|known| known.own && known.id == id);
        // Before any thread is known, a line is the main agent's.
        let sub = thread.filter(|id| self.has_own() && !own(id));
        match method {
            "thread/started" => {
                if let Some(id) = text_at(params, &["thread", "id"]).filter(|_| !self.has_own()) {
                    self.begin(id, ledger);
                }
            }
            "turn/started" => {
                if let Some(known) = self.thread(thread) {
                    known.turn = text_at(params, &["turn", "id"]).map(str::to_owned);
                }
                if sub.is_none() {
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
            "thread/tokenUsage/updated" => self.usage(params, ledger, events),
            "error" => error(params, ledger, events),
            "warning" => ledger.warning(events, text(params, "message").unwrap_or_default()),
            "configWarning" => ledger.warning(events, text(params, "summary").unwrap_or_default()),
            _ => {}
        }
    }

    fn has_own(&self) -> bool {
        self.threads.iter().any(|known| known.own)
    }

    /// A thread of the client.
    fn begin(&mut self, id: &str, ledger: &mut Ledger) {
        if let Some(known) = self.thread(Some(id))
            && !std::mem::replace(&mut known.own, true)
            && !id.is_empty()
        {
            ledger.conversation(id);
        }
    }

    /// The thread of this name, which is a sub-agent's if it is new; without a name, the first.
    fn thread(&mut self, id: Option<&str>) -> Option<&mut Thread> {
        let at = self.threads.iter().position(|known| id.is_none_or(|id| known.id == id));
        let at = match (at, id) {
            (Some(at), _) => at,
            (None, Some(id)) if self.threads.len() < THREADS && id.len() <= THREAD => {
                let id = id.to_owned();
                self.threads.push(Thread {
                    id,
                    own: false,
                    turn: None,
                    before: None,
                    used: Usage::default(),
                });
                self.threads.len() - 1
            }
            (None, _) => return None,
        };
        self.threads.get_mut(at)
    }

    fn usage(&mut self, params: &Value, ledger: &mut Ledger, events: &mut Vec<Event>) {
        let Some(usage) = params.get("tokenUsage") else { return };
        let (Some(total), Some(last)) = (usage.get("total").map(tokens), usage.get("last").map(tokens))
        else {
            return;
        };
        let Some(known) = self.thread(text(params, "threadId")) else { return };
        let of_this_run = known.turn.is_some() && text(params, "turnId") == known.turn.as_deref();
        let past = if of_this_run { minus(total, last) } else { total };
        known.used = minus(total, *known.before.get_or_insert(past));
        let sum = self.threads.iter().fold(Usage::default(), |sum, known| plus(sum, known.used));
        ledger.usage(events, sum);
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

fn plus(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.saturating_add(other.input_tokens),
        output_tokens: one.output_tokens.saturating_add(other.output_tokens),
        cached_tokens: one.cached_tokens.saturating_add(other.cached_tokens),
        reasoning_tokens: one.reasoning_tokens.saturating_add(other.reasoning_tokens),
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
