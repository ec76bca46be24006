//! What goes wrong on purpose: `METHOD:N:WHAT`, for the Nth call of a method in this process, or each (`*`).
//!
//! | WHAT | then |
//! |---|---|
//! | `exit-before` | the process dies before anything is done |
//! | `exit-after` | it dies when everything is done and stored, and nothing is answered |
//! | `late=MS` | it answers that much later |
//! | `refuse=NAME` | it answers with `org.airouter.Controller1.Error.NAME`, and does nothing |
//! | `fail` | it answers with an error that is none of the contract's |

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::store::Denied;

/// One thing that goes wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    method: String,
    /// `None`: each call.
    call: Option<u32>,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    ExitBefore,
    ExitAfter,
    Late(Duration),
    Refuse(Denied),
    Fail,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let mut parts = text.splitn(3, ':');
        let (Some(method), Some(call), Some(what)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("a fault is METHOD:N:WHAT".into());
        };
        let call = match call {
            "*" => None,
            number => Some(number.parse().map_err(|_| "N is a number, or `*`".to_owned())?),
        };
        let what = match what.split_once('=') {
            None if what == "exit-before" => What::ExitBefore,
            None if what == "exit-after" => What::ExitAfter,
            None if what == "fail" => What::Fail,
            Some(("late", ms)) => {
                What::Late(Duration::from_millis(ms.parse().map_err(|_| "MS is a number".to_owned())?))
            }
            Some(("refuse", name)) => What::Refuse(Denied::named(name).ok_or("no error of that name")?),
            _ => return Err("unknown WHAT".into()),
        };
        Ok(Fault { method: method.to_owned(), call, what })
    }
}

/// The faults of a process, and how often each method was called.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    faults: Arc<Vec<Fault>>,
    calls: Arc<Mutex<HashMap<&'static str, u32>>>,
}

/// What is to go wrong when a call has done its work.
#[derive(Debug, Default)]
pub struct After {
    exit: bool,
    late: Duration,
}

impl Faults {
    pub fn new(faults: Vec<Fault>) -> Faults {
        Faults { faults: Arc::new(faults), calls: Arc::default() }
    }

    /// A call begins.
    pub fn before(&self, method: &'static str) -> Result<After, Denied> {
        let call = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let call = calls.entry(method).or_default();
            *call += 1;
            *call
        };
        let mut after = After::default();
        let due = |fault: &&Fault| fault.method == method && fault.call.is_none_or(|wanted| wanted == call);
        for fault in self.faults.iter().filter(due) {
            match &fault.what {
                What::ExitBefore => die(),
                What::ExitAfter => after.exit = true,
                What::Late(pause) => after.late = *pause,
                What::Refuse(denied) => return Err(denied.clone()),
                What::Fail => return Err(Denied::Failed("it was told to fail".into())),
            }
        }
        Ok(after)
    }
}

impl After {
    /// Its work is done and stored; the answer comes next.
    pub async fn pass(self) {
        if self.exit {
            die();
        }
        if !self.late.is_zero() {
            tokio::time::sleep(self.late).await;
        }
    }
}

/// As at a power loss of this process.
fn die() -> ! {
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    std::process::abort()
}
