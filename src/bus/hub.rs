//! What everybody is told: changes of sessions and of the service, to the bus and to every private connection.
//!
//! Nobody is waited for. Each connection has an outbox and a task that empties it; one whose outbox is full does
//! not read, and is shut. What a call changes is told only after the call was answered: a handler [holds](Hub::hold)
//! the session's changes until then.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use zbus::message::Message;
use zbus::names::InterfaceName;
use zbus::wire::{DynamicType, ObjectPath, Variant};

use super::fakebus::Listening;
use super::gate::Traffic;
use super::socket::Wire;
use super::{INTERFACE, PATH, session_path};
use crate::model::RunId;
use crate::service::{Change, Facts, ProfileFacts};

/// Messages that wait for one connection to take them.
const OUTBOX: usize = 1024;
/// Changes of one session that wait for an answer. Beyond it the oldest are told before the answer.
const HELD: usize = 64;
/// How long a private connection that says nothing waits for its first signal. Clients that say Hello, as to a bus, take
/// nothing before the answer to that, and nothing tells them from those who only listen.
const GREETING: Duration = Duration::from_secs(1);
/// The unique name that the service has on a private socket.
pub const PRIVATE_NAME: &str = ":1.0";

/// Tells everybody.
#[derive(Debug, Default)]
pub struct Hub {
    state: Mutex<State>,
    /// Wakes the announcer to look at the properties again.
    pub refresh: Notify,
    /// Wakes whoever takes what was [touched](Hub::take_touched).
    pub touched: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    members: HashMap<u64, Member>,
    held: HashMap<RunId, Held>,
    /// Sessions whose objects may have to change, each once, in the order in which they were touched.
    touched: (Vec<RunId>, HashSet<RunId>),
}

impl State {
    fn touch(&mut self, run_id: RunId) {
        if self.touched.1.insert(run_id) {
            self.touched.0.push(run_id);
        }
    }
}

#[derive(Debug)]
struct Member {
    outbox: mpsc::Sender<Message>,
    wire: Arc<Wire>,
    /// Absent on a bus, which knows itself who listens.
    private: Option<Arc<Listening>>,
}

/// What decides whether a private connection is told something.
#[derive(Debug)]
pub struct Private {
    /// What it wants.
    pub listening: Arc<Listening>,
    /// Its calls.
    pub traffic: Arc<Traffic>,
}

#[derive(Debug, Default)]
struct Held {
    by: usize,
    changes: VecDeque<Change>,
}

/// A connection's place in the hub; leaving it is dropping it.
#[derive(Debug)]
pub struct Membership {
    hub: Arc<Hub>,
    id: u64,
}

/// Holds back one session's changes until it is dropped.
#[derive(Debug)]
pub struct Hold {
    hub: Arc<Hub>,
    run_id: RunId,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock can leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection: tells it everything from now on.
    pub fn join(
        self: &Arc<Self>,
        connection: &zbus::Connection,
        wire: Arc<Wire>,
        private: Option<Private>,
    ) -> Membership {
        let (outbox, mut inbox) = mpsc::channel::<Message>(OUTBOX);
        let sending = connection.clone();
        let listening = private.as_ref().map(|private| private.listening.clone());
        tokio::spawn(async move {
            if let Some(Private { traffic, .. }) = &private {
                let _ = tokio::time::timeout(GREETING, traffic.greeted()).await;
            }
            while let Some(message) = inbox.recv().await {
                // What it listens to may have changed since.
                if private.as_ref().is_some_and(|private| !private.listening.listens()) {
                    continue;
                }
                if sending.send(&message).await.is_err() {
                    break;
                }
            }
        });
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.members.insert(id, Member { outbox, wire, private: listening });
        Membership { hub: self.clone(), id }
    }

    /// Holds back the changes of `run_id` until the answer that causes them was sent.
    pub fn hold(self: &Arc<Self>, run_id: RunId) -> Hold {
        self.state().held.entry(run_id).or_default().by += 1;
        Hold { hub: self.clone(), run_id }
    }

    /// Tells of `change`, now or after the answer that it waits for.
    pub fn tell(&self, change: Change) {
        let mut state = self.state();
        let due = match state.held.get_mut(run_id_of(&change)) {
            None => Some(change),
            Some(held) => {
                held.changes.push_back(change);
                if held.changes.len() > HELD { held.changes.pop_front() } else { None }
            }
        };
        if let Some(change) = due {
            announce(&state, &change);
            state.touch(*run_id_of(&change));
            self.touched.notify_one();
        }
    }

    /// The sessions of which something was told since the last time.
    pub fn take_touched(&self) -> Vec<RunId> {
        std::mem::take(&mut self.state().touched).0
    }

