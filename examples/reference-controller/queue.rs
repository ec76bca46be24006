//! The framework's own side of a host: it gives up runs whose lease ran out, takes runs from the queue, and submits them.
//!
//! A run that was taken is submitted again after every restart for as long as its lease holds: the same submission is the
//! same session, so that this is safe at any moment.

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use airouter_sessiond::client::Client;
use airouter_sessiond::model::{Binding, Submission};
use serde_json::{Value, json};

use crate::store::{Run, Store};

/// Between two looks at the queue.
const LOOK: Duration = Duration::from_millis(200);

/// For whom runs are taken.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Take runs from the queue, and submit them to the service on this private socket.
    #[arg(long, requires_all = ["application", "host", "worker"])]
    submit_to: Option<PathBuf>,
    /// The application whose runs are taken.
    #[arg(long)]
    application: Option<String>,
    /// The host that they are taken for.
    #[arg(long)]
    host: Option<String>,
    /// Who drives them there.
    #[arg(long)]
    worker: Option<String>,
    /// How many it has at a time.
    #[arg(long, default_value_t = 4)]
    slots: usize,
    /// How long a lease holds at first.
    #[arg(long, default_value_t = 60)]
    lease_seconds: u32,
}

/// Works for ever. A store that fails is asked again at the next look.
pub async fn work(store: Arc<dyn Store>, options: Options) -> Infallible {
    let mut submitted = HashSet::new();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = String::new();
    loop {
        look.tick().await;
        match look_once(&*store, &options, &mut submitted).await {
            Ok(()) => said.clear(),
            Err(error) => {
                let text = error.to_string();
                if text != said {
                    eprintln!("the queue waits: {text}");
                    said = text;
                }
            }
        }
    }
}

async fn look_once(
    store: &dyn Store,
    options: &Options,
    submitted: &mut HashSet<String>,
) -> Result<(), Box<dyn Error>> {
    for run in store.fence().await? {
        eprintln!("gave up {run}");
    }
    let (Some(socket), Some(application), Some(host), Some(worker)) =
        (&options.submit_to, &options.application, &options.host, &options.worker)
    else {
        return Ok(());
    };
    let mut held = store.held_by(host, worker).await?;
    while held.len() < options.slots {
        match store.take(application, host, worker, options.lease_seconds).await? {
            Some(run) => held.push(run),
            None => break,
        }
    }
    let mut failed = Ok(());
    for run in held.into_iter().filter(|run| !run.expired) {
        if submitted.contains(&run.run_id) {
            continue;
        }
        match submit(socket, &run).await {
            Ok(()) => drop(submitted.insert(run.run_id)),
            // The others are not held up; its lease runs out if that goes on.
            Err(error) => failed = Err(format!("cannot submit {}: {error}", run.run_id).into()),
        }
    }
    failed
}

async fn submit(socket: &Path, run: &Run) -> Result<(), Box<dyn Error>> {
    let binding = Binding {
        run_id: run.run_id.parse()?,
        application: Some(run.application.clone()),
        host: run.host.clone(),
        task_id: Some(run.task_id.clone()),
        lease_id: run.lease_id.clone(),
        worker: run.worker.clone(),
        operation: Some(run.operation.clone()),
    };
    let mut whole: Value = serde_json::from_str(&run.submission)?;
    let object = whole.as_object_mut().ok_or("its submission is no object")?;
    object.insert("version".into(), json!(airouter_sessiond::model::SUBMISSION_VERSION));
    object.insert("binding".into(), json!(binding));
    let submission: Submission = serde_json::from_value(whole)?;
    Client::connect_socket(socket).await?.submit(&submission, None).await?;
    Ok(())
}
