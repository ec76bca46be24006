use std::collections::{BTreeMap, HashMap};

use zbus::Variant;

use super::subscription::{Record, Signal, Signals};
use super::{Client, Error};
use crate::model::RunId;

/// The next thing that a subscription to all sessions tells.
#[derive(Debug, Clone, PartialEq)]
pub enum AllDelivery {
    /// Records of one session, in order, each once. There are none where a subscription from `end` tells where a session
    /// stands.
    Activity {
        /// The session.
        run_id: RunId,
        /// The cursor before the first.
        from: String,
        /// The cursor after the last.
        next: String,
        /// The records.
        records: Vec<Record>,
    },
    /// One session cannot be read further; the others go on. `Events` from there says why.
    Broken {
        /// The session.
        run_id: RunId,
        /// The cursor after the last record that was given.
        resume: String,
    },
    /// The reader was too slow, and the service stopped sending. The next call of [`AllSubscription::next`] subscribes again
    /// from [`AllSubscription::positions`]; sessions that came and ended meanwhile are found by
    /// [`Client::list`](super::Client::list).
    Lagged,
}

/// The activity of all sessions as signals: those that have not ended, and those that come. Each is replayed from its place
/// and then live; among each other they have no order.
///
/// It has a connection of its own, as a [`Subscription`](super::Subscription) has.
#[derive(Debug)]
pub struct AllSubscription {
    signals: Signals,
    /// `start` or `end`.
    cursor: String,
    positions: BTreeMap<RunId, String>,
    subscribed: bool,
}

impl AllSubscription {
    pub(super) async fn new(
        client: Client,
        cursor: &str,
        positions: BTreeMap<RunId, String>,
    ) -> Result<Self, Error> {
        let signals = Signals::new(client).await?;
        let mut subscription =
            AllSubscription { signals, cursor: cursor.to_owned(), positions, subscribed: false };
        subscription.subscribe().await?;
        Ok(subscription)
    }

    async fn subscribe(&mut self) -> Result<(), Error> {
        let cursors: HashMap<String, String> =
            self.positions.iter().map(|(run_id, cursor)| (run_id.to_string(), cursor.clone())).collect();
        let options = HashMap::from([("cursors", Variant::new(cursors))]);
        self.signals.subscribe("", &self.cursor, options).await?;
        // What comes before it is made again was not seen; where the others began is in the positions.
        "start".clone_into(&mut self.cursor);
        self.subscribed = true;
        Ok(())
    }

    /// The next records of any session, waiting for them as long as it takes; `None` when the connection, or on a bus the
    /// service, is gone: subscribe again on a new one, with [`AllSubscription::positions`].
    ///
    /// # Errors
    /// Subscribing again after a `Lagged` failed, or a signal cannot be read.
    pub async fn next(&mut self) -> Result<Option<AllDelivery>, Error> {
        if !self.subscribed {
            self.subscribe().await?;
        }
        loop {
            let Some(signal) = self.signals.next().await? else { return Ok(None) };
            if let Some(delivery) = self.read(signal)? {
                return Ok(Some(delivery));
            }
        }
    }

    fn read(&mut self, signal: Signal) -> Result<Option<AllDelivery>, Error> {
        match signal {
            Signal::Activity { run_id, from, next, records } => {
                let run_id: RunId = run_id.parse().map_err(Error::answer)?;
                let before = self.positions.get(&run_id);
                // What an earlier subscription on this connection had still under way is passed over.
                if before.is_some_and(|before| *before != from && !matches!(before.as_str(), "start" | "end"))
                {
                    return Ok(None);
                }
                match records.iter().any(|record| record.kind == "ended") {
                    true => self.positions.remove(&run_id),
                    false => self.positions.insert(run_id, next.clone()),
                };
                Ok(Some(AllDelivery::Activity { run_id, from, next, records }))
            }
            Signal::Lagged { run_id, .. } if run_id.is_empty() => {
                self.subscribed = false;
                Ok(Some(AllDelivery::Lagged))
            }
            Signal::Lagged { run_id, resume } => {
                let run_id = run_id.parse().map_err(Error::answer)?;
                // With it every later subscription would be refused.
                self.positions.remove(&run_id);
                Ok(Some(AllDelivery::Broken { run_id, resume }))
            }
        }
    }

    /// The cursor after the last record that was given, of each session whose last record was not.
    pub fn positions(&self) -> &BTreeMap<RunId, String> {
        &self.positions
    }
}
