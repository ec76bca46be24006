//! What a private socket answers so that clients made for a bus work on it.
//!
//! `busctl`, `gdbus` and most libraries say Hello to whatever they connect to, add match rules, and ask who owns
//! the name that they call. Here the service is `:1.0` and owns its well-known name; the client has a unique name
//! of its own, and there is nobody else. Match rules are not kept: a client that has any gets every broadcast, and
//! picks by itself, as libraries do anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use zbus::fdo;
use zbus::message::Header;
use zbus::names::BusName;
use zbus::object_server::SignalEmitter;
use zbus::wire::Variant;

use super::hub::PRIVATE_NAME;
use super::peer::Link;
use super::{BusError, NAME};

/// Where a bus is.
pub const BUS_PATH: &str = "/org/freedesktop/DBus";
const BUS_NAME: &str = "org.freedesktop.DBus";

/// Whether a private connection wants broadcasts: as on a bus, one that said Hello wants those that it has match
/// rules for; one that did not is a true peer and gets everything.
#[derive(Debug, Default)]
pub struct Listening {
    hello: AtomicBool,
    monitor: AtomicBool,
    matches: AtomicUsize,
}

impl Listening {
    /// Whether to send broadcasts.
    pub fn listens(&self) -> bool {
        !self.hello.load(Ordering::Relaxed)
            || self.monitor.load(Ordering::Relaxed)
            || self.matches.load(Ordering::Relaxed) > 0
    }
}

/// The bus's own interface on a private connection.
#[derive(Debug)]
pub struct FakeBus {
    /// The client's unique name.
    pub client: String,
    /// Its account and process, as the kernel says.
    pub credentials: (u32, u32),
    /// Our account and process.
    pub ours: (u32, u32),
    /// The socket's guid.
    pub guid: String,
    /// What the client listens to.
    pub listening: Arc<Listening>,
}

impl FakeBus {
    /// The account and process of whoever has `name`.
    fn credentials_of(&self, name: &BusName<'_>) -> fdo::Result<(u32, u32)> {
        match name.as_str() {
            NAME | PRIVATE_NAME | BUS_NAME => Ok(self.ours),
            name if name == self.client => Ok(self.credentials),
            _ => Err(nobody(name)),
        }
    }
}

fn nobody(name: &BusName<'_>) -> fdo::Error {
    fdo::Error::NameHasNoOwner(format!("nobody on this private socket has the name {name}"))
}

#[zbus::interface(name = "org.freedesktop.DBus", introspection_docs = false)]
impl FakeBus {
    #[zbus(out_args("unique_name"))]
    fn hello(&self) -> String {
        self.listening.hello.store(true, Ordering::Relaxed);
        self.client.clone()
    }

