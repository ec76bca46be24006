//! Who owns runs and leases.
//!
//! [`Embedded`] is the default: the spool itself is the authority, a submission needs only a `run_id`, and the lease is
//! local and never lost. A framework that owns the canonical runs takes its place behind the same trait: [`Framework`]
//! asks one over D-Bus (`interfaces/org.airouter.Controller1.xml`, docs/controller.md).
//!
//! Every call may be repeated, and is: after a lost reply, a restart of either side, a renewal that came too late.
//! An answer is a fact only if the controller gave it. That it could not be asked is never read as a refusal.

mod bus;
mod embedded;

pub use bus::{Framework, Probe};
pub use embedded::Embedded;

use async_trait::async_trait;

use crate::model::{Binding, InvalidSubmission, Outcome, Phase};

/// Why a controller does not let a session run under its binding, or takes nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The binding is not the one that the controller has.
    Mismatch,
    /// It knows no such run.
    UnknownRun,
    /// Somebody else holds the lease.
    ForeignLease,
    /// The lease has run out, or was taken back.
    LeaseLost,
    /// The run is over.
    Terminal,
}

/// What a controller may answer instead.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The binding lacks what this controller needs, or has what it has no use for.
    #[error(transparent)]
    Binding(#[from] InvalidSubmission),
    /// The controller says no. Asking again changes nothing.
    #[error("{text}")]
    Refused {
        /// Why.
        why: Refusal,
        /// The same for people.
        text: String,
    },
    /// It cannot be asked now; the text says why. Nothing is known of its answer.
    #[error("{0}")]
    Unavailable(String),
}

/// What the controller says of a run whose binding is exactly the one that was asked about, and whose lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// The run's phase: `pending` or `running`.
    pub phase: Phase,
    /// Somebody asked the controller to cancel the run.
    pub cancel_requested: bool,
}

/// The lease holds for its whole time again, from the moment at which it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// Somebody asked the controller to cancel the run.
    pub cancel_requested: bool,
}

/// What is known of a controller without asking it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// `embedded`, or the framework's name on its bus.
    pub name: String,
    /// Why the last call had no answer; `None` after an answer, and before the first call.
    pub problem: Option<String>,
}

/// Owner of runs and leases. Every call ends within a bounded time.
#[async_trait]
pub trait Controller: Send + Sync {
    /// Its name, for evidence.
    fn name(&self) -> &'static str;

    /// Who it is for people, and whether it answered the last call. Asks nobody.
    fn contact(&self) -> Contact {
        Contact { name: self.name().to_owned(), problem: None }
    }

    /// How long a lease holds, in seconds, where the controller itself says so.
    fn lease_seconds(&self) -> Option<u64>;

    /// Verifies that the session may run under exactly this binding now: before anything of it is saved, and again before
    /// anything is started.
    async fn verify(&self, binding: &Binding) -> Result<Prepared, ControllerError>;

    /// Makes the lease hold for `seconds` again.
    async fn renew(&self, binding: &Binding, seconds: u64) -> Result<Renewed, ControllerError>;

    /// Says that cancellation was asked for here. The stop happens whatever comes of this.
    async fn cancel(&self, binding: &Binding) -> Result<Phase, ControllerError>;

    /// Takes the outcome and says what the run's phase is now. Idempotent by run and operation.
    async fn deliver(&self, binding: &Binding, outcome: &Outcome) -> Result<Phase, ControllerError>;
}
