//! Scopes of the user manager (systemd.scope(5), org.freedesktop.systemd1(5)).
//!
//! The manager is reached through its private socket, so that no message bus is needed. One short connection for each
//! scope: the manager may be started again in between, and an idle connection would cost it something.

use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::geteuid;
use zbus::{OwnedObjectPath, Variant};

use super::STOP_SIGNAL;
use super::direct::{Direct, DirectError};
use crate::model::ResourceLimits;

/// Where the manager is, and what is asked of it.
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// How long the manager may take for a scope, in which nothing has to be started.
const PATIENCE: Duration = Duration::from_secs(3);
/// What the manager answers where a unit of that name is there already.
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// What a scope's own limits leave to the executor on top of the program's, in bytes and in threads.
const EXECUTOR_MEMORY: u64 = 64 << 20;
const EXECUTOR_TASKS: u64 = 64;

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScopeError {
    /// It was too slow.
    #[error("the user manager did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    /// It refused, or the connection failed.
    #[error("the user manager: {0}")]
    Manager(#[from] DirectError),
    /// The job came to nothing.
    #[error("the user manager could not start {name}: {result}")]
    Failed { name: String, result: String },
}

/// A scope to be.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    /// Its unit name.
    pub name: &'a str,
    /// For `systemctl --user status`.
    pub description: &'a str,
    /// The process to place in it.
    pub pid: u32,
    /// Its limits, without what the executor needs.
    pub limits: &'a ResourceLimits,
    /// How long its processes may take to end when it is stopped.
    pub stop_patience: Duration,
}

/// This account's user manager.
#[derive(Debug)]
pub(super) struct UserManager {
    socket: PathBuf,
}

impl UserManager {
    /// Where it listens: in the account's runtime directory, also where no variable names that.
    pub(super) fn find() -> UserManager {
        let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let standard = PathBuf::from(format!("/run/user/{}", geteuid()));
        let below = |directory: PathBuf| directory.join("systemd/private");
        let socket = named.map(below).filter(|socket| socket.exists()).unwrap_or_else(|| below(standard));
        UserManager { socket }
    }

    /// Makes a scope of a process, and waits until it is there. A scope of that name that is there still
    /// is stopped first.
    pub(super) async fn start_scope(&self, scope: &Scope<'_>) -> Result<(), ScopeError> {
        tokio::time::timeout(PATIENCE, async {
            let mut manager = Direct::connect(&self.socket).await?;
            let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
            let body = (scope.name, "fail", properties(scope), auxiliary);
            loop {
                let called = manager.call(MANAGER_PATH, MANAGER, "StartTransientUnit", &body).await;
                match called {
                    Err(DirectError::Refused { name, .. }) if name == UNIT_EXISTS => {
                        // Of an executor that is gone, or there would be no new one: nothing in it is left to lose.
                        let stop = (scope.name, "replace");
                        let stopped: Result<(OwnedObjectPath,), _> =
                            manager.call(MANAGER_PATH, MANAGER, "StopUnit", &stop).await;
                        // Refused: it was removed meanwhile.
                        if stopped.is_ok() {
                            removed(&mut manager, scope.name).await?;
                        }
                    }
                    Err(error) => return Err(error.into()),
                    Ok((job,)) => return finished(&mut manager, &job, scope.name).await,
                }
            }
        })
        .await
        .unwrap_or(Err(ScopeError::Silent))
    }
}

/// The scope's properties. Delegated, so that the executor may divide it, and so that one process killed for lack of
/// memory does not make the manager stop the rest. Its limits stand a little above those that the executor writes for
/// the program: they are there to be seen, and to make the manager provide the controllers.
fn properties(scope: &Scope<'_>) -> Vec<(&'static str, Variant<'static>)> {
    let micros = u64::try_from(scope.stop_patience.as_micros()).unwrap_or(u64::MAX);
    let mut properties = vec![
        ("Description", Variant::new(scope.description.to_owned())),
        ("Slice", Variant::new("app.slice".to_owned())),
        ("PIDs", Variant::new(vec![scope.pid])),
        ("Delegate", Variant::new(true)),
        ("CollectMode", Variant::new("inactive-or-failed".to_owned())),
        ("KillSignal", Variant::new(STOP_SIGNAL as i32)),
        ("TimeoutStopUSec", Variant::new(micros)),
    ];
    let limits = scope.limits;
    if let Some(memory) = limits.memory_max {
        properties.push(("MemoryMax", Variant::new(memory.saturating_add(EXECUTOR_MEMORY))));
    }
    if let Some(tasks) = limits.tasks_max {
        properties.push(("TasksMax", Variant::new(tasks.saturating_add(EXECUTOR_TASKS))));
    }
    if let Some(weight) = limits.cpu_weight {
        properties.push(("CPUWeight", Variant::new(weight)));
    }
    properties
}

/// Waits for the job's end.
async fn finished(manager: &mut Direct, job: &OwnedObjectPath, name: &str) -> Result<(), ScopeError> {
    loop {
        let (_, removed, _, result): (u32, OwnedObjectPath, String, String) =
            manager.signal("JobRemoved").await?;
        if &removed == job {
            return match result.as_str() {
                "done" => Ok(()),
                _ => Err(ScopeError::Failed { name: name.to_owned(), result }),
            };
        }
    }
}

/// Waits until that unit is forgotten.
async fn removed(manager: &mut Direct, name: &str) -> Result<(), ScopeError> {
    loop {
        let (removed, _): (String, OwnedObjectPath) = manager.signal("UnitRemoved").await?;
        if removed == name {
            return Ok(());
        }
    }
}
