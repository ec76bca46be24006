//! A service without sessions' machinery, for trying the D-Bus face: submissions are kept, events are what the test
//! puts into them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast, watch};

use airouter_sessiond::bus::{AllEvents, Engine, EventFeed};
use airouter_sessiond::model::{
    About, Answer, End, Entry, Limits, Message, MessageStatus, OpenQuestion, Phase, PruneAction, PrunePolicy,
    Pruned, Receipt, RetentionReport, RunId, State, Status, Storage,
};
use airouter_sessiond::service::{
    Batch, Change, ControllerFacts, Error, Facts, Filter, FollowOptions, FollowPermit, Listing, Page, Piece,
    ProfileFacts, SubmitRequest, WaitFor,
};

/// Sessions by name, each with its input.
type Known = BTreeMap<RunId, (Status, Option<Vec<u8>>)>;

/// The fake. Clones share everything.
#[derive(Clone)]
pub struct Fake(Arc<Inner>);

pub struct Inner {
    pub sessions: Mutex<Known>,
    /// What was sent to all sessions, in the order in which it came.
    pub messages: Mutex<Vec<Message>>,
    /// The answers that settled a question, by its id.
    pub answers: Mutex<BTreeMap<String, Answer>>,
    pub events: watch::Sender<Vec<Entry>>,
    pub changes: broadcast::Sender<Change>,
    pub waiting: watch::Sender<usize>,
    /// Streams count as open until the test takes their permits away.
    pub following: Mutex<Vec<FollowPermit>>,
    pub proceed: Notify,
    /// Submissions wait for `proceed` after they told of their change.
    pub slow: std::sync::atomic::AtomicBool,
    pub facts: Mutex<Facts>,
}

impl std::ops::Deref for Fake {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Fake {
    pub fn new() -> Self {
        Fake(Arc::new(Inner {
            sessions: Mutex::default(),
            messages: Mutex::default(),
            answers: Mutex::default(),
            events: watch::Sender::new(Vec::new()),
            changes: broadcast::channel(4096).0,
            waiting: watch::Sender::new(0),
            following: Mutex::default(),
            proceed: Notify::new(),
            slow: false.into(),
            facts: Mutex::new(Facts {
                application: String::new(),
                host: "here".into(),
                state: "running",
                active: 0,
                queued: 0,
                containment: "process-group",
            }),
        }))
    }

    /// Ends a session, or makes it known as ended.
    pub fn end(&self, run_id: RunId) {
        let mut ended = status(run_id, "echo");
        (ended.state, ended.phase, ended.end) = (State::Finished, Phase::Complete, Some(End::Completed));
        self.sessions.lock().unwrap().insert(run_id, (ended, None));
        let (state, phase, end) = (State::Finished, Phase::Complete, Some(End::Completed));
        // Nobody may listen, in a test without a face.
        let _ = self.changes.send(Change::State { run_id, state, phase, end });
    }

    /// Has the session's program ask.
    pub fn ask(&self, run_id: RunId, question: OpenQuestion) {
        let id = question.question.clone();
        let mut sessions = self.sessions.lock().unwrap();
        sessions.get_mut(&run_id).expect("is known").0.questions.push(question);
        drop(sessions);
        self.changes.send(Change::QuestionAsked { run_id, question: id }).expect("somebody listens");
    }

