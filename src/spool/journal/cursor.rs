use std::fmt;
use std::str::FromStr;

use super::header::valid_epoch;

/// A place in a journal: after a record, or at the start. Written as `<epoch>-<offset>`; opaque to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Which journal.
    pub epoch: String,
    /// The bytes before that place.
    pub offset: u64,
}

/// Why a cursor is not taken. Each is an error of its own; none ever turns into "from the start" or "from now".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// It has none of the forms `start`, `end`, `<epoch>-<offset>`.
    #[error("it is not a cursor; use `start`, `end`, or one that this service gave")]
    Malformed,
    /// It is of another journal.
    #[error("it is of another session's journal; use one that this session gave, or `start`")]
    OtherJournal,
    /// It is ahead of what is durable.
    #[error("it is beyond the end of the journal; use one that this session gave, or `end`")]
    BeyondHead,
    /// It does not stand between two records.
    #[error("it does not stand between two records; use one that this session gave")]
    InsideRecord,
    /// What it points into is gone.
    #[error("what it points into is no longer kept; read from `start`")]
    Expired,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.offset)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (epoch, offset) = text.split_once('-').ok_or(CursorError::Malformed)?;
        let offset: u64 = offset.parse().map_err(|_| CursorError::Malformed)?;
        let cursor = Cursor { epoch: epoch.to_owned(), offset };
        // One place has one spelling: no sign, no leading zero.
        match valid_epoch(epoch) && cursor.to_string() == text {
            true => Ok(cursor),
            false => Err(CursorError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_have_one_spelling() {
        let text = "0123456789abcdef-42";
        assert_eq!(text.parse::<Cursor>().expect("a cursor").to_string(), text);
        for bad in [
            "",
            "-",
            "0123456789abcdef",
            "0123456789abcdef-",
            "0123456789abcdef-+42",
            "0123456789abcdef-042",
            "0123456789abcdef--1",
            "0123456789abcdef-18446744073709551616",
            "0123456789ABCDEF-42",
            "123456789abcdef-42",
            " 0123456789abcdef-42",
            "0123456789abcdef-42 ",
            "now",
        ] {
            assert_eq!(bad.parse::<Cursor>(), Err(CursorError::Malformed), "{bad:?}");
        }
    }
}
