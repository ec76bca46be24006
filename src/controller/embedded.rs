use async_trait::async_trait;

use super::{Controller, ControllerError, Prepared, Refusal, Renewed};
use crate::model::{Binding, InvalidSubmission, Outcome, Phase};

/// The spool is the authority.
#[derive(Debug, Default)]
pub struct Embedded {
    application: String,
    host: String,
}

impl Embedded {
    /// One whose bindings must name `application` unless that is empty, and `host` where they name a host.
    pub fn new(application: impl Into<String>, host: impl Into<String>) -> Embedded {
        Embedded { application: application.into(), host: host.into() }
    }
}

/// A session that a framework let in is that framework's, also while none is configured.
fn framework_is_missing(binding: &Binding) -> Result<(), ControllerError> {
    match binding.names_framework() {
        true => Err(ControllerError::Unavailable(
            "a framework let the session in, and none is configured now; set [controller] again".into(),
        )),
        false => Ok(()),
    }
}

#[async_trait]
impl Controller for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn lease_seconds(&self) -> Option<u64> {
        None
    }

    /// Only a framework knows tasks and leases: a binding that names one was meant for another service.
    async fn verify(&self, binding: &Binding) -> Result<Prepared, ControllerError> {
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
        let application = binding.application.as_deref().unwrap_or_default();
        if !self.application.is_empty() && application != self.application {
            return Err(mismatch("application", &self.application));
        }
        if !self.host.is_empty() && binding.host.as_ref().is_some_and(|host| *host != self.host) {
            return Err(mismatch("host", &self.host));
        }
        Ok(Prepared { phase: Phase::Pending, cancel_requested: false })
    }

    async fn renew(&self, binding: &Binding, _seconds: u64) -> Result<Renewed, ControllerError> {
        framework_is_missing(binding)?;
        Ok(Renewed { cancel_requested: false })
    }

    async fn cancel(&self, binding: &Binding) -> Result<Phase, ControllerError> {
        framework_is_missing(binding)?;
        Ok(Phase::Running)
    }

    async fn deliver(&self, binding: &Binding, outcome: &Outcome) -> Result<Phase, ControllerError> {
        framework_is_missing(binding)?;
        Ok(outcome.end.phase())
    }
}

/// A binding that names another service than this one.
pub(super) fn mismatch(key: &str, ours: &str) -> ControllerError {
    ControllerError::Refused {
        why: Refusal::Mismatch,
        text: format!("binding.{key}: this service is for {ours:?} alone; submit to the one that it names"),
    }
}
