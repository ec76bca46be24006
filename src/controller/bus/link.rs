//! The connection to the framework's bus, who answers there, and the token.
//!
//! Nothing is sent before it is known who gets it: the bus and the owner of the framework's name must be ours or
//! root's. Calls go to that owner itself, so that nobody who takes the name in between gets a token or an outcome.
//! A connection, an owner or an authentication that is gone is replaced once within a call; every call may be repeated.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::names::{OwnedUniqueName, OwnedWellKnownName};
use zbus::wire::OwnedObjectPath;
use zbus::{Connection, DynamicType, Type};

use super::INTERFACE;
use super::refusal::Failure;
use crate::client::address::socket_paths;
use crate::client::reply::error_reply;
use crate::config::{ControllerConfig, TokenFile};
use crate::controller::{Contact, ControllerError};
use crate::model::shown;

const DBUS: &str = "org.freedesktop.DBus";
const DBUS_PATH: &str = "/org/freedesktop/DBus";

/// See the module. It connects when it is first used.
#[derive(Debug)]
pub(super) struct Link {
    address: String,
    name: OwnedWellKnownName,
    path: OwnedObjectPath,
    application: String,
    token: Option<TokenFile>,
    uid: u32,
    /// The longest that a call may take with everything that it needs.
    patience: Duration,
    held: Mutex<Held>,
    /// Why the last call had no answer.
    problem: StdMutex<Option<String>>,
}

/// What is known to stand, until it shows that it does not.
#[derive(Debug, Default)]
struct Held {
    wire: Option<Arc<Wire>>,
    /// The owner of the name on that connection, verified and, with a token, authenticated to.
    owner: Option<OwnedUniqueName>,
}

