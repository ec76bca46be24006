//! What is left of a session whose executor died, for the daemon.
//!
//! Two searches are combined: the session's cgroup, which holds whatever stayed inside, and the environment marker,
//! which finds what moved itself out, or was never inside.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::group::Group;
use super::placer::names_session;
use super::procfs;
use super::{Containment, Marker, ProcessGroup};
use crate::model::{Leftover, RunId};

/// Between two looks: nothing tells when the last process is gone that is neither our child nor in a cgroup.
const INTERVAL: Duration = Duration::from_millis(10);
/// How long an executor that has let go of its lock may take to be gone.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Remains {
    group: Option<Group>,
    marked: ProcessGroup,
}

impl Remains {
    /// Of that session, whose executor had been placed in `cgroup`. A cgroup that is gone held nothing any more.
    ///
    /// # Errors
    /// What is at `cgroup` is none, or is not that session's.
    pub fn of(run_id: RunId, marker: Marker, cgroup: Option<&Path>) -> io::Result<Remains> {
        let group = match cgroup {
            Some(path) => Group::at(path)?,
            None => None,
        };
        if let Some(group) = &group
            && !names_session(group.name(), run_id)
        {
            return Err(io::Error::other(format!("{} is not this session's cgroup", group.path().display())));
        }
        Ok(Remains { group, marked: ProcessGroup::searcher(marker) })
    }

    /// Whether the session's cgroup is there, and holds a living process.
    pub fn cgroup(&self) -> io::Result<Option<bool>> {
        self.group.as_ref().map(Group::populated).transpose()
    }

    /// The processes that are found.
    pub fn members(&self) -> io::Result<Vec<Leftover>> {
        let mut living = self.marked.living()?;
        if let Some(group) = &self.group {
            let known: BTreeSet<i32> = living.iter().map(|process| process.pid).collect();
            living.extend(group.processes()?.difference(&known).filter_map(|pid| procfs::process(*pid)));
        }
        Ok(living.into_iter().map(Leftover::from).collect())
    }

    /// Kills what is found until nothing is, at most so long. Blocks. Returns what could not be stopped; empty is the
    /// proof that the cgroup is empty and the marker found nowhere.
    pub fn clear(&self, patience: Duration) -> io::Result<Vec<Leftover>> {
        let until = Instant::now() + patience;
        loop {
            let mut empty = true;
            if let Some(group) = &self.group {
                if !group.kill()? {
                    for process in group.processes()?.iter().filter_map(|pid| procfs::process(*pid)) {
                        super::process_group::signal_exactly(&process, Signal::SIGKILL)?;
                    }
                }
                empty = group.wait_until_empty(patience.min(Duration::from_millis(500)))?;
            }
            self.marked.signal(Signal::SIGKILL)?;
            let left = self.members()?;
            if empty && left.is_empty() {
                self.discard();
                return Ok(left);
            }
            if Instant::now() >= until {
                return Ok(left);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn discard(&self) {
        if let Some(group) = self.group.as_ref().filter(|group| is_own(group)) {
            let _ = group.remove();
        }
    }
}

/// Removes the cgroup of a session that ended, unless something was left running in it. Blocks until its executor has
/// exited, for two seconds at most. A scope is the user manager's, which removes it by itself.
pub fn discard(cgroup: &Path) {
    if let Ok(Some(group)) = Group::at(cgroup)
        && is_own(&group)
        && let Some(executor) = group.child(super::cgroup::EXECUTOR)
        && executor.wait_until_empty(EXIT_PATIENCE).unwrap_or(false)
    {
        let _ = group.remove();
    }
}

/// We made it, and nobody else removes it.
fn is_own(group: &Group) -> bool {
    group.name().starts_with(super::delegated::PREFIX)
}
