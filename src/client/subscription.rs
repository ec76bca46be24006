use std::collections::{HashMap, VecDeque};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use serde_json::{Map, Value};
use zbus::message::Type;
use zbus::{Message, MessageStream, OwnedVariant, Variant};

use super::variant::to_object;
use super::{BUS_NAME, Client, Error, INTERFACE, connect::BUS};
use crate::model::RunId;

/// A record as method replies and signals carry it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The cursor after it.
    pub cursor: String,
    /// Microseconds since 1970: a label, not an order.
    pub time: u64,
    /// What happened, one of [`kind::ALL`](crate::model::kind::ALL) or one of a newer version.
    pub kind: String,
    /// Everything else that it says. Texts too long for a message are cut there, with `<key>-cut` beside them.
    pub details: Map<String, Value>,
}

/// A record on the wire: `(stsa{sv})`.
pub(super) type WireRecord = (String, u64, String, HashMap<String, OwnedVariant>);

pub(super) fn to_records(wire: Vec<WireRecord>) -> Vec<Record> {
    wire.into_iter()
        .map(|(cursor, time, kind, details)| Record { cursor, time, kind, details: to_object(details) })
        .collect()
}

/// The next thing that a subscription tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// Records, in order, each once.
    Activity {
        /// The cursor before the first.
        from: String,
        /// The cursor after the last.
        next: String,
        /// The records.
        records: Vec<Record>,
    },
    /// The reader was too slow, and the service stopped sending. The next call of [`Subscription::next`] subscribes
    /// again from here, so nothing is missed.
    Lagged {
        /// Where it goes on.
        resume: String,
    },
}

/// A session's activity as signals: replay from a cursor, then live.
///
/// It has a connection of its own: a reader that does not read holds back nobody but itself. On the bus, the service
/// asks now and then whether it still reads; the answer is given by [`Subscription::next`].
#[derive(Debug)]
pub struct Subscription {
    signals: Signals,
    run_id: RunId,
    position: String,
    subscribed: bool,
}

impl Subscription {
    pub(super) async fn new(client: Client, run_id: RunId, cursor: &str) -> Result<Self, Error> {
        let mut subscription = Subscription {
            signals: Signals::new(client).await?,
            run_id,
            position: cursor.to_owned(),
            subscribed: false,
        };
        subscription.subscribe().await?;
        Ok(subscription)
    }

    /// Subscribes from the position.
    async fn subscribe(&mut self) -> Result<(), Error> {
        self.signals.subscribe(&self.run_id.to_string(), &self.position, HashMap::new()).await?;
        self.subscribed = true;
        Ok(())
    }

    /// The next records, waiting for them as long as it takes; `None` when the connection, or on a bus the service, is
    /// gone: subscribe again on a new one, from [`Subscription::position`]. After a record of the kind `ended` there are
    /// no more.
    ///
    /// # Errors
    /// Subscribing again after a `Lagged` failed, or a signal cannot be read.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        if !self.subscribed {
            self.subscribe().await?;
        }
        loop {
            let Some(signal) = self.signals.next().await? else { return Ok(None) };
            if let Some(delivery) = self.read(signal) {
                return Ok(Some(delivery));
            }
        }
    }

    fn read(&mut self, signal: Signal) -> Option<Delivery> {
        match signal {
            Signal::Activity { run_id, from, next, records } => {
                // What an earlier subscription on this connection had still under way is passed over.
                if run_id != self.run_id.to_string() || !self.continues(&from) {
                    return None;
                }
                self.position.clone_from(&next);
                Some(Delivery::Activity { from, next, records })
            }
            Signal::Lagged { run_id, resume } => {
                if run_id != self.run_id.to_string() {
                    return None;
                }
                self.position.clone_from(&resume);
                self.subscribed = false;
                Some(Delivery::Lagged { resume })
            }
        }
    }

    /// A batch continues if it begins where the last one ended; the words `start` and `end` can begin anywhere.
    fn continues(&self, from: &str) -> bool {
        from == self.position || self.position == "start" || self.position == "end"
    }

    /// The cursor after the last record that was given.
    pub fn position(&self) -> &str {
        &self.position
    }
}

