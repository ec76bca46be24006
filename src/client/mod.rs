//! For application processes and `sessionctl`: where the service is, and a typed client of it.
//!
//! The client finds the service of its own account without any variable set ([`location`]), checks by the kernel's
//! credentials that it talks to that account and no other, and says in its errors what to do.
//!
//! Nothing that a client does or does not do changes a session: it may be dropped at any time, and whoever comes back
//! reads on from the cursor at which it stopped.
//!
//! ```no_run
//! use airouter_sessiond::client::{Client, Error, FollowOptions};
//! use airouter_sessiond::model::{RunId, Submission};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect().await?;
//! let submission = Submission::new(RunId::random(), "codex");
//! let run_id = submission.run_id();
//! // A Submit whose reply was lost is sent again as it is: it names the same session for ever.
//! client.submit(&submission, Some(b"Say hello".to_vec())).await?;
//!
//! let mut cursor = "start".to_owned();
//! let mut client = Some(client);
//! loop {
//!     let connected = match client.take() {
//!         Some(client) => client,
//!         None => Client::connect().await?, // the service was restarted: find it again, and read on
//!     };
//!     let mut follow = connected.follow(run_id, &cursor, FollowOptions::default()).await?;
//!     while let Some(entry) = follow.next().await? {
//!         println!("{} {:?}", entry.kind, entry.details.get("text"));
//!     }
//!     cursor = follow.position().to_owned();
//!     if follow.ended() || connected.status(run_id).await.is_ok_and(|status| status.is_over()) {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "daemon")]
pub(crate) mod address;
mod attachment;
mod connect;
mod error;
mod follow;
pub mod location;
mod patience;
#[cfg(feature = "daemon")]
pub(crate) mod reply;
mod status;
mod subscription;
mod subscription_all;
pub(crate) mod variant;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use zbus::{DynamicType, Message, OwnedObjectPath, OwnedVariant, Variant};

pub use crate::model::{Filter, PrunePolicy, Pruned, Storage};
pub use attachment::Attachment;
pub use connect::{Client, Connector};
pub use error::{ERROR_PREFIX, Error};
pub use follow::{Follow, FollowOptions};
pub use status::SessionStatus;
pub use subscription::{Delivery, Record, Subscription};
pub use subscription_all::{AllDelivery, AllSubscription};

use self::variant::{Dictionary, texts_to_variant, to_dictionary, to_object};
use crate::model::{Answer, MessageStatus, RunId, Submission};

/// The service's name on the user's bus.
pub const BUS_NAME: &str = "org.airouter.Sessions1";
/// The service's object.
pub const OBJECT_PATH: &str = "/org/airouter/Sessions1";
/// The service's interface.
pub const INTERFACE: &str = "org.airouter.Sessions1";

/// The largest input that travels inside the call; a larger one goes through a pipe. In bytes.
const MAX_INLINE_INPUT: usize = 64 << 10;

/// What [`Client::wait`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The program was started, or never will be.
    Started,
    /// Somebody is needed (a question, a reconciliation), or it ended.
    Attention,
    /// It ended, or its end is uncertain.
    Finished,
}

impl WaitFor {
    /// The word of the interface.
    pub fn word(self) -> &'static str {
        match self {
            WaitFor::Started => "started",
            WaitFor::Attention => "attention",
            WaitFor::Finished => "finished",
        }
    }
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The cursor after the last of them.
    pub next: String,
    /// There are more already.
    pub more: bool,
    /// The records.
    pub records: Vec<Record>,
}

/// A submission that is durable.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The path of the session's object.
    pub object: String,
    /// Its status.
    pub status: SessionStatus,
}

type WireDictionary = HashMap<String, OwnedVariant>;

impl Client {
    /// Submits a session. When this returns, it would survive a power loss.
    ///
    /// `input` is what the program gets on its standard input, of any bytes.
    ///
    /// # Errors
    /// The service refuses it, naming the key; or the connection was lost, and the same call may be made again.
    pub async fn submit(&self, submission: &Submission, input: Option<Vec<u8>>) -> Result<Submitted, Error> {
        self.submit_with(submission, input, &[]).await
    }