    /// Adds an event; its cursor is its number.
    pub fn push(&self, kind: &str, details: Value) {
        self.events.send_modify(|events| {
            let seq = events.len() as u64 + 1;
            let details = details.as_object().cloned().unwrap_or_default();
            let (cursor, kind) = (format!("e-{seq}"), kind.to_owned());
            events.push(Entry { cursor, seq, time: seq, kind, details, raw: None, raw64: None });
        });
    }
}

pub fn status(run_id: RunId, profile: &str) -> Status {
    serde_json::from_value(json!({
        "run_id": run_id, "state": "accepted", "phase": "pending", "profile": profile, "dialect": "jsonl",
        "accepted": 1, "activity-complete": true, "attempt": 0, "progress": {},
    }))
    .expect("a status")
}

/// A spool with everything that can be told of one.
pub fn storage() -> Storage {
    Storage {
        spool: "/the/spool".into(),
        active: 1,
        active_bytes: 4096,
        ended: 2,
        ended_bytes: 3 << 30,
        damaged: 1,
        damaged_bytes: 5,
        free_bytes: 7 << 30,
        oldest: Some(1),
        retention: Some(RetentionReport {
            acknowledged_only: true,
            max_age_days: Some(30),
            max_bytes: Some(1 << 30),
            due: 1,
            due_bytes: 2 << 30,
            due_at_least: true,
        }),
    }
}

/// An answer of `Prune` on a session that is kept.
pub fn pruned(run_id: RunId) -> Pruned {
    let why = Some("has an unknown file".into());
    Pruned { run_id, action: PruneAction::Kept, why, ended: Some(1), bytes: Some(4096) }
}

/// An open question with these choices; without any it wants a text.
pub fn question(id: &str, choices: &[&str]) -> OpenQuestion {
    OpenQuestion {
        question: id.into(),
        about: if choices.is_empty() { About::Text } else { About::Permission },
        choices: choices.iter().map(|&choice| choice.to_owned()).collect(),
        takes_text: choices.is_empty(),
        tool: None,
        asked: 1,
        expires: None,
    }
}

struct Waiting<'a>(&'a Inner);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|n| *n -= 1);
    }
}

#[async_trait]
impl Engine for Fake {
    async fn submit(&self, request: SubmitRequest) -> Result<Status, Error> {
        let run_id = request.submission.run_id();
        let status = status(run_id, &request.submission.profile);
        self.sessions.lock().unwrap().insert(run_id, (status.clone(), request.input));
        let _ = self.changes.send(Change::Added(run_id));
        if self.slow.load(std::sync::atomic::Ordering::Relaxed) {
            self.proceed.notified().await;
        }
        Ok(status)
    }

    async fn status(&self, run_id: RunId) -> Result<Status, Error> {
        let sessions = self.sessions.lock().unwrap();
        sessions.get(&run_id).map(|(status, _)| status.clone()).ok_or(Error::NotFound(run_id))
    }

    async fn list(&self, _filter: Filter) -> Result<Listing, Error> {
        let sessions = self.sessions.lock().unwrap().values().map(|(status, _)| status.clone()).collect();
        Ok(Listing { sessions, next: String::new() })
    }

    async fn events(&self, _run_id: RunId, _cursor: &str, limit: u32) -> Result<Page, Error> {
        let events: Vec<Entry> = self.events.borrow().iter().take(limit as usize).cloned().collect();
        let next = events.last().map_or_else(|| "start".into(), |last| last.cursor.clone());
        Ok(Page { next, more: false, events })
    }

    async fn follow(
        &self,
        _: RunId,
        _: &str,
        _: FollowOptions,
        permit: FollowPermit,
    ) -> Result<OwnedFd, Error> {
        let (read, mut write) = std::io::pipe().expect("a pipe");
        // What a pipe holds without a reader.
        let mut lines: Vec<u8> = Vec::new();
        for entry in self.events.borrow().iter() {
            serde_json::to_writer(&mut lines, entry).expect("JSON");
            lines.push(b'\n');
        }
        std::io::Write::write_all(&mut write, if lines.is_empty() { b"{}\n" } else { &lines })
            .expect("written");
        self.following.lock().unwrap().push(permit);
        Ok(read.into())
    }

    async fn wait(&self, run_id: RunId, _: WaitFor, _: Duration) -> Result<Status, Error> {
        self.waiting.send_modify(|n| *n += 1);
        let _waiting = Waiting(&self.0);
        self.proceed.notified().await;
        self.status(run_id).await
    }

