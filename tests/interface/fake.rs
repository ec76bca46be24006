//! A service without sessions' machinery, for trying the D-Bus face: submissions are kept, events are what the test
//! puts into them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast, watch};

use airouter_sessiond::bus::{Engine, EventFeed};
use airouter_sessiond::model::{End, Entry, Limits, Phase, RunId, State, Status};
use airouter_sessiond::service::{
    Batch, Change, Error, Facts, Filter, FollowOptions, FollowPermit, Listing, Page, SubmitRequest, WaitFor,
};

/// Sessions by name, each with its input.
type Known = BTreeMap<RunId, (Status, Option<Vec<u8>>)>;

/// The fake. Clones share everything.
#[derive(Clone)]
pub struct Fake(Arc<Inner>);

pub struct Inner {
    pub sessions: Mutex<Known>,
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
        std::io::Write::write_all(&mut write, b"{}\n").expect("written");
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

    async fn subscribe(&self, _: RunId, cursor: &str) -> Result<Box<dyn EventFeed>, Error> {
        if cursor != "start" {
            return Err(Error::MalformedCursor(cursor.into()));
        }
        Ok(Box::new(FakeFeed { events: self.events.subscribe(), at: 0 }))
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

    fn profiles(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        BTreeMap::from([("echo".into(), BTreeMap::from([("program".into(), "/bin/echo".into())]))])
    }

    fn limits(&self) -> Limits {
        Limits::default()
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
