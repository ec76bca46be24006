//! The private socket: the service for those who have no bus, or want none in between.
//!
//! A client is identified by the kernel (SO_PEERCRED) before one byte of it is read. Each connection has a task, an
//! object server and a gate of its own: whatever goes wrong with it ends with it. Connections that stay silent are
//! bounded by themselves and keep nobody out (see `unfinished`); what happens often is logged once a minute.

use std::io;
use std::os::unix::net as std_net;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use zbus::connection::Builder;
use zbus::message::Header;

use super::fakebus::{BUS_PATH, FakeBus, FakeMonitoring, Listening};
use super::gate::{Doorkeeper, GatedSocket, Traffic, send_refusals};
use super::handshake::authenticate;
use super::hub::{PRIVATE_NAME, Private};
use super::listener::{Listener, SocketError};
use super::peer::{Link, Peer, Peers};
use super::unfinished::{Crowd, HANDSHAKES, Handshake, Unfinished};
use super::{Face, Owned, stopping};

/// Connections past the handshake at once. Beyond it a new one is closed.
const CONNECTIONS: usize = 256;

/// Connections that are accepted in a row, so that the socket's queue is emptied faster than by one at a time: while it
/// is full, a connect(2) that does not wait fails.
const BATCH: usize = 1024;

/// How long accepting pauses when the system has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// How often the same thing is logged at most.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The private socket, listening until this is dropped or [`Face::stop`] is called.
#[derive(Debug)]
pub struct PrivateSocket {
    task: Owned<()>,
}

impl PrivateSocket {
    /// Comes back when the socket was taken away, after [`Face::stop`].
    pub async fn closed(mut self) {
        // A task that was aborted has nothing more to do either.
        let _ = (&mut self.task.0).await;
    }
}

/// Takes the socket's file away when its server ends, however it ends.
struct InPlace(Listener);

impl Drop for InPlace {
    fn drop(&mut self) {
        self.0.remove();
    }
}

pub(super) fn serve(face: Face, path: &Path) -> Result<PrivateSocket, SocketError> {
    let (place, listener) = Listener::bind(path, face.admission.uid)?;
    let place = InPlace(place);
    let failed = |error| SocketError::Io { path: path.to_owned(), step: "waiting for connections", error };
    let rest = listener.try_clone().map_err(failed)?;
    let queue = Queue { first: UnixListener::from_std(listener).map_err(failed)?, rest };
    let task = tokio::spawn(async move {
        accept_all(&face, &queue).await;
        // Nobody can be waiting in the queue of a socket that is still found.
        drop(place);
    });
    Ok(PrivateSocket { task: Owned(task) })
}

/// Something that may happen thousands of times a second, and is logged once a minute with how often it happened.
#[derive(Debug, Default)]
struct Often(Mutex<(u64, Option<Instant>)>);

impl Often {
    /// It happened `more` times: how often since it was logged last, if it is to be logged now.
    fn happened(&self, more: u64) -> Option<u64> {
        if more == 0 {
            return None;
        }
        // Nothing that is done under the lock can leave it half done.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, logged) = &mut *state;
        *times += more;
        if logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return None;
        }
        *logged = Some(Instant::now());
        Some(std::mem::take(times))
    }
}

/// What all connections of the socket share.
#[derive(Debug)]
struct Door {
    guid: String,
    /// Places for connections past the handshake.
    connections: Arc<Semaphore>,
    full: Often,
}

/// The queue of the listening socket, twice: to wait for somebody, and to take who else is there.
struct Queue {
    first: UnixListener,
    rest: std_net::UnixListener,
}

impl Queue {
    async fn first(&self) -> io::Result<std_net::UnixStream> {
        self.first.accept().await?.0.into_std()
    }

