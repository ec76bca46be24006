//! The other direction: what the program is told while it runs, and what it asks.
//!
//! The dialect's [`Talk`] says what to write and what the program's lines mean; everything with time, disk and pipe is
//! here. Nothing blocks the pump: [`Conversation::next`] is one branch of it. What somebody said is recorded before it is
//! passed on, and a line that carries it is written only once that record is durable: an entry without a record was never
//! passed on.

mod board;
mod letters;
mod mailbox;
mod outbox;
mod questions;

use std::io;
use std::os::fd::OwnedFd;

use super::control::Report;
use super::recorder::Recorder;
use crate::crash;
use crate::dialect::talk::{Asked, Deed, Reply, Talk};
use crate::model::kind::notice;
use crate::model::{Answer, Event, InboxEntry, Message, Receipt, Settled, Word};
use crate::spool::{InboxReader, SpoolError};
use board::{Board, News};
use letters::{Advance, Letters};
use mailbox::Mailbox;
use outbox::{Carries, Outbox};
use questions::Questions;

pub use crate::dialect::Opening;

const STOPPED: &str = "the session is being stopped";
const FINISHED: &str = "the work was done, and the program's standard input is closed";
const DEAF: &str = "the program closed its standard input";
/// Why a message comes back that the program exited without.
pub const EXITED: &str = "the program has exited";

/// See the module.
pub struct Conversation {
    talk: Box<dyn Talk>,
    outbox: Outbox,
    mailbox: Mailbox,
    letters: Letters,
    questions: Questions,
    board: Board,
    /// The session is being stopped: nobody's words are passed on any more.
    stopping: bool,
    /// Why the program can be told nothing more.
    shut: Option<&'static str>,
    /// Everything is done, and the inbox is looked into once more.
    looked: bool,
    /// That the inbox cannot be read was told, and it was not read since.
    blind: bool,
    failure: Option<String>,
}

/// Something that a conversation waits for.
#[derive(Debug)]
pub enum Happened {
    /// The pipe took something; what was written whole by that.
    Wrote(io::Result<Vec<Carries>>),
    /// The inbox was read.
    Mail(Result<Vec<Option<InboxEntry>>, SpoolError>),
    /// Nobody answered the question of this id in time.
    Expired(String),
}

impl Conversation {
    /// One that nothing was said in, and the end of the pipe for the program. Questions wait for `seconds`.
    pub fn new(
        talk: Box<dyn Talk>,
        inbox: InboxReader,
        seconds: Option<u64>,
    ) -> io::Result<(Conversation, OwnedFd)> {
        let (outbox, stdin) = Outbox::pipe()?;
        let conversation = Conversation {
            talk,
            outbox,
            mailbox: Mailbox::new(inbox),
            letters: Letters::default(),
            questions: Questions::new(seconds),
            board: Board::default(),
            stopping: false,
            shut: None,
            looked: false,
            blind: false,
            failure: None,
        };
        Ok((conversation, stdin))
    }

    /// The program was started.
    pub fn open(&mut self, opening: Opening, recorder: &mut Recorder) {
        let mut deeds = Vec::new();
        self.talk.open(opening, &mut deeds);
        self.perform(deeds, recorder);
    }

    /// The inbox has grown.
    pub fn look(&mut self) {
        self.mailbox.look();
    }

    /// Waits for what is next; `durable` is how far the journal is. Safe to drop at any await.
    pub async fn next(&mut self, durable: u64) -> Happened {
        tokio::select! {
            wrote = self.outbox.write(durable) => Happened::Wrote(wrote),
            mail = self.mailbox.next() => Happened::Mail(mail),
            id = self.questions.expired() => Happened::Expired(id),
        }
    }

