//! What is shown of a conversation: only what is durable in the journal.

use std::collections::VecDeque;

use crate::executor::control::Report;
use crate::model::{OpenQuestion, Receipt};

/// Something that a record says.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// An entry of the inbox has come so far.
    Receipt(usize, Receipt),
    /// A question is open.
    Asked(OpenQuestion),
    /// A question is open no more.
    Settled(String),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Board {
    receipts: Vec<Receipt>,
    questions: Vec<OpenQuestion>,
    asked: u32,
    /// What is not durable yet, and up to where the journal has to be.
    coming: VecDeque<(u64, News)>,
}

impl Board {
    /// Something was recorded, before this offset.
    pub fn add(&mut self, offset: u64, news: News) {
        self.coming.push_back((offset, news));
    }

    /// Puts what is durable by now into a report.
    pub fn show(&mut self, durable: u64, report: &mut Report) {
        while self.coming.front().is_some_and(|(offset, _)| *offset <= durable)
            && let Some((_, news)) = self.coming.pop_front()
        {
            self.take(news);
        }
        report.receipts.clone_from(&self.receipts);
        report.questions.clone_from(&self.questions);
        report.asked = self.asked;
    }

    fn take(&mut self, news: News) {
        match news {
            News::Receipt(entry, receipt) => {
                if self.receipts.len() <= entry {
                    self.receipts.resize(entry + 1, Receipt::Stored);
                }
                self.receipts[entry] = receipt;
            }
            News::Asked(question) => {
                self.asked = self.asked.saturating_add(1);
                self.questions.push(question);
            }
            News::Settled(id) => self.questions.retain(|open| open.question != id),
        }
    }
}
