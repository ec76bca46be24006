use serde::{Deserialize, Serialize};

use super::limits::shown;

/// The longest `request_id` of a message, in characters (DESIGN section 12).
pub const MAX_REQUEST_ID: usize = 256;

/// When a message is meant to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageMode {
    /// As soon as the program can take it, into the running turn.
    Steer,
    /// When the running turn is over.
    FollowUp,
}

/// How far a message is known to have come. Never more than is known: a program that was given a message and died may
/// or may not have read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Receipt {
    /// It survives power loss, and is passed on when the program can take it.
    Stored,
    /// All of it was written to the program's standard input.
    Written,
    /// The program said that it took it.
    Seen,
    /// The program never took it: it comes back.
    Undeliverable,
}

/// What an application tells a running session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Message {
    /// The sender's stable name of it: the same again is the same message, for ever.
    pub request_id: String,
    /// When it is meant to be read.
    pub mode: MessageMode,
    /// What it says.
    pub text: String,
}

/// An answer to a question: one of its choices, a text, or both, as the question takes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Answer {
    /// The id of a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// Free text: the answer itself, or the reason of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What somebody told a session, as its inbox keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub enum Word {
    /// A message.
    Message(Message),
    /// An answer to a question.
    Answer {
        /// The question's id.
        question: String,
        /// The answer.
        answer: Answer,
    },
}

/// One line of `inbox.jsonl`: durable before it is acknowledged, passed on in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct InboxEntry {
    /// When it was stored, µs since 1970: a label.
    pub time: u64,
    /// What was said.
    #[serde(flatten)]
    pub word: Word,
}

/// The answer of `Steer` and `FollowUp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MessageStatus {
    /// The message.
    pub request_id: String,
    /// When it is meant to be read.
    pub mode: MessageMode,
    /// How far it is known to have come.
    pub receipt: Receipt,
}

/// Why a message or an answer is refused: the argument and what is wrong, without its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{argument}: {problem}")]
pub struct InvalidMessage {
    /// The argument: `request_id`, `text`, `answer.choice` and the like.
    pub argument: &'static str,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl Message {
    /// Checks the message itself against the limits; `most` is the longest text, in characters.
    ///
    /// # Errors
    /// The argument that is wrong.
    pub fn check(&self, most: u64) -> Result<(), InvalidMessage> {
        let bad = |argument, problem: String| Err(InvalidMessage { argument, problem });
        let id = &self.request_id;
        if id.is_empty() || id.chars().count() > MAX_REQUEST_ID || id.chars().any(char::is_control) {
            let problem = format!("must be 1 to {MAX_REQUEST_ID} characters without control characters");
            return bad("request_id", problem);
        }
        if self.text.trim().is_empty() {
            return bad("text", "is empty; say something".to_owned());
        }
        let length = self.text.chars().count() as u64;
        if length > most {
            return bad(
                "text",
                format!("is {length} characters long; the limit is {most} (Limits: message)"),
            );
        }
        Ok(())
    }

    /// Its name as an error repeats it.
    pub fn shown(&self) -> String {
        shown(&self.request_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_checked_by_argument() {
        let message = |id: &str, text: &str| Message {
            request_id: id.to_owned(),
            mode: MessageMode::Steer,
            text: text.to_owned(),
        };
        assert_eq!(message("a", "b").check(1), Ok(()));
        assert_eq!(message(&"ä".repeat(256), "ä").check(1), Ok(()));
        for (id, text, argument) in
            [("", "b", "request_id"), ("a\n", "b", "request_id"), ("a", " \n", "text"), ("a", "bb", "text")]
        {
            assert_eq!(message(id, text).check(1).unwrap_err().argument, argument);
        }
        assert_eq!(message(&"ä".repeat(257), "b").check(1).unwrap_err().argument, "request_id");
    }

    #[test]
    fn entries_are_one_flat_object() {
        let entry = InboxEntry {
            time: 5,
            word: Word::Answer {
                question: "q1".into(),
                answer: Answer { choice: Some("allow".into()), text: None },
            },
        };
        let json = serde_json::to_string(&entry).unwrap();
        assert_eq!(json, r#"{"time":5,"word":"answer","question":"q1","answer":{"choice":"allow"}}"#);
        assert_eq!(serde_json::from_str::<InboxEntry>(&json).unwrap(), entry);
    }
}
