//! Runs and leases, wherever they are kept.

use async_trait::async_trait;
use serde::Serialize;

/// A run as the framework has it. Times are µs since 1970, by the store's own clock.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Run {
    #[serde(rename = "run_id")]
    pub run_id: String,
    pub application: String,
    /// Which host has it; absent while it waits in the queue.
    pub host: Option<String>,
    #[serde(rename = "task_id")]
    pub task_id: String,
    #[serde(rename = "lease_id")]
    pub lease_id: Option<String>,
    pub worker: Option<String>,
    pub operation: String,
    /// `pending`, `running`, `complete`, `failed`, `cancelled`.
    pub phase: String,
    pub lease_expires: Option<i64>,
    /// The lease has run out.
    pub expired: bool,
    pub cancel_requested: bool,
    /// What to submit, as JSON without its binding.
    pub submission: String,
    /// The outcome, as JSON, once it was delivered.
    pub outcome: Option<String>,
    /// How often it was delivered: once, and again after each lost answer.
    pub deliveries: i64,
    /// What the framework's users are told of a run that it gave up.
    pub reported: Option<String>,
}

impl Run {
    pub fn is_over(&self) -> bool {
        !matches!(self.phase.as_str(), "pending" | "running")
    }
}

/// A run that is added. Without a lease it waits in the queue.
#[derive(Debug, Clone, clap::Args)]
pub struct NewRun {
    #[arg(long)]
    pub run_id: String,
    #[arg(long)]
    pub application: String,
    #[arg(long)]
    pub task_id: String,
    #[arg(long)]
    pub operation: String,
    /// What to submit, as JSON without its binding.
    #[arg(long, default_value = "{}")]
    pub submission: String,
    #[arg(long, requires = "lease_id")]
    pub host: Option<String>,
    #[arg(long, requires_all = ["host", "worker"])]
    pub lease_id: Option<String>,
    #[arg(long, requires = "lease_id")]
    pub worker: Option<String>,
    /// How long that lease holds.
    #[arg(long, default_value_t = 60)]
    pub lease_seconds: u32,
}

/// Why nothing was done. Each is an error of the contract, but for the last.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Denied {
    #[error("no such run")]
    UnknownRun,
    #[error("another lease drives it")]
    ForeignLease,
    #[error("the lease has run out, or was taken back")]
    LeaseLost,
    #[error("the run is over")]
    Terminal,
    #[error("name the token with Authenticate first")]
    NotAuthenticated,
    #[error("{0}")]
    Failed(String),
}

impl Denied {
    /// By its name in the contract.
    pub fn named(name: &str) -> Option<Denied> {
        Some(match name {
            "UnknownRun" => Denied::UnknownRun,
            "ForeignLease" => Denied::ForeignLease,
            "LeaseLost" => Denied::LeaseLost,
            "Terminal" => Denied::Terminal,
            "NotAuthenticated" => Denied::NotAuthenticated,
            _ => return None,
        })
    }
}

/// A renewed lease.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    pub expires: i64,
    pub cancel_requested: bool,
}

/// Where runs are kept. Everything that returns is durable.
#[async_trait]
pub trait Store: Send + Sync {
    async fn add(&self, run: &NewRun) -> Result<(), Denied>;
    async fn run(&self, run_id: &str) -> Result<Option<Run>, Denied>;
    /// Makes a lease hold for `seconds` from now on, if it still holds.
    async fn renew(
        &self,
        task_id: &str,
        lease_id: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Renewal, Denied>;
    /// Notes that cancellation is wanted, and gives the phase.
    async fn cancel(&self, run_id: &str, lease_id: &str) -> Result<String, Denied>;
    /// Takes an outcome down, once, and gives the phase.
    async fn deliver(
        &self,
        run_id: &str,
        operation: &str,
        end: &str,
        outcome: &str,
    ) -> Result<String, Denied>;
    /// A user of the framework wants the run cancelled.
    async fn ask_to_cancel(&self, run_id: &str) -> Result<(), Denied>;
    /// The lease is lost from now on.
    async fn take_back(&self, run_id: &str) -> Result<(), Denied>;
    /// Gives the next run of the queue to a host. Each is given away once.
    async fn take(
        &self,
        application: &str,
        host: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Option<Run>, Denied>;
    /// The runs that a host has and that are not over.
    async fn held_by(&self, host: &str, worker: &str) -> Result<Vec<Run>, Denied>;
    /// Gives up runs whose lease has run out: nobody knows what they did, so nobody gets them again.
    async fn fence(&self) -> Result<Vec<String>, Denied>;
}

/// The phase of a run that ended so.
pub fn phase_of(end: &str) -> &'static str {
    match end {
        "completed" => "complete",
        "cancelled" => "cancelled",
        _ => "failed",
    }
}

/// What an answer to `RenewLease` rests on, whatever store the run comes from.
pub fn may_renew(run: &Run, lease_id: &str, worker: &str) -> Result<(), Denied> {
    if run.lease_id.as_deref() != Some(lease_id) || run.worker.as_deref() != Some(worker) {
        return Err(Denied::ForeignLease);
    }
    if run.is_over() {
        return Err(if run.reported.is_some() { Denied::LeaseLost } else { Denied::Terminal });
    }
    if run.expired { Err(Denied::LeaseLost) } else { Ok(()) }
}
