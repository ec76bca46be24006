//! How a program of a family is started, for one session.

use std::path::Path;

use uuid::Uuid;

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

/// The whole arguments with what one session adds to them: at the end, or before a `--` after which there are none.
pub(super) fn with(own: &[String], more: &[String], added: Vec<String>) -> Vec<String> {
    let mut whole = [own, more].concat();
    let at = whole.iter().position(|word| word == "--").unwrap_or(whole.len());
    whole.splice(at..at, added);
    whole
}

/// The conversation, for families that name theirs by UUIDs and take other words for something else.
///
/// # Errors
/// It is none.
pub(super) fn uuid<'a>(dialect: &'static str, conversation: &'a str) -> Result<&'a str, Unable> {
    match Uuid::parse_str(conversation) {
        Ok(_) => Ok(conversation),
        Err(_) => Err(unnamed(dialect)),
    }
}

/// The conversation, for families that name theirs by words of their own.
///
/// # Errors
/// It would be read as something else.
pub(super) fn word<'a>(dialect: &'static str, conversation: &'a str) -> Result<&'a str, Unable> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let first = conversation.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && conversation.chars().all(fits) { Ok(conversation) } else { Err(unnamed(dialect)) }
}

fn unnamed(dialect: &'static str) -> Unable {
    Unable {
        dialect,
        what: "conversation of such a name",
        instead: "give the name that the earlier session's status shows",
    }
}

/// The check of an input that must say something: these programs refuse an empty one, or do nothing and say nothing.
///
/// # Errors
/// It is empty or white space.
pub(super) fn needs_words(dialect: &'static str, input: &[u8]) -> Result<(), Unable> {
    let blank = match std::str::from_utf8(input) {
        Ok(input) => input.trim().is_empty(),
        Err(_) => false,
    };
    if blank {
        return Err(Unable { dialect, what: "empty input", instead: "say what is to be done" });
    }
    Ok(())
}

/// The check of an input that is said in a conversation: in a line of JSON, and first.
///
/// # Errors
/// There is none, or it is not UTF-8.
pub(super) fn needs_text(dialect: &'static str, input: Option<&[u8]>) -> Result<(), Unable> {
    let input = input.unwrap_or_default();
    if std::str::from_utf8(input).is_err() {
        return Err(Unable { dialect, what: "input that is not UTF-8", instead: "convert it" });
    }
    needs_words(dialect, input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_stands_before_the_words_that_are_no_options() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let added = || words(&["-x"]);
        assert_eq!(with(&words(&["a"]), &words(&["b"]), added()), ["a", "b", "-x"]);
        assert_eq!(with(&words(&["a"]), &words(&["b", "--", "c"]), added()), ["a", "b", "-x", "--", "c"]);
        assert_eq!(with(&[], &[], added()), ["-x"]);
    }

    #[test]
    fn conversations_are_names_and_nothing_else() {
        let id = "01a22ca6-386c-7071-a05d-b989233d4fc6";
        assert_eq!(uuid("codex", id), Ok(id));
        for wrong in ["", "latest", "--last", "01a22ca6"] {
            assert!(uuid("codex", wrong).is_err(), "{wrong}");
        }
        for right in [id, "ses_dd05d450effenDC8EMURxkQYyB", "conc-1f7e53"] {
            assert_eq!(word("pi", right), Ok(right));
        }
        for wrong in ["", "-p", "../x", "a b", "/x.jsonl"] {
            assert!(word("pi", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn blank_input_is_none() {
        for blank in ["", " \n\u{a0}"] {
            assert!(needs_words("claude", blank.as_bytes()).is_err());
        }
        for input in [b"- x".as_slice(), b"\xff"] {
            assert_eq!(needs_words("claude", input), Ok(()));
        }
    }
}
