//! Long jobs that nobody can lose: one service for each Unix account owns agent programs and other JSON-lines jobs.
//! Applications submit a session, leave, come back, and read exactly what happened.
//!
//! The modules, in the order in which data passes; arrows go one way:
//! `bin → bus → service → {controller, executor, spool} → {dialect, containment} → model`.
//!
//! - [`model`] is the vocabulary as types: submission, status, event, outcome, end. It does no I/O.
//! - [`dialect`] reads the JSON lines of each program family into events, and says how such a program is started and
//!   interrupted.
//! - [`schema`] checks answers against JSON Schemas, in a process of its own.
//! - [`containment`] holds a session's processes together, stops them, and proves that none is left.
//! - [`spool`] is everything on disk: locks, records, journals, outcomes, private-file checks.
//! - [`executor`] is the process that runs one session, and outlives the daemon.
//! - [`controller`] owns runs and leases: the spool itself, or a framework.
//! - [`service`] is admission, queue, driver pool, cancel, reconcile, recovery, reading. It knows no transport.
//! - [`bus`] is the D-Bus face: the user's bus and the private socket, and who may use them.
//! - [`client`] is for application processes, and for `sessionctl`.
//! - [`config`] is the configuration; [`program`] finds our own programs, and [`upgrade`] tells when another one was
//!   installed; [`daemon`] and `cli` put the programs together.
//! - [`crash`] names the places at which tests kill a process.
//!
//! With `default-features = false, features = ["client"]` there are only [`model`] and [`client`].

#[cfg(feature = "daemon")]
pub mod bus;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod containment;
#[cfg(feature = "daemon")]
pub mod controller;
#[cfg(feature = "daemon")]
pub mod crash;
#[cfg(feature = "daemon")]
pub mod daemon;
#[cfg(feature = "daemon")]
pub mod dialect;
#[cfg(feature = "daemon")]
pub mod executor;
pub mod model;
#[cfg(feature = "daemon")]
pub mod program;
#[cfg(feature = "daemon")]
pub mod schema;
#[cfg(feature = "daemon")]
pub mod service;
#[cfg(feature = "daemon")]
pub mod spool;
#[cfg(feature = "daemon")]
pub mod upgrade;
