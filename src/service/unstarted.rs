//! Ends that no executor wrote: of sessions that were never started, and of those whose executor died.
//!
//! The daemon may write into a session's journal only while it holds the session's lock, and does so here alone.

use serde_json::Value;

use super::live::Talked;
use super::said::Said;
use super::{Error, examine};
use crate::dialect::{self, Reader, Reading};
use crate::executor::now_us;
use crate::model::kind::notice;
use crate::model::{End, Event, Exit, Leftover, Outcome};
use crate::spool::journal::{JournalError, JournalReader, new_epoch};
use crate::spool::{OwnerLock, Ownership, SessionDir};

/// Ends a session that was provably never started: a journal of one record, and the outcome. `None` if it is not so.
pub(super) fn settle(
    dir: &SessionDir,
    attempt: u32,
    end: End,
    error: Option<String>,
) -> Result<Option<Outcome>, Error> {
    let Ownership::Taken(lock) = dir.lock_owner()? else { return Ok(None) };
    if let Some(outcome) = dir.outcome()? {
        return Ok(Some(outcome));
    }
    if examine::may_have_run(dir)? {
        return Ok(None);
    }
    let epoch = dir.claim()?.map_or_else(new_epoch, |claim| claim.epoch);
    let head = match journal_of_one(dir, &epoch, end, error.clone()) {
        Ok(head) => head,
        // On a full disk the outcome alone says it: room for that was kept.
        Err(error) if error.is_no_space() => 0,
        Err(error) => return Err(error.into()),
    };
    let outcome = Outcome {
        head,
        error,
        activity_complete: head > 0,
        ..Outcome::of_nothing(dir.run_id(), attempt, epoch, end, now_us())
    };
    dir.write_outcome(&outcome)?;
    drop(lock);
    Ok(Some(outcome))
}

fn journal_of_one(
    dir: &SessionDir,
    epoch: &str,
    end: End,
    error: Option<String>,
) -> Result<u64, JournalError> {
    let (mut encoder, mut appender) = dir.create_journal(epoch)?;
    let value = Value::Null;
    let ended = Event::Ended { end, error, leftovers: Vec::new(), activity_complete: true, value };
    appender.append(&encoder.encode(now_us(), &ended, None))?;
    appender.commit()
}

/// What the journal of a session says whose executor died.
pub(super) struct Testimony {
    /// The journal is whole and durable up to here.
    pub head: u64,
    /// What became of messages and questions, as far as it is known.
    pub talked: Talked,
    /// It tells the session's end: the executor died after it had written that, and before its receipt.
    pub outcome: Option<Outcome>,
}

/// Repairs the journal of a session whose executor died. Where its last record is the end, nothing is uncertain: the
/// outcome is written again from the journal. `None` where there is no journal.
pub(super) fn hear(
    dir: &SessionDir,
    lock: OwnerLock,
    dialect: &str,
    leftovers: Vec<Leftover>,
) -> Result<Option<Testimony>, Error> {
    let Some(repaired) = dir.repair_journal(&lock)? else { return Ok(None) };
    let head = repaired.appender.head();
    let ended = repaired.last.filter(|last| last.kind == "ended");
    let end = ended
        .as_ref()
        .and_then(|ended| serde_json::from_value::<End>(ended.details.get("end")?.clone()).ok());
    let whole = repaired.damaged.is_empty();
    let again = read_again(dir, dialect)?;
    let (Some(ended), Some(end)) = (ended, end) else {
        let receipts = again.said.receipts(dir, whole)?;
        let talked = Talked { receipts, asked: again.said.asked, over: true, untold: false };
        return Ok(Some(Testimony { head, talked, outcome: None }));
    };
    let said = |key: &str| ended.details.get(key).cloned().unwrap_or_default();
    let mut outcome = of_journal(dir, again, whole, end, head)?;
    outcome.error = serde_json::from_value(said("error")).unwrap_or_default();
    outcome.leftovers = if leftovers.is_empty() {
        serde_json::from_value(said("leftovers")).unwrap_or_default()
    } else {
        leftovers
    };
    outcome.activity_complete = said("activity-complete") == true && repaired.damaged.is_empty();
    outcome.value = said("value");
    outcome.ended = ended.time;
    dir.write_outcome(&outcome)?;
    Ok(Some(Testimony { head, talked: Talked::of(&outcome), outcome: Some(outcome) }))
}

