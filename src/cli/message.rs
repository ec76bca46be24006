use std::io::{self, IsTerminal, Read};

use clap::Args;

use super::{Context, Exit, Failure};
use crate::model::{MessageMode, MessageStatus, Receipt};

/// The longest text that is read from standard input, in bytes. The service's own limit is below.
const MAX_TEXT: u64 = 1 << 20;

/// Sends a session's program a message, and prints how far it is known to have come and its request_id.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// The text [default, or with -: standard input without its last line feed]. The process list shows it to every
    /// account while sessionctl runs; it does not show a pipe
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Your name of the message [default: a new one, which is printed]. The same again is the same message, and tells
    /// how far it has come
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
}

pub async fn run(arguments: Arguments, mode: MessageMode, context: &Context) -> Result<Exit, Failure> {
    let text = given_or_read(arguments.text, context)?;
    let mut client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let request_id = arguments.request_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let sent = context
        .insist(&mut client, async |client| match mode {
            MessageMode::Steer => client.steer(run_id, &request_id, &text).await,
            MessageMode::FollowUp => client.follow_up(run_id, &request_id, &text).await,
        })
        .await
        .inspect_err(|failure| {
            if failure.is_lost() {
                context.out.note(&format!(
                    "whether it arrived is not known: the same text with --request-id {request_id} is the same message"
                ));
            }
        })?;
    tell(context, &sent)?;
    Ok(if sent.receipt == Receipt::Undeliverable { Exit::Undeliverable } else { Exit::Ok })
}

fn tell(context: &Context, sent: &MessageStatus) -> Result<(), Failure> {
    if context.out.json {
        return context.out.value(sent);
    }
    let receipt = match sent.receipt {
        Receipt::Stored => "stored",
        Receipt::Written => "written",
        Receipt::Seen => "seen",
        Receipt::Undeliverable => "undeliverable",
    };
    context.out.line(&context.out.style.text(&format!("{receipt}  {}", sent.request_id)))
}

/// The text that was given, or standard input where `-` or nothing was.
///
/// # Errors
/// Standard input cannot be read, is no text, or too long.
pub(super) fn given_or_read(given: Option<String>, context: &Context) -> Result<String, Failure> {
    match given {
        Some(text) if text != "-" => Ok(text),
        _ => {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                context.out.note("type the text; Ctrl-D at the beginning of a line ends it");
            }
            read(stdin.lock())
        }
    }
}

fn read(from: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_TEXT + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::io("standard input", error))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Failure::Usage("standard input is larger than 1 MiB: no message may be".to_owned()));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| Failure::Usage("standard input is not UTF-8, which a message must be".to_owned()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_text_may_begin_like_an_option() {
        for (line, text, request_id) in [
            (&["abcd", "hello"][..], Some("hello"), None),
            (&["abcd", "- one\n- two"], Some("- one\n- two"), None),
            (&["abcd", "--request-id", "x", "-"], Some("-"), Some("x")),
            (&["abcd", "hello", "--request-id", "x"], Some("hello"), Some("x")),
            (&["abcd", "--", "--request-id"], Some("--request-id"), None),
            (&["abcd"], None, None),
        ] {
            let read = Line::try_parse_from(std::iter::once(&"steer").chain(line)).unwrap().arguments;
            assert_eq!((read.text.as_deref(), read.request_id.as_deref()), (text, request_id), "{line:?}");
        }
    }

    #[test]
    fn what_is_read_loses_its_last_line_feed_alone() {
        for (bytes, text) in
            [("one\n", "one"), ("one\r\n", "one"), ("one\n\n", "one\n"), ("one", "one"), ("", "")]
        {
            assert_eq!(read(bytes.as_bytes()).unwrap(), text);
        }
        assert!(matches!(read([0xff].as_slice()), Err(Failure::Usage(_))));
        assert!(matches!(read(io::repeat(b'x')), Err(Failure::Usage(_))));
    }
}