    async fn cancel(&self, run_id: RunId) -> Result<Status, Error> {
        self.status(run_id).await
    }

    async fn reconcile(&self, run_id: RunId) -> Result<Status, Error> {
        self.status(run_id).await
    }

    /// As many messages as the first three; programs of the profile `mute` take none, and no program takes `lost`.
    async fn send(&self, run_id: RunId, message: Message) -> Result<MessageStatus, Error> {
        message.check(Limits::default().message)?;
        if self.status(run_id).await?.profile == "mute" {
            return Err(Error::Unsupported("the dialect mute takes no messages".into()));
        }
        let mut messages = self.messages.lock().unwrap();
        let known = messages.iter().find(|known| known.request_id == message.request_id);
        let receipt = match known {
            Some(known) if *known == message && message.request_id == "lost" => Receipt::Undeliverable,
            Some(known) if *known == message => Receipt::Seen,
            Some(_) => return Err(Error::MessageChanged { run_id, request_id: message.shown() }),
            None if messages.len() == 3 => return Err(Error::TooManyMessages { run_id, most: 3 }),
            None => {
                messages.push(message.clone());
                Receipt::Stored
            }
        };
        Ok(MessageStatus { request_id: message.request_id, mode: message.mode, receipt })
    }

    async fn answer(&self, run_id: RunId, question: &str, answer: Answer) -> Result<(), Error> {
        let mut sessions = self.sessions.lock().unwrap();
        let Some((status, _)) = sessions.get_mut(&run_id) else { return Err(Error::NotFound(run_id)) };
        let question = question.to_owned();
        let mut answers = self.answers.lock().unwrap();
        match answers.get(&question) {
            Some(known) if *known == answer => return Ok(()),
            Some(_) => return Err(Error::QuestionSettled { run_id, question }),
            None => {}
        }
        let Some(at) = status.questions.iter().position(|open| open.question == question) else {
            return Err(Error::UnknownQuestion { run_id, question });
        };
        status.questions[at].check(&answer, Limits::default().message)?;
        status.questions.remove(at);
        answers.insert(question.clone(), answer);
        let _ = self.changes.send(Change::QuestionSettled { run_id, question });
        Ok(())
    }

    /// The fake has no cursors: the word is what was acknowledged.
    async fn acknowledge(&self, run_id: RunId, cursor: &str) -> Result<Status, Error> {
        let mut sessions = self.sessions.lock().unwrap();
        let Some((status, _)) = sessions.get_mut(&run_id) else { return Err(Error::NotFound(run_id)) };
        if cursor == "now" {
            return Err(Error::MalformedCursor(cursor.into()));
        }
        status.acknowledged = Some(cursor.to_owned());
        Ok(status.clone())
    }

    async fn remove(&self, run_id: RunId) -> Result<(), Error> {
        let mut sessions = self.sessions.lock().unwrap();
        match sessions.get(&run_id) {
            None => Err(Error::NotFound(run_id)),
            Some((status, _)) if status.end.is_none() => Err(Error::NotSettled(run_id)),
            Some(_) => {
                sessions.remove(&run_id);
                let _ = self.changes.send(Change::Removed(run_id));
                Ok(())
            }
        }
    }

    async fn storage(&self) -> Result<Storage, Error> {
        Ok(storage())
    }

    /// Everything that ended is due.
    async fn prune(&self, policy: PrunePolicy) -> Result<Vec<Pruned>, Error> {
        let mut sessions = self.sessions.lock().unwrap();
        let due: Vec<RunId> =
            sessions.iter().filter(|(_, (status, _))| status.end.is_some()).map(|(id, _)| *id).collect();
        let action = if policy.dry_run { PruneAction::WouldRemove } else { PruneAction::Removed };
        if !policy.dry_run {
            sessions.retain(|id, _| !due.contains(id));
        }
        Ok(due.into_iter().map(|run_id| Pruned { action, why: None, ..pruned(run_id) }).collect())
    }

