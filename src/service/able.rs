//! Whether the program of a profile can do what a submission asks for: found out before anything is stored.

use super::launch::{self, Given};
use super::{Error, Hub};
use crate::config::Profile;
use crate::dialect::{Dialect, Stdin, Unable};
use crate::model::{InvalidSubmission, MAX_ARGUMENT, Submission};
use crate::schema::Failure;

/// Refuses, naming the key, what the family of programs cannot do.
pub(super) fn check(
    profile: &Profile,
    dialect: &dyn Dialect,
    submission: &Submission,
    input: Option<&[u8]>,
    given: Given<'_>,
) -> Result<(), InvalidSubmission> {
    let bare = Submission { attachments: Vec::new(), output_schema: None, ..submission.clone() };
    let alone = Given { conversation: None, ..given };
    // One after the other, so that the refusal names what it is about.
    let refused = |key: &str, unable: Unable| InvalidSubmission::new(key, unable.to_string());
    let try_with = |key: &str, submission: &Submission, given: Given<'_>| {
        launch::arguments(profile, dialect, submission, given).map_err(|unable| refused(key, unable))
    };
    if !submission.attachments.is_empty() {
        let with = Submission { attachments: submission.attachments.clone(), ..bare.clone() };
        try_with("attachments", &with, alone)?;
    }
    if submission.output_schema.is_some() {
        let with = Submission { output_schema: submission.output_schema.clone(), ..bare.clone() };
        let arguments = try_with("output-schema", &with, alone)?;
        if let Some(long) = arguments.iter().find(|argument| argument.len() >= MAX_ARGUMENT) {
            let problem = format!(
                "is {} bytes long, and a program of the dialect {} gets it as an argument, which is less than \
                 {MAX_ARGUMENT}",
                long.len(),
                dialect.name()
            );
            return Err(InvalidSubmission::new("output-schema", problem));
        }
    }
    if given.conversation.is_some() {
        try_with("continues", &bare, given)?;
    }
    try_with("profile", submission, given)?;
    check_input(dialect, input)
}

/// Refuses an input that the family cannot take.
fn check_input(dialect: &dyn Dialect, input: Option<&[u8]>) -> Result<(), InvalidSubmission> {
    let spoken = dialect.launch().stdin == Stdin::Conversation;
    if spoken && input.is_some_and(|bytes| std::str::from_utf8(bytes).is_err()) {
        let problem = format!("is not UTF-8, which the dialect {} needs", dialect.name());
        return Err(InvalidSubmission::new("input", problem));
    }
    dialect.check_input(input).map_err(|unable| InvalidSubmission::new("input", unable.to_string()))
}

/// Refuses what is no JSON Schema, or one that asks for something outside of itself.
pub(super) async fn check_schema(hub: &Hub, schema: &str) -> Result<(), Error> {
    let _permit = hub.checks.acquire().await.map_err(|_| Error::Stopping)?;
    let (checker, schema) = (hub.checker.clone(), schema.to_owned());
    let looked = super::blocking(move || Ok(checker.schema(&schema))).await?;
    match looked {
        Ok(Ok(())) => Ok(()),
        Ok(Err(fault)) => Err(InvalidSubmission::new("output-schema", fault.to_string()).into()),
        Err(failure @ (Failure::TooMuch | Failure::Broken)) => {
            Err(InvalidSubmission::new("output-schema", failure.to_string()).into())
        }
        Err(failure @ Failure::Checker(_)) => Err(Error::Exhausted(failure.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{self, Capture, Launch, Reader};

    /// One that is spoken to, and is never asked to say "secret".
    struct Spoken;

    impl Dialect for Spoken {
        fn name(&self) -> &'static str {
            "spoken"
        }

        fn launch(&self) -> Launch {
            let (stdin, capture) = (Stdin::Conversation, Capture::Pipe);
            Launch { arguments: Vec::new(), stdin, capture, environment: Vec::new() }
        }

        fn reader(&self, arguments: &[String]) -> Box<dyn Reader> {
            dialect::find("jsonl").expect("a dialect").reader(arguments)
        }

        fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
            match input {
                Some(b"secret") => Err(Unable { dialect: "spoken", what: "such input", instead: "" }),
                _ => Ok(()),
            }
        }

        fn has_verdicts(&self) -> bool {
            false
        }
    }

    #[test]
    fn input_that_cannot_be_spoken_is_refused() {
        let text = |input| check_input(&Spoken, input).expect_err("refused").to_string();
        assert_eq!(text(Some(b"\xff")), "input: is not UTF-8, which the dialect spoken needs");
        assert_eq!(text(Some(b"secret")), "input: the dialect spoken takes no such input");
        assert_eq!(check_input(&Spoken, Some("ä".as_bytes())), Ok(()));
        assert_eq!(check_input(&Spoken, None), Ok(()));
        let jsonl = dialect::find("jsonl").expect("a dialect");
        assert_eq!(check_input(jsonl, Some(b"\xff")), Ok(()), "bytes are bytes where nobody speaks");
    }
}
