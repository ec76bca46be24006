use clap::Args;

use super::view::View;
use super::watch::show;
use super::{Context, Exit, Failure};
use crate::client::FollowOptions;

/// Prints what has happened in a session so far. With --json a record a line; each has the cursor after it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// From this place: `start`, `end`, or the cursor of a record
    #[arg(long, default_value = "start")]
    pub cursor: String,
    /// At most so many records
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Include the program's exact lines
    #[arg(long)]
    pub raw: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let options = FollowOptions { raw: arguments.raw, live: false };
    let mut follow = client.follow(run_id, &arguments.cursor, options).await?;
    let status = client.status(run_id).await?;
    let view = View::new(context.out.style).of_session(run_id);
    let mut view = view.of_dialect(status.text("dialect")).exact(arguments.raw);
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let mut next = arguments.cursor;
    while let Some(line) = follow.next_line().await? {
        if left == 0 {
            context.out.note(&format!("there are more: --cursor {next}"));
            break;
        }
        left -= 1;
        show(&context.out, &mut view, &line)?;
        next = follow.position().to_owned();
    }
    context.out.write(&view.close_if(!context.out.json))?;
    Ok(Exit::Ok)
}