    async fn subscribe(&self, _: RunId, cursor: &str) -> Result<Box<dyn EventFeed>, Error> {
        if cursor != "start" {
            return Err(Error::MalformedCursor(cursor.into()));
        }
        Ok(Box::new(FakeFeed { events: self.events.subscribe(), at: 0 }))
    }

    /// The events are those of every session that is known, and of those in `cursors`.
    async fn subscribe_all(
        &self,
        cursor: &str,
        cursors: BTreeMap<RunId, String>,
    ) -> Result<Box<dyn AllEvents>, Error> {
        if cursor != "start" {
            return Err(Error::MalformedCursor(cursor.into()));
        }
        let mut run_ids: Vec<RunId> = self.sessions.lock().unwrap().keys().copied().collect();
        run_ids.extend(cursors.keys());
        let feed = |run_id| (run_id, FakeFeed { events: self.events.subscribe(), at: 0 });
        Ok(Box::new(FakeAll { feeds: run_ids.into_iter().map(feed).collect(), missed: false }))
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    async fn upgrade_pending(&self) -> bool {
        false
    }
    fn facts(&self) -> Facts {
        self.facts.lock().unwrap().clone()
    }

    fn controller(&self) -> ControllerFacts {
        ControllerFacts { name: "embedded".into(), ..ControllerFacts::default() }
    }

    fn profiles(&self) -> BTreeMap<String, ProfileFacts> {
        let facts = |program: &str, features: &[&'static str], problem: Option<&str>| ProfileFacts {
            program: program.into(),
            dialect: "jsonl".into(),
            features: features.to_vec(),
            problem: problem.map(str::to_owned),
        };
        BTreeMap::from([
            ("echo".into(), facts("/bin/echo", &["steer", "questions"], None)),
            ("gone".into(), facts("/bin/gone", &[], Some("is missing"))),
        ])
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }
}

/// One session after the other; then it has missed something.
struct FakeAll {
    feeds: Vec<(RunId, FakeFeed)>,
    missed: bool,
}

#[async_trait]
impl AllEvents for FakeAll {
    async fn next(&mut self, max_bytes: usize) -> Option<Piece> {
        match self.feeds.last_mut() {
            None if self.missed => None,
            None => {
                self.missed = true;
                Some(Piece::Missed)
            }
            Some((run_id, feed)) => {
                let (run_id, batch) = (*run_id, feed.next(max_bytes).await.ok()??);
                if batch.last {
                    self.feeds.pop();
                }
                Some(Piece::Batch { run_id, batch })
            }
        }
    }
}

struct FakeFeed {
    events: watch::Receiver<Vec<Entry>>,
    at: usize,
}

#[async_trait]
impl EventFeed for FakeFeed {
    async fn next(&mut self, max_bytes: usize) -> Result<Option<Batch>, Error> {
        let at = self.at;
        let Ok(events) = self.events.wait_for(|events| events.len() > at).await else { return Ok(None) };
        let mut batch = Vec::new();
        let mut bytes = 0;
        for entry in &events[at..] {
            bytes += serde_json::to_string(entry).map_or(0, |text| text.len());
            if bytes > max_bytes && !batch.is_empty() {
                break;
            }
            batch.push(entry.clone());
        }
        let from = if at == 0 { "start".to_owned() } else { events[at - 1].cursor.clone() };
        self.at += batch.len();
        let last = batch.iter().any(|entry| entry.kind == "ended");
        let next = batch.last().map_or_else(|| from.clone(), |last| last.cursor.clone());
        Ok(Some(Batch { from, next, events: batch, last }))
    }

    fn position(&self) -> String {
        self.events.borrow().get(self.at.wrapping_sub(1)).map_or("start".into(), |last| last.cursor.clone())
    }
}