/// What the service sends to a subscriber alone.
pub(super) enum Signal {
    Activity { run_id: String, from: String, next: String, records: Vec<Record> },
    Lagged { run_id: String, resume: String },
}

/// The signals of one connection that is there for a subscription.
#[derive(Debug)]
pub(super) struct Signals {
    client: Client,
    stream: MessageStream,
    /// What came while the subscription was being made.
    early: VecDeque<Message>,
}

impl Signals {
    pub(super) async fn new(client: Client) -> Result<Signals, Error> {
        let stream = MessageStream::from(client.connection());
        client.watch_name().await?;
        Ok(Signals { client, stream, early: VecDeque::new() })
    }

    /// Subscribes. The stream is read meanwhile: one that is not would stop the whole connection, the reply included.
    pub(super) async fn subscribe(
        &mut self,
        run_id: &str,
        cursor: &str,
        options: HashMap<&str, Variant<'_>>,
    ) -> Result<(), Error> {
        let body = (run_id, cursor, options);
        let mut call = Box::pin(self.client.call("Subscribe", &body));
        loop {
            match select(call, self.stream.next()).await {
                Either::Left((reply, _)) => {
                    reply?;
                    return Ok(());
                }
                Either::Right((message, unfinished)) => {
                    if let Some(Ok(message)) = message
                        && is_ours(&message)
                    {
                        self.early.push_back(message);
                    }
                    call = unfinished;
                }
            }
        }
    }

    /// The next signal to a subscriber; `None` when the connection, or on a bus the service, is gone.
    pub(super) async fn next(&mut self) -> Result<Option<Signal>, Error> {
        loop {
            let message = match self.early.pop_front() {
                Some(message) => message,
                None => match self.stream.next().await {
                    Some(Ok(message)) => message,
                    Some(Err(_)) | None => return Ok(None),
                },
            };
            if is_departure(&message) {
                return Ok(None);
            }
            if message.message_type() == Type::MethodCall {
                self.answer(&message).await?;
            } else if let Some(signal) = read(&message)? {
                return Ok(Some(signal));
            }
        }
    }

    /// The service pings subscribers on the bus, and sends no more before the answer. Other calls are nothing that a
    /// client has.
    async fn answer(&self, call: &Message) -> Result<(), Error> {
        let header = call.header();
        let is_ping = header.interface().is_none_or(|name| name == "org.freedesktop.DBus.Peer")
            && header.member().is_some_and(|name| name == "Ping");
        let connection = self.client.connection();
        if is_ping {
            connection.reply(&header, &()).await?;
        } else {
            let error = zbus::fdo::Error::UnknownMethod("a client of Sessions1 has no methods".to_owned());
            connection.reply_dbus_error(&header, error).await?;
        }
        Ok(())
    }
}

fn read(message: &Message) -> Result<Option<Signal>, Error> {
    if !is_ours(message) {
        return Ok(None);
    }
    let header = message.header();
    let body = message.body();
    Ok(match header.member().map(|name| name.as_str()) {
        Some("Activity") => {
            let (run_id, from, next, wire): (String, String, String, Vec<WireRecord>) =
                body.deserialize().map_err(Error::answer)?;
            Some(Signal::Activity { run_id, from, next, records: to_records(wire) })
        }
        Some("Lagged") => {
            let (run_id, resume): (String, String) = body.deserialize().map_err(Error::answer)?;
            Some(Signal::Lagged { run_id, resume })
        }
        _ => None,
    })
}

/// The bus says that the service's name has lost its owner: what this owner was to send will not come.
fn is_departure(message: &Message) -> bool {
    let header = message.header();
    let from_bus = header.sender().is_some_and(|sender| sender == BUS);
    let is_change = header.member().is_some_and(|name| name == "NameOwnerChanged");
    message.message_type() == Type::Signal
        && from_bus
        && is_change
        && message
            .body()
            .deserialize::<(String, String, String)>()
            .is_ok_and(|(name, before, _)| name == BUS_NAME && !before.is_empty())
}

/// A signal of the interface, a change of the service's owner, or a call: what a subscription has to look at.
fn is_ours(message: &Message) -> bool {
    match message.message_type() {
        Type::Signal => {
            is_departure(message) || message.header().interface().is_some_and(|name| name == INTERFACE)
        }
        Type::MethodCall => true,
        _ => false,
    }
}
