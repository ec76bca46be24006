//! What the service takes and gives, without a transport: the types that the D-Bus face translates.

use std::os::fd::OwnedFd;

use serde::Serialize;

use crate::model::{End, Entry, InvalidMessage, InvalidSubmission, Phase, RunId, State, Status, Submission};

/// A submission as a caller sent it, with the bytes of its input.
#[derive(Debug)]
pub struct SubmitRequest {
    /// What to run.
    pub submission: Submission,
    /// Its input, already read.
    pub input: Option<Vec<u8>>,
    /// Its attachments, already read. The submission's own list of them is made of these.
    pub attachments: Vec<SubmittedAttachment>,
}

/// An attachment as a caller sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmittedAttachment {
    /// The submitter's name of it.
    pub name: String,
    /// Its media type, if the caller says one: it must be what the content is.
    pub media_type: Option<String>,
    /// The SHA-256 that its bytes must have, in hex.
    pub sha256: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl AsRef<[u8]> for SubmittedAttachment {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A page of sessions: those that have not ended (newest first), then the ended ones (last ended first).
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The sessions.
    pub sessions: Vec<Status>,
    /// What to pass as `cursor` for the next page; empty when there is none.
    pub next: String,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The cursor after the last of them.
    pub next: String,
    /// There are more already.
    pub more: bool,
    /// The events.
    pub events: Vec<Entry>,
}

/// What `Follow` writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FollowOptions {
    /// Include `raw` and `raw64`, the program's exact lines.
    pub raw: bool,
    /// Stop at what is durable now instead of going on live.
    pub replay_only: bool,
}

/// What `Wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The program was started, or never will be.
    Started,
    /// Somebody is needed (a question, a reconciliation), or it ended.
    Attention,
    /// It ended, or its end is uncertain.
    Finished,
}

/// Something that observers may want to know; broadcast by the service to every transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A session was admitted.
    Added(RunId),
    /// A session is gone from the spool.
    Removed(RunId),
    /// Its state, phase or end changed.
    State {
        /// The session.
        run_id: RunId,
        /// The new state.
        state: State,
        /// The new phase.
        phase: Phase,
        /// The end, once there is one.
        end: Option<End>,
    },
    /// Its program asks something and waits.
    QuestionAsked {
        /// The session.
        run_id: RunId,
        /// The question's id.
        question: String,
    },
    /// A question is open no more.
    QuestionSettled {
        /// The session.
        run_id: RunId,
        /// The question's id.
        question: String,
    },
    /// More of its activity is durable. At most a few a second for one session.
    Advanced {
        /// The session.
        run_id: RunId,
        /// The cursor at the new end.
        head: String,
    },
}

/// The next piece of a subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The cursor before the first event.
    pub from: String,
    /// The cursor after the last.
    pub next: String,
    /// The events.
    pub events: Vec<Entry>,
    /// The session has ended and this was its last record.
    pub last: bool,
}

/// The next piece of a subscription to all sessions.
#[derive(Debug)]
pub enum Piece {
    /// Events of one session.
    Batch {
        /// The session.
        run_id: RunId,
        /// The events.
        batch: Batch,
    },
    /// One session cannot be read further. The others go on.
    Broken {
        /// The session.
        run_id: RunId,
        /// The cursor after the last event that was given.
        resume: String,
        /// Why.
        error: Error,
    },
    /// More sessions came at once than could be kept in mind: some may be missing from here on.
    Missed,
}

/// Facts about the service that do not change often: the D-Bus properties.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The application that the configuration names; empty with the embedded controller.
    pub application: String,
    /// The host's name.
    pub host: String,
    /// `running` or `stopping`.
    pub state: &'static str,
    /// Sessions that have a driver.
    pub active: u32,
    /// Sessions that wait for one.
    pub queued: u32,
    /// The containment in use.
    pub containment: &'static str,
}

/// Who owns runs and leases, as the property `Controller` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ControllerFacts {
    /// `embedded`, or the framework's name on its bus.
    pub name: String,
    /// Why the last call to it had no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Sessions that ended and whose outcome waits for it.
    pub undelivered: u32,
}

