//! `org.airouter.Controller1`, over a store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use zbus::message::Header;
use zbus::{OwnedVariant, Variant};

use crate::faults::Faults;
use crate::store::{Denied, Store};

/// The errors of the contract.
#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.airouter.Controller1.Error")]
pub enum Error {
    #[zbus(error)]
    ZBus(zbus::Error),
    UnknownRun(String),
    ForeignLease(String),
    LeaseLost(String),
    Terminal(String),
    NotAuthenticated(String),
    Failed(String),
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Error {
        let text = denied.to_string();
        match denied {
            Denied::UnknownRun => Error::UnknownRun(text),
            Denied::ForeignLease => Error::ForeignLease(text),
            Denied::LeaseLost => Error::LeaseLost(text),
            Denied::Terminal => Error::Terminal(text),
            Denied::NotAuthenticated => Error::NotAuthenticated(text),
            Denied::Failed(_) => Error::Failed(text),
        }
    }
}

pub struct Controller {
    store: Arc<dyn Store>,
    token: Option<String>,
    /// The connections that named it.
    authenticated: Mutex<HashSet<String>>,
    faults: Faults,
}

impl Controller {
    pub fn new(store: Arc<dyn Store>, token: Option<String>, faults: Faults) -> Controller {
        Controller { store, token, authenticated: Mutex::default(), faults }
    }

    fn admit(&self, header: &Header<'_>) -> Result<(), Denied> {
        let known = self.authenticated.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.token, header.sender()) {
            (None, _) => Ok(()),
            (Some(_), Some(sender)) if known.contains(sender.as_str()) => Ok(()),
            _ => Err(Denied::NotAuthenticated),
        }
    }
}

#[zbus::interface(name = "org.airouter.Controller1")]
impl Controller {
    async fn authenticate(
        &self,
        #[zbus(header)] header: Header<'_>,
        application: String,
        token: String,
    ) -> Result<(), Error> {
        let after = self.faults.before("Authenticate")?;
        let sender = header.sender().filter(|_| !application.is_empty());
        match (&self.token, sender) {
            (Some(right), Some(sender)) if *right == token => {
                let mut known = self.authenticated.lock().unwrap_or_else(PoisonError::into_inner);
                known.insert(sender.to_string());
            }
            (None, _) => {}
            _ => return Err(Denied::NotAuthenticated.into()),
        }
        after.pass().await;
        Ok(())
    }

    #[zbus(out_args("prepared"))]
    async fn read_host(
        &self,
        #[zbus(header)] header: Header<'_>,
        run_id: String,
    ) -> Result<HashMap<String, Variant<'static>>, Error> {
        let after = self.faults.before("ReadHost")?;
        self.admit(&header)?;
        let run = self.store.run(&run_id).await?.ok_or(Denied::UnknownRun)?;
        let (Some(host), Some(lease_id), Some(worker)) = (&run.host, &run.lease_id, &run.worker) else {
            return Err(Denied::LeaseLost.into());
        };
        if run.expired && !run.is_over() {
            return Err(Denied::LeaseLost.into());
        }
        let mut prepared: HashMap<String, Variant<'static>> = [
            ("version", "airouter.controller.v1"),
            ("run_id", &run.run_id),
            ("application", &run.application),
            ("host", host),
            ("task_id", &run.task_id),
            ("lease_id", lease_id),
            ("worker", worker),
            ("operation", &run.operation),
            ("phase", &run.phase),
        ]
        .into_iter()
        .map(|(key, text)| (key.to_owned(), Variant::new(text.to_owned())))
        .collect();
        prepared.insert("cancel-requested".into(), Variant::new(run.cancel_requested));
        after.pass().await;
        Ok(prepared)
    }

    #[zbus(out_args("expires", "cancel_requested"))]
    async fn renew_lease(
        &self,
        #[zbus(header)] header: Header<'_>,
        task_id: String,
        lease_id: String,
        worker: String,
        seconds: u32,
    ) -> Result<(u64, bool), Error> {
        let after = self.faults.before("RenewLease")?;
        self.admit(&header)?;
        let renewal = self.store.renew(&task_id, &lease_id, &worker, seconds).await?;
        after.pass().await;
        Ok((u64::try_from(renewal.expires).unwrap_or_default(), renewal.cancel_requested))
    }

    #[zbus(out_args("phase"))]
    async fn cancel_run(
        &self,
        #[zbus(header)] header: Header<'_>,
        run_id: String,
        lease_id: String,
    ) -> Result<String, Error> {
        let after = self.faults.before("CancelRun")?;
        self.admit(&header)?;
        let phase = self.store.cancel(&run_id, &lease_id).await?;
        after.pass().await;
        Ok(phase)
    }

    #[zbus(out_args("phase"))]
    async fn deliver_outcome(
        &self,
        #[zbus(header)] header: Header<'_>,
        run_id: String,
        operation: String,
        outcome: HashMap<String, OwnedVariant>,
    ) -> Result<String, Error> {
        let after = self.faults.before("DeliverOutcome")?;
        self.admit(&header)?;
        let kept = kept(&outcome);
        let end = kept.get("end").and_then(Value::as_str).unwrap_or_default().to_owned();
        let phase = self.store.deliver(&run_id, &operation, &end, &json!(kept).to_string()).await?;
        after.pass().await;
        Ok(phase)
    }
}

/// What this framework keeps of an outcome: texts, numbers and flags.
fn kept(outcome: &HashMap<String, OwnedVariant>) -> Map<String, Value> {
    let value = |variant: &Variant<'_>| match variant {
        Variant::Str(text) => Some(json!(text.as_str())),
        Variant::Bool(flag) => Some(json!(flag)),
        Variant::U64(number) => Some(json!(number)),
        Variant::I64(number) => Some(json!(number)),
        _ => None,
    };
    outcome.iter().filter_map(|(key, variant)| Some((key.clone(), value(variant)?))).collect()
}
