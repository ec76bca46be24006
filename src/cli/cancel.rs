use std::time::Duration;

use clap::Args;

use super::status::tell;
use super::{Context, Exit, Failure};
use crate::client::{SessionStatus, WaitFor};
use crate::model::End;

/// Asks for a session to be cancelled, and prints its status. The wish is stored; that it ended is another fact.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// Wait until it has ended. The exit status is 0 if it was cancelled, and otherwise tells how it ended
    #[arg(long)]
    pub wait: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let mut status = client.cancel(run_id).await?;
    while arguments.wait && !status.is_over() {
        match client.wait(run_id, WaitFor::Finished, Duration::ZERO).await {
            Err(error) if error.is_lost() => client = context.reconnect(&client).await?,
            other => status = other?,
        }
    }
    tell(context, &status)?;
    Ok(if arguments.wait { exit(&status) } else { Exit::Ok })
}

fn exit(status: &SessionStatus) -> Exit {
    match Exit::of_session(status) {
        Exit::Ended(End::Cancelled) => Exit::Ok,
        other => other,
    }
}
