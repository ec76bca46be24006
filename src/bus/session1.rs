//! The interface `org.airouter.Session1`: one session as an object.
//!
//! Its properties are what was last told of the session, kept beside it: a getter never waits for the service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zbus::message::Header;
use zbus::wire::Variant;

use super::BusError;
use super::given::GivenDict;
use super::sessions1::Context;
use super::variant::{Vardict, vardict};
use crate::model::{Message, MessageMode, RunId, Status};

/// The interface's name.
pub const SESSION_INTERFACE: &str = "org.airouter.Session1";

/// What all connections show of one session.
#[derive(Debug)]
pub struct Shown {
    run_id: RunId,
    status: Mutex<Status>,
}

impl Shown {
    /// Shows `status`.
    pub fn new(status: Status) -> Arc<Self> {
        Arc::new(Shown { run_id: status.run_id, status: Mutex::new(status) })
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All properties.
    pub fn properties(&self) -> HashMap<&'static str, Variant<'static>> {
        let status = self.status();
        let end = status.end.map(|end| end.to_string()).unwrap_or_default();
        HashMap::from([
            ("RunId", Variant::from(self.run_id.to_string())),
            ("State", Variant::from(status.state.to_string())),
            ("Phase", Variant::from(status.phase.to_string())),
            ("End", Variant::from(end)),
            ("Profile", Variant::from(status.profile.clone())),
            ("Label", Variant::from(status.label.clone().unwrap_or_default())),
            // A progress is a dictionary of numbers and a name: it can be written.
            ("Progress", Variant::from(vardict(&status.progress).unwrap_or_default())),
            ("Questions", Variant::from(questions(&status))),
        ])
    }

    /// Shows `status` from now on, and gives the properties that differ.
    pub fn update(&self, status: Status) -> HashMap<&'static str, Variant<'static>> {
        let before = self.properties();
        *self.status() = status;
        let mut changed = self.properties();
        changed.retain(|name, value| before.get(name) != Some(value));
        changed
    }
}

/// The questions that wait for an answer, as dictionaries: they can be written.
fn questions(status: &Status) -> Vec<Vardict> {
    status.questions.iter().map(|question| vardict(question).unwrap_or_default()).collect()
}

/// A session's object on one connection.
pub struct Session1 {
    pub(super) shown: Arc<Shown>,
    pub(super) context: Arc<Context>,
}

#[zbus::interface(name = "org.airouter.Session1", introspection_docs = false)]
impl Session1 {
    #[zbus(out_args("stream"))]
    async fn follow(
        &self,
        cursor: &str,
        options: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<zbus::OwnedFd, BusError> {
        self.context.follow(self.shown.run_id, cursor, options, &header).await
    }

    #[zbus(out_args("status"))]
    async fn cancel(&self, #[zbus(header)] header: Header<'_>) -> Result<Vardict, BusError> {
        self.context.cancel(self.shown.run_id, &header).await
    }

    #[zbus(out_args("message"))]
    async fn steer(
        &self,
        request_id: String,
        text: String,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        let message = Message { request_id, mode: MessageMode::Steer, text };
        self.context.send(self.shown.run_id, message, &header).await
    }

    #[zbus(out_args("message"))]
    async fn follow_up(
        &self,
        request_id: String,
        text: String,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        let message = Message { request_id, mode: MessageMode::FollowUp, text };
        self.context.send(self.shown.run_id, message, &header).await
    }

    async fn answer(
        &self,
        question: &str,
        answer: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), BusError> {
        self.context.answer(self.shown.run_id, question, answer, &header).await
    }

    #[zbus(out_args("status"))]
    async fn acknowledge(
        &self,
        cursor: &str,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        self.context.acknowledge(self.shown.run_id, cursor, &header).await
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn run_id(&self) -> String {
        self.shown.run_id.to_string()
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.shown.status().state.to_string()
    }

    #[zbus(property)]
    fn phase(&self) -> String {
        self.shown.status().phase.to_string()
    }

    #[zbus(property)]
    fn end(&self) -> String {
        self.shown.status().end.map(|end| end.to_string()).unwrap_or_default()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn profile(&self) -> String {
        self.shown.status().profile.clone()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn label(&self) -> String {
        self.shown.status().label.clone().unwrap_or_default()
    }

    #[zbus(property)]
    fn progress(&self) -> zbus::fdo::Result<Vardict> {
        vardict(&self.shown.status().progress).map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
    }

    #[zbus(property)]
    fn questions(&self) -> Vec<Vardict> {
        questions(&self.shown.status())
    }
}
