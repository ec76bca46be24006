//! What is said to `pi --mode rpc`: commands, one a line.
//!
//! - Every message is a `prompt` with a `streamingBehavior`: while a run goes on it is queued, and starts the next run
//!   otherwise. `steer` and `follow_up`, after a run, would be queued and never run. One at a time waits for its response.
//! - A queued message is taken when it comes back as a message of the user. What a run that ended left in the queue is taken
//!   out of it and given back.
//! - Dialogs of extensions (`select`, `confirm`, `input`, `editor`) wait for an answer. One with a time limit ends without a word;
//!   it is taken back when the turn ends.
//! - The end of standard input ends the program at once, also in the middle of a run.

use std::collections::{HashMap, VecDeque};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::glance::Glance;
use super::json::{flag, number, text, text_at};
use super::survey::choice;
use super::talk::{Asked, Reply};
use super::{Deed, Opening, Talk};
use crate::model::{About, Choice, Message, MessageMode};

/// Dialogs that are open at the same time, and options of one; what is beyond is refused at once.
const MOST: usize = 64;

const YES: &str = "yes";
const NO: &str = "no";
const NONE: &str = "none";

#[derive(Debug, Default)]
pub(super) struct RpcTalk {
    /// Commands of ours so far.
    commands: u64,
    /// Commands that have no response yet.
    calls: HashMap<String, Call>,
    /// Messages that are not written yet.
    waiting: VecDeque<Message>,
    /// Messages in the program's queue.
    queued: Vec<Message>,
    run: Run,
    dialogs: HashMap<String, Dialog>,
    closed: bool,
}

/// A run of the agent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Run {
    #[default]
    None,
    /// A prompt started it, and its first line is still to come.
    Starting,
    Running,
}

#[derive(Debug)]
enum Call {
    /// The first prompt, or this message.
    Prompt(Option<Message>),
    /// Whether a prompt that an extension handled has left anything to wait for.
    Handled,
    ClearQueue,
    /// What nothing waits for.
    Other,
}

#[derive(Debug)]
struct Dialog {
    form: Form,
    /// The program itself ends it after a time.
    limited: bool,
}

#[derive(Debug)]
enum Form {
    Select(Vec<String>),
    Confirm,
    Text,
}

impl Talk for RpcTalk {
    fn open(&mut self, opening: Opening, deeds: &mut Vec<Deed>) {
        // Nothing else tells the name of the conversation.
        self.call(Call::Other, json!({"type": "get_state"}), deeds);
        let mut prompt = json!({"type": "prompt", "message": opening.prompt});
        if !opening.attachments.is_empty() {
            let image = |attachment: &super::talk::Attachment| {
                let data = STANDARD.encode(&attachment.bytes);
                json!({"type": "image", "data": data, "mimeType": attachment.media_type})
            };
            prompt["images"] = opening.attachments.iter().map(image).collect();
        }
        self.call(Call::Prompt(None), prompt, deeds);
    }

    fn heard(&mut self, line: &[u8], deeds: &mut Vec<Deed>) {
        let Some(glance) = Glance::at(line) else { return };
        match glance.kind() {
            Some("agent_start") => self.run = Run::Running,
            Some("turn_end") => self.withdraw(|dialog| dialog.limited, deeds),
            // Versions without `agent_settled` end a run so.
            Some("agent_end") if glance.will_retry().is_none() => self.settled(deeds),
            Some("agent_settled" | "message_start" | "response" | "extension_ui_request") => {
                if let Some(line) = glance.whole() {
                    self.object(line.value(), deeds);
                }
            }
            _ => {}
        }
    }

    fn message(&mut self, message: &Message, deeds: &mut Vec<Deed>) {
        if self.closed {
            deeds.push(Deed::gave_back(&message.request_id, "the session is ending"));
            return;
        }
        self.waiting.push_back(message.clone());
        self.next(deeds);
    }

    fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        let Some(dialog) = self.dialogs.remove(key) else { return };
        let answer = match reply {
            Reply::Answer(answer) => Some(answer),
            Reply::Expired => None,
        };
        let chosen = answer.and_then(|answer| answer.choice.as_deref());
        let words = answer.and_then(|answer| answer.text.as_deref());
        let value = match &dialog.form {
            Form::Confirm => chosen.map(|chosen| ("confirmed", Value::Bool(chosen == YES))),
            Form::Text => words.map(|words| ("value", words.into())),
            Form::Select(options) => {
                let place = chosen.and_then(|chosen| chosen.parse::<usize>().ok()?.checked_sub(1));
                place.and_then(|at| options.get(at)).map(|option| ("value", option.as_str().into()))
            }
        };
        let (field, value) = value.unwrap_or(("cancelled", Value::Bool(true)));
        deeds.push(respond(key, field, value));
    }

    fn interrupt(&mut self, deeds: &mut Vec<Deed>) {
        self.close(deeds);
        if self.run != Run::None {
            // What stayed in the queue would be left there without a word.
            self.clear_queue(deeds);
            self.call(Call::Other, json!({"type": "abort"}), deeds);
        }
    }

    fn is_idle(&self) -> bool {
        let answered = self.calls.values().all(|call| matches!(call, Call::Other));
        let nothing_kept = self.waiting.is_empty() && self.queued.is_empty() && self.dialogs.is_empty();
        answered && nothing_kept && self.run == Run::None
    }

    fn close(&mut self, deeds: &mut Vec<Deed>) {
        self.closed = true;
        for message in self.waiting.drain(..) {
            deeds
                .push(Deed::gave_back(&message.request_id, "the session ended before it could be passed on"));
        }
    }
}

impl RpcTalk {
    fn call(&mut self, call: Call, mut command: Value, deeds: &mut Vec<Deed>) {
        self.commands += 1;
        let id = format!("sessiond-{}", self.commands);
        command["id"] = id.as_str().into();
        let message = match &call {
            Call::Prompt(Some(message)) => Some(message.request_id.as_str()),
            _ => None,
        };
        deeds.push(Deed::write(&command, message));
        self.calls.insert(id, call);
    }

    /// Writes the next message if no other waits for its response.
    fn next(&mut self, deeds: &mut Vec<Deed>) {
        if self.calls.values().any(|call| matches!(call, Call::Prompt(_))) {
            return;
        }
        let Some(message) = self.waiting.pop_front() else { return };
        let behavior = match message.mode {
            MessageMode::Steer => "steer",
            MessageMode::FollowUp => "followUp",
        };
        let command = json!({"type": "prompt", "message": message.text, "streamingBehavior": behavior});
        self.call(Call::Prompt(Some(message)), command, deeds);
    }

    fn object(&mut self, value: &Value, deeds: &mut Vec<Deed>) {
        match text(value, "type") {
            Some("agent_settled") => {
                if flag(value, "aborted") {
                    self.withdraw(|_| true, deeds);
                }
                self.settled(deeds);
            }
            Some("message_start") if text_at(value, &["message", "role"]) == Some("user") => {
                self.user_said(&value["message"], deeds);
            }
            Some("response") => {
                if let Some(call) = text(value, "id").and_then(|id| self.calls.remove(id)) {
                    self.returned(call, value, deeds);
                }
            }
            Some("extension_ui_request") => self.asked(value, deeds),
            _ => {}
        }
    }

    fn returned(&mut self, call: Call, value: &Value, deeds: &mut Vec<Deed>) {
        let refused = (!flag(value, "success")).then(|| text(value, "error").unwrap_or("without a reason"));
        match (call, refused) {
            (Call::Prompt(message), None) => {
                self.accepted(message, text_at(value, &["data", "disposition"]), deeds);
                self.next(deeds);
            }
            (Call::Prompt(None), Some(why)) => {
                deeds.push(Deed::Fail(format!("pi refused the prompt: {why}")));
                self.close(deeds);
            }
            (Call::Prompt(Some(message)), Some(why)) => {
                deeds.push(Deed::gave_back(&message.request_id, &format!("the program refused it: {why}")));
                self.next(deeds);
            }
            (Call::Handled, _) => {
                let data = value.get("data").unwrap_or(&Value::Null);
                let busy = flag(data, "isStreaming") || number(data, "pendingMessageCount").unwrap_or(0) > 0;
                if !busy && self.run == Run::None {
                    deeds.push(Deed::Fail(
                        "an extension of pi handled the prompt, and no run began".to_owned(),
                    ));
                    self.close(deeds);
                }
            }
            (Call::ClearQueue, _) => {
                for message in self.queued.drain(..) {
                    let why = "the run ended before the program read it";
                    deeds.push(Deed::gave_back(&message.request_id, why));
                }
            }
            (Call::Other, _) => {}
        }
    }

