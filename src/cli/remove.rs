use clap::Args;
use serde_json::json;

use super::{Context, Exit, Failure};

/// Removes ended sessions by name.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Their run_ids, or the first 4 or more characters of each
    #[arg(required = true, value_name = "SESSION")]
    pub sessions: Vec<String>,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    // All are found before any goes: a name that means nothing removes nothing.
    let mut run_ids = Vec::new();
    for session in &arguments.sessions {
        run_ids.push(context.session(&client, session).await?);
    }
    let mut exit = Exit::Ok;
    for run_id in run_ids {
        match context.insist(&mut client, async |client| client.remove(run_id).await).await {
            Ok(()) if context.out.json => context.out.value(&json!({"run_id": run_id, "removed": true}))?,
            Ok(()) => context.out.line(&format!("removed  {run_id}"))?,
            // One that is refused keeps no other.
            Err(failure) if failure.exit() == Exit::Refused => {
                context.out.failure(&failure);
                exit = Exit::Refused;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(exit)
}
