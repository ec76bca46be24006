//! The D-Bus face: the service's sessions as objects, calls and signals, on the account's session bus and on a
//! private socket.
//!
//! ```text
//! gate ── admission, size, calls in flight ──► zbus ── Sessions1 ──► Engine (the service)
//! (socket, handshake, senders: who is it)              │ request, given: dictionaries in
//!                                                      │ variant: dictionaries out
//! hub ◄── changes of the service ──────────────────────┘ subscription: events to one subscriber
//!  └─ signals to every connection
//! ```
//!
//! Both transports serve the same objects. Each private connection has an object server of its own, with a
//! fake bus beside it so that clients made for buses work; the bus connection has one for everybody.
//! Nothing here changes a session when a connection, a client or the bus itself goes away.

mod descriptor;
mod engine;
mod error;
mod fakebus;
mod gate;
mod given;
mod handshake;
mod hub;
mod listener;
mod objects;
mod peer;
mod private;
mod refusal;
mod request;
mod senders;
mod session1;
mod sessions1;
mod signatures;
mod socket;
mod subscription;
mod unfinished;
mod userbus;
mod variant;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use zbus::wire::ObjectPath;

pub use engine::{AllEvents, Engine, EventFeed};
pub use error::{BusError, PREFIX as ERROR_PREFIX};
pub use listener::SocketError;
pub use private::PrivateSocket;
pub use refusal::Waiting;
pub use sessions1::INTERFACE_VERSION;
pub use userbus::{Standing, UserBus, user_bus_address};

use crate::model::RunId;
use crate::service::{Change, Filter};
use hub::{Hub, Told};
use objects::Objects;

/// The well-known name.
pub const NAME: &str = "org.airouter.Sessions1";
/// The service's object.
pub const PATH: &str = "/org/airouter/Sessions1";
/// The service's interface.
pub const INTERFACE: &str = "org.airouter.Sessions1";

/// Changes of properties are told at most this often.
const PROPERTIES_EVERY: Duration = Duration::from_millis(250);

/// Who may use the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The account that the service belongs to.
    pub uid: u32,
    /// Take root too.
    pub allow_root: bool,
}

impl Admission {
    /// Whether a peer of this account is admitted.
    pub fn admits(&self, uid: u32) -> bool {
        uid == self.uid || (uid == 0 && self.allow_root)
    }
}

/// The object path of a session, known before the session is.
pub fn session_path(run_id: RunId) -> ObjectPath<'static> {
    // Only letters, digits and underscores: always a valid path.
    ObjectPath::from_string_unchecked(format!("{PATH}/session/{}", run_id.path_element()))
}

/// The service on D-Bus: what its transports share. Cheap to clone.
#[derive(Clone)]
pub struct Face {
    engine: Arc<dyn Engine>,
    hub: Arc<Hub>,
    objects: Arc<Objects>,
    admission: Admission,
    follows: Arc<Semaphore>,
    /// `true` ends every transport.
    stop: watch::Sender<bool>,
}

impl Face {
    /// A face of `engine` that lets in whom `admission` says. To be made in a tokio runtime: it begins to tell of the
    /// service's changes, until the service is dropped or [`Face::stop`] is called.
    pub fn new(engine: Arc<dyn Engine>, admission: Admission) -> Self {
        let hub = Arc::<Hub>::default();
        let objects = Objects::new(engine.clone(), hub.clone());
        let follows = Arc::new(Semaphore::new(sessions1::ALL_FOLLOWS));
        let face = Face { engine, hub, objects, admission, follows, stop: watch::Sender::new(false) };
        // Taken before anything can change: what changes from here on is told.
        let changes = face.engine.changes();
        tokio::spawn(announce(face.engine.clone(), face.hub.clone(), changes, face.stop.subscribe()));
        let (objects, mut stop) = (face.objects.clone(), face.stop.subscribe());
        tokio::spawn(async move {
            tokio::select! {
                () = stopping(&mut stop) => {}
                () = objects.keep() => {}
            }
            objects.close().await;
        });
        face
    }

    /// What the objects of one connection share.
    fn context(&self, link: Arc<peer::Link>) -> Arc<sessions1::Context> {
        Arc::new(sessions1::Context {
            engine: self.engine.clone(),
            hub: self.hub.clone(),
            objects: self.objects.clone(),
            link,
            follows: self.follows.clone(),
        })
    }

    /// Serves the private socket at `path`; listens when this returns.
    ///
    /// The directory is made if it is missing, and refused if others may enter it. A socket that nobody listens at
    /// is replaced if it is ours; anything else that is there is refused.
    pub fn serve_private(&self, path: &Path) -> Result<PrivateSocket, SocketError> {
        private::serve(self.clone(), path)
    }

    /// Serves the bus at `address` (see [`user_bus_address`]), now or when there is one, and again whenever it comes
    /// back.
    pub fn serve_user_bus(&self, address: String) -> UserBus {
        userbus::serve(self.clone(), address)
    }

    /// Looks at the properties again and tells what changed: the configuration was read again, or the service
    /// begins to stop.
    pub fn refresh(&self) {
        self.hub.refresh.notify_one();
    }

    /// Ends every transport: no new connections, the open ones closed, the name given back.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl std::fmt::Debug for Face {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Face").field("admission", &self.admission).finish_non_exhaustive()
    }
}

/// A task that is ended with its owner.
#[derive(Debug)]
struct Owned<T>(JoinHandle<T>);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves when `stop` says so.
async fn stopping(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means that the face itself is gone.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Tells of the service's changes until it is gone.
async fn announce(
    engine: Arc<dyn Engine>,
    hub: Arc<Hub>,
    mut changes: broadcast::Receiver<Change>,
    mut stop: watch::Receiver<bool>,
) {
    let mut told = Told::new(engine.facts(), engine.profiles());
    let mut due: Option<tokio::time::Instant> = None;
    loop {
        let properties = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopping(&mut stop) => return,
            change = changes.recv() => match change {
                Ok(change) => hub.tell(change),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "changes came faster than they could be told; telling all states again");
                    tell_all(&*engine, &hub).await;
                }
                Err(RecvError::Closed) => return,
            },
            () = hub.refresh.notified() => {}
            () = properties => {
                due = None;
                let now = Told::new(engine.facts(), engine.profiles());
                let changed = told.changed(&now);
                if !changed.is_empty() {
                    hub.tell_properties(&ObjectPath::from_static_str_unchecked(PATH), INTERFACE, &changed);
                    told = now;
                }
                continue;
            }
        }
        due.get_or_insert_with(|| tokio::time::Instant::now() + PROPERTIES_EVERY);
    }
}

/// The state of every session that has not ended and of those that ended last, as if it had just changed, and the
/// questions that are open, as if they had just been asked.
async fn tell_all(engine: &dyn Engine, hub: &Hub) {
    match engine.list(Filter { limit: Some(1000), ..Filter::default() }).await {
        Ok(listing) => {
            for status in listing.sessions {
                let (run_id, state, phase, end) = (status.run_id, status.state, status.phase, status.end);
                hub.tell(Change::State { run_id, state, phase, end });
                for open in status.questions {
                    hub.tell(Change::QuestionAsked { run_id, question: open.question });
                }
            }
        }
        Err(error) => tracing::warn!(%error, "the sessions cannot be listed"),
    }
}
