//! One session from accepted to its end: the only task that changes its record.
//!
//! ```text
//! Wait ──slot──▶ Launch ──executor──▶ Attend ──connection ends──▶ Examine
//!                                       ▲                            │
//!                                       └──────── owned ─────────────┤
//!                     Launch ◀──────── never started ────────────────┤
//!                     Deliver ◀─────── ended ────────────────────────┤
//!                     Uncertain ◀───── died ─────────────────────────┘
//!
//! Deliver ──controller away──▶ Undelivered ──Reconcile──▶ Deliver
//! ```
//!
//! Every step listens to the mailbox and to the service's stop. Nothing here starts a program: an executor does, and
//! only one that was claimed while the session was provably not started.

mod aftermath;
mod attend;
mod lease;
mod settle;
mod start;
mod undelivered;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::blocking::blocking;
use super::examine::{self, Finding};
use super::launch;
use super::link::Link;
use super::live::{self, Command, Head, Live, Reply, Talked};
use super::slots::Ticket;
use super::unstarted::{self, Testimony};
use super::{Change, Error, Hub, Stopping};
use crate::containment::{self, Order, Placement};
use crate::crash;
use crate::executor::control::{Report, Request, Stage};
use crate::executor::now_us;
use crate::model::{Binding, End, Evidence, OpenQuestion, Outcome, Phase, Plan, State, Status};
use crate::spool::exhausted;
use crate::spool::journal::new_epoch;
use crate::spool::{CLAIM_VERSION, Claim, Ownership, Place, Record, SessionDir};

/// Between two `ActivityAdvanced` of one session.
const ADVANCE_INTERVAL: Duration = Duration::from_millis(250);
/// How long an executor may take to let go of its lock after its connection ended, or to listen after it took it.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at a lock whose holder does not answer.
const LOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Between two attempts on a disk that took nothing: nothing tells when it has room again.
const DISK_INTERVAL: Duration = Duration::from_secs(2);
/// How often an executor that dies before it has a journal is started again.
const LAUNCHES: u32 = 3;

/// Where a driver begins.
pub(super) enum Start {
    /// Nothing was started.
    Fresh(Ticket),
    /// An executor holds the lock.
    Adopt(Ticket),
    /// The outcome is there.
    Settle(Box<Outcome>),
    /// The executor died.
    Died,
}

/// Makes a session known and starts its driver.
pub(super) fn spawn(hub: &Arc<Hub>, dir: SessionDir, record: Record, head: Head, start: Start) -> Arc<Live> {
    let (commands, mailbox) = mpsc::channel(32);
    let live = Arc::new(Live {
        run_id: record.run_id,
        dir,
        digest: record.digest.clone(),
        continued: live::Conversation::of(&record),
        status: watch::channel(live::status(&record, None)).0,
        head: watch::channel(head).0,
        commands,
        acknowledged: Mutex::default(),
        inbox: Arc::default(),
        mail: watch::channel(0).0,
        talked: watch::channel(Talked { untold: !matches!(start, Start::Fresh(_)), ..Talked::default() }).0,
    });
    hub.live().insert(record.run_id, live.clone());
    let alive = hub.alive.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let driver = Driver {
        stopping: hub.stopping.subscribe(),
        hub: hub.clone(),
        live: live.clone(),
        record,
        mailbox,
        ticket: None,
        launches: 0,
        lease: None,
        lease_lost: false,
        placement: Placement::default(),
        asked: None,
        advance: Advance::default(),
        _alive: alive,
    };
    tokio::spawn(driver.run(start));
    live
}

