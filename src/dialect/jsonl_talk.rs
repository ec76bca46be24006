//! Any program that prints JSON lines and can be talked to while it runs, after the second half of `docs/jsonl.md`.
//!
//! What it prints is read as [`jsonl`](super::jsonl) reads it, and besides that it can ask, and say what became of a
//! message. As there, a line counts only if every key that its type knows has the right type.

use serde_json::{Map, Value, json};

use super::json::parse_object;
use super::jsonl::{Jsonl, Keys};
use super::talk::{Asked, Deed, Opening, Reply, Talk};
use super::{Capture, Dialect, Features, Interrupt, Launch, Reader, Stdin};
use crate::model::{About, Choice, Message, MessageMode};

/// Questions of a program that are open at once. One that asks more is refused an answer to those beyond.
const OPEN_QUESTIONS: usize = 1024;

/// Programs after the conventions that read their standard input.
#[derive(Debug)]
pub(super) struct JsonlTalk;

impl Dialect for JsonlTalk {
    fn name(&self) -> &'static str {
        "jsonl-talk"
    }

    fn launch(&self) -> Launch {
        Launch {
            arguments: Vec::new(),
            stdin: Stdin::Conversation,
            capture: Capture::Pipe,
            environment: Vec::new(),
        }
    }

    fn reader(&self, arguments: &[String]) -> Box<dyn Reader> {
        Jsonl.reader(arguments)
    }

    fn features(&self) -> Features {
        Features::ALL
    }

    fn talk(&self, _arguments: &[String]) -> Option<Box<dyn Talk>> {
        Some(Box::new(JsonlConversation::default()))
    }

    fn interrupt(&self) -> Interrupt {
        Interrupt::Talk
    }

    fn has_verdicts(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
struct JsonlConversation {
    /// It was told something, or said that it took something, and no verdict came since.
    owes: bool,
    /// The program's names of the questions that it waits on.
    open: Vec<String>,
}

impl Talk for JsonlConversation {
    fn open(&mut self, opening: Opening, deeds: &mut Vec<Deed>) {
        let mut prompt = Map::new();
        prompt.insert("text".to_owned(), opening.prompt.into());
        if !opening.attachments.is_empty() {
            let attachments = opening.attachments.iter().map(|attachment| {
                json!({ "name": attachment.name, "media-type": attachment.media_type, "path": attachment.path })
            });
            prompt.insert("attachments".to_owned(), attachments.collect());
        }
        prompt.extend(opening.schema.map(|schema| ("output-schema".to_owned(), schema)));
        prompt.extend(opening.conversation.map(|id| ("conversation".to_owned(), id.into())));
        self.owes = true;
        deeds.push(line("prompt", prompt, None));
    }

    fn heard(&mut self, line: &[u8], deeds: &mut Vec<Deed>) {
        let line = parse_object(line);
        if let Some(said) = line.as_ref().and_then(|line| Said::read(Keys(line.value().as_object()?))) {
            self.take(said, deeds);
        }
    }

    fn message(&mut self, message: &Message, deeds: &mut Vec<Deed>) {
        let kind = match message.mode {
            MessageMode::Steer => "steer",
            MessageMode::FollowUp => "follow-up",
        };
        let keys = [("request-id", &message.request_id), ("text", &message.text)];
        let keys = keys.map(|(key, text)| (key.to_owned(), text.as_str().into()));
        self.owes = true;
        deeds.push(self::line(kind, Map::from_iter(keys), Some(message.request_id.clone())));
    }

    fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        self.open.retain(|open| open != key);
        deeds.push(answer(key, reply));
    }

    fn interrupt(&mut self, deeds: &mut Vec<Deed>) {
        deeds.push(line("interrupt", Map::new(), None));
    }

    fn is_idle(&self) -> bool {
        !self.owes && self.open.is_empty()
    }

    fn close(&mut self, _deeds: &mut Vec<Deed>) {}
}

impl JsonlConversation {
    fn take(&mut self, said: Said, deeds: &mut Vec<Deed>) {
        match said {
            Said::Verdict => self.owes = false,
            Said::Seen(message) => {
                self.owes = true;
                deeds.push(Deed::Took(message));
            }
            Said::Undeliverable { message, why } => deeds.push(Deed::GaveBack { message, why }),
            // It asks what it asked already: once is enough.
            Said::Question(asked) if self.open.contains(&asked.key) => {}
            Said::Question(asked) if self.open.len() >= OPEN_QUESTIONS => {
                deeds.push(answer(&asked.key, Reply::Expired));
            }
            Said::Question(asked) => {
                self.open.push(asked.key.clone());
                deeds.push(Deed::Ask(asked));
            }
            Said::Withdrawn(key) => {
                self.open.retain(|open| *open != key);
                deeds.push(Deed::Withdraw(key));
            }
        }
    }
}

