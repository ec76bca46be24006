use clap::Args;

use super::status::tell;
use super::{Context, Exit, Failure};

/// Says that a session's events have been dealt with, and prints its status.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// Up to this place: `end`, or the cursor of a record
    #[arg(default_value = "end")]
    pub cursor: String,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let cursor = arguments.cursor.as_str();
    let status = context.insist(&mut client, async |client| client.acknowledge(run_id, cursor).await).await?;
    tell(context, &status)?;
    Ok(Exit::Ok)
}
