//! Following a session through restarts of the service: nothing is shown twice, and nothing is missed.

use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;
use super::failure::Failure;
use super::report::summary;
use super::view::View;
use super::{Context, Output};
use crate::client::{Client, Error, FollowOptions, SessionStatus, WaitFor};
use crate::model::{Entry, RunId};

/// The shortest time between two attempts to follow a session on which nothing new was read.
const PAUSE: Duration = Duration::from_millis(250);

/// What to follow.
#[derive(Debug)]
pub struct Watch {
    /// The session.
    pub run_id: RunId,
    /// From here.
    pub cursor: String,
    /// With the program's exact lines.
    pub raw: bool,
    /// To the session's end, instead of what there is now.
    pub live: bool,
}

/// Ctrl-C, and a polite request to end: both leave the session alone.
pub struct Leave {
    interrupt: Signal,
    terminate: Signal,
}

impl Leave {
    /// Listens for them from now on.
    ///
    /// # Errors
    /// Signals cannot be received.
    pub fn new() -> Result<Leave, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("signals cannot be received", error));
        Ok(Leave { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Returns when one of them comes.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Shows the session until its end, or until the user leaves.
///
/// # Errors
/// The service refuses, or does not come back.
pub async fn watch(context: &Context, client: Client, mut watch: Watch) -> Result<Exit, Failure> {
    let mut leave = Leave::new()?;
    // Where there is no answer, following finds out why.
    let status = client.status(watch.run_id).await;
    let dialect = status.as_ref().map_or("", |status| status.text("dialect"));
    let view = View::new(context.out.style).of_session(watch.run_id).with_summary();
    let mut view = view.of_dialect(dialect).exact(watch.raw);
    if watch.cursor != "start" && status.as_ref().is_ok_and(SessionStatus::asks) {
        // What it asked before the cursor is not shown.
        context.out.note(&format!("its program waits for an answer: sessionctl questions {}", watch.run_id));
    }
    let outcome = tokio::select! {
        outcome = to_the_end(context, client, &mut watch, &mut view) => outcome,
        () = leave.asked() => Ok(None),
    };
    context.out.write(&view.close_if(!context.out.json))?;
    match outcome? {
        Some(status) => {
            tell_status(&context.out, &status)?;
            Ok(if watch.live { Exit::of_session(&status) } else { Exit::Ok })
        }
        None if watch.live => {
            context.out.note(&format!(
                "left it; the session goes on. Come back: sessionctl follow {} --cursor {}",
                watch.run_id, watch.cursor
            ));
            Ok(Exit::Detached)
        }
        None => Ok(Exit::Ok),
    }
}

/// The last thing that a view says: JSON `{"status": …}`, or a line.
fn tell_status(out: &Output, status: &SessionStatus) -> Result<(), Failure> {
    match out.json {
        true => out.value(&json!({"status": status.json()})),
        false => out.line(&summary(status, out.style)),
    }
}

/// The final status; `None` where only what there is was asked for and the session has not ended.
async fn to_the_end(
    context: &Context,
    mut client: Client,
    watch: &mut Watch,
    view: &mut View,
) -> Result<Option<SessionStatus>, Failure> {
    loop {
        let before = watch.cursor.clone();
        match one_stream(context, &client, watch, view).await {
            Ok(ended) => {
                if ended {
                    return settled(context, &mut client, watch).await.map(Some);
                }
                if !watch.live {
                    return Ok(None);
                }
                match client.status(watch.run_id).await {
                    Ok(status) if status.is_over() => return Ok(Some(status)),
                    // It is neither over nor lost: the service let go of this stream alone.
                    Ok(_) if watch.cursor == before => tokio::time::sleep(PAUSE).await,
                    Ok(_) => {}
                    Err(error) if error.is_lost() => client = context.reconnect(&client).await?,
                    Err(error) => return Err(error.into()),
                }
            }
            Err(Failure::Client(error)) if error.is_lost() => client = context.reconnect(&client).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Shows one stream of records; whether it held the session's last.
async fn one_stream(
    context: &Context,
    client: &Client,
    watch: &mut Watch,
    view: &mut View,
) -> Result<bool, Failure> {
    let options = FollowOptions { raw: watch.raw, live: watch.live };
    let mut follow = client.follow(watch.run_id, &watch.cursor, options).await?;
    while let Some(line) = follow.next_line().await? {
        show(&context.out, view, &line)?;
        watch.cursor = follow.position().to_owned();
    }
    Ok(follow.ended())
}

/// Shows one record: as it came for programs, through the view for people.
pub fn show(out: &Output, view: &mut View, line: &str) -> Result<(), Failure> {
    if out.json {
        return out.json_line(line.to_owned());
    }
    let entry: Entry = serde_json::from_str(line).map_err(|error| Error::Answer(error.to_string()))?;
    out.write(&view.entry(&entry))
}

/// The status after the last record, once the service has delivered the end.
async fn settled(context: &Context, client: &mut Client, watch: &Watch) -> Result<SessionStatus, Failure> {
    loop {
        match client.wait(watch.run_id, WaitFor::Finished, Duration::ZERO).await {
            Err(error) if error.is_lost() => *client = context.reconnect(client).await?,
            other => return Ok(other?),
        }
    }
}
