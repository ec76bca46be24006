use clap::Args;
use serde_json::json;

use super::watch::{Watch, watch};
use super::{Context, Exit, Failure, submission};

/// Submits a session and follows it. Ctrl-C leaves it; the session goes on. The exit status tells how it ended.
///
/// With --json: first {"session", "status"}, then each record, at the end {"status"}.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub submission: submission::Arguments,
    /// Do not follow it: print its run_id and leave
    #[arg(long)]
    pub detach: bool,
    /// Include the program's exact lines
    #[arg(long)]
    pub raw: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    if arguments.detach {
        return super::submit::run(super::submit::Arguments { submission: arguments.submission }, context)
            .await;
    }
    let mut client = context.connect().await?;
    let submitted = submission::submit(arguments.submission, context, &mut client).await?;
    let run_id = submitted.status.run_id()?;
    if context.out.json {
        context.out.value(&json!({"session": submitted.object, "status": submitted.status.json()}))?;
    } else {
        context.out.note(&format!("session {run_id}"));
    }
    let follow = Watch { run_id, cursor: "start".to_owned(), raw: arguments.raw, live: true };
    watch(context, client, follow).await
}
