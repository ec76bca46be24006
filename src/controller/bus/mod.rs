//! A framework that is asked over D-Bus.
//!
//! - `link`: the connection, who answers there, and the token; it comes back by itself;
//! - `refusal`: the framework's errors;
//! - `prepared`: what `ReadHost` says, held against the binding.
//!
//! A session that was let in while the spool was the authority stays the spool's: the framework is not asked about it.

mod link;
mod prepared;
mod refusal;

use std::collections::HashMap;

use async_trait::async_trait;
use serde_json::{Map, Value};
use zbus::OwnedVariant;

use super::embedded::mismatch;
use super::{Contact, Controller, ControllerError, Embedded, Prepared, Renewed};
use crate::client::variant::to_dictionary;
use crate::config::ControllerConfig;
use crate::model::{Binding, InvalidSubmission, Outcome, Phase, RunId};
use link::Link;

/// The interface that a framework implements.
pub const INTERFACE: &str = "org.airouter.Controller1";
/// The version of `prepared` and of the outcome's dictionary.
pub const VERSION: &str = "airouter.controller.v1";

/// The longest part of a binding, in bytes.
const MAX_PART: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Framework {
    link: Link,
    application: String,
    host: String,
    lease_seconds: u64,
    embedded: Embedded,
}

/// What a look at a framework found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// It answers, and takes the token where one is configured.
    Answers,
    /// It does not run; its bus starts it with the first call.
    Startable,
}

/// The parts of a binding that a framework needs, all there.
struct Bound<'a> {
    task_id: &'a str,
    lease_id: &'a str,
    worker: &'a str,
    operation: &'a str,
}

impl Framework {
    /// The framework of this configuration, for bindings of `application` and `host`. `address` is its bus; `uid` owns
    /// this service, and must own the bus and the framework, unless root does. Nothing is connected yet.
    pub fn new(
        config: &ControllerConfig,
        address: String,
        application: &str,
        host: &str,
        uid: u32,
    ) -> Framework {
        Framework {
            link: Link::new(config, address, application, uid),
            application: application.to_owned(),
            host: host.to_owned(),
            lease_seconds: config.lease_seconds,
            embedded: Embedded::new(application, host),
        }
    }

    /// Asks for a run that nobody has, which changes nothing: bus, name, object, interface and token are right if that is
    /// answered. Starts nothing.
    ///
    /// # Errors
    /// What keeps it from answering; `Unavailable` in all cases.
    pub async fn probe(&self) -> Result<Probe, ControllerError> {
        if !self.link.is_served().await? {
            return Ok(Probe::Startable);
        }
        let body = (RunId::random().to_string(),);
        match self.link.call::<_, HashMap<String, OwnedVariant>>("ReadHost", &body).await {
            Err(error @ ControllerError::Unavailable(_)) => Err(error),
            Err(_) => Ok(Probe::Answers),
            Ok(_) => Err(ControllerError::Unavailable(
                "it does not do what the interface asks for: ReadHost knows a run that does not exist".into(),
            )),
        }
    }

    /// A binding is for this service alone. Only for what is let in: what was let in before stays what it was.
    fn is_ours(&self, binding: &Binding) -> Result<(), ControllerError> {
        for (key, given, ours) in
            [("application", &binding.application, &self.application), ("host", &binding.host, &self.host)]
        {
            if part(key, given)? != ours {
                return Err(mismatch(key, ours));
            }
        }
        Ok(())
    }
}

impl<'a> Bound<'a> {
    fn of(binding: &'a Binding) -> Result<Bound<'a>, ControllerError> {
        Ok(Bound {
            task_id: part("task_id", &binding.task_id)?,
            lease_id: part("lease_id", &binding.lease_id)?,
            worker: part("worker", &binding.worker)?,
            operation: part("operation", &binding.operation)?,
        })
    }
}

fn part<'a>(key: &str, value: &'a Option<String>) -> Result<&'a str, ControllerError> {
    let key = format!("binding.{key}");
    match value.as_deref() {
        None | Some("") => {
            Err(InvalidSubmission::new(key, "is missing; the framework that is configured here needs it")
                .into())
        }
        Some(text) if text.len() > MAX_PART => {
            Err(InvalidSubmission::new(key, format!("is longer than {MAX_PART} bytes")).into())
        }
        Some(text) if text.contains('\0') => Err(InvalidSubmission::new(key, "holds a NUL byte").into()),
        Some(text) => Ok(text),
    }
}

