use clap::Args;

use super::report::list_line;
use super::{Context, Exit, Failure, words};
use crate::client::Filter;
use crate::model::{End, Phase, State};

/// Lists sessions: run_id, end or state, profile, age, label. With --json a status a line.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only those in this state
    #[arg(long, value_parser = words::state())]
    pub state: Option<State>,
    /// Only those in this phase
    #[arg(long, value_parser = words::phase())]
    pub phase: Option<Phase>,
    /// Only those with this end
    #[arg(long, value_parser = words::end())]
    pub end: Option<End>,
    /// Only those of this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Only those with exactly this label
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// At most so many [default: 100]
    #[arg(long, value_name = "NUMBER", conflicts_with = "all", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: Option<u32>,
    /// Go on after an earlier page
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
    /// All of them, page after page
    #[arg(long)]
    pub all: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let mut filter = Filter {
        state: arguments.state,
        phase: arguments.phase,
        end: arguments.end,
        profile: arguments.profile,
        label: arguments.label,
        limit: if arguments.all { Some(1000) } else { arguments.limit },
        cursor: arguments.cursor,
    };
    loop {
        let (sessions, next) = client.list(&filter).await?;
        for session in &sessions {
            match context.out.json {
                true => context.out.value(session.json())?,
                false => context.out.line(&list_line(session, context.out.style))?,
            }
        }
        if next.is_empty() {
            return Ok(Exit::Ok);
        }
        if !arguments.all {
            context.out.note(&format!("there are more: --cursor {next}, or --all"));
            return Ok(Exit::Ok);
        }
        filter.cursor = Some(next);
    }
}
