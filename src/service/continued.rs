//! `continues`: which conversation goes on in a session.

use std::path::Path;
use std::sync::Arc;

use super::blocking::blocking;
use super::live::Conversation;
use super::{Error, Hub};
use crate::dialect::{self, Dialect};
use crate::model::{InvalidSubmission, RunId, State, Submission};
use crate::spool::Place;

/// The conversation of an earlier session, if one of `dialect` can go on with it now. The caller holds `hub.continuing`
/// until its own session is known.
pub(super) async fn resolve(
    hub: &Arc<Hub>,
    earlier: RunId,
    dialect: &'static dyn Dialect,
    submission: &Submission,
) -> Result<Conversation, Error> {
    let refuse = |problem: String| Error::from(InvalidSubmission::new("continues", problem));
    let unended = || refuse(format!("session {earlier} has not ended; cancel it or wait for its end"));
    if hub.find(earlier).is_some_and(|live| live.status.borrow().state != State::Finished) {
        return Err(unended());
    }
    let dir = match hub.locate(earlier).await? {
        // An active one is about to be moved.
        Place::Ended(dir) | Place::Active(dir) => dir,
        Place::Removed(_) => return Err(refuse(format!("session {earlier} was removed from the spool"))),
        Place::Damaged(_) => {
            return Err(refuse(format!("session {earlier} is damaged; its status says how")));
        }
        Place::Absent => return Err(refuse(format!("no session {earlier} is known here"))),
    };
    let (record, outcome, claim) =
        blocking(move || Ok((dir.record()?, dir.outcome()?, dir.claim()?))).await?;
    let outcome = outcome.ok_or_else(unended)?;
    let family = dialect.family();
    let theirs = dialect::find(&record.dialect).map(Dialect::family);
    if theirs != Some(family) {
        return Err(refuse(format!(
            "session {earlier} is of the dialect {}, and one of {} cannot go on with its conversation",
            record.dialect,
            dialect.name()
        )));
    }
    let id = outcome
        .conversation
        .ok_or_else(|| refuse(format!("the program of session {earlier} named no conversation")))?;
    let directory = claim.map(|claim| claim.plan.directory);
    if dialect.conversations_stay()
        && let (Some(theirs), Some(ours)) = (directory.clone(), submission.directory.clone())
        && !blocking(move || Ok(is_same_directory(&theirs, Path::new(&ours)))).await?
    {
        return Err(refuse(format!(
            "session {earlier} ran in another directory, and only there the dialect {} finds its conversation: leave \
             `directory` out",
            dialect.name()
        )));
    }
    let conversation = Conversation { family, id, directory };
    // One of an earlier daemon may go on with it.
    let unread = hub.unread().keys().next().copied();
    if let Some(unread) = unread {
        return Err(refuse(format!(
            "session {unread} cannot be read now, and may be the one that goes on with that conversation"
        )));
    }
    // Two programs that go on with one conversation at the same time lose each other's part of it.
    let busy = hub
        .live()
        .values()
        .find(|live| {
            live.continued.as_ref().is_some_and(|other| other.is(&conversation))
                && live.status.borrow().state != State::Finished
        })
        .map(|live| live.run_id);
    match busy {
        Some(other) => Err(refuse(format!(
            "session {other} goes on with that conversation and has not ended; cancel it or wait for its end"
        ))),
        None => Ok(conversation),
    }
}

/// Whether two paths lead to one directory. One that is not there is only itself.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
