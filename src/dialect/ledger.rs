//! What every reader does with what it understood: the event and the [`Reading`] in one step, so that the two always say
//! the same.

use serde_json::Value;

use super::Reading;
use super::json::cut_at;
use super::limit::usage_limit;
use crate::model::kind::notice;
use crate::model::{Event, Usage, Verdict, VerdictResult};

/// The rule of a verdict `none`.
pub(super) const NO_TERMINAL_EVENT: &str = "no terminal event";

/// Tool calls that are remembered until they end. A program that leaves more of them open loses the names of the oldest.
const OPEN_TOOLS: usize = 4096;

/// What is kept of a text that a status shows, in bytes: a tool's name, a rule, the name of the conversation. Ids of calls
/// that are longer are not remembered.
const SHORT: usize = 256;

/// What the reading keeps of a failure's words, in bytes. The event has all of them.
const MESSAGE: usize = 16 << 10;

/// A reading and the events that lead to it.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    reading: Reading,
    open: Vec<OpenTool>,
    /// The last turn has a verdict.
    said: bool,
}

#[derive(Debug)]
struct OpenTool {
    id: String,
    name: String,
    sub: Option<String>,
}

/// How a tool call ended.
#[derive(Debug, Default)]
pub(super) struct ToolEnd<'a> {
    /// The id of the call.
    pub tool: &'a str,
    /// It failed, was refused or was killed.
    pub error: bool,
    /// Its exit code.
    pub exit_code: Option<i64>,
    /// What it gave back.
    pub output: String,
    /// The sub-agent that called it, where the line says so; else that of its start.
    pub sub: Option<&'a str>,
}

impl Ledger {
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// The program's name of the conversation; the last one counts. One that could not be given back to it is none.
    pub fn conversation(&mut self, id: &str) {
        if id.len() <= SHORT && self.reading.conversation.as_deref() != Some(id) {
            self.reading.conversation = Some(id.to_owned());
        }
    }

    /// A turn of the main agent began: whatever was said of earlier ones is no longer the last word.
    pub fn turn_started(&mut self) {
        self.unsettle();
        self.reading.text = None;
    }

    /// A turn began, or is still to end, but the answer so far stands.
    pub fn unsettle(&mut self) {
        self.reading.settled = false;
        self.reading.verdict = Verdict::default();
        self.said = false;
    }

    /// A whole text. `counts`: it is the main agent's answer so far.
    pub fn completed(
        &mut self,
        events: &mut Vec<Event>,
        text: &str,
        message: Option<&str>,
        sub: Option<&str>,
        cut: bool,
        counts: bool,
    ) {
        if counts && sub.is_none() {
            self.reading.text = Some(text.to_owned());
        }
        events.push(Event::ResponseCompleted {
            text: text.to_owned(),
            message: message.map(str::to_owned),
            sub: sub.map(str::to_owned),
            cut,
        });
    }

    /// The answer, where the program tells it in another way than by a text of its own.
    pub fn answer(&mut self, text: Option<&str>) {
        self.reading.text = text.map(str::to_owned);
    }

    /// Whether this call began and has not ended.
    pub fn is_open(&self, tool: &str) -> bool {
        self.open.iter().any(|open| open.id == tool)
    }

    pub fn tool_started(
        &mut self,
        events: &mut Vec<Event>,
        tool: &str,
        name: &str,
        input: Value,
        sub: Option<&str>,
    ) {
        let (name, sub) = (name.to_owned(), sub.map(str::to_owned));
        if tool.len() + sub.as_ref().map_or(0, String::len) <= 2 * SHORT && name.len() <= SHORT {
            if self.open.len() >= OPEN_TOOLS {
                self.open.remove(0);
            }
            self.open.push(OpenTool { id: tool.to_owned(), name: name.clone(), sub: sub.clone() });
        }
        self.reading.progress.tool_calls += 1;
        self.reading.progress.tool = Some(cut_at(&name, SHORT).to_owned());
        events.push(Event::ToolStarted { tool: tool.to_owned(), name, input, sub });
    }

    /// A call ended; `name` is used where its start is not known.
    pub fn tool_finished(&mut self, events: &mut Vec<Event>, end: ToolEnd<'_>, name: Option<&str>) {
        let open = self.open.iter().rposition(|open| open.id == end.tool).map(|at| self.open.remove(at));
        self.reading.progress.tool = self.open.last().map(|open| open.name.clone());
        let (open_name, open_sub) = open.map_or((None, None), |open| (Some(open.name), open.sub));
        events.push(Event::ToolFinished {
            tool: end.tool.to_owned(),
            name: open_name.or_else(|| name.map(str::to_owned)).unwrap_or_default(),
            error: end.error,
            exit_code: end.exit_code,
            output: end.output,
            sub: end.sub.map(str::to_owned).or(open_sub),
        });
    }

    /// What this run has used so far, in all.
    pub fn usage(&mut self, events: &mut Vec<Event>, usage: Usage) {
        self.reading.usage = Some(usage);
        self.reading.progress.usage = usage;
        events.push(Event::Usage(usage));
    }

    /// The program tries again.
    pub fn retry(&mut self, events: &mut Vec<Event>, text: &str, more: [(&str, Option<u64>); 3]) {
        let more =
            more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect();
        events.push(Event::Notice { reason: notice::RETRY.to_owned(), text: text.to_owned(), more });
    }

    pub fn warning(&mut self, events: &mut Vec<Event>, text: &str) {
        events.push(Event::notice(notice::WARNING, text));
    }

    /// A turn ended well, and it was the last that is known to have begun.
    pub fn succeeded(&mut self, events: &mut Vec<Event>, rule: &str) {
        self.verdict(events, VerdictResult::Success, rule, None, None);
    }

    /// A turn ended badly. Its words are searched for a usage limit.
    pub fn failed(&mut self, events: &mut Vec<Event>, rule: &str, message: Option<&str>) {
        let limit = message.and_then(usage_limit);
        self.verdict(events, VerdictResult::Failure, rule, message, limit);
    }

    /// The program's word on a turn.
    pub fn verdict(
        &mut self,
        events: &mut Vec<Event>,
        result: VerdictResult,
        rule: &str,
        message: Option<&str>,
        limit: Option<String>,
    ) {
        if let (VerdictResult::Failure, Some(until)) = (result, &limit) {
            let text = message.unwrap_or("the program reports a usage limit").to_owned();
            let more = if until.is_empty() {
                serde_json::Map::new()
            } else {
                [("until".to_owned(), until.as_str().into())].into_iter().collect()
            };
            events.push(Event::Notice { reason: notice::LIMIT.to_owned(), text, more });
        }
        let rule = cut_at(rule, SHORT).to_owned();
        events.push(Event::Verdict { result, rule: rule.clone(), message: message.map(str::to_owned) });
        let message = message.map(|message| cut_at(message, MESSAGE).to_owned());
        let limit = limit.map(|until| cut_at(&until, SHORT).to_owned());
        self.reading.verdict = Verdict { result, rule, message, limit };
        self.reading.settled = true;
        self.reading.progress.turns += 1;
        self.said = true;
    }

    /// The program is gone: a turn without a last word is a verdict `none`.
    pub fn end(&mut self, events: &mut Vec<Event>) {
        self.reading.progress.tool = None;
        if !self.said {
            let rule = NO_TERMINAL_EVENT.to_owned();
            events.push(Event::Verdict { result: VerdictResult::None, rule: rule.clone(), message: None });
            self.reading.verdict = Verdict { rule, ..Verdict::default() };
            self.said = true;
        }
    }
}
