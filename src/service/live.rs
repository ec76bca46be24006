//! A session that is not settled, in memory.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};

use super::Error;
use crate::dialect;
use crate::model::{Outcome, Progress, Receipt, RunId, State, Status, Verdict, VerdictResult};
use crate::spool::journal::Cursor;
use crate::spool::{Inbox, Record, SessionDir};

/// Where the answer to a command goes.
pub(super) type Reply = oneshot::Sender<Result<Status, Error>>;

/// What a driver can be asked.
#[derive(Debug)]
pub(super) enum Command {
    /// Store the wish to end the session, and act on it.
    Cancel(Reply),
    /// Look again at what is known.
    Reconcile(Reply),
}

/// What everybody but the driver sees of a session. Only its driver changes it.
#[derive(Debug)]
pub(super) struct Live {
    pub run_id: RunId,
    pub dir: SessionDir,
    pub digest: String,
    /// The conversation that goes on in it, if it began in an earlier session.
    pub continued: Option<Conversation>,
    pub status: watch::Sender<Status>,
    pub head: watch::Sender<Head>,
    pub commands: mpsc::Sender<Command>,
    /// Up to where its events were acknowledged. Whoever has the session's turn changes it.
    pub acknowledged: Mutex<Option<Cursor>>,
    /// What applications told the session, read at its first use. Whoever adds to it holds the lock until that is durable.
    pub inbox: Arc<tokio::sync::Mutex<Option<Inbox>>>,
    /// Rises with every entry of the inbox: the driver tells the executor.
    pub mail: watch::Sender<u64>,
    /// What has become of the entries, and of the questions.
    pub talked: watch::Sender<Talked>,
}

impl Live {
    /// Up to where its events were acknowledged, as a status has it.
    pub(super) fn acknowledged(&self) -> Option<String> {
        as_shown(self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    pub(super) fn set_acknowledged(&self, cursor: Cursor) {
        *self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner) = Some(cursor);
    }
}

/// An acknowledgement of nothing is none to show.
fn as_shown(acknowledged: Option<&Cursor>) -> Option<String> {
    acknowledged.filter(|cursor| cursor.offset > 0).map(Cursor::to_string)
}

/// What is known of a session's messages and questions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Talked {
    /// How far each entry of the inbox is known to have come.
    pub receipts: Vec<Receipt>,
    /// Questions that were asked: `q1` to `q<asked>`.
    pub asked: u32,
    /// Nothing more is passed on: an entry beyond the receipts never was.
    pub over: bool,
    /// What an earlier daemon knew was not found again yet: the above is less than that.
    pub untold: bool,
}

impl Talked {
    /// What an outcome tells.
    pub(super) fn of(outcome: &Outcome) -> Talked {
        Talked { receipts: outcome.receipts.clone(), asked: outcome.asked, over: true, untold: false }
    }

    /// How far an entry is known to have come.
    pub(super) fn receipt(&self, entry: usize) -> Receipt {
        let unknown = if self.over { Receipt::Undeliverable } else { Receipt::Stored };
        self.receipts.get(entry).copied().unwrap_or(unknown)
    }
}

/// A conversation, as the programs of one family know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conversation {
    /// The family.
    pub family: &'static str,
    /// The programs' own name of it.
    pub id: String,
    /// The directory in which it went on so far.
    pub directory: Option<PathBuf>,
}

impl Conversation {
    /// The one that goes on in the session of this record.
    pub(super) fn of(record: &Record) -> Option<Conversation> {
        let family = dialect::find(&record.dialect)?.family();
        let directory = record.conversation_directory.clone();
        Some(Conversation { family, id: record.conversation.clone()?, directory })
    }

    /// They are the same, wherever they go on.
    pub(super) fn is(&self, other: &Conversation) -> bool {
        (self.family, &self.id) == (other.family, &other.id)
    }
}

/// How far a journal is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The journal's epoch; absent while there is no journal.
    pub epoch: Option<String>,
    /// Durable up to this offset.
    pub offset: u64,
    /// Nothing will follow: the session is settled.
    pub closed: bool,
}

impl Head {
    /// As a cursor.
    pub(super) fn cursor(&self) -> Option<String> {
        let epoch = self.epoch.clone()?;
        (self.offset > 0).then(|| Cursor { epoch, offset: self.offset }.to_string())
    }

    /// The end of a settled session's journal.
    pub(super) fn settled(outcome: Option<&Outcome>) -> Head {
        Head {
            epoch: outcome.map(|outcome| outcome.epoch.clone()),
            offset: outcome.map_or(0, |outcome| outcome.head),
            closed: true,
        }
    }
}

/// The record and the status of a session that no driver has, as its folder tells them.
pub(super) fn settled(dir: &SessionDir) -> Result<(Record, Status), Error> {
    let record = dir.record()?;
    let outcome = dir.outcome()?;
    let mut status = status(&record, outcome.as_ref());
    status.acknowledged = as_shown(dir.acknowledged()?.as_ref());
    Ok((record, status))
}

/// A session's status as its record and its outcome tell it.
pub(super) fn status(record: &Record, outcome: Option<&Outcome>) -> Status {
    let said = |verdict: &Verdict| (verdict.result != VerdictResult::None).then_some(verdict.result);
    Status {
        run_id: record.run_id,
        state: record.state,
        phase: record.phase,
        end: record.end,
        profile: record.profile.clone(),
        dialect: record.dialect.clone(),
        label: record.label.clone(),
        accepted: record.accepted,
        started: outcome.and_then(|outcome| outcome.started).or(record.started),
        ended: record.ended,
        exit: outcome.and_then(|outcome| outcome.exit),
        verdict: outcome.and_then(|outcome| said(&outcome.verdict)),
        error: record.error.clone(),
        cancel_requested: record.cancel_requested.is_some(),
        activity_complete: match outcome {
            Some(outcome) => outcome.activity_complete,
            None => record.state != State::ReconciliationRequired,
        },
        head: outcome.and_then(|outcome| Head::settled(Some(outcome)).cursor()),
        acknowledged: None,
        queue_position: None,
        attempt: record.attempt,
        containment: record.containment.clone(),
        leftovers: outcome.map(|outcome| outcome.leftovers.clone()).unwrap_or_default(),
        conversation: outcome.and_then(|outcome| outcome.conversation.clone()),
        questions: Vec::new(),
        progress: outcome.map_or_else(Progress::default, |outcome| outcome.progress.clone()),
        evidence: Vec::new(),
    }
}