    /// Versions that do not tell a prompt's disposition queue it exactly while a run goes on.
    fn accepted(&mut self, message: Option<Message>, disposition: Option<&str>, deeds: &mut Vec<Deed>) {
        let running = self.run != Run::None;
        match (disposition, message) {
            (Some("queued"), Some(message)) => self.queue(message, deeds),
            (None, Some(message)) if running => self.queue(message, deeds),
            (Some("handled"), Some(message)) => deeds.push(Deed::Took(message.request_id)),
            (Some("handled"), None) => self.call(Call::Handled, json!({"type": "get_state"}), deeds),
            (_, message) => {
                if !running {
                    self.run = Run::Starting;
                }
                deeds.extend(message.map(|message| Deed::Took(message.request_id)));
            }
        }
    }

    fn queue(&mut self, message: Message, deeds: &mut Vec<Deed>) {
        self.queued.push(message);
        if self.run == Run::None {
            // The run ended meanwhile.
            self.clear_queue(deeds);
        }
    }

    fn clear_queue(&mut self, deeds: &mut Vec<Deed>) {
        if !self.calls.values().any(|call| matches!(call, Call::ClearQueue)) {
            self.call(Call::ClearQueue, json!({"type": "clear_queue"}), deeds);
        }
    }

    fn settled(&mut self, deeds: &mut Vec<Deed>) {
        if self.run != Run::Running {
            return;
        }
        self.run = Run::None;
        self.withdraw(|dialog| dialog.limited, deeds);
        if !self.queued.is_empty() {
            self.clear_queue(deeds);
        }
    }

    /// A message that the model reads next. What begins with a slash may read otherwise there.
    fn user_said(&mut self, message: &Value, deeds: &mut Vec<Deed>) {
        let words = match message.get("content") {
            Some(Value::String(words)) => Some(words.as_str()),
            Some(Value::Array(parts)) => parts.iter().find_map(|part| text(part, "text")),
            _ => None,
        };
        let same = self.queued.iter().position(|queued| Some(queued.text.as_str()) == words);
        let found = same.or_else(|| self.queued.iter().position(|queued| queued.text.starts_with('/')));
        if let Some(at) = found {
            deeds.push(Deed::Took(self.queued.remove(at).request_id));
        }
    }

    fn asked(&mut self, value: &Value, deeds: &mut Vec<Deed>) {
        let (Some(key), Some(method)) = (text(value, "id"), text(value, "method")) else { return };
        let (about, form, choices) = match method {
            "select" => {
                let options = value.get("options").and_then(Value::as_array).into_iter().flatten();
                let options: Vec<String> =
                    options.filter_map(Value::as_str).map(str::to_owned).take(MOST).collect();
                let choices = numbered(&options);
                (About::Choice, Form::Select(options), choices)
            }
            "confirm" => (About::Confirm, Form::Confirm, vec![choice(YES, "Yes"), choice(NO, "No")]),
            "input" | "editor" => (About::Text, Form::Text, Vec::new()),
            // Notices, titles and the like, which wait for nothing.
            _ => return,
        };
        if self.dialogs.len() >= MOST || self.dialogs.contains_key(key) {
            deeds.push(respond(key, "cancelled", Value::Bool(true)));
            return;
        }
        let words = ["title", "message"].into_iter().filter_map(|key| text(value, key));
        let words: Vec<&str> = words.filter(|words| !words.is_empty()).collect();
        let limited = value.get("timeout").is_some_and(|timeout| !timeout.is_null());
        deeds.push(Deed::Ask(Asked {
            key: key.to_owned(),
            about,
            text: if words.is_empty() { method.to_owned() } else { words.join("\n") },
            choices,
            takes_text: matches!(form, Form::Text),
            tool: None,
            details: value.clone(),
        }));
        self.dialogs.insert(key.to_owned(), Dialog { form, limited });
    }

    fn withdraw(&mut self, which: impl Fn(&Dialog) -> bool, deeds: &mut Vec<Deed>) {
        let mut keys: Vec<String> =
            self.dialogs.iter().filter(|(_, dialog)| which(dialog)).map(|(key, _)| key.clone()).collect();
        keys.sort();
        for key in keys {
            self.dialogs.remove(&key);
            deeds.push(Deed::Withdraw(key));
        }
    }
}

fn numbered(options: &[String]) -> Vec<Choice> {
    let numbered = options.iter().enumerate();
    let numbered = numbered.map(|(at, option)| choice(&(at + 1).to_string(), option));
    numbered.chain([choice(NONE, "None of these")]).collect()
}

fn respond(dialog: &str, field: &str, value: Value) -> Deed {
    Deed::write(&json!({"type": "extension_ui_response", "id": dialog, field: value}), None)
}
