use clap::Args;

use super::status::tell;
use super::{Context, Exit, Failure};

/// Looks again at a session whose end is uncertain, and prints its status with the evidence. Starts nothing. The exit
/// status tells whether it is still uncertain.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let status = client.reconcile(run_id).await?;
    tell(context, &status)?;
    Ok(if status.is_uncertain() { Exit::Uncertain } else { Exit::Ok })
}
