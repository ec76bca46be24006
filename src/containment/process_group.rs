//! Containment with nothing delegated: subreaper, environment marker, pidfds.
//!
//! The executor is the tree's subreaper (prctl(2), `PR_SET_CHILD_SUBREAPER`): whatever loses its parent becomes its
//! child. So as long as the executor lives, "no child is left" (`ECHILD` of waitpid(2)) proves the tree gone, also
//! for what forked twice or started a session of its own.
//!
//! After the executor's death its orphans belong to somebody else, and are found by an environment entry that every
//! process of the session inherited. A process that replaced its environment is not found then: that is the weaker
//! promise.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::procfs::{self, Process};
use super::{Backend, Containment};
use crate::model::{Leftover, ResourceLimits, RunId};

/// The environment entry that names a session's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    value: String,
    /// The value may go on: any attempt of the session.
    open: bool,
}

impl Marker {
    /// The variable's name.
    pub const NAME: &'static str = "AIROUTER_SESSION";

    /// The marker of one attempt of a session; `epoch` is its journal's.
    pub fn new(run_id: RunId, epoch: &str) -> Marker {
        Marker { value: format!("{run_id}:{epoch}"), open: false }
    }

    /// What the markers of all attempts of a session have in common; to search by, never to be carried.
    pub fn of_any_attempt(run_id: RunId) -> Marker {
        Marker { value: format!("{run_id}:"), open: true }
    }

    fn names(&self, entry: &[u8], item: &[u8]) -> bool {
        if self.open { item.starts_with(entry) } else { item == entry }
    }

    fn entry(&self) -> Vec<u8> {
        format!("{}={}", Self::NAME, self.value).into_bytes()
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The executor: the members are its descendants.
    Reaper,
    /// Anybody else: the members are those who carry the marker.
    Searcher,
}

/// See the module.
#[derive(Debug)]
pub struct ProcessGroup {
    marker: Marker,
    role: Role,
    unenforced: Vec<&'static str>,
}

impl ProcessGroup {
    /// For the executor. Makes the calling process the subreaper of all that it starts.
    pub fn reaper(marker: Marker, limits: &ResourceLimits) -> io::Result<ProcessGroup> {
        nix::sys::prctl::set_child_subreaper(true)?;
        Ok(ProcessGroup { marker, role: Role::Reaper, unenforced: asked(limits) })
    }

    /// For the daemon, after the executor died.
    pub fn searcher(marker: Marker) -> ProcessGroup {
        ProcessGroup { marker, role: Role::Searcher, unenforced: Vec::new() }
    }

    pub(super) fn living(&self) -> io::Result<Vec<Process>> {
        let all = procfs::processes()?;
        let me = std::process::id() as i32;
        if self.role == Role::Reaper {
            return Ok(descendants(&all, me));
        }
        let entry = self.marker.entry();
        let carries = |pid| procfs::environment_holds(pid, |item| self.marker.names(&entry, item));
        Ok(all.into_iter().filter(|p| p.pid != me && carries(p.pid)).collect())
    }
}

impl Containment for ProcessGroup {
    fn backend(&self) -> Backend {
        Backend::ProcessGroup
    }

    fn weaker(&self) -> Option<String> {
        Some(
            "no cgroup: if the executor is killed, a process that replaced its environment may be left running unseen; \
             memory, task and CPU limits are not enforced"
                .to_owned(),
        )
    }

    fn unenforced(&self) -> &[&'static str] {
        &self.unenforced
    }

    fn environment(&self) -> Option<(String, String)> {
        Some((Marker::NAME.to_owned(), self.marker.value.clone()))
    }

    fn entrance(&self) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn members(&self) -> io::Result<Vec<Leftover>> {
        Ok(self.living()?.into_iter().map(Leftover::from).collect())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        signal_all(&self.living()?, signal)
    }

    fn empty(&self) -> io::Result<bool> {
        match self.role {
            // Looks without reaping: the executor reaps in one place.
            Role::Reaper => {
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
                // SAFETY: siginfo_t is plain data, for which zeros are a value; it is written into for the call. nix's
                // own waitid knows no real-time signals, and takes a child that one of them ended for an error.
                let answer = unsafe {
                    let mut ended: libc::siginfo_t = std::mem::zeroed();
                    libc::waitid(libc::P_ALL, 0, &mut ended, flags)
                };
                match Errno::result(answer) {
                    Err(Errno::ECHILD) => Ok(true),
                    Err(errno) => Err(errno.into()),
                    Ok(_) => Ok(false),
                }
            }
            Role::Searcher => Ok(self.living()?.is_empty()),
        }
    }

    fn watch(&self) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn memory_kills(&self) -> Option<u64> {
        None
    }

    fn remove(&self) {}
}

/// The limits on processes that are asked for, by their keys in a submission.
pub(super) fn asked(limits: &ResourceLimits) -> Vec<&'static str> {
    let all = [
        ("memory-max", limits.memory_max),
        ("tasks-max", limits.tasks_max),
        ("cpu-weight", limits.cpu_weight),
    ];
    all.into_iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key).collect()
}

/// The processes below `root` at the moment of the list.
fn descendants(all: &[Process], root: i32) -> Vec<Process> {
    let mut inside = HashSet::from([root]);
    loop {
        let before = inside.len();
        inside.extend(all.iter().filter(|p| inside.contains(&p.parent)).map(|p| p.pid).collect::<Vec<_>>());
        if inside.len() == before {
            break;
        }
    }
    inside.remove(&root);
    all.iter().filter(|p| inside.contains(&p.pid)).cloned().collect()
}

/// Signals each of them. One that may not be signalled keeps the others from nothing; it is told at the end.
pub(super) fn signal_all(processes: &[Process], signal: Signal) -> io::Result<()> {
    processes.iter().map(|process| signal_exactly(process, signal)).fold(Ok(()), Result::and)
}

/// Signals that process and no other that got its pid since: the pidfd is opened first, the identity checked after.
pub(super) fn signal_exactly(process: &Process, signal: Signal) -> io::Result<()> {
    // SAFETY: pidfd_open(2) and pidfd_send_signal(2) take plain numbers and, here, a null pointer; the descriptor
    // that the first returns is owned by nobody else. Neither libc nor nix wraps them.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, process.pid, 0);
        if fd < 0 {
            return gone_is_fine(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        if procfs::process(process.pid).is_none_or(|now| now.started != process.started) {
            return Ok(());
        }
        let null = std::ptr::null::<libc::siginfo_t>();
        if libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal as i32, null, 0) < 0 {
            return gone_is_fine(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn gone_is_fine(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, command: "x".into(), started: 1 }
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let all = [process(9, 8), process(8, 5), process(5, 1), process(6, 1), process(1, 0)];
        let pids: Vec<i32> = descendants(&all, 5).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [9, 8]);
    }

    #[test]
    fn a_searcher_finds_and_stops_what_carries_the_marker() {
        let marker = Marker::new(RunId::random(), "e0");
        let group = ProcessGroup::searcher(marker);
        assert!(group.empty().expect("proc"));
        let (name, value) = group.environment().expect("has a marker");
        let mut child =
            std::process::Command::new("sleep").arg("600").env(name, value).spawn().expect("sleep exists");
        // The child may not have reached its exec yet, when its environment is still ours.
        while group.members().expect("proc").is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(group.members().expect("proc")[0].pid, child.id());
        group.signal(Signal::SIGKILL).expect("may signal");
        child.wait().expect("ends");
        assert!(group.empty().expect("proc"));
    }
}
