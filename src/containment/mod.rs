//! Holding a session's processes together: find them, stop them, prove that none is left.
//!
//! The tools that agent programs run live in process groups and sessions of their own, so that signalling a process
//! group never reaches them. A containment knows the whole tree.
//!
//! | backend | where the tree lives | who makes the place |
//! |---|---|---|
//! | `systemd-scope` | a scope of the user manager, one for each session | the user manager, asked by the daemon |
//! | `cgroup` | `exec-<run_id>` in the daemon's own delegated cgroup v2 | the daemon |
//! | `process-group` | nowhere of its own | nobody |
//!
//! The daemon's [`Placer`] chooses at start, best first, by placing a short-lived child of its own for real. It then
//! places each executor while that still waits for "go", so that nothing ever runs outside. In its cgroup the executor
//! moves into the leaf `executor` and starts the program inside `payload`, which alone carries the limits: reaching
//! one never costs the executor.
//!
//! Three parties use a tree. The executor, which started it, through [`Containment`]: it is the tree's subreaper, and
//! its answers are proofs. The daemon after an executor died, through [`Remains`]: what it can find then depends on
//! the backend, and it says so. And the user manager, when it stops a scope: the scope's kill signal is
//! [`STOP_SIGNAL`], which programs ignore, so that the executor ends the session in order.

mod cgroup;
mod delegated;
mod direct;
mod group;
mod hold;
mod placer;
mod process_group;
mod procfs;
mod remains;
mod systemd;

pub use group::read_events;
pub use hold::{Held, hold};
pub use placer::{Order, Placer, Unavailable};
pub use process_group::{Marker, ProcessGroup};
pub use remains::{Remains, discard};

use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::Leftover;

/// What a scope's processes get when the user manager stops it. The executor takes it as SIGTERM. To programs it is
/// nothing: its default action is to be ignored (signal(7)), so each is stopped in its own way, and its end is not
/// mistaken for its own failure.
pub const STOP_SIGNAL: nix::sys::signal::Signal = nix::sys::signal::Signal::SIGURG;

/// The ways to hold a tree together, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// One scope of the user manager for each session.
    SystemdScope,
    /// A cgroup of its own below the daemon's.
    Cgroup,
    /// A subreaper, an environment marker and pidfds.
    #[default]
    ProcessGroup,
}

impl Backend {
    /// All, best first.
    pub const ALL: [Backend; 3] = [Backend::SystemdScope, Backend::Cgroup, Backend::ProcessGroup];

    /// Its name, as configuration, statuses and properties have it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::SystemdScope => "systemd-scope",
            Backend::Cgroup => "cgroup",
            Backend::ProcessGroup => "process-group",
        }
    }
}

/// Where an executor was put.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Placement {
    /// By which backend.
    pub backend: Backend,
    /// The directory of its cgroup; absent with [`Backend::ProcessGroup`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Why it is not held by the backend that the daemon had chosen, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

/// A way to hold a session's processes together, as its executor uses it.
pub trait Containment: Send + Sync {
    /// Which one it is.
    fn backend(&self) -> Backend;

    /// What it does not promise, where it is weaker than the best; for people.
    fn weaker(&self) -> Option<String>;

    /// The limits that were asked for and that nothing enforces here, by their keys in a submission.
    fn unenforced(&self) -> &[&'static str];

    /// The environment entry, if any, by which members are found; the program and all that it starts must carry it.
    fn environment(&self) -> Option<(String, String)>;

    /// A file into which a new process writes `0` before it becomes the program, to be inside.
    fn entrance(&self) -> io::Result<Option<File>>;

    /// The processes of the session that live now, without the executor.
    fn members(&self) -> io::Result<Vec<Leftover>>;

    /// Sends a signal to every member. Members that are gone by then are no error. SIGKILL may block for milliseconds.
    fn signal(&self, signal: nix::sys::signal::Signal) -> io::Result<()>;

    /// No process of the session is left. `true` is a proof within what [`Containment::weaker`] says.
    fn empty(&self) -> io::Result<bool>;

    /// A file that has an exceptional condition (poll(2), `POLLPRI`) whenever [`Containment::empty`] may have changed,
    /// besides SIGCHLD. Reading it arms it again.
    fn watch(&self) -> io::Result<Option<File>>;

    /// How many processes of the session the kernel has killed for lack of memory; `None` where it does not count.
    fn memory_kills(&self) -> Option<u64>;

    /// Gives back what the executor made, once the tree is gone.
    fn remove(&self);
}
