//! How far each entry of the inbox has come.

use std::collections::HashMap;

use crate::model::{Event, Message, MessageMode, Receipt};

/// The receipts of all entries that were read, in the inbox's order.
#[derive(Debug, Default)]
pub struct Letters {
    receipts: Vec<Receipt>,
    /// Where the messages stand, by `request_id`.
    messages: HashMap<String, (usize, MessageMode)>,
}

/// An entry has come further.
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// The how-manieth entry.
    pub entry: usize,
    /// How far.
    pub receipt: Receipt,
    /// The record of it; answers have none.
    pub event: Option<Event>,
}

impl Letters {
    /// One more entry was read. For a message its record with the text.
    pub fn read(&mut self, message: Option<&Message>) -> Advance {
        let entry = self.receipts.len();
        self.receipts.push(Receipt::Stored);
        let event = message.map(|message| {
            self.messages.insert(message.request_id.clone(), (entry, message.mode));
            event(message.request_id.clone(), message.mode, Receipt::Stored, Some(message.text.clone()), None)
        });
        Advance { entry, receipt: Receipt::Stored, event }
    }

    /// A message of that id was read.
    pub fn knows(&self, request_id: &str) -> bool {
        self.messages.contains_key(request_id)
    }

    /// A message has come so far; `None` if that is nothing new. What the program took, or gave back, stays so.
    pub fn advance(&mut self, request_id: &str, receipt: Receipt, why: Option<&str>) -> Option<Advance> {
        let &(entry, mode) = self.messages.get(request_id)?;
        self.advance_entry(entry, receipt)?;
        let event = event(request_id.to_owned(), mode, receipt, None, why.map(str::to_owned));
        Some(Advance { entry, receipt, event: Some(event) })
    }

    /// An answer, or an entry that does not verify, has come so far.
    pub fn advance_other(&mut self, entry: usize, receipt: Receipt) -> Option<Advance> {
        self.advance_entry(entry, receipt)?;
        Some(Advance { entry, receipt, event: None })
    }

    fn advance_entry(&mut self, entry: usize, receipt: Receipt) -> Option<()> {
        let known = self.receipts.get_mut(entry)?;
        if *known >= receipt || *known == Receipt::Seen {
            return None;
        }
        *known = receipt;
        Some(())
    }

    /// Nothing more is passed on: what was only stored is undeliverable.
    pub fn give_back(&mut self, why: &str) -> Vec<Advance> {
        let stored: Vec<usize> =
            (0..self.receipts.len()).filter(|&entry| self.receipts[entry] == Receipt::Stored).collect();
        let names: HashMap<usize, String> =
            self.messages.iter().map(|(id, &(entry, _))| (entry, id.clone())).collect();
        let given_back = stored.into_iter().filter_map(|entry| match names.get(&entry) {
            Some(id) => self.advance(id, Receipt::Undeliverable, Some(why)),
            None => self.advance_other(entry, Receipt::Undeliverable),
        });
        given_back.collect()
    }

    /// Everything that is known.
    pub fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }
}

fn event(
    request_id: String,
    mode: MessageMode,
    receipt: Receipt,
    text: Option<String>,
    why: Option<String>,
) -> Event {
    Event::Message { request_id, mode, receipt, text, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Receipt::*;

    fn message(id: &str) -> Message {
        Message { request_id: id.into(), mode: MessageMode::Steer, text: "x".into() }
    }

    fn letters() -> Letters {
        let mut letters = Letters::default();
        letters.read(Some(&message("a")));
        letters.read(None);
        letters.read(Some(&message("b")));
        letters
    }

    #[test]
    fn receipts_only_grow_and_what_was_taken_is_not_given_back() {
        let mut letters = letters();
        assert_eq!(letters.advance("a", Seen, None).map(|a| (a.entry, a.receipt)), Some((0, Seen)));
        // The program was faster than the accounting of the write.
        assert_eq!(letters.advance("a", Written, None), None);
        assert_eq!(letters.advance("a", Undeliverable, None), None);
        assert_eq!(letters.advance("b", Written, None).map(|a| a.entry), Some(2));
        assert_eq!(letters.advance("b", Undeliverable, Some("no")).map(|a| a.entry), Some(2));
        assert_eq!(letters.advance("b", Seen, None), None);
        assert_eq!(letters.advance("unknown", Seen, None), None);
        assert_eq!(letters.receipts(), [Seen, Stored, Undeliverable]);
    }

    #[test]
    fn only_what_was_just_stored_comes_back_at_the_end() {
        let mut letters = letters();
        letters.advance("a", Written, None);
        let back = letters.give_back("it ended");
        let entries: Vec<(usize, bool)> = back.iter().map(|a| (a.entry, a.event.is_some())).collect();
        assert_eq!(entries, [(1, false), (2, true)]);
        assert_eq!(letters.receipts(), [Written, Undeliverable, Undeliverable]);
        assert!(letters.give_back("it ended").is_empty());
    }
}
