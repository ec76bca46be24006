//! Who owns the runs: whether it answers, and what waits for it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Check;
use crate::config::Config;
use crate::controller::Probe;
use crate::daemon;

/// How long a framework may take here, whatever the configuration gives it: somebody waits.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Whether the framework that the configuration names answers, and takes our token.
pub async fn answers(config: &Config) -> Check {
    const NAME: &str = "controller";
    let uid = nix::unistd::geteuid().as_raw();
    let (Some(framework), Some(given)) = (daemon::framework(config, uid), &config.controller) else {
        return Check::ok(NAME, "embedded: the spool is the authority");
    };
    let advice =
        "until it answers nothing is taken, and outcomes wait; running sessions end with their leases";
    match tokio::time::timeout(ANSWER_WITHIN, framework.probe()).await {
        Ok(Ok(Probe::Answers)) => Check::ok(
            NAME,
            match given.token_file {
                Some(_) => format!("{} answers, and takes the token of {}", given.name, config.application),
                None => format!("{} answers, without a token", given.name),
            },
        ),
        Ok(Ok(Probe::Startable)) => {
            Check::ok(NAME, format!("{} does not run; its bus starts it with the first call", given.name))
        }
        Ok(Err(error)) => Check::fail(NAME, format!("{}: {error}", given.name), advice),
        Err(_) => {
            let seconds = ANSWER_WITHIN.as_secs();
            Check::fail(NAME, format!("{} does not answer within {seconds} s", given.name), advice)
        }
    }
}

/// The sessions whose outcome waits, where there are any.
pub fn undelivered(properties: &Map<String, Value>) -> Option<Check> {
    let controller = properties.get("Controller")?;
    let waiting = controller["undelivered"].as_u64().filter(|waiting| *waiting > 0)?;
    let name = controller["name"].as_str().unwrap_or("the controller");
    Some(Check::warn(
        "outcomes",
        format!("{waiting} ended and not delivered to {name}"),
        "once it answers: `sessionctl list --state reconciliation-required`, and `sessionctl reconcile ID` for each; \
         the next start of the service delivers them too",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_outcomes_that_wait_are_told() {
        let properties = |undelivered: u64| {
            let controller = json!({"name": "org.example.Framework", "undelivered": undelivered});
            Map::from_iter([("Controller".to_owned(), controller)])
        };
        assert_eq!(undelivered(&properties(0)), None);
        assert_eq!(undelivered(&Map::new()), None, "an earlier version does not say");
        let check = undelivered(&properties(3)).expect("a warning");
        assert!(
            check.text.starts_with("3 ended") && check.text.contains("org.example.Framework"),
            "{check:?}"
        );
    }
}