fn answer(key: &str, reply: Reply<'_>) -> Deed {
    let mut keys = Map::from_iter([("question".to_owned(), key.into())]);
    match reply {
        Reply::Expired => drop(keys.insert("expired".to_owned(), true.into())),
        Reply::Answer(answer) => {
            for (key, text) in [("choice", &answer.choice), ("text", &answer.text)] {
                keys.extend(text.as_deref().map(|text| (key.to_owned(), text.into())));
            }
        }
    }
    line("answer", keys, None)
}

fn line(kind: &str, mut keys: Map<String, Value>, message: Option<String>) -> Deed {
    keys.insert("type".to_owned(), kind.into());
    Deed::Write { line: Value::Object(keys).to_string().into_bytes(), message }
}

/// What a line says besides what every program after the conventions may say.
enum Said {
    Verdict,
    Seen(String),
    Undeliverable { message: String, why: String },
    Question(Asked),
    Withdrawn(String),
}

impl Said {
    fn read(keys: Keys<'_>) -> Option<Said> {
        let owned = |key| keys.text(key).map(|text| text.map(str::to_owned));
        Some(match keys.text("type")?? {
            "verdict" => match keys.text("result")?? {
                "success" | "failure" => Said::Verdict,
                _ => return None,
            },
            "seen" => Said::Seen(owned("request-id")??),
            "undeliverable" => Said::Undeliverable {
                message: owned("request-id")??,
                why: owned("why")?.unwrap_or_else(|| "the program did not take it".to_owned()),
            },
            "question" => Said::Question(question(keys)?),
            "question-withdrawn" => Said::Withdrawn(owned("id")??),
            _ => return None,
        })
    }
}

fn question(keys: Keys<'_>) -> Option<Asked> {
    let choices = match keys.get("choices") {
        None => Vec::new(),
        Some(choices) => choices.as_array()?.iter().map(choice).collect::<Option<Vec<Choice>>>()?,
    };
    let about = match keys.text("about")? {
        None if choices.is_empty() => About::Text,
        None | Some("choice") => About::Choice,
        Some("permission") => About::Permission,
        Some("confirm") => About::Confirm,
        Some("text") => About::Text,
        Some(_) => return None,
    };
    let twice = |(at, choice): (usize, &Choice)| choices[..at].iter().any(|other| other.id == choice.id);
    if choices.iter().enumerate().any(twice) {
        return None;
    }
    Some(Asked {
        key: keys.text("id")??.to_owned(),
        about,
        text: keys.text("text")??.to_owned(),
        takes_text: keys.flag("takes-text")? || choices.is_empty(),
        choices,
        tool: keys.text("tool")?.map(str::to_owned),
        details: keys.get("details").cloned().unwrap_or_default(),
    })
}

