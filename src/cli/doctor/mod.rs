//! `sessionctl doctor`: everything that the service needs on this machine, looked at without changing anything.
//!
//! Nothing is started but a process that is gone again, to see whether it can be contained: no daemon, and no
//! activation on the bus. `machine` looks at the account's places and the system, `service` at who answers, `framework` at
//! who owns the runs.

mod framework;
mod machine;
mod service;

use serde::Serialize;
use serde_json::json;

use super::{Context, Exit, Failure};
use crate::config::Config;

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    /// As it should be.
    Ok,
    /// The service works, but not in all that one may expect.
    Warn,
    /// Something does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Check {
    /// What.
    name: String,
    /// How it stands.
    level: Level,
    /// What was found.
    text: String,
    /// What to do about it; empty where there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    advice: String,
}

impl Check {
    fn ok(name: &str, text: impl Into<String>) -> Check {
        Check { name: name.to_owned(), level: Level::Ok, text: text.into(), advice: String::new() }
    }

    fn warn(name: &str, text: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name: name.to_owned(), level: Level::Warn, text: text.into(), advice: advice.into() }
    }

    fn fail(name: &str, text: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name: name.to_owned(), level: Level::Fail, text: text.into(), advice: advice.into() }
    }
}

pub async fn run(context: &Context) -> Result<Exit, Failure> {
    let (config, mut checks) = configuration(context)?;
    checks.extend(machine::account(&config));
    checks.push(machine::runtime_directory());
    checks.extend(machine::spool(&config));
    checks.push(machine::free_space(&config));
    checks.extend(machine::programs());
    checks.extend(machine::profiles(&config));
    checks.push(machine::lingering());
    checks.push(machine::containment(&config).await);
    let socket = context.global.socket.clone().unwrap_or_else(|| config.socket.clone());
    checks.extend(service::private_socket(&socket).await);
    checks.push(service::user_bus(&config).await);
    checks.push(framework::answers(&config).await);
    tell(context, &checks)
}

/// The configuration; where it cannot be used, the default one, so that the rest can be looked at too.
fn configuration(context: &Context) -> Result<(Config, Vec<Check>), Failure> {
    const NAME: &str = "configuration";
    match Config::load(context.global.config.as_deref()) {
        Ok(config) if config.profiles.is_empty() => {
            let text =
                format!("there is no {}; the defaults hold and nothing can be run", config.file.display());
            let advice = "`sessionctl profiles detect` registers the agent programs on PATH";
            Ok((config, vec![Check::warn(NAME, text, advice)]))
        }
        Ok(config) => {
            let text = config.file.display().to_string();
            Ok((config, vec![Check::ok(NAME, text)]))
        }
        Err(error) => {
            let advice = "the daemon does not start before this is put right";
            Ok((Config::default_for_account()?, vec![Check::fail(NAME, error.to_string(), advice)]))
        }
    }
}

fn tell(context: &Context, checks: &[Check]) -> Result<Exit, Failure> {
    let (out, style) = (&context.out, context.out.style);
    let worst = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    if out.json {
        out.value(&json!({"level": worst, "checks": checks}))?;
    } else {
        for check in checks {
            let (word, colour) = match check.level {
                Level::Ok => ("ok  ", "32"),
                Level::Warn => ("warn", "33"),
                Level::Fail => ("FAIL", "31"),
            };
            let line = format!("{}: {}", check.name, check.text);
            out.line(&format!("{} {}", style.paint(colour, word), style.text(&line)))?;
            if !check.advice.is_empty() {
                out.line(&format!("     {}", style.paint("2", &style.text(&check.advice))))?;
            }
        }
    }
    Ok(if worst == Level::Fail { Exit::Failed } else { Exit::Ok })
}