/// Ends a session whose executor died as `interrupted`. What its journal still tells of the answer is kept; that
/// something may be missing is said.
pub(super) fn interrupted(
    dir: &SessionDir,
    lock: OwnerLock,
    dialect: &str,
    leftovers: Vec<Leftover>,
    error: Option<String>,
) -> Result<Outcome, Error> {
    let ended = Event::Ended {
        end: End::Interrupted,
        error: error.clone(),
        leftovers: leftovers.clone(),
        activity_complete: false,
        value: Value::Null,
    };
    let repaired = dir.repair_journal(&lock)?;
    let whole = repaired.as_ref().is_some_and(|repaired| repaired.damaged.is_empty());
    let again = read_again(dir, dialect)?;
    let head = match repaired {
        Some(mut repaired) => {
            for event in again.said.last_words(dir, whole)? {
                repaired.appender.append(&repaired.encoder.encode(now_us(), &event, None))?;
            }
            repaired.appender.append(&repaired.encoder.encode(now_us(), &ended, None))?;
            repaired.appender.commit()?
        }
        None => 0,
    };
    let outcome = Outcome { error, leftovers, ..of_journal(dir, again, whole, End::Interrupted, head)? };
    dir.write_outcome(&outcome)?;
    Ok(outcome)
}

/// An outcome as far as the journal tells one, by reading the program's lines through its dialect once more.
fn of_journal(dir: &SessionDir, again: Again, whole: bool, end: End, head: u64) -> Result<Outcome, Error> {
    let claim = dir.claim()?;
    let epoch = dir.journal()?.map(|journal| journal.epoch().to_owned());
    let attempt = claim.as_ref().map_or(1, |claim| claim.attempt);
    let epoch = epoch.or(claim.map(|claim| claim.epoch)).unwrap_or_default();
    Ok(Outcome {
        head,
        exit: again.exit,
        verdict: again.reading.verdict,
        text: again.reading.text,
        receipts: again.said.receipts(dir, whole)?,
        asked: again.said.asked,
        usage: again.reading.usage,
        conversation: again.reading.conversation,
        progress: again.reading.progress,
        started: again.started,
        ..Outcome::of_nothing(dir.run_id(), attempt, epoch, end, now_us())
    })
}

#[derive(Default)]
struct Again {
    reading: Reading,
    exit: Option<Exit>,
    started: Option<u64>,
    said: Said,
}

fn read_again(dir: &SessionDir, dialect: &str) -> Result<Again, Error> {
    let arguments = dir.claim()?.map(|claim| claim.plan.arguments).unwrap_or_default();
    Ok(match (dir.journal()?, dialect::find(dialect)) {
        (Some(journal), Some(dialect)) => read_journal(&journal, dialect.reader(&arguments)),
        _ => Again::default(),
    })
}

fn read_journal(journal: &JournalReader, mut reader: Box<dyn Reader>) -> Again {
    let mut again = Again::default();
    let Ok(size) = journal.size() else { return again };
    let mut events = Vec::new();
    let mut at = journal.start();
    while let Ok(chunk) = journal.read(at, size, 1024, 4 << 20) {
        for entry in &chunk.entries {
            match entry.kind.as_str() {
                "started" => again.started = Some(entry.time),
                "message" | "question" | "question-settled" => again.said.take(entry),
                "exited" => again.exit = exit_of(&entry.details),
                // The head of a line that was too long is no line.
                "notice" if entry.details.get("reason").is_some_and(|r| r == notice::LINE_TOO_LONG) => {}
                _ => {
                    if let Some(raw) = &entry.raw {
                        reader.line(raw.as_bytes(), &mut events);
                        events.clear();
                    }
                }
            }
        }
        if chunk.next <= at || !chunk.more {
            break;
        }
        at = chunk.next;
    }
    reader.end(&mut events);
    again.reading = reader.reading().clone();
    again
}

fn exit_of(details: &serde_json::Map<String, serde_json::Value>) -> Option<Exit> {
    let number = |key: &str| details.get(key)?.as_i64().and_then(|number| i32::try_from(number).ok());
    number("exit-code").map(Exit::Code).or(number("exit-signal").map(Exit::Signal))
}
