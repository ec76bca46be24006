//! JSON lines of each program family to events, and messages back.
//!
//! A dialect is data and pure code: how a program of the family is started ([`Dialect::launch`]), how its lines are
//! read ([`Reader`]), how it is interrupted ([`Dialect::interrupt`]). It starts nothing and reads no file.
//!
//! # Adding a family
//!
//! One file here with a type that implements [`Dialect`] and one that implements [`Reader`], a line in [`find`] and
//! [`NAMES`], its recordings under `tests/recordings/<family>/`, and their right answers in
//! `tests/recordings/expected.jsonl`. Rules that every reader keeps:
//!
//! - A line is what stands before the byte 0x0A, whatever else it holds. It may be of any size and may not be JSON.
//! - No line is an error: what is not understood becomes [`Event::Raw`]. Every line gives at least one event, so that
//!   its exact bytes stand in the journal with the first of them.
//! - Keys come in any order, some twice (the last counts), strings may hold lone surrogates (U+FFFD in the text).
//! - Text deltas are increments: what was shown as `preview` is not shown as `preview` again.
//! - A result line ends nothing. The verdict is what the program said last, and "none" if its last turn has none.

use serde_json::Value;

use crate::model::{Event, Progress, Usage, Verdict};

/// What the program gets on its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// The submission's input, then end of file; `/dev/null` where there is no input.
    InputThenClose,
}

/// How standard output is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// A pipe.
    Pipe,
    /// A file that the executor follows: for programs that cut long lines on any pipe.
    File,
}

/// The first thing done to stop a program, before SIGTERM and the kill.
#[derive(Debug, Clone, PartialEq)]
pub enum Interrupt {
    /// Nothing that this family understands: SIGTERM at once.
    None,
    /// This signal to the main process.
    Signal(i32),
    /// This line on its standard input.
    Line(Value),
}

/// How a program of the family is started.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The arguments of a profile that gives none of its own.
    pub arguments: Vec<String>,
    /// Its standard input.
    pub stdin: Stdin,
    /// Its standard output.
    pub capture: Capture,
    /// Environment that it needs to run unattended; the configuration, profile and submission override it.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// A family of programs.
pub trait Dialect: Send + Sync {
    /// Its name, as profiles write it.
    fn name(&self) -> &'static str;
    /// How it is started.
    fn launch(&self) -> Launch;
    /// A reader for one run of it that was started with these arguments. They tell what the lines do not: whether an
    /// earlier conversation goes on. Empty or foreign arguments are no error.
    fn reader(&self, arguments: &[String]) -> Box<dyn Reader>;
    /// The gentlest way to make it stop.
    fn interrupt(&self) -> Interrupt;
    /// Whether it says itself if it succeeded. Where it does not, the exit code alone says it.
    fn has_verdicts(&self) -> bool;
    /// The commands under which its program is usually found on `PATH`; for `profiles detect`.
    fn commands(&self) -> &'static [&'static str];
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
mod codex;
mod codex_app;
mod gemini;
mod json;
mod jsonl;
mod ledger;
mod limit;
mod opencode;
mod pi;

/// The names of all dialects.
pub const NAMES: [&str; 8] = ["jsonl", "codex", "codex-app", "claude", "pi", "pi-rpc", "gemini", "opencode"];

/// The dialect of that name.
pub fn find(name: &str) -> Option<&'static dyn Dialect> {
    match name {
        "jsonl" => Some(&jsonl::Jsonl),
        "codex" => Some(&codex::Codex),
        "codex-app" => Some(&codex_app::CodexApp),
        "claude" => Some(&claude::Claude),
        "pi" => Some(&pi::Pi),
        "pi-rpc" => Some(&pi::PiRpc),
        "gemini" => Some(&gemini::Gemini),
        "opencode" => Some(&opencode::Opencode),
        _ => None,
    }
}
