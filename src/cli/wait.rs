use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::time::Instant;

use super::status::tell;
use super::watch::Leave;
use super::{Context, Exit, Failure, words};
use crate::client::{Client, SessionStatus, WaitFor};
use crate::model::RunId;

/// Waits for a session and prints its status. The exit status tells how it ended, where it has ended. Ctrl-C stops the
/// wait; the session goes on.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// What to wait for
    #[arg(long = "for", value_name = "CONDITION", default_value = "finished")]
    pub condition: Condition,
    /// At most so long (90, 90s, 15m, 2h) [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = words::duration)]
    pub timeout: Option<Duration>,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Condition {
    /// The program was started, or never will be
    Started,
    /// Somebody is needed (a question waits for an answer, its end is uncertain), or it ended
    Attention,
    /// It ended, or its end is uncertain
    Finished,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let deadline = arguments.timeout.map(|timeout| Instant::now() + timeout);
    let mut leave = Leave::new()?;
    let status = tokio::select! {
        status = until_it_holds(context, client, run_id, arguments.condition.of_client(), deadline) => status?,
        () = leave.asked() => {
            let word = arguments.condition.of_client().word();
            context.out.note(&format!(
                "stopped waiting; the session goes on. Come back: sessionctl wait {run_id} --for {word}"
            ));
            return Ok(Exit::Detached);
        }
    };
    tell(context, &status)?;
    Ok(exit(&status, arguments.condition))
}

/// The status when the condition holds, or at the deadline.
async fn until_it_holds(
    context: &Context,
    mut client: Client,
    run_id: RunId,
    condition: WaitFor,
    deadline: Option<Instant>,
) -> Result<SessionStatus, Failure> {
    loop {
        // Zero would mean for ever: a wait that is out of time asks once more for a moment.
        let left =
            deadline.map(|deadline| deadline.duration_since(Instant::now()).max(Duration::from_millis(1)));
        match client.wait(run_id, condition, left.unwrap_or_default()).await {
            Err(error) if error.is_lost() => client = context.reconnect(&client).await?,
            other => return Ok(other?),
        }
    }
}

impl Condition {
    fn of_client(self) -> WaitFor {
        match self {
            Condition::Started => WaitFor::Started,
            Condition::Attention => WaitFor::Attention,
            Condition::Finished => WaitFor::Finished,
        }
    }
}

fn exit(status: &SessionStatus, condition: Condition) -> Exit {
    if status.is_over() {
        return Exit::of_session(status);
    }
    let holds = match condition {
        Condition::Started => status.number("started").is_some(),
        Condition::Attention => status.asks(),
        Condition::Finished => false,
    };
    if holds { Exit::Ok } else { Exit::TimedOut }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::End;

    #[test]
    fn the_exit_tells_whether_the_condition_holds() {
        let status = |value: serde_json::Value| SessionStatus::from_json(value.as_object().unwrap().clone());
        let queued = status(json!({"state": "queued"}));
        let driving = status(json!({"state": "driving", "started": 5}));
        let killed = status(json!({"state": "finished", "end": "killed"}));
        let uncertain = status(json!({"state": "reconciliation-required"}));
        assert_eq!(exit(&queued, Condition::Started), Exit::TimedOut);
        assert_eq!(exit(&driving, Condition::Started), Exit::Ok);
        assert_eq!(exit(&driving, Condition::Finished), Exit::TimedOut);
        assert_eq!(exit(&driving, Condition::Attention), Exit::TimedOut);
        let asking = status(json!({"state": "driving", "questions": [{"question": "q1"}]}));
        assert_eq!(exit(&asking, Condition::Attention), Exit::Ok);
        assert_eq!(exit(&asking, Condition::Finished), Exit::TimedOut);
        assert_eq!(exit(&killed, Condition::Finished), Exit::Ended(End::Killed));
        assert_eq!(exit(&uncertain, Condition::Attention), Exit::Uncertain);
    }
}
