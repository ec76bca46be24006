//! What programs ask and what was said to them, as text for people.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::report::now;
use super::text::{duration, shortened};

/// The longest text of a message shown with its first record, in characters.
const SHORT: usize = 160;
/// The same with later records.
const MENTION: usize = 40;

/// A question as its record or a status shows it: both have the same keys, as far as they go.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a>(pub &'a Map<String, Value>);

impl<'a> Question<'a> {
    /// Its id.
    pub fn id(self) -> &'a str {
        text(self.0, "question")
    }

    /// What is asked, for people; empty where only a status is known.
    pub fn text(self) -> &'a str {
        text(self.0, "text").trim()
    }

    /// What it is about, and the tool in question.
    pub fn subject(self) -> String {
        let words = [text(self.0, "about"), text(self.0, "tool")];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// How long it waits, and when that ends.
    pub fn age(self) -> String {
        let now = now();
        let time = |key: &str| self.0.get(key).and_then(Value::as_u64);
        let asked = time("asked").map(|asked| format!("asked {} ago", duration(now.saturating_sub(asked))));
        let expires = time("expires").map(|at| format!("refused in {}", duration(at.saturating_sub(now))));
        asked.into_iter().chain(expires).collect::<Vec<_>>().join(", ")
    }

    /// A line for each way to answer it: what the choice says, and the command to type.
    pub fn commands(self, run_id: &str) -> Vec<String> {
        let takes_text = self.0.get("takes-text").and_then(Value::as_bool) == Some(true);
        let command = format!("sessionctl answer {run_id} {}", quoted(self.id()));
        let choices = choices(self.0.get("choices"));
        if choices.is_empty() {
            return vec![format!("{command} --text TEXT")];
        }
        let more = if takes_text { " [--text TEXT]" } else { "" };
        let line = |(id, label): &(&str, &str)| {
            // What begins like an option is none only after two hyphens, where no option can follow.
            let (hyphens, more) = if id.starts_with('-') { ("-- ", "") } else { ("", more) };
            let command = format!("{command} {hyphens}{}{more}", quoted(id));
            let label = shortened(label, SHORT);
            if label.is_empty() { command } else { format!("{label}: {command}") }
        };
        choices.iter().map(line).collect()
    }
}

/// The choices' ids and labels; a status has the ids alone.
fn choices(value: Option<&Value>) -> Vec<(&str, &str)> {
    let items = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| match item {
            Value::String(id) => Some((id.as_str(), "")),
            item => Some((item["id"].as_str()?, item["label"].as_str().unwrap_or_default())),
        })
        .collect()
}

/// How a question was settled.
pub fn settled(details: &Map<String, Value>) -> String {
    let (choice, said) = (text(details, "choice"), shortened(text(details, "text"), SHORT));
    let words = match text(details, "how") {
        "answered" => {
            let answer: Vec<&str> =
                [choice, said.as_str()].into_iter().filter(|word| !word.is_empty()).collect();
            format!("answered: {}", answer.join(": "))
        }
        "expired" => "expired: nobody answered in time, it is refused".to_owned(),
        "withdrawn" => "withdrawn: the program does not wait for an answer any more".to_owned(),
        "ended" => "not answered before the session ended".to_owned(),
        newer => newer.to_owned(),
    };
    format!("? {} {words}", text(details, "question"))
}

/// What was said to a program, as far as it decides how the next record of it is shown.
#[derive(Debug, Default)]
pub struct Said(HashMap<String, String>);

impl Said {
    /// How far a message has come. Only its first record has its text.
    pub fn line(&mut self, details: &Map<String, Value>) -> String {
        let id = text(details, "request-id");
        let words = match details.get("text").and_then(Value::as_str) {
            Some(words) => {
                self.0.insert(id.to_owned(), shortened(words, MENTION));
                shortened(words, SHORT)
            }
            None => self.0.get(id).cloned().unwrap_or_else(|| shortened(id, MENTION)),
        };
        let why = shortened(text(details, "why"), SHORT);
        let why = if why.is_empty() { why } else { format!(" ({why})") };
        format!("» {} {}: {words}{why}", text(details, "mode"), text(details, "receipt"))
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,:/@%+=".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn text<'a>(details: &'a Map<String, Value>, key: &str) -> &'a str {
    details.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn commands(question: Value) -> Vec<String> {
        Question(question.as_object().unwrap()).commands("RUN")
    }

    #[test]
    fn every_way_to_answer_has_its_command() {
        let record = json!({"question": "q1", "takes-text": true, "choices": [
            {"id": "allow", "label": "Allow once"}, {"id": "deny", "label": ""}, {"id": "-x", "label": "Other"}
        ]});
        assert_eq!(
            commands(record),
            [
                "Allow once: sessionctl answer RUN q1 allow [--text TEXT]",
                "sessionctl answer RUN q1 deny [--text TEXT]",
                "Other: sessionctl answer RUN q1 -- -x"
            ]
        );
        let status = json!({"question": "q2", "choices": ["yes", "no"]});
        assert_eq!(commands(status), ["sessionctl answer RUN q2 yes", "sessionctl answer RUN q2 no"]);
        let free = json!({"question": "q3", "takes-text": true});
        assert_eq!(commands(free), ["sessionctl answer RUN q3 --text TEXT"]);
    }

    /// The ids of choices are a program's own words, and people paste the command into a shell.
    #[test]
    fn a_choice_is_one_word_of_the_shell() {
        for id in ["$(reboot)", "a b", "it's", "`x`", "a;b", "", "*", "a\nreboot", "~", "!!", "\"", "ä"] {
            let line = commands(json!({"question": "q1", "choices": [id]})).concat();
            let word = line.strip_prefix("sessionctl answer RUN q1 ").unwrap();
            let shell =
                std::process::Command::new("/bin/sh").args(["-c", &format!("printf %s {word}")]).output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), id, "{word}");
        }
    }

    #[test]
    fn a_settled_question_tells_how() {
        let line = |value: Value| settled(value.as_object().unwrap());
        for (details, expected) in [
            (
                json!({"question": "q1", "how": "answered", "choice": "deny", "text": "no\nway"}),
                "answered: deny: no (+1 line)",
            ),
            (json!({"question": "q1", "how": "answered", "text": "blue"}), "answered: blue"),
            (json!({"question": "q1", "how": "expired"}), "expired: nobody answered in time, it is refused"),
            (json!({"question": "q1", "how": "evaporated"}), "evaporated"),
        ] {
            assert_eq!(line(details), format!("? q1 {expected}"));
        }
    }

    #[test]
    fn a_message_is_called_by_what_it_says() {
        let mut said = Said::default();
        let mut line = |value: Value| said.line(value.as_object().unwrap());
        let first = json!({"request-id": "a", "mode": "steer", "receipt": "stored", "text": "stop\nthat"});
        assert_eq!(line(first), "» steer stored: stop (+1 line)");
        let later =
            json!({"request-id": "a", "mode": "steer", "receipt": "undeliverable", "why": "it exited"});
        assert_eq!(line(later), "» steer undeliverable: stop (+1 line) (it exited)");
        let unknown = json!({"request-id": "b", "mode": "follow-up", "receipt": "seen"});
        assert_eq!(line(unknown), "» follow-up seen: b");
    }
}
