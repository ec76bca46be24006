use async_trait::async_trait;

use super::{Controller, ControllerError};
use crate::model::{Binding, InvalidSubmission, Outcome, Phase};

/// The spool is the authority.
#[derive(Debug, Default)]
pub struct Embedded;

#[async_trait]
impl Controller for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    /// Only a framework knows tasks and leases: a binding that names one was meant for another service.
    async fn verify(&self, binding: &Binding) -> Result<(), ControllerError> {
        for (key, value) in [
            ("binding.task_id", &binding.task_id),
            ("binding.lease_id", &binding.lease_id),
            ("binding.worker", &binding.worker),
            ("binding.operation", &binding.operation),
        ] {
            if value.is_some() {
                let problem = "no framework is configured here; the embedded controller takes only run_id";
                return Err(InvalidSubmission::new(key, problem).into());
            }
        }
        Ok(())
    }

    async fn deliver(&self, outcome: &Outcome) -> Result<Phase, ControllerError> {
        Ok(outcome.end.phase())
    }
}
