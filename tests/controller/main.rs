//! A framework owns the runs: a reference controller in a process of its own, on a bus of its own, that keeps them in SQLite
//! and dies, stops, forgets or refuses when it is told to. Executions are counted by a file that the program itself writes.

#[path = "../support/mod.rs"]
mod support;

mod authentication;
mod bindings;
mod contract;
mod deaths;
mod delivery;
mod framework;
mod leases;
mod operator;
#[cfg(feature = "postgres")]
mod postgres;

use airouter_sessiond::client::{SessionStatus, WaitFor};
use framework::{Framework, bound, submission};
use support::{Bench, PATIENCE, starts, until};
