//! `sessionctl`: the operator's program.
//!
//! One file a command; besides
//!
//! - `exit`: the exit statuses, one table for ever;
//! - `failure`: why a command did not do what was asked;
//! - `context`: how the service is found, and started where none answers (`start`);
//! - `submission`: the command line as a submission;
//! - `asking`: what programs ask and what was said to them, as text;
//! - `watch`: following a session through restarts of the service;
//! - `view`, `report`, `text`, `output`: what people and programs read.

mod acknowledge;
mod answer;
mod asking;
mod cancel;
mod context;
mod demo;
mod doctor;
mod events;
mod exit;
mod export;
mod failure;
mod follow;
mod list;
mod message;
mod output;
mod pages;
mod profiles;
mod prune;
mod questions;
mod reconcile;
mod remove;
mod report;
mod run;
mod start;
mod status;
mod storage;
mod submission;
mod submit;
mod text;
mod view;
mod wait;
mod watch;
mod words;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

pub use context::Context;
pub use exit::Exit;
pub use failure::Failure;
pub use output::{Output, Style};
pub use start::connect_or_start;

use crate::model::MessageMode;

/// Long jobs that nobody can lose: submit, watch and stop sessions of this account's airouter-sessiond.
#[derive(Parser)]
#[command(name = "sessionctl", version, after_long_help = Exit::table(), max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Print JSON: one document, or one a line where there are several. Errors are one line of JSON on standard
    /// error: {"error", "text", "status"}
    #[arg(long, global = true)]
    pub json: bool,
    /// The private socket of the service [default: the configuration's]
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "bus")]
    pub socket: Option<PathBuf>,
    /// Reach the service on the user's bus instead of its private socket
    #[arg(long, global = true)]
    pub bus: bool,
    /// The configuration file [default: $XDG_CONFIG_HOME/airouter/sessiond.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Submit a session and follow it to its end
    Run(run::Arguments),
    /// Submit a session and print its run_id
    Submit(submit::Arguments),
    /// List sessions: those that have not ended first, then the ended ones, newest first
    List(list::Arguments),
    /// Say what is known of a session
    Status(status::Arguments),
    /// Print what has happened in a session so far
    Events(events::Arguments),
    /// Follow a session to its end
    Follow(follow::Arguments),
    /// Wait for a session
    Wait(wait::Arguments),
    /// Tell a session's program something, into its running turn
    ///
    /// Prints how far the message is known to have come, and its request_id: stored (it would survive a power loss),
    /// written (to the program's standard input), seen (the program said so), undeliverable (the program never took it).
    /// The same text again under the same request_id is the same message and is not sent again. With --json one object:
    /// request-id, mode, receipt.
    Steer(message::Arguments),
    /// Tell a session's program something, to be read when its running turn is over
    ///
    /// Everything else is as with `steer`.
    FollowUp(message::Arguments),
    /// List the questions that wait for an answer, with what is asked and how to answer
    ///
    /// With --json an object a line: run_id, question, about, choices, takes-text, tool, asked, expires, and text, labels,
    /// details of what is asked. Of one session the 16 that are open longest.
    Questions(questions::Arguments),
    /// Answer a question of a session's program
    ///
    /// The answer is stored before this returns; the same again changes nothing, and another one is refused. With --json
    /// one object: run_id, question, stored.
    Answer(answer::Arguments),
    /// Ask for a session to be cancelled
    Cancel(cancel::Arguments),
    /// Look again at a session whose end is uncertain; starts nothing
    Reconcile(reconcile::Arguments),
    /// Say that a session's events have been dealt with, so that it may be removed
    ///
    /// The acknowledgement is stored before this returns. Only sessions that are acknowledged up to their last event are
    /// removed by `prune` and by the configured retention, unless those are told otherwise.
    Acknowledge(acknowledge::Arguments),
    /// Write one session to a file: its events as JSON lines, or its files as a tar archive
    Export(export::Arguments),
    /// Say what the spool holds, and what the configured retention would remove
    Storage,
    /// Remove ended sessions that are old or take too much room; without --yes only say which
    ///
    /// Each condition makes a session due by itself, the first ended first. A session is kept, and told of, if it is not
    /// acknowledged, if its folder holds a file that is not its own or has a second link, or if it ended in the future. With
    /// --json an object a line: run_id, action (removed, would-remove, kept), why, ended, bytes.
    Prune(prune::Arguments),
    /// Remove ended sessions by name; their run_ids stay taken for ever
    ///
    /// With --json an object a line: run_id, removed.
    Remove(remove::Arguments),
    /// Register programs, and list those that are
    #[command(subcommand)]
    Profiles(profiles::Command),
    /// Check everything that the service needs on this machine
    Doctor,
    /// Show the service's promises at work on a scratch spool
    Demo,
    /// Write manual pages and shell completions
    #[command(hide = true)]
    Pages(pages::Arguments),
}

