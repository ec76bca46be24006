//! How a program of a family is started, for one session.

use std::path::Path;

use super::Features;

/// What the program gets on its standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// The submission's input, then end of file; `/dev/null` where there is no input.
    InputThenClose,
    /// What the family's [`Talk`](super::Talk) writes, the submission's input first; end of file when the program's work is
    /// done and nobody has anything to say. The input must be UTF-8.
    Conversation,
}

/// How standard output is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// A pipe.
    Pipe,
    /// A file that the executor follows: for programs that cut long lines on any pipe.
    File,
}

/// How a program of the family is started, in every session.
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

/// What one session adds to how its program is started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Occasion<'a> {
    /// The attachments, in their order.
    pub attachments: Vec<Attached<'a>>,
    /// The JSON Schema that the final answer must fit.
    pub schema: Option<Schema<'a>>,
    /// The program's own name of the conversation that goes on.
    pub conversation: Option<&'a str>,
}

/// An attachment as the program can open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached<'a> {
    /// The submitter's name of it.
    pub name: &'a str,
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`, recognised by content.
    pub media_type: &'a str,
    /// The absolute file. Its name ends as files of that type usually do.
    pub path: &'a Path,
}

/// A JSON Schema, as a file and as its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema<'a> {
    /// The absolute file.
    pub path: &'a Path,
    /// The schema.
    pub text: &'a str,
}

/// A family cannot do what a session asks for. The text says what can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the dialect {dialect} takes no {what}{}{}", if instead.is_empty() { "" } else { "; " }, instead)]
pub struct Unable {
    /// The family.
    pub dialect: &'static str,
    /// What was asked for: `attachments`, `steering` and the like.
    pub what: &'static str,
    /// What to do instead, such as another dialect; may be empty.
    pub instead: &'static str,
}

/// The check for families that put nothing of an occasion into their arguments: what their `features` leave out is
/// refused. A schema never is: where the program is not asked for it, the answer is checked all the same.
///
/// # Errors
/// What the family cannot do.
pub fn refuse_what_is_not_there(
    dialect: &'static str,
    features: &Features,
    occasion: &Occasion<'_>,
    instead: &'static str,
) -> Result<(), Unable> {
    if !occasion.attachments.is_empty() && !features.attachments {
        return Err(Unable { dialect, what: "attachments", instead });
    }
    if occasion.conversation.is_some() && !features.resume {
        return Err(Unable { dialect, what: "earlier conversation to go on with", instead });
    }
    Ok(())
}
