//! What goes to standard output and standard error: lines for people or JSON for programs.

use std::env;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;
use super::text::{visible, visible_json};

/// How text is shown where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// It goes to a terminal: control characters of programs are replaced.
    pub terminal: bool,
    /// With colours.
    pub colour: bool,
}

impl Style {
    /// That of a stream: colours on a terminal, unless `NO_COLOR` is set (no-color.org) or the terminal is dumb.
    fn of(stream: &impl IsTerminal) -> Style {
        let terminal = stream.is_terminal();
        let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_none_or(|term| term == "dumb");
        Style { terminal, colour: terminal && !plain }
    }

    /// A text of somebody else's, fit for where it goes.
    pub fn text(self, text: &str) -> String {
        if self.terminal { visible(text) } else { text.to_owned() }
    }

    /// JSON, fit for where it goes: it is the same value everywhere.
    fn json(self, json: String) -> String {
        if self.terminal { visible_json(&json) } else { json }
    }

    /// `text`, which must be fit already, in a colour of ECMA-48 SGR, such as `2` for dim.
    pub fn paint(self, colour: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Where a command's results go.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
    /// How text is shown on standard output.
    pub style: Style,
}

impl Output {
    /// Standard output, as JSON or text.
    pub fn new(json: bool) -> Output {
        Output { json, style: Style::of(&io::stdout()) }
    }

    /// Writes text as it is.
    ///
    /// # Errors
    /// Nobody reads it, or it cannot be written.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::io("the output cannot be written", error),
        })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn line(&self, text: &str) -> Result<(), Failure> {
        self.write(&format!("{text}\n"))
    }

    /// Writes a value as one line of JSON.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn value(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::io("the result is no JSON", error.into()))?;
        self.json_line(text)
    }

    /// Writes a line of JSON that is there already.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn json_line(&self, json: String) -> Result<(), Failure> {
        self.line(&self.style.json(json))
    }

    /// Tells people something beside the result, on standard error.
    pub fn note(&self, text: &str) {
        let style = Style::of(&io::stderr());
        // With nobody there to be told, there is nothing to do about it.
        let _ = writeln!(io::stderr(), "{}", style.paint("2", &style.text(text)));
    }

    /// Tells why a command failed, on standard error.
    pub fn failure(&self, failure: &Failure) {
        if matches!(failure, Failure::OutputClosed) {
            return;
        }
        let style = Style::of(&io::stderr());
        let line = match self.json {
            true => style.json(failure.json().to_string()),
            false => format!("{} {}", style.paint("31", "sessionctl:"), style.text(&failure.to_string())),
        };
        let _ = writeln!(io::stderr(), "{line}");
    }
}
