use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::chain::Sum;
use crate::model::{Event, Question, kind};

/// Deeper JSON than this is written as text: a reader's parser stops at 128 levels.
const DEPTH_MAX: usize = 100;

/// Turns events into a journal's lines: numbers and chains them. It knows no file.
#[derive(Debug, Clone)]
pub struct Encoder {
    seq: u64,
    previous: Sum,
}

impl Encoder {
    pub(super) fn new(seq: u64, previous: Sum) -> Encoder {
        Encoder { seq, previous }
    }

    /// The number of the last record; 0 before the first.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The next record as a whole line with its line feed. `raw` is the source line without its own. `time` is µs since
    /// 1970. Every line that is given must be appended, in this order.
    pub fn encode(&mut self, time: u64, event: &Event, raw: Option<&[u8]>) -> Vec<u8> {
        let mut line = Vec::with_capacity(256 + raw.map_or(0, <[u8]>::len) * 2);
        self.encode_into(&mut line, time, event, raw);
        line
    }

    /// The same for an event that a source line gave. `partial`: the output ended before the line's line feed.
    pub fn encode_line(&mut self, time: u64, event: &Event, raw: &[u8], partial: bool) -> Vec<u8> {
        let mut line = Vec::with_capacity(256 + raw.len() * 2);
        self.write(&mut line, time, event, Some(raw), partial);
        line
    }

    /// The same, at the end of `out`: for many records in one write.
    pub fn encode_into(&mut self, out: &mut Vec<u8>, time: u64, event: &Event, raw: Option<&[u8]>) {
        self.write(out, time, event, raw, false);
    }

    fn write(&mut self, out: &mut Vec<u8>, time: u64, event: &Event, raw: Option<&[u8]>, partial: bool) {
        let start = out.len();
        self.seq += 1;
        out.extend_from_slice(format!("{{\"seq\":{},\"time\":{time},", self.seq).as_bytes());
        push_fields(out, &bounded(event));
        if partial {
            out.extend_from_slice(b",\"partial\":true");
        }
        match raw.map(std::str::from_utf8) {
            None => {}
            Some(Ok(text)) => {
                out.extend_from_slice(b",\"raw\":");
                push_text(out, text);
            }
            Some(Err(_)) => {
                let encoded = STANDARD.encode(raw.unwrap_or_default());
                out.extend_from_slice(b",\"raw64\":\"");
                out.extend_from_slice(encoded.as_bytes());
                out.push(b'"');
            }
        }
        self.previous = self.previous.close(out, start);
    }
}

/// The event's keys and values without the braces around them.
fn push_fields(out: &mut Vec<u8>, event: &Event) {
    let brace = out.len();
    if serde_json::to_writer(&mut *out, event).is_err() {
        // No event can be so today. If one ever is, its source line is still kept, and the reader told.
        out.truncate(brace);
        let text =
            "{\"kind\":\"notice\",\"reason\":\"gap\",\"text\":\"an event could not be written as JSON\"}";
        out.extend_from_slice(text.as_bytes());
    }
    debug_assert!(out[brace] == b'{' && out.ends_with(b"}"), "an event is a JSON object with a kind");
    out.remove(brace);
    out.pop();
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    // Writing a text into memory does not fail.
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok());
}

/// The event with JSON of the program's own that is too deep for a reader as text.
fn bounded(event: &Event) -> Cow<'_, Event> {
    match event {
        Event::ToolStarted { tool, name, input, sub } if depth(input) > DEPTH_MAX => {
            let input = Value::String(input.to_string());
            Cow::Owned(Event::ToolStarted { tool: tool.clone(), name: name.clone(), input, sub: sub.clone() })
        }
        Event::Question(question) if depth(&question.details) > DEPTH_MAX => {
            let details = Value::String(question.details.to_string());
            Cow::Owned(Event::Question(Question { details, ..question.clone() }))
        }
        Event::Notice { reason, text, more } if more.values().any(|value| depth(value) > DEPTH_MAX) => {
            let more = more.iter().map(|(key, value)| match depth(value) > DEPTH_MAX {
                true => (key.clone(), Value::String(value.to_string())),
                false => (key.clone(), value.clone()),
            });
            let (reason, text) = (reason.clone(), text.clone());
            Cow::Owned(Event::Notice { reason, text, more: more.collect() })
        }
        _ => Cow::Borrowed(event),
    }
}

/// How many arrays and objects lie within each other.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(items) => 1 + items.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The record that says that the journal was repaired.
pub(super) fn repaired(bytes: u64, file: &str) -> Event {
    let text = format!(
        "{bytes} bytes at the end were no whole records, as after a crash in the middle of a write; \
         they are kept in {file}"
    );
    let more = [("bytes".to_owned(), Value::from(bytes)), ("file".to_owned(), Value::from(file))];
    Event::Notice { reason: kind::notice::REPAIRED.to_owned(), text, more: more.into_iter().collect() }
}
