//! What is said to `codex app-server`: JSON-RPC requests, one a line.
//!
//! - `initialize`, `initialized`, `thread/start` or `thread/resume`, `turn/start`. A refusal of one of them is the end.
//! - A steer is `turn/steer` with the id of the running turn; one that finds no turn to steer is the next turn. A follow-up is
//!   `turn/start` after `turn/completed`: while a turn runs, `turn/start` would steer it.
//! - Each message has a `clientUserMessageId`, under which it comes back as an item when a request to the model holds it.
//! - Sandbox and approvals are what the profile's arguments and the program's own configuration say.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};
use uuid::Uuid;

use super::codex_asks::Asks;
use super::glance::Glance;
use super::json::{text, text_at};
use super::talk::Reply;
use super::{Deed, Opening, Talk};
use crate::model::{Message, MessageMode};

/// The words of the server where a steer finds no turn.
const NO_TURN: &str = "no active turn";

#[derive(Debug, Default)]
pub(super) struct AppTalk {
    opening: Option<Opening>,
    schema: Option<Value>,
    next_id: u64,
    /// Our requests that have no response yet.
    calls: HashMap<u64, Call>,
    thread: Option<String>,
    turn: Turn,
    /// The turn that ended last.
    ended: Option<String>,
    /// Messages that are not written yet.
    waiting: VecDeque<Message>,
    /// Messages that are written and that no item showed yet.
    sent: Vec<Sent>,
    asks: Asks,
    closed: bool,
}

/// The main thread's turn.
#[derive(Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    None,
    /// It was asked for.
    Starting,
    /// The turn of this id.
    Running(String),
}

/// A request of ours.
#[derive(Debug)]
enum Call {
    Initialize,
    Thread,
    /// The turn of the prompt, or of this message.
    Turn(Option<Message>),
    /// Into the turn of this id.
    Steer(Message, String),
    Interrupt,
}

#[derive(Debug)]
struct Sent {
    /// Our `clientUserMessageId` of it.
    client: String,
    message: String,
    text: String,
    /// The turn that took it in without showing it yet.
    turn: Option<String>,
}

impl Talk for AppTalk {
    fn open(&mut self, mut opening: Opening, deeds: &mut Vec<Deed>) {
        self.schema = opening.schema.take();
        self.opening = Some(opening);
        let client = json!({
            "name": env!("CARGO_PKG_NAME"),
            "title": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
        });
        self.call(Call::Initialize, "initialize", json!({"clientInfo": client}), deeds);
    }

    fn heard(&mut self, line: &[u8], deeds: &mut Vec<Deed>) {
        let Some(glance) = Glance::at(line) else { return };
        // Deltas and the like are nothing to a talk.
        let wanted = match glance.method() {
            None => glance.kind().is_none(),
            Some("turn/started" | "turn/completed" | "item/started" | "item/completed") => true,
            Some(method) => method == "serverRequest/resolved" || glance.has_id(),
        };
        if !wanted {
            return;
        }
        let Some(line) = glance.whole() else { return };
        let value = line.value();
        match (text(value, "method"), value.get("id")) {
            (Some(method), Some(id)) => {
                let params = value.get("params").unwrap_or(&Value::Null);
                self.asks.asked(method, id, params, deeds);
            }
            (Some(method), None) => {
                if let Some(params) = value.get("params") {
                    self.notified(method, params, deeds);
                }
            }
            (None, Some(id)) => {
                if let Some(call) = id.as_u64().and_then(|id| self.calls.remove(&id)) {
                    self.returned(call, value, deeds);
                }
            }
            (None, None) => {}
        }
    }

    fn message(&mut self, message: &Message, deeds: &mut Vec<Deed>) {
        if self.closed {
            deeds.push(Deed::gave_back(&message.request_id, "the session is ending"));
            return;
        }
        match (&self.turn, message.mode) {
            (Turn::Running(turn), MessageMode::Steer) => {
                let turn = turn.clone();
                self.steer(message.clone(), turn, deeds);
            }
            _ => {
                self.waiting.push_back(message.clone());
                self.next(deeds);
            }
        }
    }

    fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        self.asks.answer(key, reply, deeds);
    }

    fn interrupt(&mut self, deeds: &mut Vec<Deed>) {
        if let (Turn::Running(turn), Some(thread)) = (&self.turn, &self.thread) {
            let params = json!({"threadId": thread, "turnId": turn});
            self.call(Call::Interrupt, "turn/interrupt", params, deeds);
        }
        self.close(deeds);
    }

    fn is_idle(&self) -> bool {
        let answered = self.calls.values().all(|call| matches!(call, Call::Interrupt));
        let nothing_kept = self.waiting.is_empty() && self.sent.is_empty() && self.asks.is_empty();
        answered && nothing_kept && self.turn == Turn::None && self.opening.is_none()
    }

    fn close(&mut self, deeds: &mut Vec<Deed>) {
        self.closed = true;
        for message in self.waiting.drain(..) {
            deeds
                .push(Deed::gave_back(&message.request_id, "the session ended before it could be passed on"));
        }
    }
}

