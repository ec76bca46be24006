//! Random sequences of everything that can happen to a service, held after each step against a small model of the
//! promises: started at most once, one end for ever, no acknowledged submission lost, cursors that go on, a journal whose
//! beginning never changes, messages that are taken at most once, in order, with receipts that hold, acknowledgements that
//! stay, and nothing gone that was not removed.
//!
//! The seed is printed with a failure; `MODEL_SEED=<it>` runs the same sequences again. About a minute.

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use airouter_sessiond::client::{Client, Record, SessionStatus, WaitFor};
use airouter_sessiond::model::{Receipt, RunId, Submission};
use airouter_sessiond::spool::{Ownership, SessionDir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::{Bench, PATIENCE, lives, until};

/// No new sequence is begun after so long.
const BUDGET: Duration = Duration::from_secs(45);
/// Fewer sequences than this in that time prove too little.
const ENOUGH: u32 = 3;

/// Notes its start and what it is told, and counts until it may finish, or until the test is gone.
const PROGRAM: &str = r#"
import json, os, sys, threading, time
id, lock = os.environ["ID"], threading.Lock()
def note(name, text):
    with open(f"{name}-{id}", "a") as file:
        file.write(f"{text}\n")
def say(**line):
    with lock:
        print(json.dumps(line), flush=True)
def listen():
    for line in sys.stdin:
        told = json.loads(line)
        if told["type"] == "steer":
            note("heard", told["request-id"])
            say(type="seen", **{"request-id": told["request-id"]})
        elif told["type"] == "interrupt":
            os._exit(1)
note("starts", "start")
note("executor", os.getppid())
threading.Thread(target=listen, daemon=True).start()
n = 0
while os.path.exists(f"starts-{id}") and not os.path.exists(f"finish-{id}"):
    n += 1
    say(n=n)
    time.sleep(0.05)
os._exit(0)
"#;

#[derive(Debug, Clone)]
enum Step {
    Submit,
    /// The daemon is killed while the call is under way.
    SubmitAndKill,
    Again(Index),
    Changed(Index),
    /// Another message.
    Say(Index),
    /// The daemon is killed while the call is under way.
    SayAndKill(Index),
    Cancel(Index),
    Reconcile(Index),
    Finish(Index),
    /// All that was shown of it.
    Acknowledge(Index),
    Remove(Index),
    /// The daemon is killed while the call is under way.
    RemoveAndKill(Index),
    KillDaemon,
    KillExecutor(Index),
    KillBoth(Index),
    /// Stopped in order: sessions are left to their executors.
    Restart,
    Truncate(Index, Index),
    Flip(Index, Index, u8),
    FlipInbox(Index, Index, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<Index>;
    prop_oneof![
        4 => Just(Step::Submit),
        1 => Just(Step::SubmitAndKill),
        2 => which().prop_map(Step::Again),
        1 => which().prop_map(Step::Changed),
        4 => which().prop_map(Step::Say),
        1 => which().prop_map(Step::SayAndKill),
        2 => which().prop_map(Step::Cancel),
        2 => which().prop_map(Step::Reconcile),
        3 => which().prop_map(Step::Finish),
        2 => which().prop_map(Step::Acknowledge),
        1 => which().prop_map(Step::Remove),
        1 => which().prop_map(Step::RemoveAndKill),
        2 => Just(Step::KillDaemon),
        2 => which().prop_map(Step::KillExecutor),
        1 => which().prop_map(Step::KillBoth),
        1 => Just(Step::Restart),
        1 => (which(), which()).prop_map(|(session, at)| Step::Truncate(session, at)),
        1 => (which(), which(), 0..8u8).prop_map(|(session, at, bit)| Step::Flip(session, at, bit)),
        1 => (which(), which(), 0..8u8).prop_map(|(session, at, bit)| Step::FlipInbox(session, at, bit)),
    ]
}

/// What is promised of one session.
struct Session {
    submission: Submission,
    /// A Submit of it was answered.
    acknowledged: bool,
    end: Option<String>,
    seen: Vec<Record>,
    /// Somebody other than its program can have ended it.
    disturbed: bool,
    /// Up to where its events were acknowledged; nothing is known of it after its journal was damaged.
    projected: Option<String>,
    gone: Gone,
    /// The best receipt of each message, in the order in which they were sent; `None`: nobody answered.
    said: Vec<Option<Receipt>>,
    /// Its journal was harmed: it tells less of the messages than it did.
    forgetful: bool,
    /// Its inbox was harmed.
    unheard: bool,
}

/// Whether a session was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    /// The answer was lost.
    Perhaps,
    Yes,
}

struct World {
    bench: Bench,
    up: bool,
    sessions: Vec<Session>,
}

impl World {
    fn new() -> World {
        let mut bench = Bench::prepared("");
        let program = bench.write("program.py", PROGRAM);
        let profile = format!(
            "[profiles.program]\nprogram = \"/usr/bin/python3\"\ndialect = \"jsonl-talk\"\narguments = [\"{}\"]\n",
            program.display()
        );
        bench.configure("on_stop = \"detach\"\n[limits]\nactive = 3\ngrace_ms = 500\n", &profile);
        bench.start();
        World { bench, up: true, sessions: Vec::new() }
    }

    async fn client(&mut self) -> Client {
        if !self.up {
            self.bench.start();
            self.up = true;
        }
        self.bench.client().await
    }

    fn kill_daemon(&mut self) {
        if self.up {
            self.bench.kill();
            self.up = false;
        }
    }

    fn new_session(&mut self) -> Submission {
        let mut submission = Submission::new(RunId::random(), "program");
        submission.directory = Some(self.bench.path().display().to_string());
        submission.environment.insert("ID".into(), submission.run_id().to_string());
        let session = Session {
            submission: submission.clone(),
            acknowledged: false,
            end: None,
            seen: Vec::new(),
            disturbed: false,
            projected: None,
            gone: Gone::No,
            said: Vec::new(),
            forgetful: false,
            unheard: false,
        };
        self.sessions.push(session);
        submission
    }

    /// The position of a session that was submitted.
    fn pick(&self, which: &Index) -> Option<usize> {
        (!self.sessions.is_empty()).then(|| which.index(self.sessions.len()))
    }

    /// The same of those whose submission was answered and that were not removed.
    fn pick_known(&mut self, which: &Index) -> Option<usize> {
        let at = self.pick(which)?;
        let session = &self.sessions[at];
        (session.acknowledged && session.gone == Gone::No).then_some(at)
    }

    fn file(&self, what: &str, at: usize) -> String {
        format!("{what}-{}", self.sessions[at].submission.run_id())
    }

    fn starts(&self, at: usize) -> usize {
        self.bench.read(&self.file("starts", at)).lines().count()
    }

    fn active(&self, at: usize) -> PathBuf {
        self.bench.spool().join("active").join(self.sessions[at].submission.run_id().to_string())
    }

    fn kill_executor(&mut self, at: usize) {
        let pid = self.bench.read(&self.file("executor", at));
        let folder = self.active(at);
        // Its number is its own as long as it holds the lock.
        let owned =
            SessionDir::open(&folder).is_ok_and(|dir| matches!(dir.lock_owner(), Ok(Ownership::Held)));
        if pid.ends_with('\n') && owned && lives(&pid) {
            self.sessions[at].disturbed = true;
            let _ = kill(Pid::from_raw(pid.trim().parse().expect("a pid")), Signal::SIGKILL);
            until("the executor is gone", || !lives(&pid));
        }
    }

    async fn submit(&mut self, at: usize) {
        let client = self.client().await;
        let submission = self.sessions[at].submission.clone();
        let answer = client.submit(&submission, None).await.expect("the same session");
        assert_eq!(answer.status.run_id().expect("run_id"), submission.run_id());
        self.saw(at, &answer.status);
        self.sessions[at].acknowledged = true;
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Submit => {
                self.new_session();
                self.submit(self.sessions.len() - 1).await;
            }
            Step::SubmitAndKill => {
                let client = self.client().await;
                let submission = self.new_session();
                let submitting = tokio::spawn(async move { client.submit(&submission, None).await.is_ok() });
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.kill_daemon();
                let acknowledged = submitting.await.expect("no panic");
                self.sessions.last_mut().expect("a session").acknowledged = acknowledged;
            }
            Step::KillDaemon => self.kill_daemon(),
            Step::Restart => {
                if self.up {
                    self.bench.stop();
                    self.up = false;
                }
                self.client().await;
            }
            Step::Again(which) => {
                if let Some(at) = self.pick(which) {
                    self.submit(at).await;
                }
            }
            Step::Changed(which) => {
                let Some(at) = self.pick(which).filter(|&at| self.sessions[at].acknowledged) else { return };
                let mut other = self.sessions[at].submission.clone();
                other.arguments.push(" ".into());
                let error = self.client().await.submit(&other, None).await.expect_err("changed");
                assert_eq!(error.refusal(), Some("SubmissionChanged"), "{error}");
            }
            Step::Cancel(which) | Step::Reconcile(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let client = self.client().await;
                let run_id = self.sessions[at].submission.run_id();
                let status = match step {
                    Step::Cancel(_) => {
                        self.sessions[at].disturbed = true;
                        client.cancel(run_id).await
                    }
                    _ => client.reconcile(run_id).await,
                };
                self.saw(at, &status.expect("answers"));
            }
            Step::Say(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let client = self.client().await;
                self.sessions[at].said.push(None);
                self.say(&client, at, self.sessions[at].said.len() - 1).await;
            }
            Step::SayAndKill(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let client = self.client().await;
                let run_id = self.sessions[at].submission.run_id();
                let n = self.sessions[at].said.len();
                let saying =
                    tokio::spawn(async move { client.steer(run_id, &format!("m{n}"), "hello").await });
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.kill_daemon();
                let receipt = saying.await.expect("no panic").ok().map(|sent| sent.receipt);
                self.sessions[at].said.push(receipt);
            }
            Step::Finish(which) => {
                if let Some(at) = self.pick(which) {
                    self.bench.write(&self.file("finish", at), "");
                }
            }
            Step::Acknowledge(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let Some(to) = self.sessions[at].seen.last().map(|last| last.cursor.clone()) else { return };
                let run_id = self.sessions[at].submission.run_id();
                let status = self.client().await.acknowledge(run_id, &to).await.expect("what was shown");
                assert_eq!(status.text("acknowledged"), to, "nothing beyond it was acknowledged");
                self.sessions[at].projected = Some(to);
            }
            Step::Remove(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let run_id = self.sessions[at].submission.run_id();
                match self.client().await.remove(run_id).await {
                    Ok(()) => self.sessions[at].gone = Gone::Yes,
                    Err(error) => assert_eq!(error.refusal(), Some("NotSettled"), "{error}"),
                }
            }
            Step::RemoveAndKill(which) => {
                let Some(at) = self.pick_known(which) else { return };
                let client = self.client().await;
                let run_id = self.sessions[at].submission.run_id();
                let removing = tokio::spawn(async move { client.remove(run_id).await });
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.kill_daemon();
                self.sessions[at].gone = match removing.await.expect("no panic") {
                    Ok(()) => Gone::Yes,
                    Err(error) if error.refusal().is_some() => Gone::No,
                    Err(_) => Gone::Perhaps,
                };
            }
            Step::KillExecutor(which) | Step::KillBoth(which) => {
                if matches!(step, Step::KillBoth(_)) {
                    self.kill_daemon();
                }
                if let Some(at) = self.pick(which) {
                    self.kill_executor(at);
                }
            }
            Step::Truncate(which, _) | Step::Flip(which, ..) | Step::FlipInbox(which, ..) => {
                if let Some(at) = self.pick(which) {
                    self.harm(at, step);
                }
            }
        }
    }

    /// Says a message, for the first time or again, and holds its receipt against what is known of it.
    async fn say(&mut self, client: &Client, at: usize, n: usize) {
        let (run_id, id) = (self.sessions[at].submission.run_id(), format!("m{n}"));
        let heard = self.bench.read(&self.file("heard", at)).lines().filter(|line| *line == id).count();
        let session = &mut self.sessions[at];
        let before = session.said[n];
        let sent = match client.steer(run_id, &id, "hello").await {
            Ok(sent) => sent.receipt,
            Err(error) => {
                let why = error.refusal().expect("it answers");
                let lost = session.unheard && ["Damaged", "NotRunning"].contains(&why);
                assert!(lost || (before, why) == (None, "NotRunning"), "{id}: {before:?}, then {error}");
                return;
            }
        };
        if !session.forgetful {
            let stays = matches!(before, Some(Receipt::Seen | Receipt::Undeliverable));
            assert!(
                Some(sent) == before || (!stays && Some(sent) > before),
                "{id}: {before:?}, then {sent:?}"
            );
            assert!(sent != Receipt::Undeliverable || heard == 0, "{id} was heard, and comes back");
        }
        // It was noted before it was said to be seen.
        assert!(
            sent != Receipt::Seen
                || self.bench.read(&format!("heard-{run_id}")).lines().any(|line| line == id)
        );
        self.sessions[at].said[n] = Some(sent);
    }

    /// Damages the journal or the inbox of a session that was interrupted while nobody looks at it.
    fn harm(&mut self, at: usize, step: &Step) {
        self.kill_daemon();
        self.kill_executor(at);
        let Ok(dir) = SessionDir::open(&self.active(at)) else { return };
        let (Ok(Some(journal)), Ok(None)) = (dir.journal(), dir.outcome()) else { return };
        if !matches!(dir.lock_owner(), Ok(Ownership::Taken(_))) {
            return;
        }
        if let Step::FlipInbox(_, place, bit) = step {
            let Ok(file) = File::options().read(true).write(true).open(dir.path().join("inbox.jsonl")) else {
                return;
            };
            let size = file.metadata().expect("its size").len();
            if size > 0 {
                flip(&file, place.index(size as usize) as u64, *bit);
                self.sessions[at].unheard = true;
            }
            return;
        }
        let size = journal.size().expect("its size");
        if size == 0 {
            return;
        }
        let chunk = journal.read(journal.start(), size, usize::MAX, u64::MAX).expect("reads");
        let right: BTreeSet<(u64, String)> = chunk.entries.into_iter().map(|e| (e.time, e.kind)).collect();
        let file =
            File::options().read(true).write(true).open(dir.path().join("journal.jsonl")).expect("opens");
        match step {
            Step::Truncate(_, to) => file.set_len(to.index(size as usize) as u64).expect("cut"),
            Step::Flip(_, place, bit) => flip(&file, place.index(size as usize) as u64, *bit),
            _ => {}
        }
        let journal = dir.journal().expect("the claim names its epoch").expect("it is there");
        let size = journal.size().expect("its size");
        let chunk = journal.read(journal.start(), size, usize::MAX, u64::MAX).expect("reads");
        let shown = chunk.entries.iter().filter(|e| e.seq > 0);
        assert!(
            shown.map(|e| (e.time, e.kind.clone())).all(|fact| right.contains(&fact)),
            "nothing wrong is shown"
        );
        // From here on the damaged journal is what must not change.
        self.sessions[at].seen.clear();
        self.sessions[at].projected = None;
        self.sessions[at].disturbed = true;
        self.sessions[at].forgetful = true;
    }

    fn saw(&mut self, at: usize, status: &SessionStatus) {
        let session = &mut self.sessions[at];
        match (&session.end, status.end()) {
            (Some(known), now) => {
                assert_eq!(Some(known.as_str()), now, "one end for ever: {:?}", status.json())
            }
            (None, Some(now)) => session.end = Some(now.to_owned()),
            (None, None) => {}
        }
    }

    /// Holds everything that can be seen against the model.
    async fn check(&mut self) {
        for at in 0..self.sessions.len() {
            assert!(self.starts(at) <= 1, "started at most once");
            let heard = self.bench.read(&self.file("heard", at));
            let heard: Vec<usize> = heard.lines().map(|id| id[1..].parse().expect("a number")).collect();
            assert!(heard.is_sorted_by(|one, other| one < other), "each once, in order: {heard:?}");
        }
        if !self.up {
            return;
        }
        let client = self.client().await;
        for at in 0..self.sessions.len() {
            if self.sessions[at].acknowledged {
                let run_id = self.sessions[at].submission.run_id();
                let status = match client.status(run_id).await {
                    Err(error) if error.refusal() == Some("Removed") => {
                        assert_ne!(self.sessions[at].gone, Gone::No, "nothing goes by itself");
                        self.sessions[at].gone = Gone::Yes;
                        continue;
                    }
                    status => status.expect("no acknowledged submission is lost"),
                };
                assert_ne!(self.sessions[at].gone, Gone::Yes, "what is gone stays gone");
                self.sessions[at].gone = Gone::No;
                if let Some(projected) = &self.sessions[at].projected {
                    assert_eq!(status.text("acknowledged"), projected, "no acknowledgement is lost");
                }
                self.saw(at, &status);
                self.read_on(&client, at, run_id).await;
                for n in 0..self.sessions[at].said.len() {
                    if self.sessions[at].said[n].is_some() {
                        self.say(&client, at, n).await;
                    }
                }
            }
        }
    }

    async fn read_on(&mut self, client: &Client, at: usize, run_id: RunId) {
        let all = pages(client, run_id, "start").await;
        let session = &mut self.sessions[at];
        assert!(all.starts_with(&session.seen), "what was shown stays: {:?} {all:?}", session.seen);
        let ends = all.iter().filter(|record| record.kind == "ended").count();
        assert!(ends <= 1, "one terminal record");
        if let Some(last) = session.seen.last() {
            let more = pages(client, run_id, &last.cursor).await;
            assert!(more.starts_with(&all[session.seen.len()..]), "cursors go on");
        }
        session.seen = all;
    }

    /// Lets everything end, and looks at the ends.
    async fn end(&mut self) {
        let client = self.client().await;
        // What became of removals whose answers were lost.
        self.check().await;
        for at in 0..self.sessions.len() {
            self.bench.write(&self.file("finish", at), "");
            self.submit(at).await;
        }
        for at in 0..self.sessions.len() {
            let run_id = self.sessions[at].submission.run_id();
            if self.sessions[at].gone == Gone::Yes {
                continue;
            }
            let mut status = client.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("waits");
            if status.is_uncertain() {
                assert!(self.sessions[at].disturbed, "uncertain without a cause: {:?}", status.json());
                status = client.reconcile(run_id).await.expect("reconciles");
            }
            assert!(status.is_over(), "never without an answer: {:?}\n{}", status.json(), self.bench.log());
            self.saw(at, &status);
        }
        self.check().await;
        for (at, session) in self.sessions.iter().enumerate() {
            let end = session.end.as_deref().expect("has an end");
            if session.gone == Gone::Yes {
                assert!(self.starts(at) <= 1, "a removed session never runs again");
                continue;
            }
            let last = session.seen.last().map(|record| record.kind.as_str());
            assert_eq!(last, Some("ended"), "{end}: the journal says so last");
            match session.disturbed {
                true => assert!(["completed", "cancelled", "interrupted"].contains(&end), "{end}"),
                false => {
                    assert_eq!((end, self.starts(at)), ("completed", 1));
                    let stored = session.said.contains(&Some(Receipt::Stored));
                    assert!(!stored, "neither passed on nor given back: {:?}", session.said);
                }
            }
        }
    }
}

