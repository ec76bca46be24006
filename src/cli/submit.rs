use clap::Args;

use super::{Context, Exit, Failure, submission};

/// Submits a session. It goes on without anybody; when this returns, it would survive a power loss.
///
/// Prints its run_id; with --json its status.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    pub submission: submission::Arguments,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    let submitted = submission::submit(arguments.submission, context, &mut client).await?;
    match context.out.json {
        true => context.out.value(submitted.status.json())?,
        false => context.out.line(submitted.status.text("run_id"))?,
    }
    Ok(Exit::Ok)
}
