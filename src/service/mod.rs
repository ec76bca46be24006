//! Sessions: admission, queue, driver pool, cancel, reconcile, recover, subscriptions. Knows no transport.
//!
//! [`Sessions`] is the face. Behind it, every session that is not settled has a `Live` in memory and a
//! driver: one task that alone changes the session's record, so that a submit, a cancel, an exit and a
//! reconcile that race are put in order by its mailbox. Reading goes past the driver: it needs only the session's
//! folder and the durable head. Settled sessions are read from the disk when somebody asks.
//!
//! | module | what it does |
//! |---|---|
//! | `admission` | takes a submission: the same again, a changed one, a new one |
//! | `attached` | verifies the attachments of a submission |
//! | `able` | whether the program of a profile can do what a submission asks for |
//! | `continued` | which conversation a session goes on with |
//! | `slots` | the driver pool and the queue |
//! | `driver` | one session from accepted to its end |
//! | `launch` | resolves the plan, starts an executor |
//! | `examine` | what lock, claim, journal and outcome say of a session that no connection speaks for |
//! | `link` | the connection to an executor |
//! | `unstarted` | ends that no executor wrote: never started, or its executor died |
//! | `said` | what a journal tells of messages and questions |
//! | `reading` | pages, follow, subscriptions |
//! | `all` | the subscription to all sessions |
//! | `listing` | the list of sessions |
//! | `talking` | messages and answers to a session: the inbox |
//! | `acknowledging` | how far the application has projected a session's events |
//! | `removal` | removes ended sessions: one by name, or those that a policy finds |
//! | `age` | which ended sessions a policy finds, and which clock is believed |
//! | `retention` | the removal that the configuration asks for |
//! | `storing` | what the spool holds |
//! | `turns` | one change at a time for each session |
//! | `recover` | at start: adopt, deliver, start, or say what is uncertain |

mod able;
mod acknowledging;
mod admission;
mod age;
mod all;
mod api;
mod attached;
mod blocking;
mod continued;
mod driver;
mod examine;
mod launch;
mod link;
mod listing;
mod live;
mod reading;
mod recover;
mod removal;
mod retention;
mod said;
mod slots;
mod storing;
mod talking;
mod turns;
mod unstarted;

pub use crate::model::Filter;
pub use all::AllFeed;
pub use api::*;
pub use launch::ExecutorProgram;
pub use reading::Feed;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, broadcast, mpsc, watch};

use crate::config::{Config, Profile};
use crate::containment::Placer;
use crate::controller::Controller;
use crate::executor::now_us;
use crate::model::{
    Answer, Limits, Message, MessageStatus, PrunePolicy, Pruned, RunId, State, Status, Storage,
};
use crate::schema::Checker;
use crate::spool::{Place, SessionDir, Spool};
use crate::upgrade::Installed;
use age::Clock;
use blocking::blocking;
use live::{Command, Live};
use removal::{Passes, boot_us};
use slots::{Slots, Ticket};
use turns::Turns;

/// Schemas that are looked at at the same time: each may take much memory.
const CHECKS: usize = 2;

/// All sessions of one spool. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    hub: Arc<Hub>,
}

/// What all parts of the service share.
struct Hub {
    spool: Spool,
    config: RwLock<Arc<Config>>,
    controller: Box<dyn Controller>,
    executor: ExecutorProgram,
    placer: Placer,
    /// Checks schemas, so many at once as there are permits.
    checker: Checker,
    checks: Semaphore,
    /// Held while a session that goes on with a conversation is admitted: two of the same exclude each other.
    continuing: tokio::sync::Mutex<()>,
    /// Absent where the system does not show the running program.
    installed: Option<Installed>,
    slots: Arc<Slots>,
    live: Mutex<HashMap<RunId, Arc<Live>>>,
    turns: Turns,
    /// Held by whoever goes over all ended sessions.
    passes: tokio::sync::Mutex<Passes>,
    clock: Mutex<Clock>,
    /// Something happened that may make sessions due: one ended or was acknowledged, or the configuration was read again.
    retention_due: Arc<Notify>,
    /// Sessions in `active/` that could not be read, and have no driver yet. One that may run has its place in the pool.
    unread: Mutex<BTreeMap<RunId, Option<Ticket>>>,
    /// Held while one of them is looked at again: who asks meanwhile waits for what is found.
    looking: tokio::sync::Mutex<()>,
    changes: broadcast::Sender<Change>,
    stopping: watch::Sender<Stopping>,
    /// Every driver holds a clone of the sender; none is left when the receiver ends.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    drivers: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

/// Whether and how the service stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// It does not.
    No,
    /// Sessions go on with their executors.
    Detach,
    /// Sessions are stopped first.
    Cancel,
}

