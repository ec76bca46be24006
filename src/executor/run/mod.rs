//! One session from "go" to its outcome.

mod converse;
mod finish;
mod ladder;
mod pump;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Map, json};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::clock::{BootTimer, boot_ms, now_us};
use super::committer::{Committer, Durable};
use super::control::{CONTROL_VERSION, Report, Request, Stage};
use super::conversation::{Conversation, EXITED};
use super::link::{Heard, Link};
use super::program::{self, Program};
use super::recorder::Recorder;
use super::stop;
use super::timers::{Timer, Timers};
use crate::containment::{self, Containment, Held, Marker, Placement, STOP_SIGNAL};
use crate::crash;
use crate::dialect::{self, Dialect, Interrupt};
use crate::model::{
    End, Event, Exit, Leftover, OUTCOME_VERSION, Outcome, Progress, VerdictResult, derive_end, kind::notice,
};
use crate::spool::journal::{Appender, Encoder, JournalError};
use crate::spool::{Claim, OwnerLock, SessionDir};

type Fatal = Box<dyn std::error::Error>;

/// Records that wait for the disk before reading pauses, in bytes.
const HIGH_WATER: usize = 32 << 20;
/// How long the disk may stand still before output is thrown away, counted, rather than kept waiting: some programs
/// give up and exit with success when their reader is slow for seconds.
const STALL: Duration = Duration::from_secs(1);
/// How long an exited program's pipes must be quiet to count as drained while somebody still holds them open.
const DRAIN_QUIET: Duration = Duration::from_millis(200);
/// The longest answer kept in the outcome, in bytes.
const TEXT_MAX: usize = 1 << 20;
/// How long a reason may take to become durable before its signals go out all the same.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// Runs the session. `lock` is held until the process ends.
pub async fn run(dir: SessionDir, lock: OwnerLock, parent: UnixStream) -> Result<(), Fatal> {
    let claim = dir.claim()?.ok_or("the session was not claimed")?;
    let dialect = dialect::find(&claim.plan.dialect).ok_or("the claim names an unknown dialect")?;
    parent.set_nonblocking(true)?;
    let (report, reports) = watch::channel(Report {
        version: CONTROL_VERSION,
        run_id: dir.run_id(),
        pid: std::process::id(),
        stage: Stage::Waiting,
        head: 0,
        started: None,
        progress: Progress::default(),
        verdict: None,
        conversation: None,
        receipts: Vec::new(),
        questions: Vec::new(),
        asked: 0,
        activity_complete: true,
        containment: None,
    });
    let parent = tokio::net::UnixStream::from_std(parent)?;
    let (mut link, mut heard) = Link::listen(&dir.control_socket(), parent, reports)?;
    let Some((placement, lease_until)) = wait_for_go(&mut link, &mut heard).await else { return Ok(()) };
    // Before anything is written: from here on a stop is an end that is journaled.
    let stops = Stops::listen()?;
    let held = containment::hold(&placement, Marker::new(dir.run_id(), &claim.epoch), &claim.plan.resources)?;
    let journal = match dir.create_journal(&claim.epoch) {
        Ok(journal) => journal,
        // Another executor had this session: what became of that is not for this one to say.
        Err(error @ JournalError::Exists(_)) => return Err(error.into()),
        Err(error) => {
            let outcome = finish::without_journal(&dir, &claim, &error);
            tokio::task::spawn_blocking(move || dir.write_outcome(&outcome)).await??;
            return Err(error.into());
        }
    };
    crash::point("executor.journal");
    let mut run = Run::begin(dir, claim, dialect, report, held, stops, journal)?;
    run.lease_until = lease_until;
    run.committed().await;
    crash::point("executor.started");
    match run.spawn() {
        Ok(program) => run.drive(program, &mut link, &mut heard).await,
        Err(error) => run.stop = Some(Stop::new(End::SpawnFailed, Some(error.to_string()))),
    }
    crash::point("executor.stopped");
    run.finish().await?;
    drop(run);
    link.close().await;
    drop(lock);
    Ok(())
}

/// Nothing happens before the daemon says "go": until then this process leaves no trace, and may be placed elsewhere.
async fn wait_for_go(link: &mut Link, heard: &mut mpsc::Receiver<Heard>) -> Option<(Placement, Option<u64>)> {
    loop {
        tokio::select! {
            () = link.accept() => {}
            said = heard.recv() => match said {
                Some(Heard::Request(Request::Go { placement, until })) => return Some((placement, until)),
                Some(Heard::Request(_)) => {}
                Some(Heard::ParentGone) | None => return None,
            },
        }
    }
}

/// The signals by which an executor itself is told to stop.
struct Stops {
    terminate: Arrivals,
    /// How the user manager stops a scope.
    scope: Arrivals,
}

impl Stops {
    fn listen() -> std::io::Result<Stops> {
        let scope = SignalKind::from_raw(STOP_SIGNAL as i32);
        Ok(Stops { terminate: signal(SignalKind::terminate())?, scope: signal(scope)? })
    }
}

