//! The daemon's own delegated cgroup: where the service manager, or the container, lets this account divide.
//!
//! To hand controllers on, a cgroup must have no process of its own (the "no internal processes" rule). So the daemon
//! moves into a leaf, [`LEAF`], and enables what there is. Where somebody else's process is there too, no controller
//! can be handed on: sessions are held all the same, and their limits named as not enforced.

use std::io;

use super::cgroup::PAYLOAD;
use super::group::{Group, directories_in};
use crate::model::RunId;

/// The leaf for the daemon itself.
const LEAF: &str = "airouter-sessiond";
/// How the sessions' cgroups are named: this and the run id.
pub(super) const PREFIX: &str = "exec-";

/// See the module.
#[derive(Debug)]
pub(super) struct Delegated {
    base: Group,
}

impl Delegated {
    /// Takes the daemon's own cgroup, or the one around it if a daemon had moved into its leaf before. Moves nothing
    /// yet.
    pub(super) fn find() -> io::Result<Delegated> {
        let own = Group::of(None)?;
        let base = match own.name() == LEAF {
            true => own.path().parent().map(Group::at).transpose()?.flatten().unwrap_or(own),
            false => own,
        };
        if base.is_machine_root() {
            return Err(io::Error::other(
                "the service runs in the machine's root cgroup, which is not its own",
            ));
        }
        Ok(Delegated { base })
    }

    /// Hands on the controllers for limits, as far as that is possible, and clears what sessions of the past left.
    pub(super) fn prepare(&self) {
        let wanted = ["memory", "pids", "cpu"];
        let there = self.base.controllers();
        let wanted: Vec<String> = wanted
            .iter()
            .filter(|name| there.iter().any(|there| there == *name))
            .map(|name| format!("+{name}"))
            .collect();
        if !wanted.is_empty() {
            let moved = self.base.make(LEAF).and_then(|leaf| leaf.add(std::process::id()));
            let enabled = moved.and_then(|()| {
                wanted.iter().try_for_each(|name| self.base.write("cgroup.subtree_control", name))
            });
            if let Err(error) = enabled {
                tracing::warn!(%error, "limits of sessions will not be enforced");
            }
        }
        for path in directories_in(self.base.path()).unwrap_or_default() {
            // One with a payload was taken by an executor, which is in it for as long as it lives.
            if let Ok(Some(group)) = Group::at(&path)
                && group.name().starts_with(PREFIX)
                && group.child(PAYLOAD).is_some()
                && !group.populated().unwrap_or(true)
            {
                let _ = group.remove();
            }
        }
    }

    /// Makes a session's cgroup, and moves its executor there.
    pub(super) fn place(&self, run_id: RunId, pid: u32) -> io::Result<Group> {
        let group = self.base.make(&format!("{PREFIX}{run_id}"))?;
        group.add(pid)?;
        Ok(group)
    }

    /// Whether placing works: with a process of ours that is gone afterwards.
    pub(super) fn probe(&self, pid: u32) -> io::Result<()> {
        let group = self.base.make(&format!("probe-{pid}"))?;
        let works = group.add(pid).and_then(|()| group.make(PAYLOAD)?.add(pid));
        let _ = group.kill();
        let _ = group.wait_until_empty(std::time::Duration::from_secs(1));
        let _ = group.remove();
        works
    }
}
