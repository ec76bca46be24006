//! A framework for the tests, and for those who write one: it owns runs and their leases, in SQLite or PostgreSQL, and
//! serves `org.airouter.Controller1` (docs/controller.md).
//!
//! ```text
//! reference-controller --database runs.db add --application app --host desktop --run-id … --submission …
//! reference-controller --database runs.db serve --bus ADDRESS --name org.example.Framework --path /org/example/Framework
//! reference-controller --database runs.db show RUN_ID
//! ```
//!
//! With `--submit-to` it also takes runs from its queue, for its host, and submits them to that host's service. Several of
//! them, on several hosts, can share one PostgreSQL: a run is given to one of them alone (`FOR UPDATE SKIP LOCKED`), under a
//! lease that counts by the database's clock; one whose lease runs out is reported, and given to nobody again.
//!
//! `--fault METHOD:N:WHAT` makes the Nth call of a method (`*`: each) go wrong; see `faults`.

mod faults;
mod interface;
mod queue;
mod sqlite;
mod store;

#[cfg(feature = "postgres")]
mod postgres;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use faults::Faults;
use store::{NewRun, Store};

/// A controller of runs and leases, for tests and as an example.
#[derive(Debug, Parser)]
#[command(name = "reference-controller")]
struct Options {
    /// Where the runs are kept: a file for SQLite, or `postgres:` and a connection string.
    #[arg(long)]
    database: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves org.airouter.Controller1.
    Serve(Box<Serve>),
    /// Adds a run.
    Add(Box<NewRun>),
    /// Prints a run as JSON.
    Show { run_id: String },
    /// Asks for a run's cancellation, as a user of the framework does.
    Cancel { run_id: String },
    /// Takes a lease back: from now on it is lost.
    TakeBack { run_id: String },
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// The address of the bus.
    #[arg(long)]
    bus: String,
    /// The well-known name to own there.
    #[arg(long)]
    name: String,
    /// The object to serve.
    #[arg(long)]
    path: String,
    /// Whoever calls must first have named the token in this file.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// What goes wrong.
    #[arg(long)]
    fault: Vec<faults::Fault>,
    #[command(flatten)]
    queue: queue::Options,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("reference-controller: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reference-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let store = open(&options.database).await?;
    match options.command {
        Command::Serve(serve) => serve_for_ever(store, *serve).await,
        Command::Add(run) => Ok(store.add(&run).await?),
        Command::Show { run_id } => {
            let run = store.run(&run_id).await?.ok_or("no such run")?;
            println!("{}", serde_json::to_string(&run)?);
            Ok(())
        }
        Command::Cancel { run_id } => Ok(store.ask_to_cancel(&run_id).await?),
        Command::TakeBack { run_id } => Ok(store.take_back(&run_id).await?),
    }
}

async fn open(database: &str) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    match database.strip_prefix("postgres:") {
        None => Ok(Arc::new(sqlite::Sqlite::open(database)?)),
        #[cfg(feature = "postgres")]
        Some(connection) => Ok(Arc::new(postgres::Postgres::open(connection).await?)),
        #[cfg(not(feature = "postgres"))]
        Some(_) => Err("this was built without the feature `postgres`".into()),
    }
}

async fn serve_for_ever(store: Arc<dyn Store>, serve: Serve) -> Result<(), Box<dyn Error>> {
    let token = serve.token_file.as_ref().map(std::fs::read_to_string).transpose()?;
    let token = token.map(|token| token.lines().next().unwrap_or_default().trim().to_owned());
    let faults = Faults::new(serve.fault);
    let interface = interface::Controller::new(store.clone(), token, faults);
    let connection = zbus::connection::Builder::address(serve.bus.as_str())
        .serve_at(serve.path.as_str(), interface)
        .name(serve.name.as_str())
        .build()
        .await?;
    // A bus that started it may listen to nothing that it says.
    let _ = writeln!(std::io::stdout(), "ready");
    tokio::select! {
        () = connection.closed() => Err("the bus is gone".into()),
        never = queue::work(store, serve.queue) => match never {},
    }
}
