//! The interface `org.airouter.Sessions1`: the service as one object.
//!
//! `interfaces/org.airouter.Sessions1.xml` is the contract and says what each call, signal and key means. Methods
//! take `&self` and getters await nothing: zbus holds the object's lock while they run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::wire::{ObjectPath, OwnedObjectPath};

use super::engine::Engine;
use super::given::GivenDict;
use super::hub::Hub;
use super::objects::Objects;
use super::peer::Link;
use super::subscription::{Source, Subscription};
use super::variant::{Budget, Vardict, append, append_text, vardict};
use super::{BusError, request, session_path};
use crate::model::{Entry, Message, MessageMode, RunId};
use crate::service::ProfileFacts;

/// The version of the interface: changes only add to it.
pub const INTERFACE_VERSION: u32 = 1;

/// What this version can do besides submitting, reading and cancelling.
const FEATURES: [&str; 15] = [
    "acknowledge",
    "answer",
    "attachments",
    "continues",
    "follow",
    "follow-up",
    "output-schema",
    "prune",
    "reconcile",
    "remove",
    "steer",
    "storage",
    "subscribe",
    "subscribe-all",
    "wait",
];

/// `Follow` streams of all callers together. A stream can outlive the connection that asked for it.
pub const ALL_FOLLOWS: usize = 1024;

/// One event in a reply or signal: the cursor after it, its time (µs since 1970), its kind, its details.
pub type EventTuple = (String, u64, String, Vardict);

/// What the objects of one connection share.
pub struct Context {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) hub: Arc<Hub>,
    pub(super) objects: Arc<Objects>,
    pub(super) link: Arc<Link>,
    /// Room for the `Follow` streams of everybody.
    pub(super) follows: Arc<Semaphore>,
}

/// The object at `/org/airouter/Sessions1` of one connection.
pub struct Sessions1(pub(super) Arc<Context>);

/// A record as an event. Exact lines travel only with events of kind `raw`, where they are all there is.
pub fn event(entry: &Entry, budget: &mut Budget) -> (EventTuple, bool) {
    let mut details = Vardict::new();
    let mut cut = append(&mut details, &entry.details, budget);
    if entry.kind == "raw" {
        for (key, text) in [("raw", &entry.raw), ("raw64", &entry.raw64)] {
            if let Some(text) = text {
                cut |= append_text(&mut details, key, text, budget);
            }
        }
    }
    ((entry.cursor.clone(), entry.time, entry.kind.clone(), details), cut)
}

/// The `Profiles` property.
pub fn profiles_dict(profiles: &BTreeMap<String, ProfileFacts>) -> HashMap<String, Vardict> {
    // A profile's facts are a dictionary of texts: it can be written.
    profiles.iter().map(|(name, facts)| (name.clone(), vardict(facts).unwrap_or_default())).collect()
}

/// Calls that a session's own object has too.
impl Context {
    /// Room for a `Follow` stream among those of everybody.
    fn add_follow(&self) -> Result<OwnedSemaphorePermit, BusError> {
        self.follows.clone().try_acquire_owned().map_err(|_| {
            let why = format!(
                "{ALL_FOLLOWS} streams are open, all that this service has; close some of them first"
            );
            BusError::new("AtCapacity", why)
        })
    }

    pub(super) async fn follow(
        &self,
        run_id: RunId,
        cursor: &str,
        options: GivenDict,
        call: &Header<'_>,
    ) -> Result<zbus::OwnedFd, BusError> {
        let caller = self.link.caller(call)?;
        let options = request::follow_options(options)?;
        let peer = caller.peer()?;
        let permits = (peer.add_follow()?, self.add_follow()?);
        drop(peer.turn(run_id).await);
        Ok(self.engine.follow(run_id, cursor, options, Box::new(permits)).await?.into())
    }

    pub(super) async fn cancel(&self, run_id: RunId, call: &Header<'_>) -> Result<Vardict, BusError> {
        let caller = self.link.caller(call)?;
        let _turn = caller.peer()?.turn(run_id).await;
        let hold = self.hub.hold(run_id);
        let status = self.engine.cancel(run_id).await?;
        caller.keep_until_answered(hold);
        vardict(&status)
    }

    pub(super) async fn send(
        &self,
        run_id: RunId,
        message: Message,
        call: &Header<'_>,
    ) -> Result<Vardict, BusError> {
        let caller = self.link.caller(call)?;
        let _turn = caller.peer()?.turn(run_id).await;
        let hold = self.hub.hold(run_id);
        let status = self.engine.send(run_id, message).await?;
        caller.keep_until_answered(hold);
        vardict(&status)
    }

    pub(super) async fn acknowledge(
        &self,
        run_id: RunId,
        cursor: &str,
        call: &Header<'_>,
    ) -> Result<Vardict, BusError> {
        let caller = self.link.caller(call)?;
        let _turn = caller.peer()?.turn(run_id).await;
        vardict(&self.engine.acknowledge(run_id, cursor).await?)
    }