/// A connection. It is shut down with the last user: one whose sending was given up may stand in the middle of a message.
#[derive(Debug)]
struct Wire {
    connection: Connection,
    socket: StdUnixStream,
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Link {
    pub(super) fn new(config: &ControllerConfig, address: String, application: &str, uid: u32) -> Link {
        Link {
            address,
            name: config.name.clone(),
            path: config.path.clone(),
            application: application.to_owned(),
            token: config.token_file.clone(),
            uid,
            patience: Duration::from_secs(config.call_seconds),
            held: Mutex::default(),
            problem: StdMutex::default(),
        }
    }

    /// A method of the framework, answered within the configured time or not at all.
    pub(super) async fn call<B, R>(&self, method: &'static str, body: &B) -> Result<R, ControllerError>
    where
        B: Serialize + DynamicType + Sync,
        R: for<'de> Deserialize<'de> + Type,
    {
        let answer = match tokio::time::timeout(self.patience, self.call_or_again(method, body)).await {
            Ok(answer) => answer.map_err(ControllerError::from),
            Err(_) => Err(self.silent(method)),
        };
        let problem = match &answer {
            Err(error @ ControllerError::Unavailable(_)) => Some(error.to_string()),
            _ => None,
        };
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
        answer
    }

    fn silent(&self, method: &str) -> ControllerError {
        let (name, seconds) = (&self.name, self.patience.as_secs());
        ControllerError::Unavailable(format!("{name} on its bus does not answer {method} within {seconds} s"))
    }

    /// What the last call showed.
    pub(super) fn contact(&self) -> Contact {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Contact { name: self.name.to_string(), problem }
    }

    /// Whether somebody owns the name. Starts nothing; `false`: nobody does, and the bus can start it.
    pub(super) async fn is_served(&self) -> Result<bool, ControllerError> {
        let look = async {
            let wire = self.connect().await?;
            if self.current_owner(&wire).await?.is_some() {
                return Ok(true);
            }
            let names: Vec<String> = bus(&wire, "ListActivatableNames", &()).await.map_err(Failure::of)?;
            match names.iter().any(|name| *name == self.name.as_str()) {
                true => Ok(false),
                false => Err(self.nobody()),
            }
        };
        match tokio::time::timeout(self.patience, look).await {
            Ok(found) => found.map_err(ControllerError::from),
            Err(_) => Err(self.silent("GetNameOwner")),
        }
    }

    fn nobody(&self) -> Failure {
        Failure::Other(format!("nobody owns {} on its bus", self.name))
    }

    async fn call_or_again<B, R>(&self, method: &'static str, body: &B) -> Result<R, Failure>
    where
        B: Serialize + DynamicType + Sync,
        R: for<'de> Deserialize<'de> + Type,
    {
        let first = match self.ready().await {
            Ok((wire, owner)) => {
                let answer = self.ask(&wire, &owner, method, body).await;
                match answer {
                    Err(Failure::Broken(_)) => self.forget(&wire, true).await,
                    Err(Failure::NotAuthenticated(_)) => self.forget(&wire, false).await,
                    answer => return answer,
                }
                answer
            }
            Err(failure) => Err(failure),
        };
        let again = match &first {
            Err(Failure::Broken(_)) => true,
            // Without a token there is nothing that would make it take us.
            Err(Failure::NotAuthenticated(_)) => self.token.is_some(),
            _ => false,
        };
        if !again {
            return first;
        }
        let (wire, owner) = self.ready().await?;
        let answer = self.ask(&wire, &owner, method, body).await;
        if let Err(Failure::Broken(_)) = &answer {
            self.forget(&wire, true).await;
        }
        answer
    }

    async fn ask<B, R>(
        &self,
        wire: &Wire,
        owner: &OwnedUniqueName,
        method: &'static str,
        body: &B,
    ) -> Result<R, Failure>
    where
        B: Serialize + DynamicType + Sync,
        R: for<'de> Deserialize<'de> + Type,
    {
        let reply = wire
            .connection
            .call_method(Some(owner), &self.path, Some(INTERFACE), method, body)
            .await
            .map_err(Failure::of)?;
        let body = reply.body();
        body.deserialize()
            .map_err(|error| Failure::Other(format!("{method} answers what it must not: {error}")))
    }

    async fn forget(&self, broken: &Arc<Wire>, connection_too: bool) {
        let mut held = self.held.lock().await;
        if held.wire.as_ref().is_some_and(|wire| Arc::ptr_eq(wire, broken)) {
            held.owner = None;
            if connection_too {
                held.wire = None;
            }
        }
    }

    /// A connection, and the process behind the framework's name as it is now.
    async fn ready(&self) -> Result<(Arc<Wire>, OwnedUniqueName), Failure> {
        let mut held = self.held.lock().await;
        if let Some(wire) = held.wire.clone() {
            match self.owner(&wire).await {
                Ok(owner) => return self.known(&mut held, wire, owner).await,
                // The bus itself answered.
                Err(failure @ (Failure::Other(_) | Failure::Refused(..))) => return Err(failure),
                Err(_) => *held = Held::default(),
            }
        }
        let wire = Arc::new(self.connect().await?);
        held.wire = Some(wire.clone());
        let owner = self.owner(&wire).await?;
        self.known(&mut held, wire, owner).await
    }

    /// The same owner as before, or one that is verified and authenticated to now.
    async fn known(
        &self,
        held: &mut Held,
        wire: Arc<Wire>,
        owner: OwnedUniqueName,
    ) -> Result<(Arc<Wire>, OwnedUniqueName), Failure> {
        if held.owner.as_ref() == Some(&owner) {
            return Ok((wire, owner));
        }
        held.owner = None;
        let uid: u32 = bus(&wire, "GetConnectionUnixUser", &owner.as_str()).await.map_err(Failure::of)?;
        if uid != self.uid && uid != 0 {
            return Err(Failure::Other(format!(
                "{} is owned by the account {uid}, neither ours nor root; nothing was sent to it",
                self.name
            )));
        }
        if let Some(token) = &self.token {
            let token = token.read(self.uid).map_err(|problem| Failure::Other(problem.to_string()))?;
            let body = (self.application.as_str(), token.as_str());
            let () = self.ask(&wire, &owner, "Authenticate", &body).await?;
        }
        held.owner = Some(owner.clone());
        Ok((wire, owner))
    }

    /// Who owns the framework's name; it is started if the bus can do that.
    async fn owner(&self, wire: &Wire) -> Result<OwnedUniqueName, Failure> {
        if let Some(owner) = self.current_owner(wire).await? {
            return Ok(owner);
        }
        let body = (self.name.as_str(), 0u32);
        let started: Result<u32, _> = bus(wire, "StartServiceByName", &body).await;
        let Err(error) = started else {
            return self.current_owner(wire).await?.ok_or_else(|| self.nobody());
        };
        Err(match error_reply(&error) {
            Some((name, _)) if name == "org.freedesktop.DBus.Error.ServiceUnknown" => self.nobody(),
            Some((_, text)) => Failure::Other(format!("{} cannot be started: {}", self.name, shown(&text))),
            None => Failure::of(error),
        })
    }

    /// Who owns it now. A bus that does not even answer that, which it does by itself, is taken for broken: a message that
    /// was given up half-way may have spoiled the connection.
    async fn current_owner(&self, wire: &Wire) -> Result<Option<OwnedUniqueName>, Failure> {
        let name = self.name.as_str();
        let owner = bus(wire, "GetNameOwner", &name);
        match tokio::time::timeout(self.patience / 3, owner).await {
            Ok(Ok(owner)) => Ok(Some(owner)),
            Ok(Err(error)) => match error_reply(&error) {
                Some((name, _)) if name == "org.freedesktop.DBus.Error.NameHasNoOwner" => Ok(None),
                _ => Err(Failure::of(error)),
            },
            Err(_) => Err(Failure::Broken("its bus does not answer".into())),
        }
    }

    /// Connects to the first Unix socket of the address that can be reached, if it is ours or root's.
    async fn connect(&self) -> Result<Wire, Failure> {
        let mut last = Failure::Other("the bus address names no Unix socket".into());
        for path in socket_paths(&self.address) {
            let connected = async {
                let stream = UnixStream::connect(&path).await?;
                let uid = stream.peer_cred()?.uid();
                Ok::<_, io::Error>((stream.into_std()?, uid))
            };
            match connected.await {
                Ok((_, uid)) if uid != self.uid && uid != 0 => {
                    return Err(Failure::Other(format!(
                        "its bus belongs to the account {uid}, neither ours nor root"
                    )));
                }
                Ok((stream, _)) => {
                    let socket = stream.try_clone().map_err(|error| Failure::Broken(error.to_string()))?;
                    let connection = Builder::unix_stream(stream).build().await.map_err(Failure::of)?;
                    return Ok(Wire { connection, socket });
                }
                Err(error) => last = Failure::Broken(format!("its bus cannot be reached: {error}")),
            }
        }
        Err(last)
    }
}

/// A method of the bus itself.
async fn bus<B, R>(wire: &Wire, method: &'static str, body: &B) -> zbus::Result<R>
where
    B: Serialize + DynamicType + Sync,
    R: for<'de> Deserialize<'de> + Type,
{
    let reply = wire.connection.call_method(Some(DBUS), DBUS_PATH, Some(DBUS), method, body).await?;
    reply.body().deserialize()
}
