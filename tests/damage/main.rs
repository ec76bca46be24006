//! Promises 1, 2, 4, 5 and 9 on disks that fail and with files that came to harm: real full and read-only file systems,
//! injected errors at every durable step, and damage to every file of a session, all seen through the real binaries.
//!
//! Those with injected errors need `cargo test --features faults`; without it they are shown as ignored, saying so.
//! Those with file systems of their own need root, and say so where they have to be left out.

#[path = "../support/mod.rs"]
mod support;

mod entries;
mod files;
mod full;
mod injected;
mod journal;

use std::path::PathBuf;

use airouter_sessiond::client::{Client, SessionStatus, WaitFor};
use airouter_sessiond::model::RunId;
use support::{Bench, PATIENCE, noted, refusal, starts};

fn active(bench: &Bench, run_id: RunId) -> PathBuf {
    bench.spool().join("active").join(run_id.to_string())
}

fn ended(bench: &Bench, run_id: RunId) -> PathBuf {
    bench.spool().join("ended").join(run_id.shard()).join(run_id.to_string())
}

/// Waits for a session's end, reconciling it if that is what it needs.
async fn settled(client: &Client, run_id: RunId) -> SessionStatus {
    let status = client.wait(run_id, WaitFor::Attention, PATIENCE).await.expect("waits");
    match status.is_uncertain() {
        true => client.reconcile(run_id).await.expect("reconciles"),
        false => status,
    }
}
