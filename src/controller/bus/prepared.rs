//! What `ReadHost` says, held against the binding: key for key, and nothing may be missing.

use std::collections::HashMap;

use serde_json::{Map, Value};
use zbus::OwnedVariant;

use super::VERSION;
use crate::client::variant::to_object;
use crate::controller::{ControllerError, Prepared, Refusal};
use crate::model::{Binding, Phase};

/// The run as the framework has it, if it is exactly the binding's and not over.
pub(super) fn check(
    given: HashMap<String, OwnedVariant>,
    binding: &Binding,
) -> Result<Prepared, ControllerError> {
    check_object(&to_object(given), binding)
}

fn check_object(prepared: &Map<String, Value>, binding: &Binding) -> Result<Prepared, ControllerError> {
    let text = |key: &str| prepared.get(key).and_then(Value::as_str);
    if text("version") != Some(VERSION) {
        return Err(unreadable(format!("its `version` is not {VERSION:?}")));
    }
    let run_id = binding.run_id.to_string();
    for (key, ours) in [
        ("run_id", Some(run_id.as_str())),
        ("application", binding.application.as_deref()),
        ("host", binding.host.as_deref()),
        ("task_id", binding.task_id.as_deref()),
        ("lease_id", binding.lease_id.as_deref()),
        ("worker", binding.worker.as_deref()),
        ("operation", binding.operation.as_deref()),
    ] {
        // Neither value is repeated: whoever submits a foreign binding learns nothing of the right one.
        if ours.is_none() || text(key) != ours {
            return Err(ControllerError::Refused {
                why: Refusal::Mismatch,
                text: format!("binding.{key}: is not what the framework has for this run"),
            });
        }
    }
    let phase = phase(text("phase").unwrap_or_default())?;
    if !matches!(phase, Phase::Pending | Phase::Running) {
        let text = format!("binding.run_id: the framework says that the run is {phase}");
        return Err(ControllerError::Refused { why: Refusal::Terminal, text });
    }
    let cancel_requested = prepared.get("cancel-requested").and_then(Value::as_bool).unwrap_or(false);
    Ok(Prepared { phase, cancel_requested })
}

/// A phase by its word.
pub(super) fn phase(word: &str) -> Result<Phase, ControllerError> {
    serde_json::from_value(Value::from(word))
        .map_err(|_| unreadable("it gives no `phase` that this version knows".into()))
}

/// An answer that says nothing: it is neither a yes nor a no.
fn unreadable(what: String) -> ControllerError {
    ControllerError::Unavailable(format!("the framework's answer cannot be read: {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::RunId;

    fn pair() -> (Map<String, Value>, Binding) {
        let mut binding = Binding::of_run(RunId::random());
        for (part, text) in [
            (&mut binding.application, "app"),
            (&mut binding.host, "host"),
            (&mut binding.task_id, "task"),
            (&mut binding.lease_id, "lease"),
            (&mut binding.worker, "worker"),
            (&mut binding.operation, "operation"),
        ] {
            *part = Some(text.to_owned());
        }
        let mut prepared = serde_json::to_value(&binding).expect("JSON").as_object().expect("object").clone();
        prepared.insert("version".into(), VERSION.into());
        prepared.insert("phase".into(), "pending".into());
        (prepared, binding)
    }

    #[test]
    fn exactly_the_same_binding_is_let_in() {
        let (prepared, binding) = pair();
        let expected = Prepared { phase: Phase::Pending, cancel_requested: false };
        assert_eq!(check_object(&prepared, &binding).expect("the same"), expected);
        for key in prepared.keys().filter(|key| *key != "phase" && *key != "version") {
            for other in [json!("other"), json!(""), json!(1), Value::Null] {
                let mut changed = prepared.clone();
                changed.insert(key.clone(), other);
                let error = check_object(&changed, &binding).expect_err(key);
                assert!(matches!(error, ControllerError::Refused { why: Refusal::Mismatch, .. }), "{key}");
                assert!(error.to_string().contains(&format!("binding.{key}")), "{error}");
            }
        }
    }

    #[test]
    fn a_run_that_is_over_is_terminal_and_nonsense_is_no_answer() {
        let (prepared, binding) = pair();
        for (key, value, terminal) in [
            ("phase", "complete", true),
            ("phase", "failed", true),
            ("phase", "cancelled", true),
            ("phase", "dancing", false),
            ("version", "airouter.controller.v2", false),
        ] {
            let mut changed = prepared.clone();
            changed.insert(key.into(), value.into());
            match check_object(&changed, &binding).expect_err(value) {
                ControllerError::Refused { why: Refusal::Terminal, .. } if terminal => {}
                ControllerError::Unavailable(_) if !terminal => {}
                other => panic!("{value}: {other:?}"),
            }
        }
    }
}
