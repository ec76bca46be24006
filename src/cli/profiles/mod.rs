//! Registering programs: edits the configuration file, keeps what people wrote there, and tells a running daemon.
//!
//! - `edit`: the file, changed as text with its comments, checked as a whole before it replaces the old one;
//! - `detect`: agent programs on `PATH`.

pub(super) mod detect;
mod edit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use self::edit::{Change, Edited};
use super::{Context, Exit, Failure};
use crate::client::{Client, Error};
use crate::config::{Config, Profile};
use crate::dialect;
use crate::program;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the registered programs, what can be done with their sessions besides running, and what is wrong with them.
    /// With --json one object by name: program, dialect, features, problem
    List,
    /// Register a program
    Add(AddArguments),
    /// Take a program out
    Remove {
        /// The profile's name
        name: String,
    },
    /// Register the agent programs found on PATH. With --json one object: registered, skipped
    Detect,
}

/// Registers a program.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The profile's name
    pub name: String,
    /// The program; a name without a slash is looked for on PATH
    pub program: PathBuf,
    /// How its output is read
    #[arg(long, default_value = "jsonl", value_parser = clap::builder::PossibleValuesParser::new(dialect::NAMES))]
    pub dialect: String,
    /// A fixed argument, instead of those that the dialect needs; may be given several times
    #[arg(long = "argument", value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub arguments: Vec<String>,
    /// A variable of its environment; may be given several times. The process list shows it while sessionctl runs: a
    /// secret is better written into the configuration file
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    pub environment: Vec<String>,
    /// Where it runs if the submission does not say
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// Replace a profile of that name
    #[arg(long)]
    pub replace: bool,
}

pub async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::List => list(context),
        Command::Add(arguments) => add(arguments, context).await,
        Command::Remove { name } => remove(&name, context).await,
        Command::Detect => detect_all(context).await,
    }
}

fn list(context: &Context) -> Result<Exit, Failure> {
    let config = Config::load_for_edit(context.global.config.as_deref())?;
    if context.out.json {
        let profiles: BTreeMap<_, _> =
            config.profiles.iter().map(|(name, profile)| (name, to_json(profile))).collect();
        context.out.value(&profiles)?;
        return Ok(Exit::Ok);
    }
    for (name, profile) in &config.profiles {
        let problem = profile.problem().map(|problem| format!("  ({problem})")).unwrap_or_default();
        let can = profile.features().join(", ");
        let can = if can.is_empty() { can } else { format!("  [{can}]") };
        let line = format!("{name:<16}  {:<8}  {}{can}{problem}", profile.dialect, profile.program.display());
        context.out.line(&context.out.style.text(&line))?;
    }
    if config.profiles.is_empty() {
        context.out.note(&format!(
            "{} registers none: `sessionctl profiles detect`, or `sessionctl profiles add`",
            config.file.display()
        ));
    }
    Ok(Exit::Ok)
}

fn to_json(profile: &Profile) -> Value {
    let mut value =
        json!({"program": profile.program, "dialect": profile.dialect, "features": profile.features()});
    if let Some(problem) = profile.problem() {
        value["problem"] = Value::from(problem);
    }
    value
}

async fn add(arguments: AddArguments, context: &Context) -> Result<Exit, Failure> {
    let mut environment = BTreeMap::new();
    for entry in &arguments.environment {
        let (name, value) =
            entry.split_once('=').ok_or_else(|| Failure::Usage("--env takes NAME=VALUE".to_owned()))?;
        environment.insert(name.to_owned(), value.to_owned());
    }
    let directory = arguments.directory.map(std::path::absolute).transpose();
    let change = Change::Add {
        program: detect::named(&arguments.program)?,
        name: arguments.name,
        dialect: arguments.dialect,
        arguments: (!arguments.arguments.is_empty()).then_some(arguments.arguments),
        environment,
        directory: directory.map_err(|error| Failure::io("--directory", error))?,
        replace: arguments.replace,
    };
    let edited = edit::edit(context.global.config.as_deref(), &[change])?;
    tell(context, &edited, &[]).await
}

async fn remove(name: &str, context: &Context) -> Result<Exit, Failure> {
    let change = Change::Remove { name: name.to_owned() };
    let edited = edit::edit(context.global.config.as_deref(), &[change])?;
    tell(context, &edited, &[]).await
}

async fn detect_all(context: &Context) -> Result<Exit, Failure> {
    let config = Config::load_for_edit(context.global.config.as_deref())?;
    let found = detect::on_path(&config);
    if found.changes.is_empty() {
        let edited = Edited { file: config.file, names: Vec::new() };
        return tell(context, &edited, &found.skipped).await;
    }
    let edited = edit::edit(context.global.config.as_deref(), &found.changes)?;
    tell(context, &edited, &found.skipped).await
}

/// Says what was done, and has a running daemon read the file again.
async fn tell(context: &Context, edited: &Edited, skipped: &[String]) -> Result<Exit, Failure> {
    let reloaded = if edited.names.is_empty() { None } else { Some(reload(context).await) };
    if context.out.json {
        context.out.value(&json!({
            "file": edited.file, "changed": edited.names, "skipped": skipped,
            "reloaded": matches!(reloaded, Some(Ok(Some(_))))
        }))?;
        return Ok(Exit::Ok);
    }
    for reason in skipped {
        context.out.line(&context.out.style.text(reason))?;
    }
    if edited.names.is_empty() {
        context.out.line(&unchanged(&edited.file))?;
        return Ok(Exit::Ok);
    }
    let changed = format!("{}: {}", edited.file.display(), edited.names.join(", "));
    context.out.line(&context.out.style.text(&changed))?;
    match reloaded {
        Some(Ok(Some(pid))) => context.out.note(&format!("the running service (pid {pid}) reads it again")),
        Some(Err(why)) => context.out.note(&format!("the running service was not told: {why}")),
        Some(Ok(None)) | None => {}
    }
    Ok(Exit::Ok)
}

/// What to say where nothing was found to register.
fn unchanged(file: &Path) -> String {
    match file.exists() {
        true => format!("{} is as it was", file.display()),
        false => "no agent program to register was found: install one and put it on PATH, or register any program by \
                  `sessionctl profiles add NAME PROGRAM`"
            .to_owned(),
    }
}

/// Sends SIGHUP to the daemon of the private socket; its pid, or `None` where none runs.
async fn reload(context: &Context) -> Result<Option<u32>, String> {
    let socket = context.socket().map_err(|error| error.to_string())?;
    let client = match Client::connect_socket(&socket).await {
        Ok(client) => client,
        Err(Error::NoService { .. }) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let by_hand = "have it reload by `systemctl --user reload airouter-sessiond`, or send it SIGHUP";
    let pid = client.peer_pid().ok_or_else(|| format!("the kernel does not tell its pid; {by_hand}"))?;
    // With socket activation the listener was made by the service manager, whose pid this then is.
    if program::name_of_process(pid).as_deref() != Some(program::DAEMON) {
        return Err(format!("pid {pid}, which made the socket, is not {}; {by_hand}", program::DAEMON));
    }
    let raw = i32::try_from(pid).map_err(|_| format!("{pid} is no pid; {by_hand}"))?;
    kill(Pid::from_raw(raw), Signal::SIGHUP).map_err(|error| format!("{}; {by_hand}", error.desc()))?;
    Ok(Some(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_found_and_no_file_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sessiond.toml");
        assert!(unchanged(&file).contains("sessionctl profiles add NAME PROGRAM"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(unchanged(&file), format!("{} is as it was", file.display()));
    }
}
