//! How far the application has projected a session's events: `acknowledged.json` in the session's folder.
//!
//! A file of its own, since nothing else fits: the record belongs to the session's driver and is not rewritten once
//! the session is settled, and the journal has one writer, which may be another process. It moves with the folder.

use serde::{Deserialize, Serialize};

use super::Result;
use super::journal::{Cursor, wall_clock};
use super::session::{ACKNOWLEDGED, SessionDir};
use crate::model::RunId;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Acknowledged {
    version: u32,
    run_id: RunId,
    /// The journal, and the offset after the last event that was projected.
    epoch: String,
    offset: u64,
    /// When it was said, µs since 1970.
    time: u64,
}

impl SessionDir {
    /// The place up to which the events were acknowledged; `None` if they never were. A file that cannot be trusted
    /// acknowledges nothing.
    pub fn acknowledged(&self) -> Result<Option<Cursor>> {
        let read = self.read_json(ACKNOWLEDGED, |acknowledged: &Acknowledged| acknowledged.run_id);
        match read {
            Ok(found) => Ok(found.map(|Acknowledged { epoch, offset, .. }| Cursor { epoch, offset })),
            Err(e) if e.is_damage() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Acknowledges the events up to a place that this session's journal has, durably, and gives the place that stands
    /// now: an earlier one than was acknowledged before changes nothing. `head` is where the journal ends now; what was
    /// acknowledged beyond it was lost with a part of the journal, and counts for nothing. One caller at a time.
    pub fn acknowledge(&self, to: &Cursor, head: u64) -> Result<Cursor> {
        if let Some(before) = self.acknowledged()?
            && before.epoch == to.epoch
            && (to.offset..=head).contains(&before.offset)
        {
            return Ok(before);
        }
        let Cursor { epoch, offset } = to.clone();
        let acknowledged =
            Acknowledged { version: VERSION, run_id: self.run_id(), epoch, offset, time: wall_clock() };
        self.dir().replace(ACKNOWLEDGED, &self.to_json(ACKNOWLEDGED, &acknowledged)?)?;
        Ok(to.clone())
    }

    /// Whether the events of an ended session were acknowledged up to its last one.
    pub fn is_acknowledged(&self) -> Result<bool> {
        // Most that are not were never acknowledged at all: then the outcome need not be read.
        let Some(acknowledged) = self.acknowledged()? else { return Ok(false) };
        Ok(self.outcome()?.is_some_and(|outcome| {
            outcome.epoch == acknowledged.epoch && outcome.head == acknowledged.offset
        }))
    }
}
