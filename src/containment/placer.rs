//! Choosing a backend, and placing executors with it: the daemon's part.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::cgroup::PAYLOAD;
use super::delegated::{Delegated, PREFIX};
use super::group::Group;
use super::systemd::{Scope, UserManager};
use super::{Backend, Placement};
use crate::model::{ResourceLimits, RunId};

/// How the scopes of sessions are named: this, the run id, `.scope`.
const SCOPE_PREFIX: &str = "airouter-exec-";

/// What is asked for with a placement.
#[derive(Debug)]
pub struct Order<'a> {
    /// The session.
    pub run_id: RunId,
    /// Its executor, which waits for "go" and is not reaped yet.
    pub pid: u32,
    /// What its processes may take.
    pub limits: &'a ResourceLimits,
    /// How long the executor may take to end the session when somebody stops its scope.
    pub stop_patience: Duration,
}

/// The backend that was asked for cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("containment = {:?} cannot be had: {why}; use \"auto\", or put that right", .backend.name())]
pub struct Unavailable {
    backend: Backend,
    why: String,
}

/// See the module.
#[derive(Debug)]
pub struct Placer {
    manager: Option<UserManager>,
    delegated: Option<Delegated>,
    missing: Vec<(Backend, String)>,
}

impl Placer {
    /// Finds out what this machine offers, by placing a short-lived process of ours with each; with `forced`, with that
    /// one alone.
    ///
    /// # Errors
    /// The forced one cannot be had.
    pub async fn choose(forced: Option<Backend>) -> Result<Placer, Unavailable> {
        let mut placer = Placer { manager: None, delegated: None, missing: Vec::new() };
        for backend in Backend::ALL {
            if forced.is_some_and(|forced| forced != backend) {
                continue;
            }
            let found = match backend {
                Backend::SystemdScope => probe_scope().await.map(|manager| placer.manager = Some(manager)),
                Backend::Cgroup => probe_cgroup().await.map(|delegated| placer.delegated = Some(delegated)),
                Backend::ProcessGroup => Ok(()),
            };
            match found {
                Err(why) if forced.is_some() => return Err(Unavailable { backend, why }),
                Err(why) => placer.missing.push((backend, why)),
                Ok(()) => break,
            }
        }
        Ok(placer)
    }

    /// Makes ready what was chosen, for the daemon: it may move the calling process into a cgroup of its own.
    pub fn prepare(&self) {
        if let Some(delegated) = &self.delegated {
            delegated.prepare();
        }
    }

    /// The best that can be had.
    pub fn backend(&self) -> Backend {
        match (&self.manager, &self.delegated) {
            (Some(_), _) => Backend::SystemdScope,
            (None, Some(_)) => Backend::Cgroup,
            (None, None) => Backend::ProcessGroup,
        }
    }

    /// The better ones that cannot be had, and why, for people.
    pub fn missing(&self) -> &[(Backend, String)] {
        &self.missing
    }

    /// Places an executor, with the best that works now.
    pub async fn place(&self, order: &Order<'_>) -> Placement {
        let failed = match self.backend() {
            Backend::SystemdScope => match self.in_scope(order).await {
                Ok(placement) => return placement,
                Err(why) => why,
            },
            Backend::Cgroup => match self.in_cgroup(order) {
                Ok(placement) => return placement,
                Err(why) => why,
            },
            Backend::ProcessGroup => return Placement::default(),
        };
        let why = format!("{} failed for this session: {failed}", self.backend().name());
        tracing::warn!(run_id = %order.run_id, %why, "falling back");
        // Looked for now: a daemon that has scopes has no use for a cgroup of its own otherwise.
        if self.backend() == Backend::SystemdScope
            && let Ok(delegated) = probe_cgroup().await
            && let Ok(group) = delegated.place(order.run_id, order.pid)
        {
            let cgroup = Some(group.path().to_owned());
            return Placement { backend: Backend::Cgroup, cgroup, fell_back: Some(why) };
        }
        Placement { backend: Backend::ProcessGroup, cgroup: None, fell_back: Some(why) }
    }

