//! Taking a submission: the same again is the same session, a changed one is refused, a new one is durable before
//! the answer.

use std::sync::Arc;

use super::blocking::blocking;
use super::driver::{self, Start};
use super::launch::Given;
use super::live::{self, Head};
use super::{Change, Error, Hub, Stopping, SubmitRequest, able, attached, continued};
use crate::config::Config;
use crate::crash;
use crate::dialect;
use crate::model::{Phase, RunId, State, Status, Submission, shown, validate};
use crate::spool::{self, Place, Record, SessionDir, Tombstone};

/// See [`Sessions::submit`](super::Sessions::submit).
pub(super) async fn submit(hub: &Arc<Hub>, request: SubmitRequest) -> Result<Status, Error> {
    let run_id = request.submission.run_id();
    // Racing submissions of one run_id are taken one after the other; different ones do not wait for each other.
    let _turn = hub.turns.take(run_id).await;
    submit_in_turn(hub, run_id, request).await
}

async fn submit_in_turn(hub: &Arc<Hub>, run_id: RunId, request: SubmitRequest) -> Result<Status, Error> {
    let (request, digest) = blocking(move || {
        let mut request = request;
        request.submission.attachments = attached::verified(&request.attachments)?;
        let digest = spool::digest(&request.submission, request.input.as_deref());
        Ok((Arc::new(request), digest))
    })
    .await?;
    // First what is known already: a retry is answered also when the limits or the profiles have changed since.
    if let Some(known) = known(hub, run_id, &digest, &request.submission).await? {
        return Ok(known);
    }
    if *hub.stopping.borrow() != Stopping::No {
        return Err(Error::Stopping);
    }
    let config = hub.config();
    let input = request.input.as_ref().map_or(0, Vec::len) as u64;
    validate(&request.submission, input, &config.limits)?;
    let profile = config
        .profiles
        .get(&request.submission.profile)
        .ok_or_else(|| unknown_profile(&config, &request.submission.profile))?;
    let dialect = dialect::find(&profile.dialect).ok_or_else(|| {
        Error::Internal(format!("the profile names an unknown dialect {:?}", profile.dialect))
    })?;
    if let Some(schema) = &request.submission.output_schema {
        able::check_schema(hub, schema).await?;
    }
    hub.controller.verify(&request.submission.binding).await?;
    let (_continuing, conversation) = match request.submission.continues {
        None => (None, None),
        Some(earlier) => {
            let alone = hub.continuing.lock().await;
            (Some(alone), Some(continued::resolve(hub, earlier, dialect, &request.submission).await?))
        }
    };
    let folder = hub.spool.active_path(run_id);
    let given = Given { folder: &folder, conversation: conversation.as_ref() };
    able::check(profile, dialect, &request.submission, request.input.as_deref(), given)?;
    let mut ticket = hub.slots.reserve(run_id).map_err(|full| Error::AtCapacity { queued: full.queued })?;
    let now = live_now();
    let mut record = Record::admitted(&request.submission, digest, &profile.dialect, now);
    record.state = if ticket.is_granted() { State::Accepted } else { State::Queued };
    record.phase = Phase::Pending;
    if let Some(conversation) = conversation {
        record.conversation = Some(conversation.id);
        record.conversation_directory = conversation.directory;
    }
    let dir = admit(hub, &config, request, record.clone()).await?;
    let live = driver::spawn(hub, dir, record, Head::default(), Start::Fresh(ticket));
    let _ = hub.changes.send(Change::Added(run_id));
    Ok(hub.status_of(&live))
}

fn live_now() -> u64 {
    crate::executor::now_us()
}

async fn admit(
    hub: &Arc<Hub>,
    config: &Arc<Config>,
    request: Arc<SubmitRequest>,
    record: Record,
) -> Result<SessionDir, Error> {
    let hub = hub.clone();
    let floor = config.limits.free_space;
    blocking(move || {
        let free = hub.spool.free_space()?;
        if free < floor {
            return Err(Error::StorageFull(format!(
                "{free} bytes are free where it stands, and limits.free-space asks for {floor}; free some"
            )));
        }
        let SubmitRequest { submission, input, attachments } = &*request;
        let dir = hub.spool.admit_with(submission, input.as_deref(), attachments, &record)?;
        crash::point("daemon.admitted");
        Ok(dir)
    })
    .await
}

/// The session that has this `run_id` already, if it is the same one.
async fn known(
    hub: &Arc<Hub>,
    run_id: RunId,
    digest: &str,
    submission: &Submission,
) -> Result<Option<Status>, Error> {
    let same = |known: &str| if known == digest { Ok(()) } else { Err(Error::SubmissionChanged(run_id)) };
    if let Some(live) = hub.reach(run_id).await? {
        same(&live.digest)?;
        return Ok(Some(hub.status_of(&live)));
    }
    match hub.locate(run_id).await? {
        Place::Active(dir) | Place::Ended(dir) => {
            let (record, status) = blocking(move || live::settled(&dir)).await?;
            same(&record.digest)?;
            Ok(Some(status))
        }
        Place::Removed(tombstone) => {
            same(&tombstone.digest)?;
            Ok(Some(removed_status(hub, &tombstone, submission)))
        }
        Place::Damaged(what) => Err(Error::Damaged { run_id, what }),
        Place::Absent => Ok(None),
    }
}

/// What a tombstone still tells of a session that was submitted with exactly this content.
fn removed_status(hub: &Hub, tombstone: &Tombstone, submission: &Submission) -> Status {
    let dialect =
        hub.config().profiles.get(&submission.profile).map_or_else(String::new, |p| p.dialect.clone());
    let mut record = Record::admitted(submission, tombstone.digest.clone(), &dialect, 0);
    record.state = State::Finished;
    record.end = tombstone.end;
    record.phase = tombstone.end.map_or(Phase::Failed, |end| end.phase());
    record.error = Some("it ended and was removed from the spool".into());
    let mut status = live::status(&record, None);
    status.activity_complete = false;
    status
}

fn unknown_profile(config: &Config, name: &str) -> Error {
    let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
    let known = if names.is_empty() {
        "none is registered: `sessionctl profiles detect` registers the agent programs on PATH, \
         `sessionctl profiles add` any other"
            .to_owned()
    } else {
        format!("registered are {}", names.join(", "))
    };
    Error::UnknownProfile { name: shown(name), known }
}
