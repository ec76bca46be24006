//! Sessions as objects: which there are, on every connection, under an object manager.
//!
//! There is one for each session that has not ended and for the [`ENDED`] that ended last. zbus has an object
//! manager, but it sends its signals while it holds the whole object tree, for each connection, also to one that
//! does not read. This one tells through the hub, and the tree is never held while anything is sent. (zbus's feature
//! `object-manager` must be off: with it, zbus takes any interface of that name for its own.)

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use zbus::connection::Builder;
use zbus::object_server::SignalEmitter;
use zbus::wire::{ObjectPath, OwnedObjectPath, Variant};

use super::engine::Engine;
use super::hub::Hub;
use super::session1::{SESSION_INTERFACE, Session1, Shown};
use super::sessions1::{Context, Sessions1};
use super::{PATH, session_path};
use crate::model::{RunId, Status};
use crate::service::{Error, Filter};

/// Ended sessions that still have an object.
const ENDED: usize = 64;
/// Sessions that have not ended and have an object: more than a service takes.
const OPEN: usize = 1000;
const MANAGER: &str = "org.freedesktop.DBus.ObjectManager";

/// Interfaces of an object with their properties.
type Interfaces = HashMap<&'static str, HashMap<&'static str, Variant<'static>>>;

/// The sessions' objects.
pub struct Objects {
    engine: Arc<dyn Engine>,
    hub: Arc<Hub>,
    state: Mutex<State>,
    /// Connections that left, to be forgotten.
    left: (mpsc::UnboundedSender<u64>, std::sync::Mutex<Option<mpsc::UnboundedReceiver<u64>>>),
}

#[derive(Default)]
struct State {
    last: u64,
    servers: HashMap<u64, (zbus::Connection, Arc<Context>)>,
    shown: HashMap<RunId, Object>,
    /// In the order of their ends.
    ended: VecDeque<RunId>,
}

struct Object {
    shown: Arc<Shown>,
    ended: bool,
    /// `InterfacesAdded` was sent.
    told: bool,
}

/// A connection's objects; they are given up when it is dropped.
#[derive(Debug)]
pub struct Shelf {
    id: u64,
    left: mpsc::UnboundedSender<u64>,
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // The receiver goes with the service.
        let _ = self.left.send(self.id);
    }
}

impl Objects {
    /// Objects of `engine`'s sessions, told through `hub`.
    pub fn new(engine: Arc<dyn Engine>, hub: Arc<Hub>) -> Arc<Self> {
        let (left, gone) = mpsc::unbounded_channel();
        let left = (left, std::sync::Mutex::new(Some(gone)));
        Arc::new(Objects { engine, hub, state: Mutex::default(), left })
    }

    /// Keeps the objects as the sessions are, for ever.
    pub async fn keep(&self) {
        let gone = self.left.1.lock().map(|mut gone| gone.take()).ok().flatten();
        let Some(mut gone) = gone else { return };
        self.show_all().await;
        loop {
            tokio::select! {
                Some(id) = gone.recv() => {
                    self.state.lock().await.servers.remove(&id);
                }
                () = self.hub.touched.notified() => {
                    for run_id in self.hub.take_touched() {
                        self.look_again(run_id).await;
                    }
                }
            }
        }
    }

    /// The objects at the start: those of a service that was here before.
    async fn show_all(&self) {
        let listed = self.engine.list(Filter { limit: Some(OPEN as u32), ..Filter::default() }).await;
        let sessions = match listed {
            Ok(listing) => listing.sessions,
            Err(error) => {
                tracing::warn!(%error, "the sessions cannot be listed; they get objects when they change");
                return;
            }
        };
        let (ended, open): (Vec<_>, Vec<_>) = sessions.into_iter().partition(|status| status.end.is_some());
        // The last ended comes first in a list, and is to leave last.
        for status in ended.iter().take(ENDED).rev().chain(&open) {
            self.show(status).await;
        }
        // Whoever is connected by now found them there.
        for object in self.state.lock().await.shown.values_mut() {
            object.told = true;
        }
    }

    /// Lets go of every connection.
    pub async fn close(&self) {
        self.state.lock().await.servers.clear();
    }