fn choice(value: &Value) -> Option<Choice> {
    let keys = Keys(value.as_object()?);
    let id = keys.text("id")??;
    Some(Choice { id: id.to_owned(), label: keys.text("label")?.unwrap_or(id).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Answer;

    fn written(deeds: &[Deed]) -> Vec<(Value, Option<&str>)> {
        let one = |deed: &'_ Deed| match deed {
            Deed::Write { line, .. } => serde_json::from_slice(line).unwrap(),
            other => panic!("{other:?}"),
        };
        let message = |deed| match deed {
            &Deed::Write { message: Some(ref id), .. } => Some(id.as_str()),
            _ => None,
        };
        deeds.iter().map(|deed| (one(deed), message(deed))).collect()
    }

    fn heard(talk: &mut JsonlConversation, line: &str) -> Vec<Deed> {
        let mut deeds = Vec::new();
        talk.heard(line.as_bytes(), &mut deeds);
        deeds
    }

    /// The examples of the page are what is written and read.
    #[test]
    fn the_page_says_what_is_written_and_read() {
        let page = include_str!("../../docs/jsonl.md");
        let example = page.split("```").nth(3).expect("a second example").trim();
        let (mut talk, mut deeds) = (JsonlConversation::default(), Vec::new());
        talk.open(Opening { prompt: "Tidy up.".into(), ..Opening::default() }, &mut deeds);
        let steer = Message {
            request_id: "m1".into(),
            mode: MessageMode::Steer,
            text: "Leave the tests alone.".into(),
        };
        talk.message(&steer, &mut deeds);
        let allow = Answer { choice: Some("allow".into()), text: None };
        talk.answer("p1", Reply::Answer(&allow), &mut deeds);
        talk.interrupt(&mut deeds);
        let ours: Vec<Value> = written(&deeds).into_iter().map(|(line, _)| line).collect();
        let lines = |mark: char| example.lines().filter_map(move |line| line.strip_prefix(mark));
        let page: Vec<Value> = lines('>').map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(ours, page);
        let mut talk = JsonlConversation::default();
        let deeds: Vec<Deed> = lines('<').flat_map(|line| heard(&mut talk, line.trim())).collect();
        assert_eq!(deeds[0], Deed::Took("m1".into()));
        assert!(matches!(&deeds[1], Deed::Ask(asked) if asked.key == "p1" && asked.choices.len() == 2));
        assert_eq!(deeds.len(), 2, "{deeds:?}");
    }

    #[test]
    fn a_verdict_settles_what_was_said_before_it() {
        let (mut talk, mut deeds) = (JsonlConversation::default(), Vec::new());
        talk.open(Opening::default(), &mut deeds);
        assert!(!talk.is_idle());
        heard(&mut talk, r#"{"type":"verdict","result":"maybe"}"#);
        assert!(!talk.is_idle());
        heard(&mut talk, r#"{"type":"verdict","result":"success"}"#);
        assert!(talk.is_idle());
        heard(&mut talk, r#"{"type":"seen","request-id":"m"}"#);
        assert!(!talk.is_idle(), "it took something: a verdict on that is still to come");
        heard(&mut talk, r#"{"type":"verdict","result":"failure"}"#);
        heard(&mut talk, r#"{"type":"question","id":"1","text":"?"}"#);
        assert!(!talk.is_idle());
        let withdrawn = heard(&mut talk, r#"{"type":"question-withdrawn","id":"1"}"#);
        assert_eq!(withdrawn, vec![Deed::Withdraw("1".into())]);
        assert!(talk.is_idle());
    }

    #[test]
    fn what_is_not_after_the_conventions_is_no_question() {
        let mut talk = JsonlConversation::default();
        for line in [
            r#"{"type":"question","text":"?"}"#,
            r#"{"type":"question","id":1,"text":"?"}"#,
            r#"{"type":"question","id":"1","text":"?","about":"life"}"#,
            r#"{"type":"question","id":"1","text":"?","choices":[{"label":"x"}]}"#,
            r#"{"type":"question","id":"1","text":"?","choices":[{"id":"x"},{"id":"x"}]}"#,
            r#"{"type":"question","id":"1","text":"?","takes-text":"yes"}"#,
            r#"{"type":"seen"}"#,
            "question",
            "",
        ] {
            assert_eq!(heard(&mut talk, line), vec![], "{line}");
        }
        let deeds =
            heard(&mut talk, r#"{"type":"question","id":"1","text":"Which?","choices":[{"id":"x"}]}"#);
        let Deed::Ask(asked) = &deeds[0] else { panic!("{deeds:?}") };
        assert_eq!(
            (asked.about, asked.takes_text, asked.choices[0].label.as_str()),
            (About::Choice, false, "x")
        );
        let again =
            heard(&mut talk, r#"{"type":"question","id":"1","text":"Which?","choices":[{"id":"x"}]}"#);
        assert_eq!(again, vec![], "asked once");
    }

    #[test]
    fn an_expired_question_is_told_as_such() {
        let (mut talk, mut deeds) = (JsonlConversation::default(), Vec::new());
        talk.answer("p1", Reply::Expired, &mut deeds);
        let message = Message { request_id: "m".into(), mode: MessageMode::FollowUp, text: "go on\n".into() };
        talk.message(&message, &mut deeds);
        let lines = written(&deeds);
        assert_eq!(lines[0].0, json!({ "type": "answer", "question": "p1", "expired": true }));
        let follow_up = json!({ "type": "follow-up", "request-id": "m", "text": "go on\n" });
        assert_eq!(lines[1], (follow_up, Some("m")));
    }
}
