//! The senders on a bus: which of them are our account's, and which have left.
//!
//! Asked of the bus (`GetConnectionCredentials`) when a sender calls first, over a connection of its own: the one
//! that carries the calls cannot wait for an answer while it reads. A unique name never comes back in a bus's life,
//! so an answer holds until the bus says that the name is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use zbus::fdo::DBusProxy;
use zbus::message::Header;
use zbus::names::{BusName, OwnedUniqueName};

use super::Admission;
use super::gate::Doorkeeper;
use super::peer::Peer;

/// The most senders that are remembered. Beyond it those are forgotten that own nothing here.
const REMEMBERED: usize = 1024;
/// How long the bus may take to say who a sender is.
const ANSWER: Duration = Duration::from_secs(5);

/// The senders of one bus connection.
#[derive(Debug)]
pub struct Senders {
    admission: Admission,
    bus: DBusProxy<'static>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    present: HashMap<String, Arc<Peer>>,
    /// Names that the bus is being asked about; `true`: it left meanwhile.
    asked: HashMap<String, bool>,
}

impl Senders {
    /// Asks through `bus`, a connection that carries no calls to us.
    pub fn new(admission: Admission, bus: DBusProxy<'static>) -> Arc<Self> {
        Arc::new(Senders { admission, bus, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing that is done under the lock can leave it half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer of that name, if it was admitted and has not left.
    pub fn present(&self, name: &str) -> Option<Arc<Peer>> {
        self.known().present.get(name).cloned()
    }

    /// The bus says that nobody has this name any more.
    pub fn lost(&self, name: &str) {
        let gone = {
            let mut known = self.known();
            if let Some(left) = known.asked.get_mut(name) {
                *left = true;
            }
            known.present.remove(name)
        };
        if let Some(peer) = gone {
            peer.leave();
        }
    }

    /// The bus is gone, and everybody on it.
    pub fn all_lost(&self) {
        let gone = std::mem::take(&mut self.known().present);
        for peer in gone.values() {
            peer.leave();
        }
    }

    async fn ask(&self, name: &OwnedUniqueName) -> Result<(), String> {
        self.known().asked.insert(name.to_string(), false);
        let credentials =
            tokio::time::timeout(ANSWER, self.bus.get_connection_credentials(BusName::Unique(name.as_ref())))
                .await;
        let mut known = self.known();
        let left = known.asked.remove(name.as_str()).unwrap_or(true);
        let uid = match credentials {
            Ok(Ok(credentials)) => credentials.unix_user_id().ok_or("the bus does not know your account")?,
            Ok(Err(error)) => return Err(format!("the bus does not say whose connection this is: {error}")),
            Err(_) => return Err("the bus does not say whose connection this is".into()),
        };
        if left {
            return Err("the caller has left".into());
        }
        if !self.admission.admits(uid) {
            return Err(format!(
                "this service belongs to the account {}, and the caller to {uid}",
                self.admission.uid
            ));
        }
        if known.present.len() >= REMEMBERED {
            // A peer that owns a subscription or a waiting call is held by it too.
            known.present.retain(|_, peer| Arc::strong_count(peer) > 1);
            if known.present.len() >= REMEMBERED {
                return Err("too many callers are connected".into());
            }
        }
        known.present.insert(name.to_string(), Peer::new(Some(name.clone())));
        Ok(())
    }
}

#[async_trait]
impl Doorkeeper for Senders {
    async fn admit(&self, call: &Header<'_>) -> Result<(), String> {
        let Some(name) = call.sender() else { return Err("the bus does not say who calls".into()) };
        if self.known().present.contains_key(name.as_str()) {
            return Ok(());
        }
        self.ask(&name.to_owned().into()).await
    }
}