    /// Something happened.
    pub fn take(&mut self, happened: Happened, recorder: &mut Recorder) {
        match happened {
            Happened::Wrote(Ok(carried)) => carried.into_iter().for_each(|words| self.wrote(words, recorder)),
            Happened::Wrote(Err(_)) => self.deaf(recorder),
            Happened::Mail(mail) => self.mail(mail, recorder),
            Happened::Expired(id) => {
                let Some(key) = self.questions.settle(&id) else { return };
                self.settled(id, Settled::Expired, Answer::default(), recorder);
                let mut deeds = Vec::new();
                self.talk.answer(&key, Reply::Expired, &mut deeds);
                self.perform_after(deeds, None, recorder);
                self.ask(recorder);
            }
        }
    }

    /// The program printed lines: those that the recorder kept for this.
    pub fn hear(&mut self, recorder: &mut Recorder) {
        for line in recorder.heard() {
            let mut deeds = Vec::new();
            self.talk.heard(&line, &mut deeds);
            self.perform(deeds, recorder);
        }
    }

    /// A question is open: the program waits for people.
    pub fn asks(&self) -> bool {
        !self.questions.is_empty()
    }

    /// The program can still be told something.
    pub fn is_open(&self) -> bool {
        self.outbox.is_open()
    }

    /// Why the conversation cannot go on, once.
    pub fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Closes the program's standard input if its work is done and nobody has anything to say. `settled`: the program said
    /// its last word.
    pub fn close_when_done(&mut self, settled: bool, recorder: &mut Recorder) {
        let nothing_waits = self.outbox.is_open() && self.outbox.is_empty();
        if !(nothing_waits && settled) {
            self.looked = false;
        } else if self.stopping {
            self.shut(STOPPED, recorder);
        } else if !(self.talk.is_idle() && self.questions.is_empty()) {
            self.looked = false;
        } else if self.mailbox.is_quiet() {
            match self.looked {
                true => self.shut(FINISHED, recorder),
                // What was stored a moment ago is not to come too late.
                false => self.mailbox.look(),
            }
            self.looked = true;
        }
    }

    /// The session is being stopped: nothing more is passed on, and nobody needs to answer.
    pub fn stop(&mut self, recorder: &mut Recorder) {
        self.stopping = true;
        self.outbox.recall();
        self.end_questions(Settled::Ended, recorder);
    }

    /// Asks the program to stop in its own words; `false` if it has none, or cannot be told.
    pub fn interrupt(&mut self, recorder: &mut Recorder) -> bool {
        let mut deeds = Vec::new();
        self.talk.interrupt(&mut deeds);
        let says = deeds.iter().any(|deed| matches!(deed, Deed::Write { .. }));
        self.perform(deeds, recorder);
        says && self.outbox.is_open()
    }

    /// The program can be told nothing more: what it was not told comes back.
    pub fn shut(&mut self, why: &'static str, recorder: &mut Recorder) {
        if self.shut.is_some() {
            return;
        }
        self.shut = Some(why);
        self.outbox.close();
        let mut deeds = Vec::new();
        self.talk.close(&mut deeds);
        self.perform(deeds, recorder);
        for advance in self.letters.give_back(why) {
            self.advanced(advance, recorder);
        }
    }

    /// The session has ended: the inbox is read a last time, and everything has its last receipt.
    pub async fn end(&mut self, recorder: &mut Recorder) {
        self.shut(EXITED, recorder);
        self.end_questions(Settled::Ended, recorder);
        let rest = self.mailbox.rest().await;
        self.mail(rest, recorder);
    }

    /// How far each entry of the inbox has come.
    pub fn receipts(&self) -> &[Receipt] {
        self.letters.receipts()
    }

    /// How many questions were asked.
    pub fn asked(&self) -> u32 {
        self.questions.asked()
    }

    /// Puts into a report what is durable by now.
    pub fn show(&mut self, durable: u64, report: &mut Report) {
        self.board.show(durable, report);
    }

