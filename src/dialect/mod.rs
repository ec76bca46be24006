//! JSON lines of each program family to events, and messages back.
//!
//! A dialect is data and pure code: how a program of the family is started ([`Dialect::launch`]), how its lines are
//! read ([`Reader`]), what can be said to it while it runs ([`Talk`]), how it is interrupted ([`Dialect::interrupt`]), and
//! which of all that it cannot do ([`Features`]). It starts nothing and reads no file.
//!
//! # Adding a family
//!
//! One file here with a type that implements [`Dialect`] and one that implements [`Reader`] (and, if it can be talked to, one
//! that implements [`Talk`]), a line in [`find`] and
//! [`NAMES`], its recordings under `tests/recordings/<family>/`, and their right answers in
//! `tests/recordings/expected.jsonl`. What the real program does is found by running it (`make test-agents` installs and
//! drives the ones we know against a scripted model); none of it is taken from memory.
//!
//! [`Dialect::arguments`] says all that an occasion asks for, or refuses: what is silently left out is worse than a refusal.
//! Prompts are never in arguments; they go by standard input. [`Dialect::check_input`] refuses what cannot work.
//!
//! Rules that every reader keeps:
//!
//! - A line is what stands before the byte 0x0A, whatever else it holds. It may be of any size and may not be JSON.
//! - No line is an error: what is not understood becomes [`Event::Raw`]. Every line gives at least one event, so that
//!   its exact bytes stand in the journal with the first of them.
//! - Keys come in any order, some twice (the last counts), strings may hold lone surrogates (U+FFFD in the text).
//! - Text deltas are increments: what was shown as `preview` is not shown as `preview` again.
//! - A result line ends nothing. The verdict is what the program said last, and "none" if its last turn has none.
//!
//! A [`Talk`] is told the same lines after the reader, and keeps these:
//!
//! - It says [`Deed::Took`] only of what the program itself named, and gives back every message that it knows the program
//!   will not take. What it cannot know stays as it is.
//! - A message that comes too late for the running turn is the next turn, where the program allows it; it is not lost.
//! - [`Talk::is_idle`] is false from the moment at which something is written that begins a turn until the program says that
//!   this turn ended: the reader alone cannot know that one is about to begin, and an early end of standard input kills it.
//! - The program never waits for ever: each of its requests has exactly one answer, also those that nobody here knows, and an
//!   answer that comes after the program took its question back is not written.
//! - Lines of any kind, in any order, with foreign ids, change nothing for the worse. Nothing grows without a bound.

use crate::model::{Event, Progress, Usage, Verdict};

/// What a family can do besides running; `features` of its profiles, by these names in kebab case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// A message can reach the running turn.
    pub steer: bool,
    /// A message can follow the running turn.
    pub follow_up: bool,
    /// It asks before it does things, and waits for answers.
    pub questions: bool,
    /// It takes attachments.
    pub attachments: bool,
    /// It is asked to answer after a JSON Schema. Where it is not, the answer is checked all the same.
    pub output_schema: bool,
    /// An earlier conversation can go on in a new session.
    pub resume: bool,
}

impl Features {
    /// Everything.
    pub const ALL: Features = Features {
        steer: true,
        follow_up: true,
        questions: true,
        attachments: true,
        output_schema: true,
        resume: true,
    };

    /// The names of what it can.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("steer", self.steer),
            ("follow-up", self.follow_up),
            ("questions", self.questions),
            ("attachments", self.attachments),
            ("output-schema", self.output_schema),
            ("resume", self.resume),
        ];
        all.into_iter().filter_map(|(name, can)| can.then_some(name)).collect()
    }
}

/// The first thing done to stop a program, before SIGTERM and the kill.
#[derive(Debug, Clone, PartialEq)]
pub enum Interrupt {
    /// Nothing that this family understands: SIGTERM at once.
    None,
    /// This signal to the main process.
    Signal(i32),
    /// What its [`Talk`] says.
    Talk,
}