/// Runs `sessionctl` with the arguments of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(env::args_os()) => {
            let failure = misused(&error);
            Output::new(true).failure(&failure);
            return failure.exit().into();
        }
        Err(error) => error.exit(),
    };
    let context = Context::new(cli.global);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Failure::io("no event loop", error);
            context.out.failure(&failure);
            return failure.exit().into();
        }
    };
    match runtime.block_on(dispatch(cli.command, &context)) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            context.out.failure(&failure);
            failure.exit().into()
        }
    }
}

/// Whether a command line that cannot be understood asks for JSON.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What clap says, without what makes it a paragraph for people.
fn misused(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::Usage("a command is missing: `sessionctl --help` lists them".to_owned());
    }
    let text = error.render().to_string();
    Failure::Usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned())
}

async fn dispatch(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Run(arguments) => run::run(arguments, context).await,
        Command::Submit(arguments) => submit::run(arguments, context).await,
        Command::List(arguments) => list::run(arguments, context).await,
        Command::Status(arguments) => status::run(arguments, context).await,
        Command::Events(arguments) => events::run(arguments, context).await,
        Command::Follow(arguments) => follow::run(arguments, context).await,
        Command::Wait(arguments) => wait::run(arguments, context).await,
        Command::Steer(arguments) => message::run(arguments, MessageMode::Steer, context).await,
        Command::FollowUp(arguments) => message::run(arguments, MessageMode::FollowUp, context).await,
        Command::Questions(arguments) => questions::run(arguments, context).await,
        Command::Answer(arguments) => answer::run(arguments, context).await,
        Command::Cancel(arguments) => cancel::run(arguments, context).await,
        Command::Reconcile(arguments) => reconcile::run(arguments, context).await,
        Command::Acknowledge(arguments) => acknowledge::run(arguments, context).await,
        Command::Export(arguments) => export::run(arguments, context).await,
        Command::Storage => storage::run(context).await,
        Command::Prune(arguments) => prune::run(arguments, context).await,
        Command::Remove(arguments) => remove::run(arguments, context).await,
        Command::Profiles(command) => profiles::run(command, context).await,
        Command::Doctor => doctor::run(context).await,
        Command::Demo => run_demo(context).await,
        Command::Pages(arguments) => pages::run(&arguments),
    }
}

async fn run_demo(context: &Context) -> Result<Exit, Failure> {
    // Programs get the result alone on standard output. A step that nobody reads any more stops nothing.
    let say = |step: &str| match context.out.json {
        true => context.out.note(step),
        false => drop(context.out.line(step)),
    };
    let result = demo::demo(say).await?;
    if context.out.json {
        context.out.value(&result)?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_is_json_where_json_is_asked_for() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>().into_iter();
        assert!(asks_for_json(line(&["sessionctl", "--json", "foo"])));
        assert!(asks_for_json(line(&["sessionctl", "list", "--all", "--json"])));
        assert!(!asks_for_json(line(&["sessionctl", "run", "--", "--json"])));
        for (words, said) in [
            (&["sessionctl", "--json", "foo"][..], "'foo'"),
            (&["sessionctl", "--json"], "requires a subcommand"),
            (&["sessionctl", "--json", "profiles"], "a command is missing"),
        ] {
            let error = Cli::try_parse_from(words).err().expect("wrong");
            assert!(error.use_stderr());
            let json = misused(&error).json();
            assert_eq!((&json["error"], &json["status"]), (&"usage".into(), &2.into()));
            assert!(json["text"].as_str().unwrap().contains(said), "{json}");
            assert_eq!(json.to_string().lines().count(), 1);
        }
        assert!(!Cli::try_parse_from(["sessionctl", "--json", "--help"]).err().unwrap().use_stderr());
    }

    #[test]
    fn program_arguments_follow_two_hyphens() {
        let cli =
            Cli::try_parse_from(["sessionctl", "run", "--profile", "echo", "--", "--json", "-p"]).unwrap();
        let Command::Run(arguments) = cli.command else { panic!("run was asked for") };
        assert_eq!(arguments.submission.arguments, ["--json", "-p"]);
        assert!(!cli.global.json);
    }
}
