use std::collections::HashSet;

use clap::{ArgGroup, Args};

use super::report::{now, plural};
use super::text::{duration, size};
use super::{Context, Exit, Failure, words};
use crate::client::{PrunePolicy, Pruned};
use crate::model::PruneAction;

/// Removes ended sessions that are old or take too much room; without --yes only says which.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("conditions").required(true).multiple(true).args(["older_than", "keep"]))]
pub struct Arguments {
    /// Those that ended so long ago: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = words::seconds)]
    pub older_than: Option<u64>,
    /// The first that ended, until the rest takes at most so much: bytes, or a number with K, M, G or T
    #[arg(long, value_name = "SIZE", value_parser = words::bytes)]
    pub keep: Option<u64>,
    /// Also those whose events nobody acknowledged
    #[arg(long)]
    pub unacknowledged: bool,
    /// Remove them
    #[arg(long)]
    pub yes: bool,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    let policy = PrunePolicy {
        dry_run: !arguments.yes,
        acknowledged: !arguments.unacknowledged,
        older_than_seconds: arguments.older_than,
        keep_bytes: arguments.keep,
        limit: None,
    };
    let mut sum = Sum::default();
    let mut told = HashSet::new();
    loop {
        let sessions = context.insist(&mut client, async |client| client.prune(&policy).await).await?;
        let mut removed = 0;
        for session in &sessions {
            removed += u64::from(session.action == PruneAction::Removed);
            // One that is kept is told of by each call.
            if told.insert(session.run_id) {
                sum.add(session);
                match context.out.json {
                    true => context.out.value(session)?,
                    false => context.out.line(&context.out.style.text(&line(session)))?,
                }
            }
        }
        // The service removes no more than so many at once.
        if removed == 0 {
            break;
        }
    }
    if !context.out.json {
        context.out.line(&sum.line(arguments.yes))?;
    }
    if !arguments.yes && sum.gone > 0 {
        context.out.note("nothing was removed: --yes does it");
    }
    Ok(Exit::Ok)
}

fn line(session: &Pruned) -> String {
    let age = session.ended.map(|ended| format!("{} ago", duration(now().saturating_sub(ended))));
    let line = format!(
        "{:<12}  {}  {:>15}  {:>10}  {}",
        session.action.to_string(),
        session.run_id,
        age.unwrap_or_default(),
        session.bytes.map(size).unwrap_or_default(),
        session.why.as_deref().unwrap_or_default()
    );
    line.trim_end().to_owned()
}

/// What was, or would be, removed and kept.
#[derive(Default)]
struct Sum {
    gone: u64,
    bytes: u64,
    kept: u64,
}

impl Sum {
    fn add(&mut self, session: &Pruned) {
        match session.action {
            PruneAction::Kept => self.kept += 1,
            PruneAction::Removed | PruneAction::WouldRemove => {
                self.gone += 1;
                self.bytes += session.bytes.unwrap_or(0);
            }
        }
    }

    fn line(&self, done: bool) -> String {
        let what = if done { "removed" } else { "would remove" };
        format!("{what} {}, {}; {} kept", plural(self.gone, "session"), size(self.bytes), self.kept)
    }
}
