//! Connecting: the private socket first, then the user's bus.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::net::UnixStream;
use tokio::time::Instant;
use zbus::connection::Builder;
use zbus::{Connection, DynamicType, Message};

use super::patience::Patience;
use super::{BUS_NAME, Error, OBJECT_PATH, location};

/// How long a service may leave its queue of connections full before it counts as busy.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two attempts to enter that queue: the kernel tells nobody when there is room (connect(2)).
const PAUSE: Duration = Duration::from_millis(100);

/// The bus itself, as a peer on it.
pub(super) const BUS: &str = "org.freedesktop.DBus";

/// How the service was reached, and how to reach it again.
#[derive(Debug, Clone)]
enum Route {
    /// Its private socket, peer to peer.
    Socket(PathBuf),
    /// A bus at this address.
    Bus(String),
}

/// A connection to the service of this account. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    connection: Connection,
    route: Route,
    peer: Option<u32>,
    patience: Patience,
}

impl Client {
    /// Connects to this account's service: on its private socket, found by uid, or else on the user's bus, whose
    /// activation may start it. A service whose configuration names another socket is found on the bus, or by
    /// [`Client::connect_socket`].
    ///
    /// # Errors
    /// [`Error::NoService`] where nobody answers on either, [`Error::Busy`] where somebody listens and accepts nothing
    /// for ten seconds, [`Error::OtherAccount`] where somebody else does.
    pub async fn connect() -> Result<Client, Error> {
        match location::socket_path() {
            Some(path) => Connector::default().socket_or_bus(&path).await,
            None => Client::connect_bus(None).await,
        }
    }

    /// Connects to a private socket.
    ///
    /// # Errors
    /// [`Error::NoService`] where nobody listens there, [`Error::Busy`] where somebody does and accepts nothing for ten
    /// seconds, [`Error::Unreachable`] where that cannot be known, [`Error::OtherAccount`] where another account does.
    pub async fn connect_socket(path: &Path) -> Result<Client, Error> {
        Connector::default().socket(path).await
    }

    /// Connects to the service on a bus: the one of that address, or the user's own
    /// (`DBUS_SESSION_BUS_ADDRESS`, or `bus` in the runtime directory).
    ///
    /// # Errors
    /// [`Error::NoService`] where there is no bus, or nobody on it has the service's name and nobody is activated.
    pub async fn connect_bus(address: Option<&str>) -> Result<Client, Error> {
        Connector::default().bus(address).await
    }

    /// A new connection over the same way.
    ///
    /// # Errors
    /// As those of that way.
    pub async fn reconnect(&self) -> Result<Client, Error> {
        let connector = Connector { patience: self.patience.clone() };
        match &self.route {
            Route::Socket(path) => connector.socket(path).await,
            Route::Bus(address) => connector.bus(Some(address)).await,
        }
    }

    /// The process that listens on the private socket, as the kernel knows it; `None` on a bus.
    pub fn peer_pid(&self) -> Option<u32> {
        self.peer
    }

