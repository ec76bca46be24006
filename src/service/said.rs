//! What a journal whose executor died tells of messages and questions. Never more than is known: what was recorded may
//! have been written to the program, or not; what was not recorded never was, because the record comes first.

use std::collections::{HashMap, HashSet};

use super::Error;
use crate::model::{Entry, Event, Receipt, Settled, Word};
use crate::spool::SessionDir;

const WHY: &str = "the session's executor died before it was passed on";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// How far each message has come, by `request_id`.
    messages: HashMap<String, Receipt>,
    /// The questions that somebody answered.
    answered: HashSet<String>,
    /// Those that were not settled, oldest first.
    open: Vec<String>,
    /// How many were asked.
    pub asked: u32,
}

impl Said {
    /// Takes a record of the kinds `message`, `question` and `question-settled`.
    pub(super) fn take(&mut self, entry: &Entry) {
        let text = |key: &str| entry.details.get(key).and_then(|value| value.as_str()).map(str::to_owned);
        match (entry.kind.as_str(), text("request-id"), text("question")) {
            ("message", Some(id), _) => {
                let receipt = entry.details.get("receipt").cloned().unwrap_or_default();
                let receipt = serde_json::from_value(receipt).unwrap_or(Receipt::Stored);
                self.messages.insert(id, receipt);
            }
            ("question", _, Some(id)) => {
                self.asked += 1;
                self.open.push(id);
            }
            ("question-settled", _, Some(id)) => {
                self.open.retain(|open| *open != id);
                if text("how").as_deref() == Some("answered") {
                    self.answered.insert(id);
                }
            }
            _ => {}
        }
    }

    /// How far each entry of the session's inbox has come. `whole`: no record is missing.
    pub(super) fn receipts(&self, dir: &SessionDir, whole: bool) -> Result<Vec<Receipt>, Error> {
        let receipt = |word: &Word| {
            let known = match word {
                Word::Message(message) => self.messages.get(&message.request_id).copied(),
                Word::Answer { question, .. } => self.answered.get(question).map(|_| Receipt::Stored),
            };
            known.unwrap_or(if whole { Receipt::Undeliverable } else { Receipt::Stored })
        };
        let entries = dir.inbox_reader().read_on()?;
        Ok(entries.iter().map(|e| e.as_ref().map_or(Receipt::Undeliverable, |e| receipt(&e.word))).collect())
    }

    /// The records that are still to be written: what was never passed on, and questions that nobody can answer any more.
    pub(super) fn last_words(&self, dir: &SessionDir, whole: bool) -> Result<Vec<Event>, Error> {
        let entries = if whole { dir.inbox_reader().read_on()? } else { Vec::new() };
        let messages = entries.into_iter().flatten().filter_map(|entry| match entry.word {
            Word::Message(message) if !self.messages.contains_key(&message.request_id) => {
                Some(Event::Message {
                    request_id: message.request_id,
                    mode: message.mode,
                    receipt: Receipt::Undeliverable,
                    text: Some(message.text),
                    why: Some(WHY.to_owned()),
                })
            }
            _ => None,
        });
        let questions = self.open.iter().map(|id| Event::QuestionSettled {
            question: id.clone(),
            how: Settled::Ended,
            choice: None,
            text: None,
        });
        Ok(messages.chain(questions).collect())
    }
}
