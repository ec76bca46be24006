use clap::Args;

use super::watch::{Watch, watch};
use super::{Context, Exit, Failure};

/// Follows a session: what has happened, then what happens, to its end. Ctrl-C leaves it; the session goes on. The exit
/// status tells how it ended.
///
/// With --json a record a line, at the end {"status"}.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// From this place: `start`, `end`, or the cursor of a record
    #[arg(long, default_value = "start")]
    pub cursor: String,
    /// Include the program's exact lines
    #[arg(long)]
    pub raw: bool,
    /// Stop at what there is now
    #[arg(long)]
    pub no_live: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let follow = Watch { run_id, cursor: arguments.cursor, raw: arguments.raw, live: !arguments.no_live };
    watch(context, client, follow).await
}
