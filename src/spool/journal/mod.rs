//! The journal: the durable, append-only activity of one session, one JSON object a line.
//!
//! The first line is a header: the journal's version, the session, a random `epoch`. Each further line is a record:
//! `seq` (from 1, without holes), `time` (µs since 1970, a label), `kind`, the event's own keys, `raw` or `raw64` (the
//! source line), and at its end `sum`: the first 16 bytes of SHA-256 over the previous line's `sum` and this line's
//! bytes before its own, in hex. The sum stands at a fixed distance from the line's end, so a reader that starts anywhere
//! finds the previous sum just before it and verifies from there on at once.
//!
//! A line counts if it continues from the sum that the line before it bears, from the sum that the line before it should
//! bear, or from the last line that counted; and if its `seq` is higher than that one's. So a flipped bit costs two
//! records at most, and a foreign line none. What does not count is never shown; readers get a `notice` with the
//! reason `damaged` in its place.
//!
//! A cursor is `<epoch>-<offset>`: the offset of the byte after a record. To clients it is opaque.

mod appender;
mod chain;
mod cursor;
mod encoder;
mod error;
mod header;
mod lines;
mod reader;
mod record;
mod repair;
#[cfg(test)]
mod tests;

pub use appender::Appender;
pub use cursor::{Cursor, CursorError};
pub use encoder::Encoder;
pub use error::JournalError;
pub use header::{new_epoch, valid_epoch};
pub use reader::{Chunk, JournalReader, Tail};
pub use repair::{Damage, Repaired};

pub(crate) use header::create;
pub(crate) use reader::open;
pub(crate) use repair::{TORN, repair};

use std::time::{SystemTime, UNIX_EPOCH};

/// The journal's name in its session's folder.
pub const FILE: &str = "journal.jsonl";

/// The wall clock, µs since 1970: a label only.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