    /// `None` when nobody waits.
    fn next(&self) -> io::Result<Option<std_net::UnixStream>> {
        match self.rest.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn accept_all(face: &Face, queue: &Queue) {
    let guid = zbus::Guid::generate().to_string();
    let door =
        Arc::new(Door { guid, connections: Arc::new(Semaphore::new(CONNECTIONS)), full: Often::default() });
    let unfinished = Unfinished::new();
    let (silent, failed) = (Often::default(), Often::default());
    let mut number = 0;
    let mut stop = face.stop.subscribe();
    loop {
        let (newcomers, mut closed, problem) = tokio::select! {
            biased;
            () = stopping(&mut stop) => return,
            accepted = accept_batch(face, queue) => accepted,
        };
        for (pid, (stream, credentials)) in newcomers {
            number += 1;
            let Some((handshake, crowded)) = unfinished.enter(number, pid).await else { return };
            closed += u64::from(crowded);
            let (face, door, stop) = (face.clone(), door.clone(), face.stop.subscribe());
            // Not waited for: it ends with its peer, or with the face.
            tokio::spawn(async move {
                if let Err(error) =
                    connection(face, stream, credentials, &door, number, handshake, stop).await
                {
                    tracing::debug!(number, %error, "a private connection failed");
                }
            });
        }
        if let Some(times) = silent.happened(closed) {
            tracing::info!(
                times,
                "connections to the private socket that did not finish their handshake were closed: others came"
            );
        }
        if let Some(error) = problem {
            if let Some(times) = failed.happened(1) {
                tracing::warn!(%error, times, "the private socket cannot accept a connection");
            }
            // Out of descriptors or memory: at once again would only spin.
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Clients that came, how many gave way already, and what stopped accepting before the queue was empty.
type Accepted = (Crowd<(std_net::UnixStream, UnixCredentials)>, u64, Option<io::Error>);

/// Accepts whoever waits. Of more than have places the rest is closed here already: that costs next to nothing.
async fn accept_batch(face: &Face, queue: &Queue) -> Accepted {
    let mut newcomers = Crowd::default();
    let mut closed = 0;
    let mut came = queue.first().await.map(Some);
    for taken in 1.. {
        let stream = match came {
            Ok(Some(stream)) => stream,
            Ok(None) => break,
            Err(error) => return (newcomers, closed, Some(error)),
        };
        match admitted(face, &stream) {
            Ok(credentials) => newcomers.push(credentials.pid(), (stream, credentials)),
            Err(error) => tracing::debug!(%error, "a private connection is refused"),
        }
        if newcomers.len() > HANDSHAKES {
            drop(newcomers.give_way());
            closed += 1;
        }
        if taken == BATCH {
            break;
        }
        came = queue.next();
    }
    (newcomers, closed, None)
}

/// Who is at the other end, if it may be there.
fn admitted(face: &Face, stream: &std_net::UnixStream) -> Result<UnixCredentials, ConnectionError> {
    let credentials =
        getsockopt(stream, PeerCredentials).map_err(|errno| ConnectionError::Unidentified(errno.into()))?;
    if face.admission.admits(credentials.uid()) {
        Ok(credentials)
    } else {
        Err(ConnectionError::Stranger(credentials.uid()))
    }
}

/// Why one private connection ended before it began.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("the kernel does not say whose connection it is: {0}")]
    Unidentified(io::Error),
    #[error("the system cannot wait for it: {0}")]
    Unready(io::Error),
    #[error("it belongs to the account {0}, which is not admitted")]
    Stranger(u32),
    #[error("its handshake was not finished, and others came")]
    Crowded,
    #[error("{CONNECTIONS} connections are open already")]
    Full,
    #[error(transparent)]
    Handshake(#[from] super::handshake::HandshakeError),
    #[error(transparent)]
    Bus(#[from] zbus::Error),
}

/// Whoever is past the handshake is admitted: the connection has one peer.
#[derive(Debug)]
struct Admitted;

#[async_trait]
impl Doorkeeper for Admitted {
    async fn admit(&self, _call: &Header<'_>) -> Result<(), String> {
        Ok(())
    }
}

async fn connection(
    face: Face,
    stream: std_net::UnixStream,
    credentials: UnixCredentials,
    door: &Door,
    number: u64,
    mut handshake: Handshake,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    stream.set_nonblocking(true).map_err(ConnectionError::Unready)?;
    let stream = UnixStream::from_std(stream).map_err(ConnectionError::Unready)?;
    let guid = &door.guid;
    let descriptors = tokio::select! {
        biased;
        done = authenticate(&stream, credentials.uid(), guid) => done?,
        () = handshake.closed() => return Err(ConnectionError::Crowded),
    };
    drop(handshake);
    let Ok(_place) = door.connections.clone().try_acquire_owned() else {
        if let Some(times) = door.full.happened(1) {
            tracing::info!(times, "connections to the private socket were closed: {CONNECTIONS} are open");
        }
        return Err(ConnectionError::Full);
    };

    let traffic = Traffic::private();
    let (socket, wire, refusals) = GatedSocket::new(stream, traffic.clone(), Arc::new(Admitted), descriptors);
    let peer = Peer::new(None);
    let link = Arc::new(Link { traffic: traffic.clone(), peers: Peers::One(peer.clone()) });
    let listening = Arc::new(Listening::default());
    let client = format!(":1.{number}");
    let pid = u32::try_from(credentials.pid()).unwrap_or(0);
    let fake = FakeBus {
        client: client.clone(),
        credentials: (credentials.uid(), pid),
        ours: (face.admission.uid, std::process::id()),
        guid: guid.clone(),
        listening: listening.clone(),
    };
    let monitoring = FakeMonitoring { client, listening: listening.clone(), link: link.clone() };
    let builder = Builder::authenticated_socket(socket, guid.as_str())
        .p2p()
        .serve_at(BUS_PATH, fake)
        .serve_at(BUS_PATH, monitoring);
    let (connection, _shelf) = face.objects.serve(builder, face.context(link)).await?;
    // Signals with a sender, for clients that match by it. Not given to the builder: then the object server would
    // drop every call to another name.
    connection.set_unique_name(PRIVATE_NAME)?;
    let _refusing = Owned(tokio::spawn(send_refusals(connection.clone(), refusals)));
    let membership =
        face.hub.join(&connection, wire.clone(), Some(Private { listening, traffic: traffic.clone() }));
    tokio::select! {
        () = connection.closed() => {}
        () = stopping(&mut stop) => {}
    }
    drop(membership);
    wire.shut();
    traffic.close();
    peer.leave();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_happens_often_is_logged_once_a_minute_with_its_count() {
        let often = Often::default();
        assert_eq!(often.happened(1), Some(1));
        let logged: Vec<u64> = (0..100_000).filter_map(|_| often.happened(1)).collect();
        assert!(logged.is_empty(), "{logged:?}");
        tokio::time::advance(LOG_EVERY).await;
        assert_eq!(often.happened(1), Some(100_001));
        assert_eq!(often.happened(1), None);
    }
}
