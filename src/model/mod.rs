//! The vocabulary as types: what a session is, what can be submitted, what is known of it, how it ends. No I/O.
//!
//! The JSON that serde makes of these types is the same everywhere: in the spool's files, in the arguments of the
//! D-Bus calls (as `a{sv}`), in `sessionctl --json`. Keys are spelled with hyphens, except `run_id` and the other
//! identifiers of a binding, which keep the underscore that controllers use.

mod attachment;
mod end;
mod event;
mod filter;
mod id;
mod limits;
mod message;
mod outcome;
mod plan;
mod question;
mod status;
mod storage;
mod submission;

pub use attachment::{Attachment, MAX_ATTACHMENT_NAME, is_sha256, media_type};
pub use end::{End, Exit, Phase, State, Verdict, VerdictResult, derive_end};
pub use event::{Entry, Event, Part, kind};
pub use filter::Filter;
pub use id::{BadRunId, RunId};
pub use limits::{Limits, MAX_ARGUMENT, MAX_LABEL, MAX_SHOWN, MAX_SIGNAL_BODY, shown};
pub use message::{
    Answer, InboxEntry, InvalidMessage, MAX_REQUEST_ID, Message, MessageMode, MessageStatus, Receipt, Word,
};
pub use outcome::{Evidence, Leftover, OUTCOME_VERSION, Outcome};
pub use plan::Plan;
pub use question::{About, Choice, OpenQuestion, Question, Settled};
pub use status::{Progress, Status, Usage};
pub use storage::{PruneAction, PrunePolicy, Pruned, RetentionReport, Storage};
pub use submission::{
    Binding, InvalidSubmission, Recovery, ResourceLimits, SUBMISSION_VERSION, Submission, validate,
};

/// For numbers that are left out of JSON where they say nothing.
pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}
