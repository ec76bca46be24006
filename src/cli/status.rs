use clap::Args;
use serde_json::{Map, Value};

use super::report::{service_lines, status_lines};
use super::{Context, Exit, Failure};
use crate::client::SessionStatus;
use crate::config::Account;

/// Says what is known of a session, or of the service.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The session's run_id, or the first 4 or more characters of it; without one: the service
    pub session: Option<String>,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let Some(session) = arguments.session else { return service(context).await };
    let client = context.connect().await?;
    let run_id = context.session(&client, &session).await?;
    tell(context, &client.status(run_id).await?)?;
    if !context.out.json && upgrade_pending(&client.properties().await?) {
        context.out.note(UPGRADE_NOTE);
    }
    Ok(Exit::Ok)
}

/// Starts nothing: a service that does not run has no status.
async fn service(context: &Context) -> Result<Exit, Failure> {
    let properties = context.connect_to_running().await?.properties().await?;
    match context.out.json {
        true => context.out.value(&properties)?,
        false => context.out.line(&service_lines(&properties, context.out.style))?,
    }
    if !context.out.json && upgrade_pending(&properties) {
        context.out.note(UPGRADE_NOTE);
    }
    if !context.out.json && Account::own().is_ok_and(|account| account.lingers() == Some(false)) {
        context.out.note(LOGOUT_NOTE);
    }
    Ok(Exit::Ok)
}

const LOGOUT_NOTE: &str = "this account does not linger: its last logout stops the service and its sessions \
                           (`loginctl enable-linger` lets them live on)";
const UPGRADE_NOTE: &str = "the service runs another program than the one that is installed now: restart it to use that \
                            (`systemctl --user restart airouter-sessiond`; under systemd its sessions go on)";

fn upgrade_pending(properties: &Map<String, Value>) -> bool {
    properties.get("UpgradePending") == Some(&Value::Bool(true))
}

/// Prints a status.
pub fn tell(context: &Context, status: &SessionStatus) -> Result<(), Failure> {
    match context.out.json {
        true => context.out.value(status.json()),
        false => context.out.line(&status_lines(status, context.out.style)),
    }
}
