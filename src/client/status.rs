use serde_json::{Map, Value};

use crate::model::{RunId, State, Status};

use super::Error;

/// The status of a session, as the service gave it.
///
/// It is kept as the dictionary that it is, so that a client passes on what a newer service says and it does not
/// know. The accessors give the words as texts; [`SessionStatus::typed`] gives the whole as [`Status`], and fails on
/// a `state`, `phase` or `end` that this version has no word for.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStatus(Map<String, Value>);

impl SessionStatus {
    /// A status from the JSON that the interface, or `sessionctl --json`, gives.
    pub fn from_json(object: Map<String, Value>) -> Self {
        SessionStatus(object)
    }

    /// Everything, with the keys of the interface.
    pub fn json(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The text of a key; empty where it is absent.
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The number of a key.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key).and_then(Value::as_u64)
    }

    /// The session.
    ///
    /// # Errors
    /// The service gave none, or one that is no UUID.
    pub fn run_id(&self) -> Result<RunId, Error> {
        self.text("run_id").parse().map_err(Error::answer)
    }

    /// What the service is doing: a word of [`State`], or a newer one.
    pub fn state(&self) -> &str {
        self.text("state")
    }

    /// What the controller says: a word of [`Phase`](crate::model::Phase), or a newer one.
    pub fn phase(&self) -> &str {
        self.text("phase")
    }

    /// How it ended: a word of [`End`](crate::model::End), or a newer one; `None` while it has not.
    pub fn end(&self) -> Option<&str> {
        self.0.get("end").and_then(Value::as_str)
    }

    /// It ended, or its end is uncertain: nothing more happens by itself.
    pub fn is_over(&self) -> bool {
        [State::Finished, State::ReconciliationRequired].iter().any(|state| state.to_string() == self.state())
    }

    /// What happened is uncertain.
    pub fn is_uncertain(&self) -> bool {
        self.state() == State::ReconciliationRequired.to_string()
    }

    /// The questions that wait for an answer, the oldest first: the dictionaries of the interface, with the keys of
    /// [`OpenQuestion`](crate::model::OpenQuestion). The service gives the first 16.
    pub fn questions(&self) -> impl Iterator<Item = &Map<String, Value>> {
        self.0.get("questions").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
    }

    /// Its program waits for an answer.
    pub fn asks(&self) -> bool {
        self.questions().next().is_some()
    }

    /// The whole, typed.
    ///
    /// # Errors
    /// A word is not one of this version's.
    pub fn typed(&self) -> Result<Status, Error> {
        serde_json::from_value(Value::Object(self.0.clone())).map_err(Error::answer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{End, Filter};

    fn status(change: Value) -> SessionStatus {
        let mut status = json!({
            "run_id": "0192f3c4-5b6a-7c8d-9e0f-112233445566", "state": "finished", "phase": "complete",
            "end": "completed", "profile": "echo", "dialect": "jsonl", "accepted": 1, "activity-complete": true,
            "attempt": 1, "exit-code": 0, "progress": {"turns": 1, "input-tokens": 7}
        });
        status.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        SessionStatus::from_json(status.as_object().unwrap().clone())
    }

    #[test]
    fn a_known_status_is_typed() {
        let typed = status(json!({})).typed().unwrap();
        assert_eq!((typed.end, typed.progress.usage.input_tokens), (Some(End::Completed), 7));
        assert_eq!(typed.exit, Some(crate::model::Exit::Code(0)));
    }

    #[test]
    fn questions_are_given_as_they_are() {
        assert!(!status(json!({})).asks());
        let question = json!({"question": "q1", "about": "riddle", "choices": ["yes"], "asked": 5});
        let asking = status(json!({"questions": [question]}));
        assert!(asking.asks() && asking.typed().is_err(), "a word of a newer service");
        assert_eq!(asking.questions().collect::<Vec<_>>(), [question.as_object().unwrap()]);
    }

    #[test]
    fn newer_keys_and_words_do_not_break_an_older_client() {
        let newer = status(json!({"end": "evaporated", "weather": {"wind": 3}}));
        assert_eq!(newer.end(), Some("evaporated"));
        assert!(newer.is_over() && newer.typed().is_err());
        assert_eq!(newer.json()["weather"]["wind"], 3);
        assert!(status(json!({"weather": "fair"})).typed().is_ok());
    }

    #[test]
    fn a_filter_holds_only_what_was_asked() {
        assert!(json!(Filter::default()).as_object().is_some_and(Map::is_empty));
        let filter = Filter {
            state: Some(State::ReconciliationRequired),
            limit: Some(5),
            label: Some("night".into()),
            ..Filter::default()
        };
        assert_eq!(json!(filter), json!({"state": "reconciliation-required", "limit": 5, "label": "night"}));
    }
}