impl Sessions {
    /// Takes over a spool: adopts what runs, delivers what ended, queues what was never started, and marks what is
    /// uncertain. Nothing is started that may have run before.
    pub async fn start(
        spool: Spool,
        config: Config,
        controller: Box<dyn Controller>,
        executor: ExecutorProgram,
        placer: Placer,
    ) -> Result<Sessions, Error> {
        let (alive, drivers) = mpsc::channel(1);
        let hub = Arc::new(Hub {
            spool,
            slots: Slots::new(&config.limits),
            config: RwLock::new(Arc::new(config)),
            controller,
            checker: Checker::new(&executor.path, &executor.name),
            checks: Semaphore::new(CHECKS),
            continuing: tokio::sync::Mutex::default(),
            executor,
            placer,
            installed: Installed::of_this_process().ok(),
            live: Mutex::default(),
            turns: Turns::default(),
            passes: tokio::sync::Mutex::default(),
            clock: Mutex::new(Clock::new(now_us(), boot_us())),
            retention_due: Arc::default(),
            unread: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            changes: broadcast::channel(4096).0,
            stopping: watch::channel(Stopping::No).0,
            alive: Mutex::new(Some(alive)),
            drivers: tokio::sync::Mutex::new(drivers),
        });
        recover::recover(&hub).await?;
        tokio::spawn(retention::keep(Arc::downgrade(&hub)));
        Ok(Sessions { hub })
    }

    /// Admits a session, or answers with the one that has this `run_id` and the same content.
    pub async fn submit(&self, request: SubmitRequest) -> Result<Status, Error> {
        admission::submit(&self.hub, request).await
    }

    /// What is known of a session.
    pub async fn status(&self, run_id: RunId) -> Result<Status, Error> {
        match self.hub.reach(run_id).await? {
            Some(live) => Ok(self.hub.status_of(&live)),
            None => self.hub.settled_status(run_id).await,
        }
    }

    /// A page of sessions.
    pub async fn list(&self, filter: Filter) -> Result<Listing, Error> {
        listing::list(&self.hub, filter).await
    }

    /// A page of a session's events after `cursor`. `limit` 0: as many as a page takes.
    pub async fn events(&self, run_id: RunId, cursor: &str, limit: u32) -> Result<Page, Error> {
        reading::page(&self.hub, run_id, cursor, limit).await
    }

    /// A pipe from which JSON lines come: replay, then live, then the end of file after the session's end. `permit` is
    /// dropped when nothing is written any more: the session ended, or nobody has the reading end.
    pub async fn follow(
        &self,
        run_id: RunId,
        cursor: &str,
        options: FollowOptions,
        permit: FollowPermit,
    ) -> Result<OwnedFd, Error> {
        reading::follow(&self.hub, run_id, cursor, options, permit).await
    }

    /// Waits. Running out of time is no error: the status then is what it is. Zero waits for ever.
    pub async fn wait(&self, run_id: RunId, condition: WaitFor, timeout: Duration) -> Result<Status, Error> {
        let Some(live) = self.hub.reach(run_id).await? else {
            return self.hub.settled_status(run_id).await;
        };
        let mut status = live.status.subscribe();
        let reached = status.wait_for(|status| condition.holds(status));
        let mut stopping = self.hub.stopping.subscribe();
        let stopped = stopping.wait_for(|stopping| *stopping == Stopping::Detach);
        let over = async {
            tokio::select! { _ = reached => {}, _ = stopped => {} }
        };
        if timeout.is_zero() {
            over.await;
        } else {
            let _ = tokio::time::timeout(timeout, over).await;
        }
        Ok(self.hub.status_of(&live))
    }

    /// Asks for cancellation. The wish is durable before this returns; that the session ended is another fact.
    pub async fn cancel(&self, run_id: RunId) -> Result<Status, Error> {
        self.command(run_id, Command::Cancel).await
    }