impl AppTalk {
    fn call(&mut self, call: Call, method: &str, params: Value, deeds: &mut Vec<Deed>) {
        let id = self.next_id;
        self.next_id += 1;
        let message = match &call {
            Call::Turn(message) => message.as_ref().map(|message| message.request_id.clone()),
            Call::Steer(message, _) => Some(message.request_id.clone()),
            _ => None,
        };
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        deeds.push(Deed::write(&line, message.as_deref()));
        self.calls.insert(id, call);
    }

    fn returned(&mut self, call: Call, value: &Value, deeds: &mut Vec<Deed>) {
        if let Some(error) = value.get("error") {
            return self.refused(call, text(error, "message").unwrap_or("without a reason"), deeds);
        }
        match call {
            Call::Initialize => {
                deeds.push(Deed::write(&json!({"jsonrpc": "2.0", "method": "initialized"}), None));
                self.begin_thread(deeds);
            }
            Call::Thread => match text_at(value, &["result", "thread", "id"]) {
                Some(thread) => {
                    self.thread = Some(thread.to_owned());
                    self.begin(deeds);
                }
                None => self.fail("codex app-server gave the thread no id", deeds),
            },
            Call::Turn(message) => self.turn_began(message, text_at(value, &["result", "turn", "id"]), deeds),
            Call::Steer(message, turn) => {
                let into = text_at(value, &["result", "turnId"]).unwrap_or(&turn).to_owned();
                self.accepted(&message.request_id, &into, deeds);
            }
            Call::Interrupt => {}
        }
    }

    fn refused(&mut self, call: Call, why: &str, deeds: &mut Vec<Deed>) {
        match call {
            Call::Initialize => self.fail(&format!("codex app-server refused to begin: {why}"), deeds),
            Call::Thread => self.fail(&format!("codex app-server refused the thread: {why}"), deeds),
            Call::Turn(None) => self.fail(&format!("codex app-server refused the prompt: {why}"), deeds),
            Call::Turn(Some(message)) => {
                self.turn = Turn::None;
                self.forget(&message.request_id);
                deeds.push(Deed::gave_back(&message.request_id, &format!("the program refused it: {why}")));
                self.next(deeds);
            }
            Call::Steer(message, turn) => {
                self.forget(&message.request_id);
                if self.turn != Turn::Running(turn) || why.contains(NO_TURN) {
                    // It came too late for the turn.
                    self.waiting.push_front(message);
                    self.next(deeds);
                } else {
                    deeds.push(Deed::gave_back(
                        &message.request_id,
                        &format!("the program refused it: {why}"),
                    ));
                }
            }
            Call::Interrupt => {}
        }
    }

    fn fail(&mut self, why: &str, deeds: &mut Vec<Deed>) {
        deeds.push(Deed::Fail(why.to_owned()));
        self.opening = None;
        self.turn = Turn::None;
        self.close(deeds);
    }

    fn begin_thread(&mut self, deeds: &mut Vec<Deed>) {
        let Some(opening) = &self.opening else { return };
        let directory = opening.directory.to_string_lossy().into_owned();
        let (method, params) = match &opening.conversation {
            None => ("thread/start", json!({"cwd": directory})),
            Some(thread) => {
                ("thread/resume", json!({"threadId": thread, "cwd": directory, "excludeTurns": true}))
            }
        };
        self.call(Call::Thread, method, params, deeds);
    }

    /// The thread is there: the prompt.
    fn begin(&mut self, deeds: &mut Vec<Deed>) {
        let Some(opening) = self.opening.take() else { return };
        let mut input = Vec::new();
        if !opening.prompt.is_empty() {
            input.push(json!({"type": "text", "text": opening.prompt}));
        }
        for attachment in &opening.attachments {
            input.push(json!({"type": "localImage", "path": attachment.path.to_string_lossy()}));
        }
        self.start_turn(input, None, deeds);
    }

    fn start_turn(&mut self, input: Vec<Value>, message: Option<Message>, deeds: &mut Vec<Deed>) {
        let mut params = json!({"threadId": self.thread, "input": input});
        if let Some(schema) = &self.schema {
            params["outputSchema"] = schema.clone();
        }
        if let Some(message) = &message {
            params["clientUserMessageId"] = self.remember(message).into();
        }
        self.turn = Turn::Starting;
        self.call(Call::Turn(message), "turn/start", params, deeds);
    }