/// A family of programs.
pub trait Dialect: Send + Sync {
    /// Its name, as profiles write it.
    fn name(&self) -> &'static str;
    /// The family whose programs share conversations: one can go on with what another of it began.
    fn family(&self) -> &'static str {
        self.name()
    }
    /// How it is started.
    fn launch(&self) -> Launch;
    /// A reader for one run of it that was started with these arguments. They tell what the lines do not: whether an
    /// earlier conversation goes on. Empty or foreign arguments are no error.
    fn reader(&self, arguments: &[String]) -> Box<dyn Reader>;
    /// What it can do besides running.
    fn features(&self) -> Features {
        Features::default()
    }
    /// Whether a conversation goes on only in the directory in which it began.
    fn conversations_stay(&self) -> bool {
        false
    }
    /// The whole arguments of one session: `own` are the profile's, or those of [`Launch`]; `more` the submission's.
    ///
    /// # Errors
    /// What the occasion asks for and the family cannot do.
    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        launch::refuse_what_is_not_there(self.name(), &self.features(), occasion, "")?;
        Ok([own, more].concat())
    }
    /// Whether a session with this input can work, as far as the input alone tells; `None`: the submission has none. To be
    /// asked before a submission is admitted.
    ///
    /// # Errors
    /// The program would refuse it, or cut it, or do nothing and call that a success.
    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        let _ = input;
        Ok(())
    }
    /// The conversation with one run of it; `None` where nothing can be said to it after its start. The whole arguments
    /// are those of [`Dialect::arguments`].
    fn talk(&self, arguments: &[String]) -> Option<Box<dyn Talk>> {
        let _ = arguments;
        None
    }
    /// The gentlest way to make it stop.
    fn interrupt(&self) -> Interrupt {
        Interrupt::None
    }
    /// Whether it says itself if it succeeded. Where it does not, the exit code alone says it.
    fn has_verdicts(&self) -> bool {
        true
    }
    /// The commands under which its program is usually found on `PATH`; for `profiles detect`.
    fn commands(&self) -> &'static [&'static str] {
        &[]
    }
}

/// Reads one run of a program, line by line.
pub trait Reader: Send {
    /// Reads a line without its line feed and appends what it says; at least one event.
    fn line(&mut self, line: &[u8], events: &mut Vec<Event>);
    /// The program is gone: appends what only its end tells (a text that has no end mark of its own, a last verdict).
    fn end(&mut self, events: &mut Vec<Event>);
    /// What the lines so far add up to.
    fn reading(&self) -> &Reading;
}

/// What a program's lines add up to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// The program's word on its last turn.
    pub verdict: Verdict,
    /// A terminal word was read and no turn began after it. The program may still go on.
    pub settled: bool,
    /// The answer so far: the last whole text of the main agent in the last turn.
    pub text: Option<String>,
    /// What this run used; `None` where it does not say.
    pub usage: Option<Usage>,
    /// The program's name of the conversation.
    pub conversation: Option<String>,
    /// Turns, tools, tokens.
    pub progress: Progress,
}

mod claude;
mod claude_stream;
mod codex;
mod codex_app;
mod codex_asks;
mod codex_talk;
mod gemini;
mod glance;
mod hearing;
mod json;
mod jsonl;
mod jsonl_talk;
pub mod launch;
mod ledger;
mod limit;
mod opencode;
mod pi;
mod pi_talk;
mod survey;
pub mod talk;

pub use hearing::unable_to_hear;
pub use launch::{Capture, Launch, Occasion, Stdin, Unable};
pub use talk::{Deed, Opening, Talk};

/// The names of all dialects.
pub const NAMES: [&str; 10] = [
    "jsonl",
    "jsonl-talk",
    "codex",
    "codex-app",
    "claude",
    "claude-stream",
    "pi",
    "pi-rpc",
    "gemini",
    "opencode",
];

/// The dialect of that name.
pub fn find(name: &str) -> Option<&'static dyn Dialect> {
    match name {
        "jsonl" => Some(&jsonl::Jsonl),
        "jsonl-talk" => Some(&jsonl_talk::JsonlTalk),
        "codex" => Some(&codex::Codex),
        "codex-app" => Some(&codex_app::CodexApp),
        "claude" => Some(&claude::Claude),
        "claude-stream" => Some(&claude_stream::ClaudeStream),
        "pi" => Some(&pi::Pi),
        "pi-rpc" => Some(&pi::PiRpc),
        "gemini" => Some(&gemini::Gemini),
        "opencode" => Some(&opencode::Opencode),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_share_conversations_are_one_family() {
        for name in NAMES {
            let dialect = find(name).expect(name);
            assert_eq!(dialect.name(), name);
            let family = find(dialect.family()).expect("a family has the name of one of its dialects");
            assert_eq!(family.family(), dialect.family());
        }
        for (one, other) in [("codex", "codex-app"), ("claude", "claude-stream"), ("pi", "pi-rpc")] {
            assert_eq!(find(one).map(Dialect::family), find(other).map(Dialect::family));
        }
    }
}