    fn mail(&mut self, mail: Result<Vec<Option<InboxEntry>>, SpoolError>, recorder: &mut Recorder) {
        match mail {
            Ok(entries) => {
                self.blind = false;
                for entry in entries {
                    match entry.map(|entry| entry.word) {
                        None => self.unreadable(recorder),
                        // The daemon stores each once: it is a copy of what was taken already.
                        Some(Word::Message(message)) if self.letters.knows(&message.request_id) => {
                            self.unreadable(recorder);
                        }
                        Some(Word::Message(message)) => self.message(&message, recorder),
                        Some(Word::Answer { question, answer }) => self.answer(question, &answer, recorder),
                    }
                }
            }
            Err(_) if self.blind => {}
            Err(error) => {
                self.blind = true;
                let text = format!("what applications told the session cannot be read: {error}");
                recorder.fact(&Event::notice(notice::WARNING, text));
            }
        }
    }

    fn unreadable(&mut self, recorder: &mut Recorder) {
        let read = self.letters.read(None);
        let entry = read.entry;
        self.advanced(read, recorder);
        self.advance_other(entry, Receipt::Undeliverable, recorder);
        recorder.fact(&Event::notice(
            notice::WARNING,
            "an entry of the session's inbox is damaged and cannot be passed on",
        ));
    }

    fn message(&mut self, message: &Message, recorder: &mut Recorder) {
        let read = self.letters.read(Some(message));
        let (entry, receipt) = (read.entry, read.receipt);
        let recorded = read.event.is_some_and(|event| recorder.letter(&event));
        self.board.add(recorder.offset(), News::Receipt(entry, receipt));
        let back = match self.shut {
            Some(why) => Some(why),
            None if !recorded => Some("the journal has no room for it"),
            None => self.stopping.then_some(STOPPED),
        };
        if let Some(why) = back {
            return self.advance(&message.request_id, Receipt::Undeliverable, Some(why), recorder);
        }
        let mut deeds = Vec::new();
        self.talk.message(message, &mut deeds);
        self.perform_from(deeds, recorder.offset(), recorder);
    }

    fn answer(&mut self, id: String, answer: &Answer, recorder: &mut Recorder) {
        let read = self.letters.read(None);
        let entry = read.entry;
        self.advanced(read, recorder);
        let Some((key, own)) = self.questions.answer(&id, answer) else {
            return self.advance_other(entry, Receipt::Undeliverable, recorder);
        };
        self.settled(id, Settled::Answered, answer.clone(), recorder);
        let mut deeds = Vec::new();
        self.talk.answer(&key, Reply::Answer(&own), &mut deeds);
        self.perform_after(deeds, Some(entry), recorder);
        self.ask(recorder);
    }

    /// Does what a talk wants by itself.
    fn perform(&mut self, deeds: Vec<Deed>, recorder: &mut Recorder) {
        self.perform_from(deeds, 0, recorder);
    }

    /// Does what a talk wants: nothing is written before the journal is durable up to `after`, and no message before its
    /// own record is.
    fn perform_from(&mut self, deeds: Vec<Deed>, after: u64, recorder: &mut Recorder) {
        for deed in deeds {
            match deed {
                // It comes back when the session ends.
                Deed::Write { message: Some(_), .. } if self.stopping => {}
                Deed::Write { line, message: Some(id) } => {
                    self.write(line, Carries::Message(id), recorder.offset());
                }
                Deed::Write { line, message: None } => self.write(line, Carries::Nothing, after),
                deed => self.note(deed, recorder),
            }
        }
    }

    /// Does what a talk wants about a question that was settled: once the record of that is durable.
    fn perform_after(&mut self, deeds: Vec<Deed>, answer: Option<usize>, recorder: &mut Recorder) {
        let last = deeds.iter().rposition(|deed| matches!(deed, Deed::Write { .. }));
        for (at, deed) in deeds.into_iter().enumerate() {
            match deed {
                Deed::Write { line, .. } => {
                    let entry = answer.filter(|_| Some(at) == last);
                    self.write(line, entry.map_or(Carries::Nothing, Carries::Answer), recorder.offset());
                }
                deed => self.note(deed, recorder),
            }
        }
        if let (None, Some(entry)) = (last, answer) {
            // The protocol has no word for it: it was heeded all the same.
            self.advance_other(entry, Receipt::Written, recorder);
        }
    }

