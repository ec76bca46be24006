//! What the D-Bus face needs of the service, so that it can be tried without one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::model::{Answer, Limits, Message, MessageStatus, PrunePolicy, Pruned, RunId, Status, Storage};
use crate::service::{
    AllFeed, Batch, Change, ControllerFacts, Error, Facts, Feed, Filter, FollowOptions, FollowPermit,
    Listing, Page, Piece, ProfileFacts, Sessions, SubmitRequest, WaitFor,
};

/// The service as the D-Bus face sees it; [`Sessions`] says what each does.
#[async_trait]
#[allow(missing_docs)]
pub trait Engine: Send + Sync + 'static {
    async fn submit(&self, request: SubmitRequest) -> Result<Status, Error>;
    async fn status(&self, run_id: RunId) -> Result<Status, Error>;
    async fn list(&self, filter: Filter) -> Result<Listing, Error>;
    async fn events(&self, run_id: RunId, cursor: &str, limit: u32) -> Result<Page, Error>;
    async fn follow(
        &self,
        run_id: RunId,
        cursor: &str,
        options: FollowOptions,
        permit: FollowPermit,
    ) -> Result<OwnedFd, Error>;
    async fn wait(&self, run_id: RunId, condition: WaitFor, timeout: Duration) -> Result<Status, Error>;
    async fn cancel(&self, run_id: RunId) -> Result<Status, Error>;
    async fn reconcile(&self, run_id: RunId) -> Result<Status, Error>;
    async fn send(&self, run_id: RunId, message: Message) -> Result<MessageStatus, Error>;
    async fn answer(&self, run_id: RunId, question: &str, answer: Answer) -> Result<(), Error>;
    async fn acknowledge(&self, run_id: RunId, cursor: &str) -> Result<Status, Error>;
    async fn remove(&self, run_id: RunId) -> Result<(), Error>;
    async fn storage(&self) -> Result<Storage, Error>;
    async fn prune(&self, policy: PrunePolicy) -> Result<Vec<Pruned>, Error>;
    async fn subscribe(&self, run_id: RunId, cursor: &str) -> Result<Box<dyn EventFeed>, Error>;
    async fn subscribe_all(
        &self,
        cursor: &str,
        cursors: BTreeMap<RunId, String>,
    ) -> Result<Box<dyn AllEvents>, Error>;
    fn changes(&self) -> broadcast::Receiver<Change>;
    async fn upgrade_pending(&self) -> bool;
    fn facts(&self) -> Facts;
    fn controller(&self) -> ControllerFacts;
    fn profiles(&self) -> BTreeMap<String, ProfileFacts>;
    fn limits(&self) -> Limits;
}

/// One subscription's events; [`Feed`] says what each does.
#[async_trait]
#[allow(missing_docs)]
pub trait EventFeed: Send {
    async fn next(&mut self, max_bytes: usize) -> Result<Option<Batch>, Error>;
    fn position(&self) -> String;
}

/// The events of a subscription to all sessions; [`AllFeed`] says what it does.
#[async_trait]
#[allow(missing_docs)]
pub trait AllEvents: Send {
    async fn next(&mut self, max_bytes: usize) -> Option<Piece>;
}

#[async_trait]
impl Engine for Sessions {
    async fn submit(&self, request: SubmitRequest) -> Result<Status, Error> {
        Sessions::submit(self, request).await
    }
    async fn status(&self, run_id: RunId) -> Result<Status, Error> {
        Sessions::status(self, run_id).await
    }
    async fn list(&self, filter: Filter) -> Result<Listing, Error> {
        Sessions::list(self, filter).await
    }
    async fn events(&self, run_id: RunId, cursor: &str, limit: u32) -> Result<Page, Error> {
        Sessions::events(self, run_id, cursor, limit).await
    }
    async fn follow(
        &self,
        run_id: RunId,
        cursor: &str,
        options: FollowOptions,
        permit: FollowPermit,
    ) -> Result<OwnedFd, Error> {
        Sessions::follow(self, run_id, cursor, options, permit).await
    }
    async fn wait(&self, run_id: RunId, condition: WaitFor, timeout: Duration) -> Result<Status, Error> {
        Sessions::wait(self, run_id, condition, timeout).await
    }
    async fn cancel(&self, run_id: RunId) -> Result<Status, Error> {
        Sessions::cancel(self, run_id).await
    }
    async fn reconcile(&self, run_id: RunId) -> Result<Status, Error> {
        Sessions::reconcile(self, run_id).await
    }
    async fn send(&self, run_id: RunId, message: Message) -> Result<MessageStatus, Error> {
        Sessions::send(self, run_id, message).await
    }
    async fn answer(&self, run_id: RunId, question: &str, answer: Answer) -> Result<(), Error> {
        Sessions::answer(self, run_id, question, answer).await
    }
    async fn acknowledge(&self, run_id: RunId, cursor: &str) -> Result<Status, Error> {
        Sessions::acknowledge(self, run_id, cursor).await
    }
    async fn remove(&self, run_id: RunId) -> Result<(), Error> {
        Sessions::remove(self, run_id).await
    }
    async fn storage(&self) -> Result<Storage, Error> {
        Sessions::storage(self).await
    }
    async fn prune(&self, policy: PrunePolicy) -> Result<Vec<Pruned>, Error> {
        Sessions::prune(self, policy).await
    }
    async fn subscribe(&self, run_id: RunId, cursor: &str) -> Result<Box<dyn EventFeed>, Error> {
        Ok(Box::new(Sessions::subscribe(self, run_id, cursor).await?))
    }
    async fn subscribe_all(
        &self,
        cursor: &str,
        cursors: BTreeMap<RunId, String>,
    ) -> Result<Box<dyn AllEvents>, Error> {
        Ok(Box::new(Sessions::subscribe_all(self, cursor, cursors).await?))
    }
    fn changes(&self) -> broadcast::Receiver<Change> {
        Sessions::changes(self)
    }
    async fn upgrade_pending(&self) -> bool {
        Sessions::upgrade_pending(self).await
    }
    fn facts(&self) -> Facts {
        Sessions::facts(self)
    }
    fn controller(&self) -> ControllerFacts {
        Sessions::controller(self)
    }
    fn profiles(&self) -> BTreeMap<String, ProfileFacts> {
        Sessions::profiles(self)
    }
    fn limits(&self) -> Limits {
        Sessions::limits(self)
    }
}

#[async_trait]
impl EventFeed for Feed {
    async fn next(&mut self, max_bytes: usize) -> Result<Option<Batch>, Error> {
        Feed::next(self, max_bytes).await
    }
    fn position(&self) -> String {
        Feed::position(self)
    }
}

#[async_trait]
impl AllEvents for AllFeed {
    async fn next(&mut self, max_bytes: usize) -> Option<Piece> {
        AllFeed::next(self, max_bytes).await
    }
}