    /// Looks again at everything that is known of a session, settles what can be settled, and says what the answer
    /// rests on. Never starts anything.
    pub async fn reconcile(&self, run_id: RunId) -> Result<Status, Error> {
        if self.hub.reach(run_id).await?.is_some() {
            return self.command(run_id, Command::Reconcile).await;
        }
        let mut status = self.hub.settled_status(run_id).await?;
        if let Place::Ended(dir) = self.hub.locate(run_id).await? {
            let controller = self.hub.controller.name();
            status.evidence = blocking(move || Ok(examine::evidence(&dir, controller))).await?;
        }
        Ok(status)
    }

    /// Stores a message for a session's program, durably, and has it passed on. The same message again is answered with how
    /// far it has come, also after the session's end.
    pub async fn send(&self, run_id: RunId, message: Message) -> Result<MessageStatus, Error> {
        talking::send(&self.hub, run_id, message).await
    }

    /// Stores the answer to a question of a session's program, durably, and has it passed on. The same answer again changes
    /// nothing.
    pub async fn answer(&self, run_id: RunId, question: &str, answer: Answer) -> Result<(), Error> {
        talking::answer(&self.hub, run_id, question, answer).await
    }

    /// The application has projected the events up to the cursor: durable before this returns. One that is before what was
    /// acknowledged already changes nothing; `end` acknowledges all that there are now.
    pub async fn acknowledge(&self, run_id: RunId, cursor: &str) -> Result<Status, Error> {
        acknowledging::acknowledge(&self.hub, run_id, cursor).await
    }

    /// Removes an ended session. Its tombstone is durable before anything of it goes, so that a retry of its submission is
    /// recognised for ever. Whoever reads it reads on in what is open. Again it changes nothing.
    ///
    /// # Errors
    /// [`Error::NotSettled`] while it has not ended, and [`Error::Kept`] while its folder holds what is not its own.
    pub async fn remove(&self, run_id: RunId) -> Result<(), Error> {
        removal::remove(&self.hub, run_id).await
    }

    /// Removes the ended sessions that the policy finds, or says what it would remove: those that are due, the first ended
    /// first, with what was done and what keeps one. At most 1000 are removed, and of at most 1000 kept ones is told.
    pub async fn prune(&self, policy: PrunePolicy) -> Result<Vec<Pruned>, Error> {
        removal::prune(&self.hub, policy).await
    }

    /// What the spool holds. It takes some microseconds for each ended session, on a thread of the disk's.
    pub async fn storage(&self) -> Result<Storage, Error> {
        storing::storage(&self.hub).await
    }

    /// Replay from the cursor, then live. The cursor is checked before this returns.
    pub async fn subscribe(&self, run_id: RunId, cursor: &str) -> Result<Feed, Error> {
        reading::subscribe(&self.hub, run_id, cursor).await
    }

    /// The same for all sessions that have not ended, each from the cursor, which is `start` or `end`; for those in `cursors`,
    /// ended or not, each from its own; and for all that come, each from its start.
    pub async fn subscribe_all(
        &self,
        cursor: &str,
        cursors: BTreeMap<RunId, String>,
    ) -> Result<AllFeed, Error> {
        all::subscribe(&self.hub, cursor, cursors).await
    }