/// Why and how far a session is being stopped.
#[derive(Debug)]
struct Stop {
    end: End,
    error: Option<String>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Step {
    Interrupt,
    Terminate,
    Kill,
    GiveUp,
}

impl Stop {
    fn new(end: End, error: Option<String>) -> Stop {
        Stop { end, error, step: Step::Interrupt }
    }
}

struct Run {
    dir: SessionDir,
    claim: Claim,
    dialect: &'static dyn Dialect,
    containment: Arc<dyn Containment>,
    /// What the kernel had killed for lack of memory before the program began.
    memory_kills: Option<u64>,
    recorder: Recorder,
    /// Where its family has one, once the program was started.
    conversation: Option<Conversation>,
    report: watch::Sender<Report>,
    durable: watch::Receiver<Durable>,
    timers: Timers,
    children: Arrivals,
    stops: Stops,
    /// Until when the lease stood when the daemon let it go, in milliseconds of boot time.
    lease_until: Option<u64>,
    started: Option<u64>,
    main: Option<Pid>,
    /// `Some(None)`: it is gone, or as good as gone, and nobody knows how.
    exit: Option<Option<Exit>>,
    stop: Option<Stop>,
    leftovers: Vec<Leftover>,
    spoke: bool,
}

impl Run {
    /// Writes the journal's first record.
    fn begin(
        dir: SessionDir,
        claim: Claim,
        dialect: &'static dyn Dialect,
        report: watch::Sender<Report>,
        Held { containment, fell_back }: Held,
        stops: Stops,
        (encoder, appender): (Encoder, Appender),
    ) -> Result<Run, Fatal> {
        let containment: Arc<dyn Containment> = Arc::from(containment);
        let name = containment.backend().name();
        report.send_modify(|report| report.containment = Some(name.to_owned()));
        let committer = Committer::start(appender)?;
        let durable = committer.durable();
        let mut recorder =
            Recorder::new(&claim.plan, dialect.reader(&claim.plan.arguments), encoder, committer);
        recorder.fact(&Event::Started {
            attempt: claim.attempt,
            dialect: dialect.name().to_owned(),
            containment: name.to_owned(),
            weaker: containment.weaker(),
        });
        if let Some(why) = fell_back {
            recorder.fact(&Event::notice(notice::WARNING, format!("held by {name}: {why}")));
        }
        if let [_, ..] = containment.unenforced() {
            let limits = containment.unenforced();
            recorder.fact(&Event::Notice {
                reason: notice::WARNING.into(),
                text: format!("these limits are not enforced here: {}", limits.join(", ")),
                more: Map::from_iter([("limits".to_owned(), json!(limits))]),
            });
        }
        Ok(Run {
            children: signal(SignalKind::child())?,
            stops,
            memory_kills: containment.memory_kills(),
            dir,
            claim,
            dialect,
            containment,
            recorder,
            conversation: None,
            report,
            durable,
            timers: Timers::default(),
            lease_until: None,
            started: None,
            main: None,
            exit: None,
            stop: None,
            leftovers: Vec::new(),
            spoke: false,
        })
    }

    /// Waits until what was recorded is durable and shows it.
    async fn committed(&mut self) {
        let durable = self.recorder.committer().flush().await;
        self.publish(&durable, Stage::Running);
    }

    fn spawn(&mut self) -> Result<Program, Fatal> {
        if let Some(failure) = &self.durable.borrow().failure {
            return Err(format!("the journal cannot be written: {failure}").into());
        }
        let (input, ready) = self.stdin()?;
        let (marker, entrance) = (self.containment.environment(), self.containment.entrance()?);
        let program = program::start(&self.claim.plan, input, &self.capture_path(), marker, entrance)?;
        crash::point("executor.spawned");
        self.main = Some(program.pid);
        self.started = Some(now_us());
        self.begin_conversation(ready);
        Ok(program)
    }

    fn capture_path(&self) -> std::path::PathBuf {
        self.dir.path().join("stdout.capture")
    }

    /// From the program's start to the end of its output, and of its tree.
    async fn drive(&mut self, program: Program, link: &mut Link, heard: &mut mpsc::Receiver<Heard>) {
        let main = program.pid;
        self.pump(program, link, heard).await;
        crash::point("executor.exited");
        let plan = &self.claim.plan;
        let left = if self.stop.is_some() || !plan.leave_descendants {
            let grace = Duration::from_millis(plan.grace_ms.min(2_000));
            stop::stop_rest(&self.containment, main, grace, &mut self.children).await
        } else {
            // They were not to be stopped; that they live is told all the same.
            self.containment.members()
        };
        // How the program ended is known, whatever became of the rest of its tree.
        self.leftovers = left.unwrap_or_else(|error| {
            let text = format!("what the program left behind could not be stopped for sure: {error}");
            self.recorder.fact(&Event::notice(notice::WARNING, text));
            self.containment.members().unwrap_or_default()
        });
    }

    fn publish_now(&mut self, stage: Stage) {
        let durable = self.durable.borrow().clone();
        self.publish(&durable, stage);
    }

    fn publish(&mut self, durable: &Durable, stage: Stage) {
        let reading = self.recorder.reading();
        let conversation = &mut self.conversation;
        self.report.send_modify(|report| {
            if let Some(conversation) = conversation {
                conversation.show(durable.head, report);
            }
            report.stage = stage;
            report.head = durable.head;
            report.started = self.started;
            report.progress = reading.progress.clone();
            let said = reading.verdict.result;
            report.verdict = (said != VerdictResult::None).then_some(said);
            report.conversation = reading.conversation.clone();
            report.activity_complete = self.recorder.complete();
        });
    }
}