    async fn in_scope(&self, order: &Order<'_>) -> Result<Placement, String> {
        let Some(manager) = &self.manager else { return Err("no user manager".to_owned()) };
        let name = format!("{SCOPE_PREFIX}{}.scope", order.run_id);
        let scope = Scope {
            name: &name,
            description: &format!("airouter session {}", order.run_id),
            pid: order.pid,
            limits: order.limits,
            stop_patience: order.stop_patience,
        };
        manager.start_scope(&scope).await.map_err(|error| error.to_string())?;
        let group = placed(order.pid, &name).map_err(|error| error.to_string())?;
        Ok(Placement {
            backend: Backend::SystemdScope,
            cgroup: Some(group.path().to_owned()),
            fell_back: None,
        })
    }

    fn in_cgroup(&self, order: &Order<'_>) -> Result<Placement, String> {
        let Some(delegated) = &self.delegated else { return Err("no cgroup of our own".to_owned()) };
        let group = delegated.place(order.run_id, order.pid).map_err(|error| error.to_string())?;
        Ok(Placement { backend: Backend::Cgroup, cgroup: Some(group.path().to_owned()), fell_back: None })
    }
}

/// Whether a cgroup's name is one that a session of that id gets.
pub(super) fn names_session(name: &str, run_id: RunId) -> bool {
    name == format!("{PREFIX}{run_id}") || name == format!("{SCOPE_PREFIX}{run_id}.scope")
}

/// The cgroup of a process that has just been placed in one of that name.
fn placed(pid: u32, name: &str) -> io::Result<Group> {
    let group = Group::of(Some(pid))?;
    match group.name() == name {
        true => Ok(group),
        false => {
            Err(io::Error::other(format!("the process is in {}, not in {name}", group.path().display())))
        }
    }
}

/// A process of ours that waits until it is dropped.
fn bystander() -> io::Result<(Child, u32)> {
    let child = Command::new("/bin/sh")
        .args(["-c", "read -r _"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
    Ok((child, pid))
}

async fn probe_scope() -> Result<UserManager, String> {
    let manager = UserManager::find();
    let (mut child, pid) = bystander().map_err(|error| format!("cannot start a process: {error}"))?;
    let name = format!("airouter-probe-{pid}.scope");
    let scope = Scope {
        name: &name,
        description: "airouter-sessiond looks whether scopes work",
        pid,
        limits: &ResourceLimits::default(),
        stop_patience: Duration::from_secs(1),
    };
    let works = match manager.start_scope(&scope).await {
        Ok(()) => {
            placed(pid, &name).and_then(|group| group.make(PAYLOAD)?.add(pid)).map_err(|e| e.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    let _ = child.kill().await;
    works.map(|()| manager)
}

async fn probe_cgroup() -> Result<Delegated, String> {
    let delegated = Delegated::find().map_err(|error| error.to_string())?;
    let (mut child, pid) = bystander().map_err(|error| format!("cannot start a process: {error}"))?;
    let works = delegated.probe(pid).map_err(|error| error.to_string());
    let _ = child.kill().await;
    works.map(|()| delegated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_a_sessions_by_its_whole_name() {
        let run_id = RunId::random();
        assert!(names_session(&format!("exec-{run_id}"), run_id));
        assert!(names_session(&format!("airouter-exec-{run_id}.scope"), run_id));
        assert!(!names_session(&format!("exec-{run_id}"), RunId::random()));
        assert!(!names_session(&format!("exec-{run_id}x"), run_id));
        assert!(!names_session("", run_id));
    }

    #[tokio::test]
    async fn a_backend_that_is_forced_and_always_there_is_had() {
        let placer = Placer::choose(Some(Backend::ProcessGroup)).await.expect("needs nothing");
        assert_eq!(placer.backend(), Backend::ProcessGroup);
        let order = Order {
            run_id: RunId::random(),
            pid: 1,
            limits: &ResourceLimits::default(),
            stop_patience: Duration::ZERO,
        };
        assert_eq!(placer.place(&order).await, Placement::default());
    }
}