    /// How the service was reached, for people: a socket's path or a bus address.
    pub fn route(&self) -> String {
        match &self.route {
            Route::Socket(path) => path.display().to_string(),
            Route::Bus(address) => address.clone(),
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// On a bus: asks to be told when the service comes and goes. On a private socket the connection tells.
    pub(super) async fn watch_name(&self) -> Result<(), Error> {
        if matches!(self.route, Route::Bus(_)) {
            let rule = format!("type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{BUS_NAME}'");
            let path = "/org/freedesktop/DBus";
            self.connection.call_method(Some(BUS), path, Some(BUS), "AddMatch", &(rule,)).await?;
        }
        Ok(())
    }

    /// A call whose answer is due at once: whoever is to be told hears if it takes long.
    pub(super) async fn call_on<B: Serialize + DynamicType>(
        &self,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message, Error> {
        self.patience.with(self.peer, self.call_unhurried(interface, method, body)).await
    }

    /// A call whose answer takes as long as it takes.
    pub(super) async fn call_unhurried<B: Serialize + DynamicType>(
        &self,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message, Error> {
        let destination = match self.route {
            // Peer to peer there is nobody else to name.
            Route::Socket(_) => None,
            Route::Bus(_) => Some(BUS_NAME),
        };
        Ok(self.connection.call_method(destination, OBJECT_PATH, Some(interface), method, body).await?)
    }
}

/// Connects as [`Client`] does, and tells somebody when the service takes long to answer.
#[derive(Debug, Clone, Default)]
pub struct Connector {
    patience: Patience,
}

impl Connector {
    /// `tell` is called once, when an answer has taken five seconds, with the process that listens on the private socket
    /// where that is known. A service that is stopped is found out so: the kernel accepts connections for it.
    pub fn telling(tell: impl Fn(Option<u32>) + Send + Sync + 'static) -> Connector {
        Connector { patience: Patience::telling(tell) }
    }

    /// As [`Client::connect`] with a private socket of another place.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn socket_or_bus(&self, path: &Path) -> Result<Client, Error> {
        let private = match self.socket(path).await {
            Err(Error::NoService { tried }) => tried,
            other => return other,
        };
        match self.bus(None).await {
            Err(Error::NoService { tried }) => Err(Error::NoService { tried: format!("{private}; {tried}") }),
            other => other,
        }
    }

    /// As [`Client::connect_socket`].
    ///
    /// # Errors
    /// As [`Client::connect_socket`].
    pub async fn socket(&self, path: &Path) -> Result<Client, Error> {
        let stream = self.patience.with(None, enter(path, ACCEPTS_WITHIN)).await?;
        let lost = |error: io::Error| Error::Lost(error.to_string());
        let peer = stream.peer_cred().map_err(lost)?;
        if peer.uid() != location::own_uid().map_err(lost)? {
            return Err(Error::OtherAccount { path: path.to_owned(), uid: peer.uid() });
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        let handshake = Builder::unix_stream(stream.into_std().map_err(lost)?).p2p().build();
        let connection = self.patience.with(pid, handshake).await?;
        let route = Route::Socket(path.to_owned());
        Ok(Client { connection, route, peer: pid, patience: self.patience.clone() })
    }

    /// As [`Client::connect_bus`].
    ///
    /// # Errors
    /// As [`Client::connect_bus`].
    pub async fn bus(&self, address: Option<&str>) -> Result<Client, Error> {
        let address = match address.map(str::to_owned).or_else(user_bus) {
            Some(address) => address,
            None => return Err(Error::NoService { tried: "no user bus".to_owned() }),
        };
        let no_bus = |error: zbus::Error| Error::NoService { tried: format!("the bus {address}: {error}") };
        let connecting = async { Builder::address(address.as_str()).build().await.map_err(no_bus) };
        let connection = self.patience.with(None, connecting).await?;
        let patience = self.patience.clone();
        let client = Client { connection, route: Route::Bus(address), peer: None, patience };
        // Activates the service, or says that nobody has the name, before anything depends on it.
        client.call_on("org.freedesktop.DBus.Peer", "Ping", &()).await?;
        Ok(client)
    }
}

/// Enters the queue of whoever listens on the socket.
async fn enter(path: &Path, within: Duration) -> Result<UnixStream, Error> {
    let nobody = |why: &str| Error::NoService { tried: format!("the socket {}: {why}", path.display()) };
    let deadline = Instant::now() + within;
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::NotFound => return Err(nobody("there is none")),
            io::ErrorKind::ConnectionRefused => return Err(nobody("nobody listens on it")),
            // The queue is full.
            io::ErrorKind::WouldBlock if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            io::ErrorKind::WouldBlock => return Err(Error::Busy { path: path.to_owned() }),
            _ => return Err(Error::Unreachable { path: path.to_owned(), error }),
        }
    }
}

fn user_bus() -> Option<String> {
    match env::var("DBUS_SESSION_BUS_ADDRESS") {
        Ok(address) if !address.is_empty() => Some(address),
        _ => location::bus_socket().map(|path| format!("unix:path={}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn errors_say_where_it_was_looked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessiond.sock");
        let error = Client::connect_socket(&path).await.unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("there is none"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let error = Client::connect_socket(&path).await.unwrap_err().to_string();
        assert!(error.contains("nobody listens"), "{error}");
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_followed_is_not_a_missing_service() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let path = file.join("sessiond.sock");
        let error = Client::connect_socket(&path).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }) && !error.is_lost(), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }

    #[cfg(feature = "daemon")]
    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_waited_for_and_then_is_busy() {
        use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
        use std::os::fd::AsRawFd;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessiond.sock");
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let mut queued = vec![];
        let error = loop {
            match enter(&path, Duration::ZERO).await {
                Ok(stream) => queued.push(stream),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, Error::Busy { path: at } if *at == path), "{error}");
        assert!(error.to_string().contains("sessionctl doctor") && error.is_lost(), "{error}");
        let before = Instant::now();
        let error = Client::connect_socket(&path).await.unwrap_err();
        assert!(matches!(error, Error::Busy { .. }) && before.elapsed() >= ACCEPTS_WITHIN, "{error}");
        let listener = std::os::unix::net::UnixListener::from(listener);
        let (entered, _) = tokio::join!(enter(&path, ACCEPTS_WITHIN), async {
            // The first attempt has failed when this is reached.
            tokio::task::yield_now().await;
            listener.accept().unwrap()
        });
        entered.expect("there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_stopped_is_told_with_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessiond.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (tell, told) = tokio::sync::oneshot::channel();
        let tell = std::sync::Mutex::new(Some(tell));
        let connector = Connector::telling(move |pid| {
            tell.lock().unwrap().take().expect("once").send(pid).expect("somebody listens");
        });
        tokio::select! {
            _ = connector.socket(&path) => panic!("nobody answers"),
            pid = told => assert_eq!(pid.unwrap(), Some(std::process::id())),
        }
    }

    #[cfg(feature = "daemon")]
    #[tokio::test]
    async fn a_socket_of_another_account_is_refused_before_anything_is_sent() {
        // Only root can listen as another account.
        if location::own_uid().unwrap() != 0 {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(4711), None).unwrap();
        let path = directory.path().join("sessiond.sock");
        let bound = path.clone();
        // The kernel remembers who called listen(2).
        let listen = move || {
            let keep: libc::c_long = -1;
            // SAFETY: no memory is passed. The raw call changes this thread alone, and the thread ends here.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, keep, 4711 as libc::c_long, keep) }, 0);
            std::os::unix::net::UnixListener::bind(bound).unwrap()
        };
        let listener = std::thread::spawn(listen).join().unwrap();
        let error = Client::connect_socket(&path).await.unwrap_err();
        assert!(matches!(error, Error::OtherAccount { uid: 4711, .. }), "{error}");
        let (mut stream, _) = listener.accept().unwrap();
        assert_eq!(std::io::Read::read(&mut stream, &mut [0; 16]).unwrap(), 0, "nothing was sent");
    }
}