    fn write(&mut self, line: Vec<u8>, carries: Carries, after: u64) {
        if !self.outbox.push(line, carries, after) {
            self.failure =
                Some("the program does not read its standard input, and too much waits".to_owned());
        }
    }

    fn note(&mut self, deed: Deed, recorder: &mut Recorder) {
        match deed {
            Deed::Took(id) => self.advance(&id, Receipt::Seen, None, recorder),
            Deed::GaveBack { message, why } => {
                self.advance(&message, Receipt::Undeliverable, Some(&why), recorder);
            }
            Deed::Ask(asked) => self.asked_by_program(asked, recorder),
            Deed::Withdraw(key) => {
                if let Some(id) = self.questions.withdraw(&key) {
                    self.settled(id, Settled::Withdrawn, Answer::default(), recorder);
                    self.ask(recorder);
                }
            }
            Deed::Fail(why) => self.failure = Some(why),
            Deed::Write { .. } => {}
        }
    }

    fn asked_by_program(&mut self, asked: Asked, recorder: &mut Recorder) {
        if self.shut.is_some() {
            let text = "it asks something, and its standard input is closed: nobody can answer";
            recorder.fact(&Event::notice(notice::WARNING, text));
        } else if self.stopping {
            let mut deeds = Vec::new();
            self.talk.answer(&asked.key, Reply::Expired, &mut deeds);
            self.perform(deeds, recorder);
        } else {
            self.questions.take(asked);
            self.ask(recorder);
        }
    }

    /// Asks what there is room for.
    fn ask(&mut self, recorder: &mut Recorder) {
        while let Some((question, shown, untimed)) = self.questions.ask_next() {
            // A journal without room for it ends the session, and the question with it.
            if recorder.letter(&Event::Question(question)) {
                self.board.add(recorder.offset(), News::Asked(shown));
            }
            if let Some(error) = untimed {
                let text = format!("a question's limit of time is not kept: {error}");
                recorder.fact(&Event::notice(notice::WARNING, text));
            }
        }
    }

    fn settled(&mut self, question: String, how: Settled, answer: Answer, recorder: &mut Recorder) {
        let Answer { choice, text } = answer;
        recorder.fact(&Event::QuestionSettled { question: question.clone(), how, choice, text });
        self.board.add(recorder.offset(), News::Settled(question));
    }

    fn end_questions(&mut self, how: Settled, recorder: &mut Recorder) {
        for id in self.questions.end() {
            self.settled(id, how, Answer::default(), recorder);
        }
    }

    /// The program has closed its standard input, and goes on.
    fn deaf(&mut self, recorder: &mut Recorder) {
        self.shut(DEAF, recorder);
        self.end_questions(Settled::Withdrawn, recorder);
    }

    fn wrote(&mut self, words: Carries, recorder: &mut Recorder) {
        match words {
            Carries::Nothing => {}
            Carries::Message(id) => self.advance(&id, Receipt::Written, None, recorder),
            Carries::Answer(entry) => {
                crash::point("executor.answered");
                self.advance_other(entry, Receipt::Written, recorder);
            }
        }
    }

    fn advance(&mut self, id: &str, receipt: Receipt, why: Option<&str>, recorder: &mut Recorder) {
        if let Some(advance) = self.letters.advance(id, receipt, why) {
            self.advanced(advance, recorder);
        }
    }

    fn advance_other(&mut self, entry: usize, receipt: Receipt, recorder: &mut Recorder) {
        if let Some(advance) = self.letters.advance_other(entry, receipt) {
            self.advanced(advance, recorder);
        }
    }

    fn advanced(&mut self, advance: Advance, recorder: &mut Recorder) {
        if let Some(event) = &advance.event {
            recorder.fact(event);
        }
        self.board.add(recorder.offset(), News::Receipt(advance.entry, advance.receipt));
    }
}