    /// The same with attachments; the list in `submission` itself stays empty. The same call made again carries them
    /// again.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    pub async fn submit_with(
        &self,
        submission: &Submission,
        input: Option<Vec<u8>>,
        attachments: &[Attachment],
    ) -> Result<Submitted, Error> {
        let Value::Object(object) = serde_json::to_value(submission).map_err(Error::answer)? else {
            return Err(Error::answer("a submission is not an object"));
        };
        let mut dictionary = to_dictionary(&object);
        if !submission.environment.is_empty() {
            dictionary.insert("environment".to_owned(), texts_to_variant(&submission.environment));
        }
        if !attachments.is_empty() {
            let entries: Result<Vec<Dictionary>, Error> = attachments.iter().map(Attachment::entry).collect();
            dictionary.insert("attachments".to_owned(), Variant::new(entries?));
        }
        if let Some(input) = input {
            let (key, value) = input_entry(input)?;
            dictionary.insert(key.to_owned(), value);
        }
        let (object, status): (OwnedObjectPath, WireDictionary) = self.ask("Submit", &(dictionary,)).await?;
        Ok(Submitted { object: object.to_string(), status: SessionStatus::from_json(to_object(status)) })
    }

    /// What is known of a session.
    ///
    /// # Errors
    /// There is none of that name, or the service cannot be asked.
    pub async fn status(&self, run_id: RunId) -> Result<SessionStatus, Error> {
        self.ask_status("Status", &run_id.to_string()).await
    }

    /// A page of sessions, and what to pass as `cursor` for the next; empty when there is none.
    ///
    /// # Errors
    /// The filter is refused, or the service cannot be asked.
    pub async fn list(&self, filter: &Filter) -> Result<(Vec<SessionStatus>, String), Error> {
        let Value::Object(filter) = serde_json::to_value(filter).map_err(Error::answer)? else {
            return Err(Error::answer("a filter is not an object"));
        };
        let body = (to_dictionary(&filter),);
        let (statuses, next): (Vec<WireDictionary>, String) = self.ask("List", &body).await?;
        Ok((statuses.into_iter().map(|status| SessionStatus::from_json(to_object(status))).collect(), next))
    }

    /// A page of a session's events after `cursor`; `limit` 0: as many as a page takes.
    ///
    /// # Errors
    /// The cursor is refused (`InvalidCursor…`, `CursorExpired`), or the service cannot be asked.
    pub async fn events(&self, run_id: RunId, cursor: &str, limit: u32) -> Result<Page, Error> {
        let body = (run_id.to_string(), cursor, limit);
        let (next, more, wire): (String, bool, Vec<subscription::WireRecord>) =
            self.ask("Events", &body).await?;
        Ok(Page { next, more, records: subscription::to_records(wire) })
    }

    /// A session's activity after `cursor`: what there is, and what comes.
    ///
    /// # Errors
    /// The cursor is refused, or the service cannot be asked.
    pub async fn follow(&self, run_id: RunId, cursor: &str, options: FollowOptions) -> Result<Follow, Error> {
        let words: HashMap<&str, Variant<'_>> =
            [("raw", Variant::new(options.raw)), ("live", Variant::new(options.live))].into();
        let descriptor: zbus::OwnedFd = self.ask("Follow", &(run_id.to_string(), cursor, words)).await?;
        Follow::new(OwnedFd::from(descriptor), cursor)
    }

    /// Waits until `condition` holds, at most `timeout` (zero: for ever; above 49 days: 49 days), and returns the
    /// status then. Running out of time is no error and never touches the session.
    ///
    /// # Errors
    /// There is no such session, or the connection was lost.
    pub async fn wait(
        &self,
        run_id: RunId,
        condition: WaitFor,
        timeout: Duration,
    ) -> Result<SessionStatus, Error> {
        // Zero means for ever, so a shorter time than a millisecond is one.
        let milliseconds = match timeout.is_zero() {
            true => 0,
            false => u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1),
        };
        let body = (run_id.to_string(), condition.word(), milliseconds);
        let reply = self.call_unhurried(INTERFACE, "Wait", &body).await?;
        let status: WireDictionary = reply.body().deserialize().map_err(Error::answer)?;
        Ok(SessionStatus::from_json(to_object(status)))
    }

    /// Asks for a session to be cancelled. That it ended is another fact: [`Client::wait`] for it.
    ///
    /// # Errors
    /// There is no such session, or the service cannot be asked.
    pub async fn cancel(&self, run_id: RunId) -> Result<SessionStatus, Error> {
        self.ask_status("Cancel", &run_id.to_string()).await
    }

    /// Looks again at what is uncertain, starts nothing, and returns the status with `evidence`.
    ///
    /// # Errors
    /// There is no such session, or the service cannot be asked.
    pub async fn reconcile(&self, run_id: RunId) -> Result<SessionStatus, Error> {
        self.ask_status("Reconcile", &run_id.to_string()).await
    }

    /// Tells a session's program something, as soon as it can take it. When this returns, the message would survive a power
    /// loss; the receipt says how far it is known to have come.
    ///
    /// `request_id` is your own stable name of the message: the same again is the same message for ever, so a call whose
    /// reply was lost is made again as it is, and a later one tells how far the message has come meanwhile.
    ///
    /// ```no_run
    /// # use airouter_sessiond::client::{Client, Error};
    /// # use airouter_sessiond::model::{Receipt, RunId};
    /// # async fn example(client: &Client, run_id: RunId) -> Result<(), Error> {
    /// let sent = client.steer(run_id, "note-7", "Leave the tests alone").await?;
    /// if sent.receipt == Receipt::Undeliverable {
    ///     println!("the program never took {}", sent.request_id);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The service refuses it (`MessageChanged`, `NotRunning`, `TooManyMessages`, `Unsupported`, …), or the connection
    /// was lost.
    pub async fn steer(&self, run_id: RunId, request_id: &str, text: &str) -> Result<MessageStatus, Error> {
        self.send("Steer", run_id, request_id, text).await
    }

    /// The same as [`Client::steer`], to be read when the program's running turn is over.
    ///
    /// # Errors
    /// As [`Client::steer`].
    pub async fn follow_up(
        &self,
        run_id: RunId,
        request_id: &str,
        text: &str,
    ) -> Result<MessageStatus, Error> {
        self.send("FollowUp", run_id, request_id, text).await
    }

    /// Answers a question of a session's program. When this returns, the answer would survive a power loss; the same again
    /// changes nothing, so a call whose reply was lost is made again as it is.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use airouter_sessiond::client::{Client, Error, WaitFor};
    /// # use airouter_sessiond::model::{Answer, RunId};
    /// # async fn example(client: &Client, run_id: RunId) -> Result<(), Error> {
    /// let status = client.wait(run_id, WaitFor::Attention, Duration::ZERO).await?.typed()?;
    /// for question in &status.questions {
    ///     let answer = Answer { choice: question.choices.first().cloned(), text: None };
    ///     client.answer(run_id, &question.question, &answer).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The service refuses it (`InvalidArgument`: it does not fit the question; `QuestionSettled`, `UnknownQuestion`, …), or
    /// the connection was lost.
    pub async fn answer(&self, run_id: RunId, question: &str, answer: &Answer) -> Result<(), Error> {
        let Value::Object(answer) = serde_json::to_value(answer).map_err(Error::answer)? else {
            return Err(Error::answer("an answer is not an object"));
        };
        let body = (run_id.to_string(), carriable("question", question)?, to_dictionary(&answer));
        if let Some(Value::String(text)) = answer.get("text") {
            carriable("answer.text", text)?;
        }
        self.ask("Answer", &body).await
    }

    /// Says that the application has projected a session's events up to `cursor` (`end`: all that there are). When this
    /// returns, that would survive a power loss; the same or an earlier cursor again changes nothing.
    ///
    /// # Errors
    /// The cursor is refused (`InvalidCursor…`), there is no such session, or the service cannot be asked.
    pub async fn acknowledge(&self, run_id: RunId, cursor: &str) -> Result<SessionStatus, Error> {
        let body = (run_id.to_string(), carriable("cursor", cursor)?);
        let status: WireDictionary = self.ask("Acknowledge", &body).await?;
        Ok(SessionStatus::from_json(to_object(status)))
    }

    /// Removes an ended session. Again it changes nothing, so a call whose reply was lost is made again as it is.
    ///
    /// # Errors
    /// It has not ended (`NotSettled`), its folder holds what is not its own (`Kept`), there is no such session, or the
    /// service cannot be asked.
    pub async fn remove(&self, run_id: RunId) -> Result<(), Error> {
        self.ask("Remove", &(run_id.to_string(),)).await
    }

    /// What the spool holds.
    ///
    /// # Errors
    /// The service cannot be asked, or its disk fails.
    pub async fn storage(&self) -> Result<Storage, Error> {
        let storage: WireDictionary = self.ask("Storage", &()).await?;
        serde_json::from_value(Value::Object(to_object(storage))).map_err(Error::answer)
    }

    /// Removes the ended sessions that `policy` finds, or says what it would remove: [`PrunePolicy::dry_run`] is on by
    /// default. A call removes at most [`PrunePolicy::limit`]; it is made again until it removes none.
    ///
    /// ```no_run
    /// # use airouter_sessiond::client::{Client, Error, PrunePolicy};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let month = PrunePolicy { older_than_seconds: Some(30 * 86_400), ..PrunePolicy::default() };
    /// for session in client.prune(&month).await? {
    ///     println!("{} {} {}", session.run_id, session.action, session.why.unwrap_or_default());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The policy is refused (`InvalidArgument`: it names no condition), or the service cannot be asked.
    pub async fn prune(&self, policy: &PrunePolicy) -> Result<Vec<Pruned>, Error> {
        let Value::Object(policy) = serde_json::to_value(policy).map_err(Error::answer)? else {
            return Err(Error::answer("a policy is not an object"));
        };
        let sessions: Vec<WireDictionary> = self.ask("Prune", &(to_dictionary(&policy),)).await?;
        let typed = |session| serde_json::from_value(Value::Object(to_object(session)));
        sessions.into_iter().map(typed).collect::<Result<_, _>>().map_err(Error::answer)
    }

    /// The service's properties, as JSON, by their names: `Version`, `InterfaceVersion`, `Profiles`, `Limits`, ….
    ///
    /// # Errors
    /// The service cannot be asked.
    pub async fn properties(&self) -> Result<Map<String, Value>, Error> {
        let reply = self.call_on("org.freedesktop.DBus.Properties", "GetAll", &(INTERFACE,)).await?;
        let properties: WireDictionary = reply.body().deserialize().map_err(Error::answer)?;
        Ok(to_object(properties))
    }

    /// A session's activity as signals, from `cursor` on, over a connection of its own.
    ///
    /// # Errors
    /// The cursor is refused, or the service cannot be asked.
    pub async fn subscribe(&self, run_id: RunId, cursor: &str) -> Result<Subscription, Error> {
        Subscription::new(self.reconnect().await?, run_id, cursor).await
    }

    /// The activity of all sessions as signals, over a connection of its own: of those that have not ended from `cursor`
    /// (`start` or `end`), of those in `positions` from there, whether they ended or not, and of those that come.
    ///
    /// # Errors
    /// A cursor is refused, a session in `positions` was removed, or the service cannot be asked.
    pub async fn subscribe_all(
        &self,
        cursor: &str,
        positions: BTreeMap<RunId, String>,
    ) -> Result<AllSubscription, Error> {
        AllSubscription::new(self.reconnect().await?, cursor, positions).await
    }

    async fn send(
        &self,
        method: &str,
        run_id: RunId,
        request_id: &str,
        text: &str,
    ) -> Result<MessageStatus, Error> {
        let body = (run_id.to_string(), carriable("request_id", request_id)?, carriable("text", text)?);
        let status: WireDictionary = self.ask(method, &body).await?;
        serde_json::from_value(Value::Object(to_object(status))).map_err(Error::answer)
    }

    async fn ask_status(&self, method: &str, run_id: &str) -> Result<SessionStatus, Error> {
        let status: WireDictionary = self.ask(method, &(run_id,)).await?;
        Ok(SessionStatus::from_json(to_object(status)))
    }

    async fn ask<B, R>(&self, method: &str, body: &B) -> Result<R, Error>
    where
        B: Serialize + DynamicType,
        R: for<'d> zbus::wire::DynamicDeserialize<'d>,
    {
        self.call(method, body).await?.body().deserialize().map_err(Error::answer)
    }

    async fn call<B: Serialize + DynamicType>(&self, method: &str, body: &B) -> Result<Message, Error> {
        self.call_on(INTERFACE, method, body).await
    }
}