fn flip(file: &File, place: u64, bit: u8) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).expect("read");
    file.write_all_at(&[byte[0] ^ (1 << bit)], place).expect("written");
}

/// Everything after a cursor, as it is now.
async fn pages(client: &Client, run_id: RunId, cursor: &str) -> Vec<Record> {
    let mut all = Vec::new();
    let mut cursor = cursor.to_owned();
    loop {
        let page = client.events(run_id, &cursor, 0).await.expect("the cursor is good");
        all.extend(page.records);
        if !page.more {
            return all;
        }
        cursor = page.next;
    }
}

async fn play(steps: &[Step]) {
    let mut world = World::new();
    for step in steps {
        world.take(step).await;
        world.check().await;
    }
    world.end().await;
}

#[test]
fn random_sequences_keep_every_promise() {
    let seed = match std::env::var("MODEL_SEED") {
        Ok(seed) => seed.parse().expect("MODEL_SEED is 32 digits of hex with hyphens, as it was printed"),
        Err(_) => RunId::random(),
    };
    println!("MODEL_SEED={seed}");
    let digits = seed.to_string().replace('-', "");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, digits.as_bytes());
    let config = Config { max_shrink_iters: 20, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let begun = Instant::now();
    let played = std::sync::atomic::AtomicU32::new(0);
    let result = runner.run(&prop::collection::vec(step(), 4..16), |steps| {
        if begun.elapsed() < BUDGET {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(play(&steps));
            played.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    });
    let played = played.into_inner();
    println!("{played} sequences in {:.0?}", begun.elapsed());
    if let Err(error) = result {
        panic!("MODEL_SEED={seed}: {error}");
    }
    assert!(played >= ENOUGH, "only {played} sequences in {BUDGET:?}");
}