    pub(super) async fn answer(
        &self,
        run_id: RunId,
        question: &str,
        answer: GivenDict,
        call: &Header<'_>,
    ) -> Result<(), BusError> {
        let caller = self.link.caller(call)?;
        let answer = request::answer(answer)?;
        let _turn = caller.peer()?.turn(run_id).await;
        let hold = self.hub.hold(run_id);
        self.engine.answer(run_id, question, answer).await?;
        caller.keep_until_answered(hold);
        Ok(())
    }
}

#[zbus::interface(name = "org.airouter.Sessions1", introspection_docs = false)]
impl Sessions1 {
    #[zbus(out_args("session", "status"))]
    async fn submit(
        &self,
        submission: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(OwnedObjectPath, Vardict), BusError> {
        let caller = self.0.link.caller(&header)?;
        let submitted = request::submission(submission)?;
        let run_id = submitted.submission.run_id();
        let _turn = caller.peer()?.turn(run_id).await;
        let request = submitted.read(&self.0.engine.limits()).await?;
        let hold = self.0.hub.hold(run_id);
        let status = self.0.engine.submit(request).await?;
        // The path in the answer leads somewhere when it arrives; others are told of the object after it.
        self.0.objects.show(&status).await;
        caller.keep_until_answered(hold);
        Ok((session_path(run_id).into(), vardict(&status)?))
    }

    #[zbus(out_args("status"))]
    async fn status(&self, run_id: &str, #[zbus(header)] header: Header<'_>) -> Result<Vardict, BusError> {
        let caller = self.0.link.caller(&header)?;
        let run_id = request::run_id(run_id)?;
        drop(caller.peer()?.turn(run_id).await);
        vardict(&self.0.engine.status(run_id).await?)
    }

    #[zbus(out_args("sessions", "next"))]
    async fn list(
        &self,
        filter: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(Vec<Vardict>, String), BusError> {
        let _caller = self.0.link.caller(&header)?;
        let listing = self.0.engine.list(request::filter(filter)?).await?;
        let mut budget = Budget::REPLY;
        let mut sessions = Vec::with_capacity(listing.sessions.len());
        for status in &listing.sessions {
            sessions.push(super::variant::vardict_within(status, &mut budget)?);
        }
        Ok((sessions, listing.next))
    }

    #[zbus(out_args("next", "more", "events"))]
    async fn events(
        &self,
        run_id: &str,
        cursor: &str,
        limit: u32,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(String, bool, Vec<EventTuple>), BusError> {
        let caller = self.0.link.caller(&header)?;
        let run_id = request::run_id(run_id)?;
        drop(caller.peer()?.turn(run_id).await);
        let page = self.0.engine.events(run_id, cursor, limit).await?;
        let mut budget = Budget::REPLY;
        let mut events: Vec<EventTuple> = Vec::with_capacity(page.events.len());
        for entry in &page.events {
            // A full message ends the page early; the first event goes out in any case, cut if it must be.
            if budget.total == 0
                && let Some((next, ..)) = events.last()
            {
                return Ok((next.clone(), true, events));
            }
            events.push(event(entry, &mut budget).0);
        }
        Ok((page.next, page.more, events))
    }

    #[zbus(out_args("stream"))]
    async fn follow(
        &self,
        run_id: &str,
        cursor: &str,
        options: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<zbus::OwnedFd, BusError> {
        self.0.follow(request::run_id(run_id)?, cursor, options, &header).await
    }

    #[zbus(out_args("status"))]
    async fn wait(
        &self,
        run_id: &str,
        condition: &str,
        timeout_ms: u32,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        let caller = self.0.link.caller(&header)?;
        let run_id = request::run_id(run_id)?;
        let condition = request::condition(condition)?;
        let peer = caller.peer()?.clone();
        drop(peer.turn(run_id).await);
        let timeout = Duration::from_millis(timeout_ms.into());
        tokio::select! {
            status = self.0.engine.wait(run_id, condition, timeout) => vardict(&status?),
            () = peer.left() => Err(BusError::argument("the caller has left")),
        }
    }

    #[zbus(out_args("subscription"))]
    async fn subscribe(
        &self,
        run_id: &str,
        cursor: &str,
        options: GivenDict,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &zbus::Connection,
    ) -> Result<u32, BusError> {
        let caller = self.0.link.caller(&header)?;
        let peer = caller.peer()?.clone();
        let source = match run_id {
            "" => {
                let cursors = request::subscribe_all_options(options)?;
                Source::All(self.0.engine.subscribe_all(cursor, cursors).await?)
            }
            run_id => {
                let run_id = request::run_id(run_id)?;
                request::subscribe_options(options)?;
                let _turn = peer.turn(run_id).await;
                Source::One(run_id, self.0.engine.subscribe(run_id, cursor).await?)
            }
        };
        let (id, stopped) = peer.add_subscription()?;
        let (answered, when_answered) = tokio::sync::oneshot::channel::<()>();
        caller.keep_until_answered(answered);
        let subscription = Subscription { connection: connection.clone(), peer, id };
        tokio::spawn(subscription.run(source, when_answered, stopped));
        Ok(id)
    }

    async fn unsubscribe(
        &self,
        subscription: u32,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), BusError> {
        self.0.link.caller(&header)?.peer()?.end_subscription(subscription)
    }

    #[zbus(out_args("status"))]
    async fn cancel(&self, run_id: &str, #[zbus(header)] header: Header<'_>) -> Result<Vardict, BusError> {
        self.0.cancel(request::run_id(run_id)?, &header).await
    }

    #[zbus(out_args("status"))]
    async fn reconcile(&self, run_id: &str, #[zbus(header)] header: Header<'_>) -> Result<Vardict, BusError> {
        let caller = self.0.link.caller(&header)?;
        let run_id = request::run_id(run_id)?;
        let _turn = caller.peer()?.turn(run_id).await;
        let hold = self.0.hub.hold(run_id);
        let status = self.0.engine.reconcile(run_id).await?;
        caller.keep_until_answered(hold);
        vardict(&status)
    }

    #[zbus(out_args("message"))]
    async fn steer(
        &self,
        run_id: &str,
        request_id: String,
        text: String,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        let message = Message { request_id, mode: MessageMode::Steer, text };
        self.0.send(request::run_id(run_id)?, message, &header).await
    }

    #[zbus(out_args("message"))]
    async fn follow_up(
        &self,
        run_id: &str,
        request_id: String,
        text: String,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        let message = Message { request_id, mode: MessageMode::FollowUp, text };
        self.0.send(request::run_id(run_id)?, message, &header).await
    }

    async fn answer(
        &self,
        run_id: &str,
        question: &str,
        answer: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<(), BusError> {
        self.0.answer(request::run_id(run_id)?, question, answer, &header).await
    }

    #[zbus(out_args("status"))]
    async fn acknowledge(
        &self,
        run_id: &str,
        cursor: &str,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vardict, BusError> {
        self.0.acknowledge(request::run_id(run_id)?, cursor, &header).await
    }

    async fn remove(&self, run_id: &str, #[zbus(header)] header: Header<'_>) -> Result<(), BusError> {
        let caller = self.0.link.caller(&header)?;
        let run_id = request::run_id(run_id)?;
        let _turn = caller.peer()?.turn(run_id).await;
        let hold = self.0.hub.hold(run_id);
        self.0.engine.remove(run_id).await?;
        caller.keep_until_answered(hold);
        Ok(())
    }

    #[zbus(out_args("storage"))]
    async fn storage(&self, #[zbus(header)] header: Header<'_>) -> Result<Vardict, BusError> {
        let _caller = self.0.link.caller(&header)?;
        vardict(&self.0.engine.storage().await?)
    }

    #[zbus(out_args("sessions"))]
    async fn prune(
        &self,
        policy: GivenDict,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<Vec<Vardict>, BusError> {
        let _caller = self.0.link.caller(&header)?;
        let sessions = self.0.engine.prune(request::prune_policy(policy)?).await?;
        let mut budget = Budget::REPLY;
        sessions.iter().map(|session| super::variant::vardict_within(session, &mut budget)).collect()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn application(&self) -> String {
        self.0.engine.facts().application
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn host(&self) -> String {
        self.0.engine.facts().host
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.0.engine.facts().state.to_owned()
    }

    #[zbus(property)]
    fn active(&self) -> u32 {
        self.0.engine.facts().active
    }

    #[zbus(property)]
    fn queued(&self) -> u32 {
        self.0.engine.facts().queued
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn max_active(&self) -> u32 {
        self.0.engine.limits().active
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn max_queued(&self) -> u32 {
        self.0.engine.limits().queued
    }

    #[zbus(property)]
    fn profiles(&self) -> HashMap<String, Vardict> {
        profiles_dict(&self.0.engine.profiles())
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn limits(&self) -> Result<Vardict, zbus::fdo::Error> {
        vardict(&self.0.engine.limits()).map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn features(&self) -> Vec<String> {
        FEATURES.map(str::to_owned).to_vec()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn containment(&self) -> String {
        self.0.engine.facts().containment.to_owned()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn controller(&self) -> Result<Vardict, zbus::fdo::Error> {
        vardict(&self.0.engine.controller()).map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn upgrade_pending(&self) -> bool {
        self.0.engine.upgrade_pending().await
    }

    #[zbus(signal)]
    async fn session_added(
        emitter: &SignalEmitter<'_>,
        run_id: &str,
        session: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn session_removed(
        emitter: &SignalEmitter<'_>,
        run_id: &str,
        session: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    // A property State has a function state_changed already.
    #[zbus(signal, name = "StateChanged")]
    async fn session_state_changed(
        emitter: &SignalEmitter<'_>,
        run_id: &str,
        state: &str,
        phase: &str,
        end: &str,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn question_asked(emitter: &SignalEmitter<'_>, run_id: &str, question: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn question_settled(emitter: &SignalEmitter<'_>, run_id: &str, question: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn activity_advanced(emitter: &SignalEmitter<'_>, run_id: &str, head: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn activity(
        emitter: &SignalEmitter<'_>,
        run_id: &str,
        from: &str,
        next: &str,
        events: Vec<EventTuple>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    pub(super) async fn lagged(emitter: &SignalEmitter<'_>, run_id: &str, resume: &str) -> zbus::Result<()>;
}
