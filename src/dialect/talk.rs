//! The other direction: what is written to a program while it runs.
//!
//! A [`Talk`] is pure. It is told what happens (the program began, a line came, somebody has something to say) and
//! answers with [`Deed`]s; the executor writes, keeps time, journals and gives receipts. It sees every line of standard
//! output, after the family's reader did.
//!
//! ```text
//! open ──▶ Write…          the handshake and the prompt
//! heard ─▶ Write…          what the protocol wants next, such as a prompt after the answer to a handshake
//!       ─▶ Took, GaveBack  what became of a message
//!       ─▶ Ask, Withdraw   a question, and that nobody needs to answer it any more
//! message ▶ Write…         now, or in a later `heard`: a talk keeps what cannot be written yet
//! answer ─▶ Write
//! ```

use std::path::PathBuf;

use serde_json::Value;

use crate::model::{About, Answer, Choice, Message};

/// What a conversation begins with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Opening {
    /// The submission's input: the prompt. Empty where it has none.
    pub prompt: String,
    /// The attachments, in their order.
    pub attachments: Vec<Attachment>,
    /// The JSON Schema that the final answer must fit.
    pub schema: Option<Value>,
    /// The program's own name of the conversation that goes on.
    pub conversation: Option<String>,
    /// The directory that the program runs in.
    pub directory: PathBuf,
}

/// An attachment with its bytes, for families that want them in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The submitter's name of it.
    pub name: String,
    /// Its media type, recognised by content.
    pub media_type: String,
    /// The absolute file.
    pub path: PathBuf,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A question as the program's protocol puts it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The program's own name of it, by which an answer is given; never shown.
    pub key: String,
    /// What it is about.
    pub about: About,
    /// What is asked, for people.
    pub text: String,
    /// The answers that it offers.
    pub choices: Vec<Choice>,
    /// An answer may, and without choices must, have a text.
    pub takes_text: bool,
    /// The tool whose use is in question.
    pub tool: Option<String>,
    /// The program's own words on it.
    pub details: Value,
}

/// What becomes of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// This answer, which was checked against the question.
    Answer(&'a Answer),
    /// Nobody answered in time: it is refused.
    Expired,
}

/// What a talk wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Deed {
    /// Write this line, to which a line feed is added. If it carries a message, that has its receipt `written` when all of
    /// the line is.
    Write {
        /// The line, without a line feed in it.
        line: Vec<u8>,
        /// The `request_id` of the message in it.
        message: Option<String>,
    },
    /// The program said that it took the message of this `request_id`: `seen`.
    Took(String),
    /// The program never takes the message: `undeliverable`.
    GaveBack {
        /// Its `request_id`.
        message: String,
        /// Why, for people.
        why: String,
    },
    /// The program asks.
    Ask(Asked),
    /// The program does not wait for an answer to the question of this key any more.
    Withdraw(String),
    /// The conversation cannot begin or go on: the session is ended as failed, for this reason.
    Fail(String),
}

impl Deed {
    /// The line of `value`; `message` is the `request_id` of the message in it.
    pub(super) fn write(value: &Value, message: Option<&str>) -> Deed {
        Deed::Write { line: value.to_string().into_bytes(), message: message.map(str::to_owned) }
    }

    /// A message comes back.
    pub(super) fn gave_back(message: &str, why: &str) -> Deed {
        Deed::GaveBack { message: message.to_owned(), why: why.to_owned() }
    }
}

/// The conversation with one run of a program.
pub trait Talk: Send {
    /// The program was started.
    fn open(&mut self, opening: Opening, deeds: &mut Vec<Deed>);
    /// It printed this line, without its line feed.
    fn heard(&mut self, line: &[u8], deeds: &mut Vec<Deed>);
    /// Somebody says this. What cannot be written yet is kept and written in a later [`Talk::heard`].
    fn message(&mut self, message: &Message, deeds: &mut Vec<Deed>);
    /// The question of this key is settled.
    fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>);
    /// The session is being stopped: the gentlest way in which the protocol can say so. No deed: there is none, and
    /// [`Dialect::interrupt`](super::Dialect::interrupt) is next.
    fn interrupt(&mut self, deeds: &mut Vec<Deed>);
    /// It owes the program nothing and the program owes it nothing: no message or question is under way. When that is so
    /// and the reader's reading is settled, the executor closes the program's standard input.
    fn is_idle(&self) -> bool;
    /// What the executor closes the input with, and what was kept is given back: the session is ending.
    fn close(&mut self, deeds: &mut Vec<Deed>);
}