struct Driver {
    hub: Arc<Hub>,
    live: Arc<Live>,
    record: Record,
    mailbox: mpsc::Receiver<Command>,
    stopping: watch::Receiver<Stopping>,
    ticket: Option<Ticket>,
    launches: u32,
    /// Absent where nothing needs to be renewed.
    lease: Option<lease::Lease>,
    /// The session is to end for that.
    lease_lost: bool,
    /// Where the executor that waits for "go" was put.
    placement: Placement,
    /// Whom to answer, with the evidence so far, once the step that the command caused is done.
    asked: Option<(Reply, Vec<Evidence>)>,
    advance: Advance,
    _alive: Option<mpsc::Sender<()>>,
}

enum Step {
    Wait,
    Launch,
    Attend(Box<Link>, Option<Child>),
    Examine(Option<Child>),
    Died,
    /// Look again after a while by itself, or only when asked.
    Uncertain {
        again: bool,
    },
    Deliver(Box<Outcome>),
    /// It is over, and the controller does not have the outcome.
    Undelivered(Box<Outcome>),
    /// It is over, and the disk takes no record of that yet.
    PutAway(Box<Outcome>),
    /// The disk takes no claim yet.
    Hold,
    /// The driver leaves; the session is settled, or belongs to its executor and the next daemon.
    Leave,
}

impl Driver {
    async fn run(mut self, start: Start) {
        let mut step = match start {
            Start::Fresh(ticket) => {
                self.ticket = Some(ticket);
                self.keep_lease_in_queue();
                Step::Wait
            }
            Start::Adopt(ticket) => {
                self.ticket = Some(ticket);
                Step::Examine(None)
            }
            Start::Settle(outcome) => Step::Deliver(outcome),
            Start::Died => Step::Died,
        };
        loop {
            let result = match step {
                Step::Wait => self.wait().await,
                Step::Launch => self.launch().await,
                Step::Attend(link, child) => self.attend(*link, child).await,
                Step::Examine(child) => self.examine(child).await,
                Step::Died => self.died().await,
                Step::Uncertain { again } => self.uncertain(again).await,
                Step::Deliver(outcome) => self.deliver(*outcome).await,
                Step::Undelivered(outcome) => self.undelivered(*outcome).await,
                Step::PutAway(outcome) => self.put_away_later(*outcome).await,
                Step::Hold => self.hold().await,
                Step::Leave => break,
            };
            step = match result {
                Ok(step) => step,
                Err(error) => self.troubled(&error).await,
            };
        }
        self.answer(None);
    }

    /// The disk or the system failed in a step: the session waits, and says so.
    async fn troubled(&mut self, error: &Error) -> Step {
        tracing::error!(run_id = %self.live.run_id, %error, "the session needs a look");
        let text = error.to_string();
        let change = |record: &mut Record| {
            record.state = State::ReconciliationRequired;
            record.error = Some(text.clone());
        };
        self.note(change).await;
        // Whoever waits for a place does not wait for an operator.
        self.ticket = None;
        self.answer(None);
        Step::Uncertain { again: false }
    }

    async fn claim(&self) -> Result<Option<Claim>, Error> {
        let dir = self.live.dir.clone();
        blocking(move || Ok(dir.claim()?)).await
    }

    async fn evidence(&self) -> Result<Vec<Evidence>, Error> {
        let (dir, controller) = (self.live.dir.clone(), self.hub.controller.name());
        let mut evidence = blocking(move || Ok(examine::evidence(&dir, controller))).await?;
        if let Some(word) = self.controller_evidence().await {
            examine::add(&mut evidence, word);
        }
        Ok(evidence)
    }

    /// Answers a Reconcile that changes nothing.
    async fn explain(&mut self, reply: Reply) {
        let mut status = self.hub.status_of(&self.live);
        let answer = self.evidence().await.map(|evidence| {
            status.evidence = evidence;
            status
        });
        let _ = reply.send(answer);
    }

    /// Answers whoever waits for the step that is done now.
    fn answer(&mut self, outcome: Option<&Outcome>) {
        if let Some((reply, evidence)) = self.asked.take() {
            let mut status = match outcome {
                Some(outcome) => live::status(&self.record, Some(outcome)),
                None => self.hub.status_of(&self.live),
            };
            status.acknowledged = self.live.acknowledged();
            status.evidence = evidence;
            let _ = reply.send(Ok(status));
        }
    }