    fn add_match(&self, rule: &str) -> fdo::Result<()> {
        zbus::MatchRule::try_from(rule).map_err(|error| fdo::Error::MatchRuleInvalid(error.to_string()))?;
        self.listening.matches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn remove_match(&self, rule: &str) -> fdo::Result<()> {
        let one_less = |count: usize| count.checked_sub(1);
        self.listening
            .matches
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .map_err(|_| fdo::Error::MatchRuleNotFound(format!("the rule {rule} was not added")))?;
        Ok(())
    }

    #[zbus(out_args("unique_name"))]
    fn get_name_owner(&self, name: BusName<'_>) -> fdo::Result<String> {
        match name.as_str() {
            NAME | PRIVATE_NAME => Ok(PRIVATE_NAME.into()),
            BUS_NAME => Ok(BUS_NAME.into()),
            own if own == self.client => Ok(own.into()),
            _ => Err(nobody(&name)),
        }
    }

    fn name_has_owner(&self, name: BusName<'_>) -> bool {
        self.credentials_of(&name).is_ok()
    }

    fn list_names(&self) -> Vec<String> {
        vec![BUS_NAME.into(), NAME.into(), PRIVATE_NAME.into(), self.client.clone()]
    }

    fn list_activatable_names(&self) -> Vec<String> {
        vec![BUS_NAME.into()]
    }

    fn list_queued_owners(&self, name: BusName<'_>) -> fdo::Result<Vec<String>> {
        self.get_name_owner(name).map(|owner| vec![owner])
    }

    /// 2: it runs already.
    fn start_service_by_name(&self, name: BusName<'_>, flags: u32) -> fdo::Result<u32> {
        let _ = flags;
        if self.credentials_of(&name).is_ok() {
            Ok(2)
        } else {
            Err(fdo::Error::ServiceUnknown(format!("nothing on this private socket provides {name}")))
        }
    }

    fn request_name(&self, name: &str, flags: u32) -> fdo::Result<u32> {
        let _ = (name, flags);
        Err(fdo::Error::AccessDenied("a private socket has no names to give".into()))
    }

    fn release_name(&self, name: BusName<'_>) -> u32 {
        // 2: nobody has it; 3: somebody else has it.
        if self.credentials_of(&name).is_ok() { 3 } else { 2 }
    }

    fn get_id(&self) -> String {
        self.guid.clone()
    }

    #[zbus(name = "GetConnectionUnixUser")]
    fn connection_user(&self, name: BusName<'_>) -> fdo::Result<u32> {
        self.credentials_of(&name).map(|(uid, _)| uid)
    }

    #[zbus(name = "GetConnectionUnixProcessID")]
    fn connection_process(&self, name: BusName<'_>) -> fdo::Result<u32> {
        self.credentials_of(&name).map(|(_, pid)| pid)
    }

    #[zbus(name = "GetConnectionCredentials")]
    fn connection_credentials(
        &self,
        name: BusName<'_>,
    ) -> fdo::Result<HashMap<&'static str, Variant<'static>>> {
        let (uid, pid) = self.credentials_of(&name)?;
        Ok(HashMap::from([("UnixUserID", Variant::from(uid)), ("ProcessID", Variant::from(pid))]))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn features(&self) -> Vec<String> {
        Vec::new()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn interfaces(&self) -> Vec<String> {
        vec!["org.freedesktop.DBus.Monitoring".into()]
    }

    #[zbus(signal)]
    async fn name_owner_changed(
        emitter: &SignalEmitter<'_>,
        name: &str,
        old_owner: &str,
        new_owner: &str,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn name_lost(emitter: &SignalEmitter<'_>, name: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn name_acquired(emitter: &SignalEmitter<'_>, name: &str) -> zbus::Result<()>;
}

/// Monitoring of a private connection: its own traffic is what there is to see.
#[derive(Debug)]
pub struct FakeMonitoring {
    /// The client's unique name.
    pub client: String,
    /// What the client listens to.
    pub listening: Arc<Listening>,
    /// To know when the call was answered.
    pub link: Arc<Link>,
}

#[zbus::interface(name = "org.freedesktop.DBus.Monitoring", introspection_docs = false)]
impl FakeMonitoring {
    /// A bus takes the unique name from a monitor, after the answer; busctl shows nothing before that.
    fn become_monitor(
        &self,
        rules: Vec<String>,
        flags: u32,
        #[zbus(header)] header: Header<'_>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<(), BusError> {
        let _ = (rules, flags);
        self.listening.monitor.store(true, Ordering::Relaxed);
        let caller = self.link.caller(&header)?;
        let (answered, when_answered) = tokio::sync::oneshot::channel::<()>();
        caller.keep_until_answered(answered);
        let (emitter, client) = (emitter.into_owned(), self.client.clone());
        tokio::spawn(async move {
            // Resolves by being dropped.
            let _ = when_answered.await;
            if let Err(error) = FakeBus::name_lost(&emitter, &client).await {
                tracing::debug!(%error, "a monitor left before it began");
            }
        });
        Ok(())
    }
}
