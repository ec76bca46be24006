//! The account's session bus: the service under its well-known name, for as long as there is a bus.
//!
//! The bus is an observer like any other: when it goes away, nothing happens to a session, and when it is back the
//! name is taken again. Two connections: one carries calls and signals, the other asks the bus who the callers are
//! and hears which names are gone (the first cannot wait for an answer while it reads).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, RequestNameFlags};
use zbus::message::{Header, Type};
use zbus::{MatchRule, MessageStream};

use super::gate::{Doorkeeper, GatedSocket, Traffic, send_refusals};
use super::peer::{Link, Peers};
use super::senders::Senders;
use super::socket::Wire;
use super::{Admission, Face, NAME, Owned, stopping};
use crate::client::address::socket_paths;

/// The first and the longest pause before the next attempt to reach a bus.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a bus may take for the handshake, Hello and the name.
const CONNECT: Duration = Duration::from_secs(10);

/// How the service stands with the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Not there yet.
    Connecting,
    /// It owns its name.
    Serving,
    /// It is connected, and another process has the name; it is taken when it becomes free.
    NameTaken,
    /// There is no bus to serve, and why; it is tried again.
    NoBus(String),
}

/// The service on the bus, until this is dropped or [`Face::stop`] is called.
#[derive(Debug)]
pub struct UserBus {
    task: Owned<()>,
    standing: watch::Receiver<Standing>,
}

impl UserBus {
    /// How it stands now.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Comes back when the first attempt has an outcome: the name is owned, or why not.
    pub async fn settled(&self) -> Standing {
        self.stands(|standing| *standing != Standing::Connecting).await
    }

    /// Comes back when it stands as wanted.
    pub async fn stands(&self, wanted: impl FnMut(&Standing) -> bool) -> Standing {
        match self.standing.clone().wait_for(wanted).await {
            Ok(standing) => standing.clone(),
            Err(_) => Standing::NoBus("the service is stopping".into()),
        }
    }

    /// Comes back when the bus was left, after [`Face::stop`].
    pub async fn closed(mut self) {
        // A task that was aborted has nothing more to do either.
        let _ = (&mut self.task.0).await;
    }
}

/// Where the account's bus is: `DBUS_SESSION_BUS_ADDRESS`, else `bus` in `XDG_RUNTIME_DIR`, else in `/run/user/<uid>`.
pub fn user_bus_address(uid: u32) -> String {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    set("DBUS_SESSION_BUS_ADDRESS").unwrap_or_else(|| {
        let directory = set("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/run/user/{uid}"));
        format!("unix:path={directory}/bus")
    })
}

/// Why there is no bus to serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoBus {
    #[error("the bus address names no Unix socket; only unix:path= and unix:abstract= are served")]
    Address,
    #[error("cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("belongs to the account {0}, not to ours")]
    Foreign(u32),
    #[error("does not finish the connection within {} s", CONNECT.as_secs())]
    Slow,
    #[error("{0}")]
    Bus(#[from] zbus::Error),
}

impl From<zbus::fdo::Error> for NoBus {
    fn from(error: zbus::fdo::Error) -> Self {
        NoBus::Bus(error.into())
    }
}

pub(super) fn serve(face: Face, address: String) -> UserBus {
    let (tell, standing) = watch::channel(Standing::Connecting);
    let task = tokio::spawn(async move {
        let mut stop = face.stop.subscribe();
        tokio::select! {
            biased;
            () = stopping(&mut stop) => {}
            () = serve_for_ever(&face, &address, &tell) => {}
        }
    });
    UserBus { task: Owned(task), standing }
}