#[async_trait]
impl Controller for Framework {
    fn name(&self) -> &'static str {
        "framework"
    }

    fn contact(&self) -> Contact {
        self.link.contact()
    }

    fn lease_seconds(&self) -> Option<u64> {
        Some(self.lease_seconds)
    }

    async fn verify(&self, binding: &Binding) -> Result<Prepared, ControllerError> {
        Bound::of(binding)?;
        self.is_ours(binding)?;
        let run_id = binding.run_id.to_string();
        let prepared: HashMap<String, OwnedVariant> = self.link.call("ReadHost", &(run_id,)).await?;
        prepared::check(prepared, binding)
    }

    async fn renew(&self, binding: &Binding, seconds: u64) -> Result<Renewed, ControllerError> {
        if !binding.names_framework() {
            return self.embedded.renew(binding, seconds).await;
        }
        let bound = Bound::of(binding)?;
        // No lease is longer than the configuration allows, which is far below u32::MAX.
        let wanted = u32::try_from(seconds).unwrap_or(u32::MAX);
        let body = (bound.task_id, bound.lease_id, bound.worker, wanted);
        let (expires, cancel_requested): (u64, bool) = self.link.call("RenewLease", &body).await?;
        tracing::debug!(run_id = %binding.run_id, expires, cancel_requested, "the lease was renewed");
        Ok(Renewed { cancel_requested })
    }

    async fn cancel(&self, binding: &Binding) -> Result<Phase, ControllerError> {
        if !binding.names_framework() {
            return self.embedded.cancel(binding).await;
        }
        let bound = Bound::of(binding)?;
        let body = (binding.run_id.to_string(), bound.lease_id);
        let phase: String = self.link.call("CancelRun", &body).await?;
        prepared::phase(&phase)
    }

    async fn deliver(&self, binding: &Binding, outcome: &Outcome) -> Result<Phase, ControllerError> {
        if !binding.names_framework() {
            return self.embedded.deliver(binding, outcome).await;
        }
        let bound = Bound::of(binding)?;
        let body = (binding.run_id.to_string(), bound.operation, to_dictionary(&dictionary(outcome)));
        let phase: String = self.link.call("DeliverOutcome", &body).await?;
        prepared::phase(&phase)
    }
}

/// The outcome with the keys of its JSON.
fn dictionary(outcome: &Outcome) -> Map<String, Value> {
    // Serializing an outcome into memory cannot fail: its keys are texts.
    let Ok(Value::Object(mut object)) = serde_json::to_value(outcome) else { return Map::new() };
    object.insert("version".into(), VERSION.into());
    // Any JSON at all, with nulls and depths that D-Bus does not have: it travels as a text.
    if let Some(value) = object.get_mut("value") {
        *value = Value::from(value.to_string());
    }
    if object.values_mut().map(replace_nul).sum::<usize>() > 0 {
        object.insert("text-replaced".into(), true.into());
    }
    object
}

/// D-Bus carries no NUL in a text: each text with one gets U+FFFD in its place. How many there were. The exact bytes are in
/// the journal.
fn replace_nul(value: &mut Value) -> usize {
    match value {
        Value::String(text) if text.contains('\0') => {
            *text = text.replace('\0', "\u{fffd}");
            1
        }
        Value::Array(items) => items.iter_mut().map(replace_nul).sum(),
        Value::Object(object) => {
            let named: Vec<String> = object.keys().filter(|key| key.contains('\0')).cloned().collect();
            for key in &named {
                if let Some(value) = object.remove(key) {
                    object.insert(key.replace('\0', "\u{fffd}"), value);
                }
            }
            named.len() + object.values_mut().map(replace_nul).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{End, Exit, RunId};

    #[test]
    fn no_text_keeps_a_nul() {
        let mut value = json!({"a\0": ["b\0", {"c": "d"}], "e": 1});
        assert_eq!(replace_nul(&mut value), 2);
        assert_eq!(value, json!({"a\u{fffd}": ["b\u{fffd}", {"c": "d"}], "e": 1}));
        assert_eq!(replace_nul(&mut value), 0);
    }

    #[test]
    fn an_outcome_travels_with_its_own_keys() {
        let mut outcome = Outcome::of_nothing(RunId::random(), 1, "epoch".into(), End::Completed, 7);
        outcome.exit = Some(Exit::Code(0));
        outcome.text = Some("a\0b".into());
        outcome.value = json!([null, [1, null]]);
        let object = dictionary(&outcome);
        for (key, value) in [
            ("version", json!(VERSION)),
            ("run_id", json!(outcome.run_id)),
            ("end", json!("completed")),
            ("exit-code", json!(0)),
            ("text", json!("a\u{fffd}b")),
            ("text-replaced", json!(true)),
            ("value", json!("[null,[1,null]]")),
            ("ended", json!(7)),
        ] {
            assert_eq!(object.get(key), Some(&value), "{key}");
        }
    }

    #[test]
    fn a_part_that_is_missing_is_named() {
        for (value, wrong) in [(None, true), (Some(String::new()), true), (Some("x".into()), false)] {
            assert_eq!(part("task_id", &value).is_err(), wrong);
        }
        let error = part("worker", &Some("x".repeat(257))).expect_err("too long");
        assert!(error.to_string().starts_with("binding.worker: "), "{error}");
    }
}