/// A registered program, as the property `Profiles` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProfileFacts {
    /// The absolute program.
    pub program: String,
    /// The dialect that reads it.
    pub dialect: String,
    /// What its sessions can do besides running, by the names of [`Features`](crate::dialect::Features).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<&'static str>,
    /// Why it cannot be used now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Why the service refuses or cannot answer. The D-Bus face maps each to an error name; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such session.
    #[error("no session {0} is known here; `List` names those that are")]
    NotFound(RunId),
    /// The submission is malformed.
    #[error("{0}")]
    InvalidSubmission(#[from] InvalidSubmission),
    /// An argument other than a submission is malformed.
    #[error("{0}")]
    InvalidArgument(String),
    /// The same `run_id` was submitted before with other content.
    #[error(
        "session {0} was submitted before with other content; read it with Status, or submit under a new run_id"
    )]
    SubmissionChanged(RunId),
    /// A message or an answer is malformed, or does not fit its question.
    #[error("{0}")]
    InvalidMessage(#[from] InvalidMessage),
    /// The same `request_id` was sent before with another text or in another mode.
    #[error(
        "session {run_id} was sent {request_id:?} before with other content; send it under a new request_id"
    )]
    MessageChanged {
        /// The session.
        run_id: RunId,
        /// The message, as an error repeats it.
        request_id: String,
    },
    /// The session has taken as many messages as it may.
    #[error("session {run_id} was sent {most} messages, the most that it takes (Limits: messages)")]
    TooManyMessages {
        /// The session.
        run_id: RunId,
        /// The limit.
        most: u32,
    },
    /// Its program cannot do that. The text says what can.
    #[error("{0}")]
    Unsupported(String),
    /// It never asked that.
    #[error("session {run_id} has asked no question {question:?}; its status names those that are open")]
    UnknownQuestion {
        /// The session.
        run_id: RunId,
        /// The question, as an error repeats it.
        question: String,
    },
    /// It was answered with something else, or settled otherwise.
    #[error("the question {question:?} of session {run_id} is settled already; its events tell how")]
    QuestionSettled {
        /// The session.
        run_id: RunId,
        /// The question, as an error repeats it.
        question: String,
    },
    /// No such profile.
    #[error("no profile {name:?}; {known}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// A sentence on those that exist.
        known: String,
    },
    /// The queue is full.
    #[error(
        "{queued} sessions wait already, the most that this service takes; try again when some have ended"
    )]
    AtCapacity {
        /// The queue's limit.
        queued: u32,
    },
    /// The service is short of descriptors, memory or processes. It passes.
    #[error("the service is short of descriptors or memory: {0}; try again in a moment")]
    Exhausted(String),
    /// The cursor is of none of the forms `start`, `end`, `<epoch>-<offset>`.
    #[error("{0:?} is not a cursor; use `start`, `end`, or one that this service gave")]
    MalformedCursor(String),
    /// The cursor is of another journal.
    #[error("the cursor is of another session's journal; use one that this session gave, or `start`")]
    ForeignCursor,
    /// The cursor is ahead of what is durable.
    #[error("the cursor is beyond the end of the journal; use one that this session gave, or `end`")]
    CursorBeyondHead,
    /// The cursor does not stand between two records.
    #[error("the cursor does not stand between two records; use one that this session gave")]
    CursorInsideRecord,
    /// What the cursor points into is gone.
    #[error("what this cursor points into is no longer kept; read from `start`")]
    CursorExpired,
    /// It never started a program, or has none any more.
    #[error("session {0} has no running program")]
    NotRunning(RunId),
    /// It has not ended, or is not put away yet.
    #[error(
        "session {0} has not ended, or is not put away yet; cancel it and wait for its end, or reconcile it, and \
         remove it then"
    )]
    NotSettled(RunId),
    /// Its folder holds something that must not be removed unseen.
    #[error("session {run_id} {why}, and remove the session then")]
    Kept {
        /// The session.
        run_id: RunId,
        /// What it holds, as a sentence without its subject.
        why: String,
    },
    /// It was removed; a tombstone says so.
    #[error("session {0} was removed from the spool")]
    Removed(RunId),
    /// What is on disk of it cannot be trusted.
    #[error("session {run_id} is damaged: {what}")]
    Damaged {
        /// The session.
        run_id: RunId,
        /// What is wrong.
        what: String,
    },
    /// A file of a session or of the spool cannot be trusted. The text names it and what is wrong.
    #[error("{0}")]
    DamagedFile(String),
    /// The spool takes no new work: its file system is full or read-only. It can pass.
    #[error("the spool takes no new work: {0}")]
    StorageFull(String),
    /// The disk failed under the spool.
    #[error("the spool's disk failed: {0}; what was asked for is not done")]
    StorageFailed(String),
    /// The controller does not let the session run under its binding. The text begins with the key.
    #[error("{0}")]
    BindingMismatch(String),
    /// The controller cannot be asked.
    #[error("the controller cannot be asked: {0}")]
    ControllerUnavailable(String),
    /// The service is stopping.
    #[error("the service is stopping and takes no new work")]
    Stopping,
    /// Something that should not happen.
    #[error("{0}")]
    Internal(String),
}

/// What a caller of `follow` counts its open streams with: held for as long as one is written to.
pub type FollowPermit = Box<dyn std::any::Any + Send>;

/// The reading end that `Follow` gives.
pub type FollowFd = OwnedFd;