    /// Changes the record, durably, and then shows it.
    async fn save(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        let mut record = self.record.clone();
        change(&mut record);
        let (dir, saved) = (self.live.dir.clone(), record.clone());
        blocking(move || Ok(dir.write_record(&saved)?)).await?;
        self.record = record;
        self.show_record();
        Ok(())
    }

    /// The same for what another file says durably, or what must not wait for the disk: if it cannot be stored, it is
    /// shown all the same.
    async fn note(&mut self, change: impl Fn(&mut Record)) {
        if let Err(error) = self.save(&change).await {
            tracing::warn!(run_id = %self.live.run_id, %error, "its record cannot be stored");
            change(&mut self.record);
            self.show_record();
        }
    }

    fn show_record(&self) {
        let mut status = live::status(&self.record, None);
        let known = self.live.status.borrow().clone();
        status.progress = known.progress;
        status.verdict = known.verdict;
        status.conversation = known.conversation;
        status.questions = known.questions;
        status.activity_complete &= known.activity_complete;
        self.show(status);
    }

    fn show(&self, status: Status) {
        let change = Change::State {
            run_id: status.run_id,
            state: status.state,
            phase: status.phase,
            end: status.end,
        };
        let before = self.live.status.send_replace(status.clone());
        self.announce_questions(&before.questions, &status.questions);
        if (before.state, before.phase, before.end) != (status.state, status.phase, status.end) {
            let _ = self.hub.changes.send(change);
        }
    }

    fn announce_questions(&self, before: &[OpenQuestion], now: &[OpenQuestion]) {
        let run_id = self.live.run_id;
        let new = |these: &[OpenQuestion], those: &[OpenQuestion]| {
            let known = |id: &str| those.iter().any(|other| other.question == id);
            these.iter().map(|open| open.question.clone()).filter(|id| !known(id)).collect::<Vec<_>>()
        };
        for question in new(before, now) {
            let _ = self.hub.changes.send(Change::QuestionSettled { run_id, question });
        }
        for question in new(now, before) {
            let _ = self.hub.changes.send(Change::QuestionAsked { run_id, question });
        }
    }

    fn show_advance(&mut self) {
        if self.advance.take()
            && let Some(head) = self.live.head.borrow().cursor()
        {
            let _ = self.hub.changes.send(Change::Advanced { run_id: self.live.run_id, head });
        }
    }
}

/// Waits until the service stops, and how.
async fn stop(stopping: &mut watch::Receiver<Stopping>) -> Stopping {
    match stopping.wait_for(|how| *how != Stopping::No).await {
        Ok(how) => *how,
        Err(_) => Stopping::Detach,
    }
}

/// Waits until that changes.
async fn changed(stopping: &mut watch::Receiver<Stopping>) -> Stopping {
    match stopping.changed().await {
        Ok(()) => *stopping.borrow_and_update(),
        Err(_) => Stopping::Detach,
    }
}

/// Keeps `ActivityAdvanced` to a few a second.
#[derive(Debug, Default)]
struct Advance {
    moved: bool,
    next: Option<Instant>,
}

impl Advance {
    fn moved(&mut self) {
        self.moved = true;
    }

    /// Waits until there is something to say and it may be said. Safe to drop at any await.
    async fn due(&self) {
        match (self.moved, self.next) {
            (true, Some(next)) => tokio::time::sleep_until(next).await,
            (true, None) => {}
            (false, _) => std::future::pending().await,
        }
    }

    /// There was something to say, and it is said now.
    fn take(&mut self) -> bool {
        if self.moved {
            self.next = Some(Instant::now() + ADVANCE_INTERVAL);
        }
        std::mem::take(&mut self.moved)
    }
}