    async fn look_again(&self, run_id: RunId) {
        match self.engine.status(run_id).await {
            Ok(status) => {
                self.show(&status).await;
                let mut state = self.state.lock().await;
                let Some(object) = state.shown.get_mut(&run_id) else { return };
                if !std::mem::replace(&mut object.told, true) {
                    let interfaces: Interfaces =
                        HashMap::from([(SESSION_INTERFACE, object.shown.properties())]);
                    self.hub.tell_of_service(MANAGER, "InterfacesAdded", &(session_path(run_id), interfaces));
                }
            }
            Err(Error::NotFound(_) | Error::Removed(_)) => {
                let mut state = self.state.lock().await;
                state.ended.retain(|ended| *ended != run_id);
                self.take_away(&mut state, run_id).await;
            }
            Err(error) => tracing::debug!(%run_id, %error, "a session's object stays as it is"),
        }
    }

    /// Shows a session as `status` says, with an object on every connection.
    pub async fn show(&self, status: &Status) {
        let run_id = status.run_id;
        let mut state = self.state.lock().await;
        let state = &mut *state;
        let ended = status.end.is_some();
        match state.shown.get_mut(&run_id) {
            Some(object) => {
                let changed = object.shown.update(status.clone());
                if object.told && !changed.is_empty() {
                    self.hub.tell_properties(&session_path(run_id), SESSION_INTERFACE, &changed);
                }
                if !ended || std::mem::replace(&mut object.ended, true) {
                    return;
                }
            }
            None => {
                let shown = Shown::new(status.clone());
                for (connection, context) in state.servers.values() {
                    put(connection, context, &shown, run_id).await;
                }
                state.shown.insert(run_id, Object { shown, ended, told: false });
                if !ended {
                    return;
                }
            }
        }
        state.ended.push_back(run_id);
        if state.ended.len() > ENDED
            && let Some(oldest) = state.ended.pop_front()
        {
            self.take_away(state, oldest).await;
        }
    }

    async fn take_away(&self, state: &mut State, run_id: RunId) {
        let Some(object) = state.shown.remove(&run_id) else { return };
        for (connection, _) in state.servers.values() {
            if let Err(error) = connection.object_server().remove::<Session1, _>(session_path(run_id)).await {
                tracing::debug!(%run_id, %error, "a session's object is gone already");
            }
        }
        if object.told {
            let body = (session_path(run_id), &[SESSION_INTERFACE][..]);
            self.hub.tell_of_service(MANAGER, "InterfacesRemoved", &body);
        }
    }

    /// Builds a connection that serves all objects from its first message on.
    pub async fn serve(
        self: &Arc<Self>,
        builder: Builder<'_>,
        context: Arc<Context>,
    ) -> zbus::Result<(zbus::Connection, Shelf)> {
        let mut builder = builder
            .serve_at(PATH, Sessions1(context.clone()))
            .serve_at(PATH, Manager { objects: self.clone() });
        for (run_id, object) in &self.state.lock().await.shown {
            let session = Session1 { shown: object.shown.clone(), context: context.clone() };
            builder = builder.serve_at(session_path(*run_id), session);
        }
        let connection = builder.build().await?;
        let mut state = self.state.lock().await;
        // What came meanwhile; what is there already stays.
        for (run_id, object) in &state.shown {
            put(&connection, &context, &object.shown, *run_id).await;
        }
        state.last += 1;
        let id = state.last;
        state.servers.insert(id, (connection.clone(), context));
        Ok((connection, Shelf { id, left: self.left.0.clone() }))
    }
}

async fn put(connection: &zbus::Connection, context: &Arc<Context>, shown: &Arc<Shown>, run_id: RunId) {
    let session = Session1 { shown: shown.clone(), context: context.clone() };
    if let Err(error) = connection.object_server().at(session_path(run_id), session).await {
        tracing::warn!(%run_id, %error, "a session gets no object on a connection");
    }
}

/// The object manager at the service's path.
struct Manager {
    objects: Arc<Objects>,
}

#[zbus::interface(name = "org.freedesktop.DBus.ObjectManager", introspection_docs = false)]
impl Manager {
    #[zbus(out_args("objects"))]
    async fn get_managed_objects(&self) -> HashMap<OwnedObjectPath, Interfaces> {
        let state = self.objects.state.lock().await;
        let with_path = |(run_id, object): (&RunId, &Object)| {
            let interfaces: Interfaces = HashMap::from([(SESSION_INTERFACE, object.shown.properties())]);
            (OwnedObjectPath::from(session_path(*run_id)), interfaces)
        };
        state.shown.iter().map(with_path).collect()
    }

    #[zbus(signal)]
    async fn interfaces_added(
        emitter: &SignalEmitter<'_>,
        object: ObjectPath<'_>,
        interfaces: HashMap<String, HashMap<String, Variant<'_>>>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn interfaces_removed(
        emitter: &SignalEmitter<'_>,
        object: ObjectPath<'_>,
        interfaces: Vec<String>,
    ) -> zbus::Result<()>;
}
