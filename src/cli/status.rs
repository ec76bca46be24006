use clap::Args;

use super::report::status_lines;
use super::{Context, Exit, Failure};
use crate::client::SessionStatus;

/// Says what is known of a session.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    tell(context, &client.status(run_id).await?)?;
    Ok(Exit::Ok)
}

/// Prints a status.
pub fn tell(context: &Context, status: &SessionStatus) -> Result<(), Failure> {
    match context.out.json {
        true => context.out.value(status.json()),
        false => context.out.line(&status_lines(status, context.out.style)),
    }
}
