//! Who owns runs and leases.
//!
//! *Embedded* is the default: the spool itself is the authority, a submission needs only a `run_id`, and the lease is
//! local and never lost. A framework that owns the canonical runs takes its place behind the same trait.

mod embedded;

pub use embedded::Embedded;

use async_trait::async_trait;

use crate::model::{Binding, InvalidSubmission, Outcome, Phase};

/// What a controller may answer instead.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The binding names what this controller does not know or does not want.
    #[error(transparent)]
    Binding(#[from] InvalidSubmission),
}

/// Owner of runs and leases.
#[async_trait]
pub trait Controller: Send + Sync {
    /// Its name, for evidence.
    fn name(&self) -> &'static str;

    /// Verifies a binding before anything of the session is saved.
    async fn verify(&self, binding: &Binding) -> Result<(), ControllerError>;

    /// Takes the outcome and says what the run's phase is now. Idempotent.
    async fn deliver(&self, outcome: &Outcome) -> Result<Phase, ControllerError>;
}