async fn serve_for_ever(face: &Face, address: &str, tell: &watch::Sender<Standing>) {
    let mut pause = PAUSES.0;
    loop {
        let why = match serve_once(face, address, tell).await {
            Ok(()) => {
                pause = PAUSES.0;
                "the bus closed the connection".to_owned()
            }
            Err(error) => error.to_string(),
        };
        let now = Standing::NoBus(why.clone());
        tell.send_if_modified(|standing| {
            let new = *standing != now;
            if new {
                tracing::info!(address, why, "no user bus; sessions go on, and it is tried again");
                *standing = now;
            }
            new
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Serves until the bus is gone. An error: it did not come to that.
async fn serve_once(face: &Face, address: &str, tell: &watch::Sender<Standing>) -> Result<(), NoBus> {
    let mut open =
        tokio::time::timeout(CONNECT, Served::open(face, address)).await.map_err(|_| NoBus::Slow)??;
    open.stay(tell).await
}

/// An open connection to the bus.
struct Served {
    calls: zbus::Connection,
    asking: zbus::Connection,
    wires: [Arc<Wire>; 2],
    traffic: Arc<Traffic>,
    senders: Arc<Senders>,
    /// Never cloned: zbus 6.2 counts its match rule once, and would give it back twice.
    lost: MessageStream,
    _refusing: [Owned<()>; 2],
    _membership: super::hub::Membership,
    _shelf: super::objects::Shelf,
}

/// The connection that asks serves nothing.
#[derive(Debug)]
struct Nobody;

#[async_trait]
impl Doorkeeper for Nobody {
    async fn admit(&self, _call: &Header<'_>) -> Result<(), String> {
        Err(format!("nothing is served under this name; call {NAME}"))
    }
}

impl Served {
    async fn open(face: &Face, address: &str) -> Result<Self, NoBus> {
        let (stream, asking_stream) =
            (connect(face.admission, address).await?, connect(face.admission, address).await?);

        let (socket, asking_wire, refusals) =
            GatedSocket::new(asking_stream, Traffic::on_bus(), Arc::new(Nobody), false);
        let asking = Builder::socket(socket).build().await?;
        let asking_refuses = Owned(tokio::spawn(send_refusals(asking.clone(), refusals)));
        // Every name that becomes free: callers that leave, and ours if another process has it.
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender("org.freedesktop.DBus")
            .interface("org.freedesktop.DBus")
            .member("NameOwnerChanged")
            .arg(2, "")
            .build()?;
        let lost = MessageStream::for_match_rule(rule, &asking, None).await?;
        let proxy =
            DBusProxy::builder(&asking).cache_properties(zbus::proxy::CacheProperties::No).build().await?;
        let senders = Senders::new(face.admission, proxy);

        let traffic = Traffic::on_bus();
        let (socket, wire, refusals) = GatedSocket::new(stream, traffic.clone(), senders.clone(), true);
        let link = Arc::new(Link { traffic: traffic.clone(), peers: Peers::Bus(senders.clone()) });
        let (calls, shelf) = face.objects.serve(Builder::socket(socket), face.context(link)).await?;
        let refuses = Owned(tokio::spawn(send_refusals(calls.clone(), refusals)));
        let membership = face.hub.join(&calls, wire.clone(), None);
        Ok(Served {
            calls,
            asking,
            wires: [wire, asking_wire],
            traffic,
            senders,
            lost,
            _refusing: [asking_refuses, refuses],
            _membership: membership,
            _shelf: shelf,
        })
    }

    /// Owns the name, or waits for it, until a connection ends.
    async fn stay(&mut self, tell: &watch::Sender<Standing>) -> Result<(), NoBus> {
        tell.send_replace(take_name(&self.calls).await?);
        loop {
            let signal = tokio::select! {
                () = self.calls.closed() => return Ok(()),
                () = self.asking.closed() => return Ok(()),
                signal = self.lost.next() => signal,
            };
            let Some(Ok(signal)) = signal else { return Ok(()) };
            let body = signal.body();
            let Ok((name, _, _)) = body.deserialize::<(&str, &str, &str)>() else { continue };
            if name != NAME {
                self.senders.lost(name);
            } else if *tell.borrow() == Standing::NameTaken {
                tell.send_replace(take_name(&self.calls).await?);
            }
        }
    }

    fn leave(&self) {
        for wire in &self.wires {
            wire.shut();
        }
        self.traffic.close();
        self.senders.all_lost();
    }
}

async fn take_name(calls: &zbus::Connection) -> zbus::Result<Standing> {
    match calls.request_name_with_flags(NAME, RequestNameFlags::DO_NOT_QUEUE).await {
        Ok(_) => {
            tracing::info!(name = NAME, "serving on the user bus");
            Ok(Standing::Serving)
        }
        Err(zbus::Error::NameTaken) => {
            tracing::warn!(name = NAME, "another process has the name; it is taken when it becomes free");
            Ok(Standing::NameTaken)
        }
        Err(error) => Err(error),
    }
}

impl Drop for Served {
    // Also when the face stops in the middle.
    fn drop(&mut self) {
        self.leave();
    }
}

/// Connects to the first Unix socket of `address` that can be reached, if it is our account's.
pub(super) async fn connect(admission: Admission, address: &str) -> Result<UnixStream, NoBus> {
    let paths = socket_paths(address);
    let mut last = NoBus::Address;
    for path in paths {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                let uid = stream.peer_cred().map_err(NoBus::Unreachable)?.uid();
                if !admission.admits(uid) {
                    return Err(NoBus::Foreign(uid));
                }
                return Ok(stream);
            }
            Err(error) => last = NoBus::Unreachable(error),
        }
    }
    Err(last)
}