    /// Tells that properties of an object have changed.
    pub fn tell_properties(
        &self,
        path: &ObjectPath<'_>,
        interface: &str,
        changed: &HashMap<&str, Variant<'_>>,
    ) {
        let gone: &[&str] = &[];
        let body = (interface, changed, gone);
        post(&self.state(), path, "org.freedesktop.DBus.Properties", "PropertiesChanged", &body);
    }

    /// Tells something of the service's object to everybody.
    pub fn tell_of_service<B>(&self, interface: &'static str, name: &'static str, body: &B)
    where
        B: Serialize + DynamicType,
    {
        post(&self.state(), &service_path(), interface, name, body);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hub.state().members.remove(&self.id);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        let Some(held) = state.held.get_mut(&self.run_id) else { return };
        held.by -= 1;
        if held.by > 0 {
            return;
        }
        let changes = state.held.remove(&self.run_id).map(|held| held.changes).unwrap_or_default();
        for change in &changes {
            announce(&state, change);
        }
        // Also without a change: the call may have made an object that nobody was told of yet.
        state.touch(self.run_id);
        self.hub.touched.notify_one();
    }
}

fn run_id_of(change: &Change) -> &RunId {
    match change {
        Change::Added(run_id)
        | Change::Removed(run_id)
        | Change::State { run_id, .. }
        | Change::QuestionAsked { run_id, .. }
        | Change::QuestionSettled { run_id, .. }
        | Change::Advanced { run_id, .. } => run_id,
    }
}

fn service_path() -> ObjectPath<'static> {
    ObjectPath::from_static_str_unchecked(PATH)
}

fn announce(state: &State, change: &Change) {
    let path = &service_path();
    match change {
        Change::Added(id) => {
            post(state, path, INTERFACE, "SessionAdded", &(id.to_string(), session_path(*id)))
        }
        Change::Removed(id) => {
            post(state, path, INTERFACE, "SessionRemoved", &(id.to_string(), session_path(*id)))
        }
        Change::State { run_id, state: now, phase, end } => {
            let end = end.map(|end| end.to_string()).unwrap_or_default();
            let body = (run_id.to_string(), now.to_string(), phase.to_string(), end);
            post(state, path, INTERFACE, "StateChanged", &body);
        }
        Change::QuestionAsked { run_id, question } => {
            post(state, path, INTERFACE, "QuestionAsked", &(run_id.to_string(), question));
        }
        Change::QuestionSettled { run_id, question } => {
            post(state, path, INTERFACE, "QuestionSettled", &(run_id.to_string(), question));
        }
        Change::Advanced { run_id, head } => {
            post(state, path, INTERFACE, "ActivityAdvanced", &(run_id.to_string(), head));
        }
    }
}

/// Puts one signal into each outbox.
fn post<B>(state: &State, path: &ObjectPath<'_>, interface: &'static str, name: &'static str, body: &B)
where
    B: Serialize + DynamicType,
{
    let build = |sender: Option<&'static str>| {
        let interface = InterfaceName::from_static_str_unchecked(interface);
        let signal = Message::signal(path, interface, name);
        let signal = match sender {
            Some(sender) => signal.sender(sender),
            None => signal,
        };
        signal
            .build(body)
            .inspect_err(|error| tracing::warn!(name, %error, "a signal cannot be written"))
            .ok()
    };
    let (mut private, mut on_bus) = (None, None);
    for member in state.members.values() {
        let message = match &member.private {
            Some(listening) if !listening.listens() => continue,
            Some(_) => private.get_or_insert_with(|| build(Some(PRIVATE_NAME))),
            None => on_bus.get_or_insert_with(|| build(None)),
        };
        let Some(message) = message else { return };
        if let Err(mpsc::error::TrySendError::Full(_)) = member.outbox.try_send(message.clone()) {
            tracing::info!("a connection takes no signals any more and is shut");
            member.wire.shut();
        }
    }
}

/// The properties that change, as they were told last.
#[derive(Debug, PartialEq)]
pub struct Told {
    facts: Facts,
    profiles: BTreeMap<String, ProfileFacts>,
}

impl Told {
    /// The properties as they are.
    pub fn new(facts: Facts, profiles: BTreeMap<String, ProfileFacts>) -> Self {
        Told { facts, profiles }
    }

    /// What of `now` differs.
    pub fn changed(&self, now: &Told) -> HashMap<&'static str, Variant<'static>> {
        let mut changed = HashMap::new();
        if self.facts.state != now.facts.state {
            changed.insert("State", Variant::from(now.facts.state));
        }
        if self.facts.active != now.facts.active {
            changed.insert("Active", Variant::from(now.facts.active));
        }
        if self.facts.queued != now.facts.queued {
            changed.insert("Queued", Variant::from(now.facts.queued));
        }
        if self.profiles != now.profiles {
            changed.insert("Profiles", Variant::from(super::sessions1::profiles_dict(&now.profiles)));
        }
        changed
    }
}
