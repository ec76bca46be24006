//! Any program that prints JSON lines, after the conventions of `docs/jsonl.md`: an object whose `type` is the name of an
//! event and whose keys are that event's. Everything else is kept as it is.
//!
//! A program that never heard of the conventions must not be misread, so a line counts only if every key that its type
//! knows has the right type, and no line can speak for this service: `started`, `raw`, `stderr`, `exited`, `ended` and the
//! notices about journal and session are not taken from a program.

use serde_json::{Map, Value};

use super::json::parse_object;
use super::ledger::{Ledger, ToolEnd};
use super::{Capture, Dialect, Features, Launch, Occasion, Reader, Reading, Stdin, Unable, launch};
use crate::model::kind::notice;
use crate::model::{Event, Part, Usage, VerdictResult};

/// Programs after the conventions, and programs of which nothing is known.
#[derive(Debug)]
pub(super) struct Jsonl;

impl Dialect for Jsonl {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: Vec::new(),
            stdin: Stdin::InputThenClose,
            capture: Capture::Pipe,
            environment: Vec::new(),
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(JsonlReader::default())
    }

    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        let instead = "use a profile with the dialect jsonl-talk";
        launch::refuse_what_is_not_there(self.name(), &Features::default(), occasion, instead)?;
        Ok([own, more].concat())
    }

    fn has_verdicts(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
struct JsonlReader {
    ledger: Ledger,
}

impl Reader for JsonlReader {
    fn line(&mut self, line: &[u8], events: &mut Vec<Event>) {
        let line = parse_object(line);
        let said = line.as_ref().and_then(|line| Said::read(Keys(line.value().as_object()?)));
        match said {
            Some(said) => self.take(said, events),
            None => events.push(Event::Raw {}),
        }
    }

    fn end(&mut self, _events: &mut Vec<Event>) {}

    fn reading(&self) -> &Reading {
        self.ledger.reading()
    }
}

/// What a line says, once all of its keys are known to be right.
enum Said<'a> {
    Started { message: Option<&'a str>, sub: Option<&'a str> },
    Preview { text: &'a str, part: Part, message: Option<&'a str>, sub: Option<&'a str> },
    Completed { text: &'a str, message: Option<&'a str>, sub: Option<&'a str>, cut: bool },
    Thinking { text: &'a str, sub: Option<&'a str> },
    ToolStarted { tool: &'a str, name: &'a str, input: &'a Value, sub: Option<&'a str> },
    ToolFinished { end: ToolEnd<'a>, name: Option<&'a str> },
    Usage(Usage),
    Verdict { result: VerdictResult, rule: &'a str, message: Option<&'a str>, limit: Option<&'a str> },
    Notice { reason: &'static str, text: &'a str, more: Map<String, Value> },
    Conversation(&'a str),
}

impl<'a> Said<'a> {
    /// `None` where the type is not known, a key is missing or one has a wrong type.
    fn read(keys: Keys<'a>) -> Option<Said<'a>> {
        let sub = keys.text("sub")?;
        let message = keys.text("message")?;
        Some(match keys.text("type")?? {
            "conversation" => Said::Conversation(keys.text("id")??),
            "response-started" => Said::Started { message, sub },
            "preview" => {
                let part = match keys.text("part")? {
                    None | Some("text") => Part::Text,
                    Some("thinking") => Part::Thinking,
                    Some(_) => return None,
                };
                Said::Preview { text: keys.text("text")??, part, message, sub }
            }
            "response-completed" | "result" => {
                Said::Completed { text: keys.text("text")??, message, sub, cut: keys.flag("cut")? }
            }
            "thinking" => Said::Thinking { text: keys.text("text")??, sub },
            "tool-started" => Said::ToolStarted {
                tool: keys.text("tool")??,
                name: keys.text("name")??,
                input: keys.0.get("input").unwrap_or(&Value::Null),
                sub,
            },
            "tool-finished" => Said::ToolFinished {
                name: keys.text("name")?,
                end: ToolEnd {
                    tool: keys.text("tool")??,
                    error: keys.flag("error")?,
                    exit_code: keys.integer("exit-code")?,
                    output: keys.text("output")?.unwrap_or_default().to_owned(),
                    sub,
                },
            },
            "usage" => Said::Usage(keys.usage()?),
            "verdict" => {
                let result = match keys.text("result")?? {
                    "success" => VerdictResult::Success,
                    "failure" => VerdictResult::Failure,
                    _ => return None,
                };
                let rule = keys.text("rule")?.unwrap_or("verdict line");
                Said::Verdict { result, rule, message, limit: keys.text("limit")? }
            }
            "notice" => keys.notice()?,
            _ => return None,
        })
    }
}

/// The keys of a line. Each access is `None` where the key has a wrong type and `Some(None)` where it is absent or null.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a>(pub &'a Map<String, Value>);

impl<'a> Keys<'a> {
    pub fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn text(self, key: &str) -> Option<Option<&'a str>> {
        match self.get(key) {
            None => Some(None),
            Some(value) => value.as_str().map(Some),
        }
    }

    pub fn flag(self, key: &str) -> Option<bool> {
        self.get(key).map_or(Some(false), Value::as_bool)
    }

    pub fn integer(self, key: &str) -> Option<Option<i64>> {
        match self.get(key) {
            None => Some(None),
            Some(value) => value.as_i64().map(Some),
        }
    }

    pub fn count(self, key: &str) -> Option<u64> {
        self.get(key).map_or(Some(0), Value::as_u64)
    }

    fn usage(self) -> Option<Usage> {
        let known = ["input-tokens", "output-tokens", "cached-tokens", "reasoning-tokens", "cost"];
        if known.iter().all(|key| self.get(key).is_none()) {
            return None;
        }
        let cost = match self.get("cost") {
            None => None,
            Some(cost) => Some(cost.as_f64().filter(|cost| *cost >= 0.0)?),
        };
        Some(Usage {
            input_tokens: self.count("input-tokens")?,
            output_tokens: self.count("output-tokens")?,
            cached_tokens: self.count("cached-tokens")?,
            reasoning_tokens: self.count("reasoning-tokens")?,
            cost,
            conversation_total: self.flag("conversation-total")?,
        })
    }

    fn notice(self) -> Option<Said<'a>> {
        let reason = match self.text("reason")? {
            None | Some(notice::WARNING) => notice::WARNING,
            Some(notice::RETRY) => notice::RETRY,
            Some(notice::LIMIT) => notice::LIMIT,
            Some(_) => return None,
        };
        let mut more = Map::new();
        for key in ["attempt", "max-attempts", "delay-ms"] {
            if self.get(key).is_some() {
                more.insert(key.to_owned(), self.count(key)?.into());
            }
        }
        if let Some(until) = self.text("until")? {
            more.insert("until".to_owned(), until.into());
        }
        Some(Said::Notice { reason, text: self.text("text")??, more })
    }
}

impl JsonlReader {
    fn take(&mut self, said: Said<'_>, events: &mut Vec<Event>) {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        match said {
            Said::Conversation(id) => {
                self.ledger.conversation(id);
                events.push(Event::Raw {});
            }
            Said::Started { message, sub } => {
                if sub.is_none() {
                    self.ledger.turn_started();
                }
                events.push(Event::ResponseStarted { message: owned(message), sub: owned(sub) });
            }
            Said::Preview { text, part, message, sub } => events.push(Event::Preview {
                text: text.to_owned(),
                part,
                message: owned(message),
                sub: owned(sub),
            }),
            Said::Completed { text, message, sub, cut } => {
                self.ledger.completed(events, text, message, sub, cut, true);
            }
            Said::Thinking { text, sub } => {
                events.push(Event::Thinking { text: text.to_owned(), sub: owned(sub) });
            }
            Said::ToolStarted { tool, name, input, sub } => {
                self.ledger.tool_started(events, tool, name, input.clone(), sub);
            }
            Said::ToolFinished { end, name } => self.ledger.tool_finished(events, end, name),
            Said::Usage(usage) => self.ledger.usage(events, usage),
            Said::Verdict { result, rule, message, limit } => {
                self.ledger.verdict(events, result, rule, message, limit.map(str::to_owned));
            }
            Said::Notice { reason, text, more } => {
                events.push(Event::Notice { reason: reason.to_owned(), text: text.to_owned(), more });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Verdict;

    fn read(lines: &[&str]) -> (Vec<Event>, Reading) {
        let mut reader = JsonlReader::default();
        let mut events = Vec::new();
        for line in lines {
            let before = events.len();
            reader.line(line.as_bytes(), &mut events);
            assert!(events.len() > before, "no event for {line}");
        }
        reader.end(&mut events);
        (events, reader.reading().clone())
    }

    #[test]
    fn the_conventions_are_read() {
        let (events, reading) = read(&[
            r#"{"type":"conversation","id":"c1"}"#,
            r#"{"type":"response-started"}"#,
            r#"{"text":"Hel","type":"preview"}"#,
            r#"{"type":"tool-started","tool":"t1","name":"sh","input":{"command":"ls"}}"#,
            r#"{"type":"tool-finished","tool":"t1","error":true,"exit-code":3,"output":"oops"}"#,
            r#"{"type":"result","text":"Hello"}"#,
            r#"{"type":"usage","input-tokens":7,"output-tokens":2,"cost":0.5}"#,
            r#"{"type":"verdict","result":"success"}"#,
        ]);
        assert_eq!(reading.text.as_deref(), Some("Hello"));
        assert_eq!(reading.conversation.as_deref(), Some("c1"));
        assert_eq!(reading.verdict.result, VerdictResult::Success);
        assert!(reading.settled);
        assert_eq!(reading.usage.map(|usage| (usage.input_tokens, usage.cost)), Some((7, Some(0.5))));
        assert_eq!((reading.progress.tool_calls, reading.progress.tool), (1, None));
        assert!(events.contains(&Event::ToolFinished {
            tool: "t1".into(),
            name: "sh".into(),
            error: true,
            exit_code: Some(3),
            output: "oops".into(),
            sub: None
        }));
    }

    /// The example and the table of the page are what is read.
    #[test]
    fn the_page_says_what_is_read() {
        let page = include_str!("../../docs/jsonl.md");
        let page = page.split("# A program that can be talked to").next().expect("the first half");
        let example = page.split("```").nth(1).expect("an example").trim();
        let (events, reading) = read(&example.lines().collect::<Vec<_>>());
        assert!(!events.contains(&Event::Raw {}), "{events:?}");
        assert_eq!(reading.text.as_deref(), Some("All 42 files compile."));
        assert_eq!(reading.verdict.result, VerdictResult::Success);
        let types: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(name, _)| name))
            .filter(|name| *name != "type")
            .collect();
        assert_eq!(types.len(), 11);
        for name in types {
            let line = format!(
                r#"{{"type":"{name}","text":"t","tool":"1","name":"n","id":"c","cost":1,"result":"failure"}}"#
            );
            let mut reader = JsonlReader::default();
            let mut events = Vec::new();
            reader.line(line.as_bytes(), &mut events);
            let understood = events != [Event::Raw {}] || reader.reading().conversation.is_some();
            assert!(understood, "{name} is on the page and is not read");
        }
    }

    #[test]
    fn a_verdict_may_carry_a_limit() {
        let (events, reading) =
            read(&[r#"{"type":"verdict","result":"failure","message":"no more today","limit":"5 pm"}"#]);
        assert_eq!(
            reading.verdict,
            Verdict {
                result: VerdictResult::Failure,
                rule: "verdict line".into(),
                message: Some("no more today".into()),
                limit: Some("5 pm".into())
            }
        );
        assert!(matches!(&events[0], Event::Notice { reason, .. } if reason == notice::LIMIT));
    }

    #[test]
    fn what_is_not_after_the_conventions_is_kept_raw() {
        let lines = [
            "",
            "building...",
            "[1,2]",
            "\"verdict\"",
            r#"{"type":"verdict"}"#,
            r#"{"type":"verdict","result":true}"#,
            r#"{"type":"verdict","result":"none"}"#,
            r#"{"type":"result","result":"x"}"#,
            r#"{"type":"result","text":{"a":1}}"#,
            r#"{"type":"preview","text":"x","part":"middle"}"#,
            r#"{"type":"usage"}"#,
            r#"{"type":"usage","input-tokens":-1}"#,
            r#"{"type":"usage","input-tokens":"7"}"#,
            r#"{"type":"tool-finished","tool":"t","exit-code":"0"}"#,
            r#"{"type":"tool-started","tool":7,"name":"sh"}"#,
            r#"{"type":"notice","reason":"cancel-requested","text":"x"}"#,
            r#"{"type":"ended","end":"completed"}"#,
            r#"{"type":"exited","exit-code":0}"#,
            r#"{"type":["verdict"],"result":"success"}"#,
        ];
        let (events, reading) = read(&lines);
        assert_eq!(events, vec![Event::Raw {}; lines.len()]);
        assert_eq!(reading, Reading::default());
    }

    #[test]
    fn a_new_response_takes_the_verdict_back() {
        let (_, reading) =
            read(&[r#"{"type":"verdict","result":"failure"}"#, r#"{"type":"response-started"}"#]);
        assert_eq!(reading.verdict, Verdict::default());
        assert!(!reading.settled);
    }
}