/// The text, which D-Bus carries only without a NUL.
fn carriable<'a>(argument: &str, text: &'a str) -> Result<&'a str, Error> {
    match text.contains('\0') {
        false => Ok(text),
        true => Err(Error::Refused {
            name: "InvalidArgument".to_owned(),
            text: format!("{argument}: has a NUL character, which D-Bus does not carry; leave it out"),
        }),
    }
}

/// The key and value that carry `input`: inside the call where it is a short text, otherwise by descriptor.
fn input_entry(input: Vec<u8>) -> Result<(&'static str, Variant<'static>), Error> {
    let input = match String::from_utf8(input) {
        // D-Bus carries no NUL in texts.
        Ok(text) if text.len() <= MAX_INLINE_INPUT && !text.contains('\0') => {
            return Ok(("input", Variant::new(text)));
        }
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    Ok(("input-fd", attachment::descriptor(input)?))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn short_text_travels_in_the_call_and_anything_else_by_descriptor() {
        assert_eq!(input_entry(b"hello".to_vec()).unwrap(), ("input", Variant::new("hello".to_owned())));
        for input in [vec![b'x'; MAX_INLINE_INPUT + 1], b"a\0b".to_vec(), vec![0xff, 0xfe], vec![7; 5 << 20]]
        {
            let (key, value) = input_entry(input.clone()).unwrap();
            assert_eq!(key, "input-fd");
            let Variant::Fd(descriptor) = value else { panic!("a descriptor is wanted") };
            let mut file = std::fs::File::from(OwnedFd::from(zbus::OwnedFd::from(descriptor)));
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert_eq!(read, input);
        }
    }
}
