use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::{Answer, InvalidMessage};

/// What a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// May the program do this?
    Permission,
    /// Which of these?
    Choice,
    /// Yes or no?
    Confirm,
    /// What text?
    Text,
}

/// One of the answers that a question offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Choice {
    /// What an answer names.
    pub id: String,
    /// What people read.
    pub label: String,
}

/// What a program wants to know before it goes on. Its record in the journal holds all of it; statuses only show
/// [`OpenQuestion`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Question {
    /// Its id, unique in the session: `q1`, `q2` and so on.
    pub question: String,
    /// What it is about.
    pub about: About,
    /// What is asked, for people.
    pub text: String,
    /// The answers that it offers. None: it wants a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// An answer may, and without choices must, have a text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_text: bool,
    /// The tool whose use is in question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The program's own words on it, such as the tool's input.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    /// When it is refused if nobody answers, µs since 1970. A label: the limit itself runs on boot time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

/// An open question as a status shows it: without what the program said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OpenQuestion {
    /// Its id.
    pub question: String,
    /// What it is about.
    pub about: About,
    /// The ids of its choices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// An answer may, and without choices must, have a text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_text: bool,
    /// The tool whose use is in question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// When it was asked, µs since 1970.
    pub asked: u64,
    /// When it is refused if nobody answers, µs since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

/// How a question was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Settled {
    /// Somebody answered.
    Answered,
    /// Nobody did in time: the program was told that it is refused.
    Expired,
    /// The program does not want to know any more.
    Withdrawn,
    /// The session ended first.
    Ended,
}

impl OpenQuestion {
    /// Whether `answer` is one that the question takes; `most` is the longest text, in characters.
    ///
    /// # Errors
    /// What is wrong with it, and which choices there are.
    pub fn check(&self, answer: &Answer, most: u64) -> Result<(), InvalidMessage> {
        let bad = |argument, problem: String| Err(InvalidMessage { argument, problem });
        match &answer.choice {
            Some(choice) if !self.choices.contains(choice) => {
                let problem = match self.choices.is_empty() {
                    true => "the question offers no choices; answer with text".to_owned(),
                    false => format!("is none of its choices: {}", self.choices.join(", ")),
                };
                return bad("answer.choice", problem);
            }
            None if !self.choices.is_empty() => {
                return bad(
                    "answer.choice",
                    format!("is missing; choose one of {}", self.choices.join(", ")),
                );
            }
            _ => {}
        }
        match &answer.text {
            Some(_) if !self.takes_text => bad("answer.text", "the question takes no text".to_owned()),
            None if self.choices.is_empty() => bad("answer.text", "is missing".to_owned()),
            Some(text) if text.chars().count() as u64 > most => {
                bad("answer.text", format!("is longer than {most} characters (Limits: message)"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(choices: &[&str], takes_text: bool) -> OpenQuestion {
        OpenQuestion {
            question: "q1".into(),
            about: About::Choice,
            choices: choices.iter().map(|&choice| choice.to_owned()).collect(),
            takes_text,
            tool: None,
            asked: 0,
            expires: None,
        }
    }

    fn wrong(question: &OpenQuestion, choice: Option<&str>, text: Option<&str>) -> Option<&'static str> {
        let answer = Answer { choice: choice.map(str::to_owned), text: text.map(str::to_owned) };
        question.check(&answer, 3).err().map(|error| error.argument)
    }

    #[test]
    fn an_answer_must_fit_its_question() {
        let choice = open(&["allow", "deny"], false);
        assert_eq!(wrong(&choice, Some("allow"), None), None);
        assert_eq!(wrong(&choice, Some("maybe"), None), Some("answer.choice"));
        assert_eq!(wrong(&choice, None, None), Some("answer.choice"));
        assert_eq!(wrong(&choice, Some("deny"), Some("no")), Some("answer.text"));
        let text = open(&[], true);
        assert_eq!(wrong(&text, None, Some("abc")), None);
        assert_eq!(wrong(&text, None, None), Some("answer.text"));
        assert_eq!(wrong(&text, None, Some("abcd")), Some("answer.text"));
        assert_eq!(wrong(&text, Some("allow"), Some("a")), Some("answer.choice"));
        assert_eq!(wrong(&open(&["deny"], true), Some("deny"), Some("no")), None);
    }
}
