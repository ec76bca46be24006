use serde::{Deserialize, Serialize};

use super::chain::Sum;
use super::{Appender, Encoder, FILE, JournalError, wall_clock};
use crate::model::RunId;
use crate::spool::private::Dir;

/// The version of the journal's form.
const VERSION: u32 = 1;

/// A journal's first line, without its sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    journal: u32,
    pub(super) run_id: RunId,
    pub(super) epoch: String,
    time: u64,
}

/// A new random epoch: 16 digits of hex.
pub fn new_epoch() -> String {
    uuid::Uuid::new_v4().simple().to_string()[16..].to_owned()
}

/// Whether a text has the form of an epoch: 16 digits of lower-case hex.
pub fn valid_epoch(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl Header {
    pub(super) fn new(run_id: RunId, epoch: &str) -> Header {
        Header { journal: VERSION, run_id, epoch: epoch.to_owned(), time: wall_clock() }
    }

    /// The line and its sum.
    pub(super) fn line(&self) -> (Vec<u8>, Sum) {
        let Header { journal, run_id, epoch, time } = self;
        let mut line =
            format!(r#"{{"journal":{journal},"run_id":"{run_id}","epoch":"{epoch}","time":{time}"#)
                .into_bytes();
        let sum = Sum::ORIGIN.close(&mut line, 0);
        (line, sum)
    }

    /// Reads a line that verified; `None` if it is no header of a version that is known here.
    pub(super) fn parse(line: &[u8]) -> Option<Header> {
        let header: Header = serde_json::from_slice(line).ok()?;
        Some(header).filter(|h| h.journal == VERSION && valid_epoch(&h.epoch))
    }
}

/// Creates a session's journal. It has its header from the first moment that its name exists, and both are durable on
/// return.
pub(crate) fn create(dir: &Dir, run_id: RunId, epoch: &str) -> Result<(Encoder, Appender), JournalError> {
    if !valid_epoch(epoch) {
        return Err(JournalError::BadEpoch(epoch.chars().take(40).collect()));
    }
    let (line, sum) = Header::new(run_id, epoch).line();
    if !dir.publish(FILE, &line)? {
        return Err(JournalError::Exists(run_id));
    }
    let path = dir.path().join(FILE);
    let file = dir.open_write(FILE)?.ok_or_else(|| JournalError::damaged(&path, "it vanished"))?;
    Ok((Encoder::new(0, sum), Appender::new(file, path, line.len() as u64)))
}