    /// Everything that observers may want to know, from now on. A receiver that lags by 4096 is told so.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.hub.changes.subscribe()
    }

    /// Facts about the service.
    pub fn facts(&self) -> Facts {
        let config = self.hub.config();
        let (active, queued) = self.hub.slots.counts();
        Facts {
            application: config.application.clone(),
            host: config.host.clone(),
            state: if *self.hub.stopping.borrow() == Stopping::No { "running" } else { "stopping" },
            active,
            queued,
            containment: self.hub.placer.backend().name(),
        }
    }

    /// Who owns runs and leases, and what waits for it. Asks nobody.
    pub fn controller(&self) -> ControllerFacts {
        let contact = self.hub.controller.contact();
        let undelivered =
            self.hub.live().values().filter(|live| live.status.borrow().is_undelivered()).count();
        ControllerFacts {
            name: contact.name,
            problem: contact.problem,
            undelivered: u32::try_from(undelivered).unwrap_or(u32::MAX),
        }
    }

    /// Whether another program stands where this daemon was started from: a restart is due. Sessions outlive it.
    pub async fn upgrade_pending(&self) -> bool {
        let hub = self.hub.clone();
        let look = move || Ok(hub.installed.as_ref().is_some_and(Installed::differs));
        blocking(look).await.unwrap_or(false)
    }

    /// The registered programs by their profiles' names.
    pub fn profiles(&self) -> BTreeMap<String, ProfileFacts> {
        let config = self.hub.config();
        config.profiles.iter().map(|(name, profile)| (name.clone(), ProfileFacts::of(profile))).collect()
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.hub.config().limits.clone()
    }

    /// Takes a new configuration: profiles, limits and the base environment hold for what is claimed from now on.
    pub fn reload(&self, config: Config) {
        self.hub.slots.set_limits(&config.limits);
        *self.hub.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        self.hub.retention_due.notify_one();
    }

    /// Sessions that are not settled.
    pub fn live(&self) -> Vec<RunId> {
        self.hub.live().keys().copied().collect()
    }

    /// Refuses new work, and waits until every driver is done: at once with [`Stopping::Detach`], after every proven
    /// end with [`Stopping::Cancel`]. Dropping the future does not take the stop back.
    pub async fn stop(&self, how: Stopping) {
        self.hub.stopping.send_replace(how);
        drop(self.hub.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Nothing is ever sent: this ends when the last driver has left.
        while self.hub.drivers.lock().await.recv().await.is_some() {}
    }

    async fn command(&self, run_id: RunId, command: fn(live::Reply) -> Command) -> Result<Status, Error> {
        if let Some(live) = self.hub.reach(run_id).await? {
            let (reply, answer) = tokio::sync::oneshot::channel();
            if live.commands.send(command(reply)).await.is_ok()
                && let Ok(answer) = answer.await
            {
                return answer;
            }
        }
        // Its driver is done with it, now or a moment ago.
        self.status(run_id).await
    }
}

impl Hub {
    fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<RunId, Arc<Live>>> {
        // Nothing panics while it holds the lock.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unread(&self) -> MutexGuard<'_, BTreeMap<RunId, Option<Ticket>>> {
        // Nothing panics while it holds the lock.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, run_id: RunId) -> Option<Arc<Live>> {
        self.live().get(&run_id).cloned()
    }

    /// The same for a session that somebody asks for: one that could not be read before is looked at once more.
    async fn reach(self: &Arc<Self>, run_id: RunId) -> Result<Option<Arc<Live>>, Error> {
        recover::take_up(self, run_id).await?;
        Ok(self.find(run_id))
    }

    async fn locate(self: &Arc<Self>, run_id: RunId) -> Result<Place, Error> {
        let hub = self.clone();
        blocking(move || Ok(hub.spool.locate(run_id)?)).await
    }

    fn status_of(&self, live: &Live) -> Status {
        let mut status = live.status.borrow().clone();
        status.head = live.head.borrow().cursor();
        status.acknowledged = live.acknowledged();
        if status.state == State::Queued {
            status.queue_position = self.slots.position(status.run_id);
        }
        status
    }

    /// The status of a session that no driver has.
    async fn settled_status(self: &Arc<Self>, run_id: RunId) -> Result<Status, Error> {
        let dir = self.folder(run_id).await?;
        blocking(move || Ok(live::settled(&dir)?.1)).await
    }

    /// The folder of a session that no driver has.
    async fn folder(self: &Arc<Self>, run_id: RunId) -> Result<SessionDir, Error> {
        match self.locate(run_id).await? {
            // An active one is about to be moved.
            Place::Ended(dir) | Place::Active(dir) => Ok(dir),
            Place::Removed(_) => Err(Error::Removed(run_id)),
            Place::Damaged(what) => Err(Error::Damaged { run_id, what }),
            Place::Absent => Err(Error::NotFound(run_id)),
        }
    }
}

impl ProfileFacts {
    fn of(profile: &Profile) -> ProfileFacts {
        ProfileFacts {
            program: profile.program.display().to_string(),
            dialect: profile.dialect.clone(),
            features: profile.features(),
            problem: profile.problem(),
        }
    }
}

impl WaitFor {
    fn holds(self, status: &Status) -> bool {
        let over = matches!(status.state, State::Finished | State::ReconciliationRequired);
        match self {
            WaitFor::Started => over || status.started.is_some(),
            WaitFor::Attention => over || !status.questions.is_empty(),
            WaitFor::Finished => over,
        }
    }
}
