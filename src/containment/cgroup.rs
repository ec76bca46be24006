//! A session's tree in a cgroup v2 of its own, as the executor holds it.
//!
//! ```text
//! exec-<run_id> or airouter-exec-<run_id>.scope     the executor was placed here, and leaves it:
//! ├── executor                                      it lives here, outside of the limits
//! └── payload                                       the program and all that it starts; the limits
//! ```
//!
//! A process may move itself out of `payload`: the whole tree belongs to one account. It stays the executor's
//! descendant. So the tree is gone when `payload` is empty and the executor has no child left, and members are those
//! of either.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use nix::sys::signal::Signal;

use super::group::Group;
use super::process_group::{ProcessGroup, asked, signal_all};
use super::procfs::{self, Process};
use super::{Backend, Containment};
use crate::model::{Leftover, ResourceLimits};

/// The leaf that the executor moves into.
pub(super) const EXECUTOR: &str = "executor";
/// What holds the program.
pub(super) const PAYLOAD: &str = "payload";

/// See the module.
#[derive(Debug)]
pub(super) struct Cgroup {
    backend: Backend,
    payload: Group,
    family: ProcessGroup,
    unenforced: Vec<&'static str>,
}

impl Cgroup {
    /// Takes the cgroup that the calling process was placed in. `family` is the same session's subreaper.
    pub(super) fn take(
        group: &Group,
        backend: Backend,
        family: ProcessGroup,
        limits: &ResourceLimits,
    ) -> io::Result<Cgroup> {
        group.make(EXECUTOR)?.add(std::process::id())?;
        let payload = group.make(PAYLOAD)?;
        let unenforced = enforce(group, &payload, limits);
        Ok(Cgroup { backend, payload, family, unenforced })
    }

    fn living(&self) -> io::Result<Vec<Process>> {
        let mut living = self.family.living()?;
        let known: BTreeSet<i32> = living.iter().map(|process| process.pid).collect();
        let inside = self.payload.processes()?;
        living.extend(inside.difference(&known).filter_map(|pid| procfs::process(*pid)));
        Ok(living)
    }
}

impl Containment for Cgroup {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn weaker(&self) -> Option<String> {
        let list = self.unenforced.join(", ");
        (!list.is_empty()).then(|| format!("the cgroup lacks the controllers for these limits: {list}"))
    }

    fn unenforced(&self) -> &[&'static str] {
        &self.unenforced
    }

    fn environment(&self) -> Option<(String, String)> {
        self.family.environment()
    }

    fn entrance(&self) -> io::Result<Option<File>> {
        self.payload.entrance().map(Some)
    }

    fn members(&self) -> io::Result<Vec<Leftover>> {
        Ok(self.living()?.into_iter().map(Leftover::from).collect())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // Whoever kills goes on until all is gone: without cgroup.kill, what forked meanwhile is found by the next call.
        if signal == Signal::SIGKILL && self.payload.kill()? {
            return self.family.signal(signal);
        }
        signal_all(&self.living()?, signal)
    }

    fn empty(&self) -> io::Result<bool> {
        Ok(self.family.empty()? && !self.payload.populated()?)
    }

    fn watch(&self) -> io::Result<Option<File>> {
        self.payload.watch()
    }

    fn memory_kills(&self) -> Option<u64> {
        self.payload.memory_kills()
    }

    fn remove(&self) {
        // What cannot be removed goes with the cgroup around it: with the scope, or by the daemon.
        let _ = self.payload.remove();
    }
}

/// Writes the limits and returns those that nothing enforces. The memory controller is wanted without a limit too: it
/// counts what the kernel kills for lack of memory.
fn enforce(group: &Group, payload: &Group, limits: &ResourceLimits) -> Vec<&'static str> {
    let available = group.controllers();
    let wanted = [
        ("memory", "memory.max", "memory-max", limits.memory_max),
        ("pids", "pids.max", "tasks-max", limits.tasks_max),
        ("cpu", "cpu.weight", "cpu-weight", limits.cpu_weight),
    ];
    let mut unenforced = Vec::new();
    for (controller, file, key, limit) in wanted {
        if limit.is_none() && controller != "memory" {
            continue;
        }
        let enabled = available.iter().any(|name| name == controller)
            && group.write("cgroup.subtree_control", &format!("+{controller}")).is_ok();
        if let Some(limit) = limit
            && !(enabled && payload.write(file, &limit.to_string()).is_ok())
        {
            unenforced.push(key);
        }
    }
    debug_assert!(unenforced.iter().all(|key| asked(limits).contains(key)));
    unenforced
}