    /// Begins the next turn that somebody asked for, if none runs.
    fn next(&mut self, deeds: &mut Vec<Deed>) {
        if self.turn != Turn::None || self.thread.is_none() || self.opening.is_some() || self.closed {
            return;
        }
        if let Some(message) = self.waiting.pop_front() {
            self.start_turn(vec![json!({"type": "text", "text": message.text})], Some(message), deeds);
        }
    }

    fn steer(&mut self, message: Message, turn: String, deeds: &mut Vec<Deed>) {
        let client = self.remember(&message);
        let input = json!([{"type": "text", "text": message.text}]);
        let params = json!({
            "threadId": self.thread,
            "expectedTurnId": turn,
            "clientUserMessageId": client,
            "input": input,
        });
        self.call(Call::Steer(message, turn), "turn/steer", params, deeds);
    }

    fn remember(&mut self, message: &Message) -> String {
        let client = Uuid::new_v4().to_string();
        self.sent.push(Sent {
            client: client.clone(),
            message: message.request_id.clone(),
            text: message.text.clone(),
            turn: None,
        });
        client
    }

    fn forget(&mut self, message: &str) {
        self.sent.retain(|sent| sent.message != message);
    }

    /// The server took the message in for this turn.
    fn accepted(&mut self, message: &str, turn: &str, deeds: &mut Vec<Deed>) {
        let over = match &self.turn {
            Turn::Running(running) => running != turn,
            Turn::Starting => false,
            Turn::None => true,
        };
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.message == message) {
            sent.turn = Some(turn.to_owned());
        }
        if over {
            self.give_back_of(turn, deeds);
        }
    }

    fn turn_began(&mut self, message: Option<Message>, turn: Option<&str>, deeds: &mut Vec<Deed>) {
        let Some(turn) = turn else { return self.fail("codex app-server gave the turn no id", deeds) };
        let over = self.ended.as_deref() == Some(turn);
        if over {
            self.turn = Turn::None;
        } else if self.turn == Turn::Starting {
            self.running(turn, deeds);
        }
        if let Some(message) = message {
            self.accepted(&message.request_id, turn, deeds);
        }
        self.next(deeds);
    }

    /// A turn runs: the steers that waited for one.
    fn running(&mut self, turn: &str, deeds: &mut Vec<Deed>) {
        self.turn = Turn::Running(turn.to_owned());
        let waiting = std::mem::take(&mut self.waiting);
        for message in waiting {
            match message.mode {
                MessageMode::Steer => self.steer(message, turn.to_owned(), deeds),
                MessageMode::FollowUp => self.waiting.push_back(message),
            }
        }
    }

    fn notified(&mut self, method: &str, params: &Value, deeds: &mut Vec<Deed>) {
        if method == "serverRequest/resolved" {
            if let Some(id) = params.get("requestId") {
                self.asks.resolved(id, deeds);
            }
            return;
        }
        if self.thread.is_none() || text(params, "threadId") != self.thread.as_deref() {
            return;
        }
        match method {
            "turn/started" => {
                // Also one that nobody here asked for; but not one whose start is still to be answered.
                if let (Turn::None, Some(turn)) = (&self.turn, text_at(params, &["turn", "id"])) {
                    self.running(turn, deeds);
                }
            }
            "turn/completed" => {
                if let Some(turn) = text_at(params, &["turn", "id"]) {
                    self.turn_ended(turn, deeds);
                }
            }
            _ => self.item(params, deeds),
        }
    }

    fn turn_ended(&mut self, turn: &str, deeds: &mut Vec<Deed>) {
        self.ended = Some(turn.to_owned());
        self.give_back_of(turn, deeds);
        if matches!(&self.turn, Turn::Running(running) if running == turn) {
            self.turn = Turn::None;
            self.next(deeds);
        }
    }

    /// What the turn took in and never showed.
    fn give_back_of(&mut self, turn: &str, deeds: &mut Vec<Deed>) {
        self.sent.retain(|sent| {
            let lost = sent.turn.as_deref() == Some(turn);
            if lost {
                deeds.push(Deed::gave_back(&sent.message, "the turn ended before the program read it"));
            }
            !lost
        });
    }

    /// A message that a request to the model holds. Versions that do not know our names of messages show the text.
    fn item(&mut self, params: &Value, deeds: &mut Vec<Deed>) {
        let Some(item) = params.get("item").filter(|item| text(item, "type") == Some("userMessage")) else {
            return;
        };
        let content = item.get("content").and_then(Value::as_array);
        let words = content.and_then(|parts| parts.iter().find_map(|part| text(part, "text")));
        let found = match text(item, "clientId") {
            Some(client) => self.sent.iter().position(|sent| sent.client == client),
            None => self.sent.iter().position(|sent| Some(sent.text.as_str()) == words),
        };
        if let Some(at) = found {
            deeds.push(Deed::Took(self.sent.remove(at).message));
        }
    }
}
