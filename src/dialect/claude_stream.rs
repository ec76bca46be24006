//! Claude Code with messages on its standard input: `claude -p --input-format stream-json --output-format stream-json`. What it
//! prints is read as in the module `claude`.
//!
//! - Every message has a `uuid`, and `command_lifecycle` lines say what became of it: `queued`, `started` when a request to
//!   the model holds it, and at last `completed`, `cancelled`, `discarded` or `refused`. The first follows the turn's
//!   `result`. Versions without those lines repeat each message when they take it (`--replay-user-messages`).
//! - A message of the priority `next` is put into the running turn while a tool runs, and is the next turn otherwise; `later`
//!   is always the next turn.
//! - `can_use_tool` asks for a permission. The tool `AskUserQuestion` asks in the same way: the answers are added to its
//!   input. `control_cancel_request` takes a question back.
//! - What runs in the background begins a turn of its own when it ends. Until then the program goes on, whether its standard
//!   input is open or not; open, it can be steered and asks.
//! - An interrupt ends the turn, and what is queued would run next: it is cancelled first.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use uuid::Uuid;

use super::claude::{ClaudeReader, arguments};
use super::glance::Glance;
use super::json::text;
use super::survey::{Progress, Survey, choice};
use super::talk::{Asked, Reply};
use super::{
    Capture, Deed, Dialect, Features, Interrupt, Launch, Occasion, Opening, Reader, Stdin, Talk, Unable,
};
use crate::model::{About, Message, MessageMode};

/// The tool that asks the user.
const ASK_TOOL: &str = "AskUserQuestion";
/// What the model reads where nobody gave a reason.
const REFUSED: &str = "The user refused this.";
/// What the model reads where nobody answered.
const EXPIRED: &str = "Nobody answered in time, so this is refused.";
/// Questions that are open at the same time; one more is refused at once.
const OPEN_QUESTIONS: usize = 64;

/// `claude -p --input-format stream-json`.
#[derive(Debug)]
pub(super) struct ClaudeStream;

impl Dialect for ClaudeStream {
    fn name(&self) -> &'static str {
        "claude-stream"
    }

    fn family(&self) -> &'static str {
        "claude"
    }

    fn launch(&self) -> Launch {
        let words = "-p --input-format stream-json --output-format stream-json --verbose --replay-user-messages \
                     --permission-prompt-tool stdio";
        Launch {
            arguments: words.split_whitespace().map(str::to_owned).collect(),
            stdin: Stdin::Conversation,
            capture: Capture::Pipe,
            environment: vec![("DISABLE_AUTOUPDATER", "1")],
        }
    }

    fn reader(&self, _arguments: &[String]) -> Box<dyn Reader> {
        Box::new(ClaudeReader::default())
    }

    fn features(&self) -> Features {
        Features::ALL
    }

    fn arguments(
        &self,
        own: &[String],
        more: &[String],
        occasion: &Occasion<'_>,
    ) -> Result<Vec<String>, Unable> {
        arguments(self.name(), own, more, occasion)
    }

    fn check_input(&self, input: Option<&[u8]>) -> Result<(), Unable> {
        super::launch::needs_text(self.name(), input)
    }

    fn talk(&self, _arguments: &[String]) -> Option<Box<dyn Talk>> {
        Some(Box::new(ClaudeTalk::default()))
    }

    fn interrupt(&self) -> Interrupt {
        Interrupt::Talk
    }

    fn commands(&self) -> &'static [&'static str] {
        &["claude"]
    }
}

#[derive(Debug, Default)]
struct ClaudeTalk {
    /// Messages whose turn has not ended, in the order in which they were written.
    sent: Vec<Sent>,
    questions: HashMap<String, Question>,
    surveys: HashMap<String, OpenSurvey>,
    /// The program tells what becomes of messages.
    has_lifecycle: bool,
    /// Something runs in the background.
    background: bool,
    /// Something in the background ended, and the turn that it begins is to come.
    expects_turn: bool,
    /// Control requests of ours so far.
    requests: u64,
    closed: bool,
}

#[derive(Debug)]
struct Sent {
    uuid: String,
    /// The `request_id` of a message; the prompt has none.
    message: Option<String>,
    taken: bool,
}

#[derive(Debug)]
enum Question {
    /// May this tool run with this input?
    Permission { request: String, input: Value },
    /// One of the questions of a survey.
    Part { request: String, at: usize },
}

#[derive(Debug)]
struct OpenSurvey {
    input: Value,
    survey: Survey,
}

impl Talk for ClaudeTalk {
    fn open(&mut self, opening: Opening, deeds: &mut Vec<Deed>) {
        let mut content = Vec::new();
        if !opening.prompt.is_empty() {
            content.push(json!({"type": "text", "text": opening.prompt}));
        }
        content.extend(opening.attachments.iter().map(|attachment| {
            let data = STANDARD.encode(&attachment.bytes);
            json!({
                "type": "image",
                "source": {"type": "base64", "media_type": attachment.media_type, "data": data},
            })
        }));
        self.say(content, None, None, deeds);
    }

    fn heard(&mut self, line: &[u8], deeds: &mut Vec<Deed>) {
        let Some(glance) = Glance::at(line) else { return };
        match glance.kind() {
            Some("result") => {
                self.expects_turn = false;
                self.turn_ended();
            }
            Some("system") => match glance.subtype() {
                Some("init") => self.expects_turn = false,
                Some("task_notification") => self.expects_turn = true,
                Some("background_tasks_changed") => {
                    let tasks =
                        glance.whole().and_then(|line| Some(line.value().get("tasks")?.as_array()?.len()));
                    self.background = tasks.is_some_and(|tasks| tasks > 0);
                }
                _ => {}
            },
            Some("user") if !glance.is_replay() => {}
            Some("command_lifecycle" | "control_request" | "control_cancel_request" | "user") => {
                if let Some(line) = glance.whole() {
                    self.object(line.value(), deeds);
                }
            }
            _ => {}
        }
    }

    fn message(&mut self, message: &Message, deeds: &mut Vec<Deed>) {
        let id = &message.request_id;
        if self.closed {
            deeds.push(Deed::gave_back(id, "the session is ending"));
            return;
        }
        let priority = match message.mode {
            MessageMode::Steer => "next",
            MessageMode::FollowUp => "later",
        };
        let content = vec![json!({"type": "text", "text": message.text})];
        self.say(content, Some(priority), Some(id), deeds);
    }

    fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        match self.questions.remove(key) {
            Some(Question::Permission { request, input }) => {
                let allowed =
                    matches!(reply, Reply::Answer(answer) if answer.choice.as_deref() == Some("allow"));
                let response = if allowed {
                    json!({"behavior": "allow", "updatedInput": input})
                } else {
                    let reason = match reply {
                        Reply::Answer(answer) => answer.text.as_deref().unwrap_or(REFUSED),
                        Reply::Expired => EXPIRED,
                    };
                    denial(reason)
                };
                deeds.push(respond(&request, response));
            }
            Some(Question::Part { request, at }) => self.answer_part(&request, at, reply, deeds),
            None => {}
        }
    }

    fn interrupt(&mut self, deeds: &mut Vec<Deed>) {
        let waiting: Vec<String> =
            self.sent.iter().filter(|sent| !sent.taken).map(|sent| sent.uuid.clone()).collect();
        for uuid in waiting {
            self.request(json!({"subtype": "cancel_async_message", "message_uuid": uuid}), deeds);
        }
        self.request(json!({"subtype": "interrupt"}), deeds);
        self.closed = true;
    }

    fn is_idle(&self) -> bool {
        let goes_on = !self.closed && (self.background || self.expects_turn);
        self.sent.is_empty() && self.questions.is_empty() && !goes_on
    }

    fn close(&mut self, _deeds: &mut Vec<Deed>) {
        // Nothing is kept: what was said is written.
        self.closed = true;
    }
}

impl ClaudeTalk {
    fn say(
        &mut self,
        content: Vec<Value>,
        priority: Option<&str>,
        message: Option<&str>,
        deeds: &mut Vec<Deed>,
    ) {
        let uuid = Uuid::new_v4().to_string();
        let mut line = json!({
            "type": "user",
            "message": {"role": "user", "content": content},
            "uuid": uuid,
        });
        if let Some(priority) = priority {
            line["priority"] = priority.into();
        }
        deeds.push(Deed::write(&line, message));
        self.sent.push(Sent { uuid, message: message.map(str::to_owned), taken: false });
    }

    fn request(&mut self, request: Value, deeds: &mut Vec<Deed>) {
        self.requests += 1;
        let id = format!("sessiond-{}", self.requests);
        let line = json!({"type": "control_request", "request_id": id, "request": request});
        deeds.push(Deed::write(&line, None));
    }

    fn object(&mut self, value: &Value, deeds: &mut Vec<Deed>) {
        match text(value, "type") {
            Some("command_lifecycle") => {
                let (Some(uuid), Some(state)) = (text(value, "command_uuid"), text(value, "state")) else {
                    return;
                };
                self.has_lifecycle = true;
                self.lifecycle(uuid, state, deeds);
            }
            Some("user") if !self.has_lifecycle => {
                if let Some(uuid) = text(value, "uuid") {
                    self.taken(uuid, deeds);
                }
            }
            Some("control_request") => self.asked(value, deeds),
            Some("control_cancel_request") => {
                if let Some(request) = text(value, "request_id") {
                    self.withdraw(request, deeds);
                }
            }
            _ => {}
        }
    }

    fn lifecycle(&mut self, uuid: &str, state: &str, deeds: &mut Vec<Deed>) {
        match state {
            "started" => self.taken(uuid, deeds),
            "completed" => {
                self.taken(uuid, deeds);
                self.sent.retain(|sent| sent.uuid != uuid);
            }
            "cancelled" | "discarded" | "refused" => {
                let Some(at) = self.sent.iter().position(|sent| sent.uuid == uuid) else { return };
                let sent = self.sent.remove(at);
                if let (false, Some(message)) = (sent.taken, sent.message) {
                    deeds.push(Deed::gave_back(&message, &format!("the program says that it is {state}")));
                }
            }
            _ => {}
        }
    }

    fn taken(&mut self, uuid: &str, deeds: &mut Vec<Deed>) {
        let Some(sent) = self.sent.iter_mut().find(|sent| sent.uuid == uuid && !sent.taken) else { return };
        sent.taken = true;
        deeds.extend(sent.message.clone().map(Deed::Took));
    }

    /// A turn ended. Where nothing else tells so, it was that of the messages that were taken, or of the oldest.
    fn turn_ended(&mut self) {
        if self.has_lifecycle || self.sent.is_empty() {
            return;
        }
        if self.sent.iter().any(|sent| sent.taken) {
            self.sent.retain(|sent| !sent.taken);
        } else {
            self.sent.remove(0);
        }
    }

    fn asked(&mut self, value: &Value, deeds: &mut Vec<Deed>) {
        let (Some(request), Some(body)) = (text(value, "request_id"), value.get("request")) else { return };
        if text(body, "subtype") != Some("can_use_tool") {
            let error =
                json!({"subtype": "error", "request_id": request, "error": "not supported by this client"});
            deeds.push(Deed::write(&json!({"type": "control_response", "response": error}), None));
            return;
        }
        if self.questions.len() >= OPEN_QUESTIONS || self.knows(request) {
            deeds.push(respond(request, denial("Too many questions are open.")));
            return;
        }
        let tool = text(body, "tool_name").unwrap_or("unknown");
        let input = body.get("input").cloned().unwrap_or_default();
        if tool == ASK_TOOL
            && let Some(survey) = input.get("questions").and_then(Survey::read)
        {
            for (at, asked) in survey.asked(tool, |at| part(request, at)).into_iter().enumerate() {
                self.questions.insert(asked.key.clone(), Question::Part { request: request.to_owned(), at });
                deeds.push(Deed::Ask(asked));
            }
            self.surveys.insert(request.to_owned(), OpenSurvey { input, survey });
            return;
        }
        let what = ["description", "title"].into_iter().find_map(|key| text(body, key));
        let text = match what {
            Some(what) => format!("May it use {tool}: {what}?"),
            None => format!("May it use {tool}?"),
        };
        deeds.push(Deed::Ask(Asked {
            key: request.to_owned(),
            about: About::Permission,
            text,
            choices: vec![choice("allow", "Allow"), choice("deny", "Refuse")],
            takes_text: true,
            tool: Some(tool.to_owned()),
            details: input.clone(),
        }));
        self.questions
            .insert(request.to_owned(), Question::Permission { request: request.to_owned(), input });
    }

    fn knows(&self, request: &str) -> bool {
        self.questions.contains_key(request) || self.surveys.contains_key(request)
    }

    fn answer_part(&mut self, request: &str, at: usize, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        let Some(open) = self.surveys.get_mut(request) else { return };
        let response = match open.survey.answer(at, reply) {
            Progress::Waiting => return,
            Progress::Complete(answers) => {
                let mut input = open.input.clone();
                let questions: &[Value] =
                    open.input.get("questions").and_then(Value::as_array).map_or(&[], Vec::as_slice);
                let named = questions.iter().zip(answers).filter_map(|(question, answer)| {
                    Some((text(question, "question")?.to_owned(), Value::from(answer)))
                });
                input["answers"] = Value::Object(named.collect());
                json!({"behavior": "allow", "updatedInput": input})
            }
            Progress::Refused(reason) => {
                let default = if reply == Reply::Expired { EXPIRED } else { REFUSED };
                denial(reason.as_deref().unwrap_or(default))
            }
        };
        self.withdraw(request, deeds);
        deeds.push(respond(request, response));
    }

    /// Nobody needs to answer this request any more.
    fn withdraw(&mut self, request: &str, deeds: &mut Vec<Deed>) {
        self.surveys.remove(request);
        let of_it = |question: &Question| match question {
            Question::Permission { request: of, .. } | Question::Part { request: of, .. } => of == request,
        };
        let mut keys: Vec<String> = self
            .questions
            .iter()
            .filter(|(_, question)| of_it(question))
            .map(|(key, _)| key.clone())
            .collect();
        keys.sort();
        for key in keys {
            self.questions.remove(&key);
            deeds.push(Deed::Withdraw(key));
        }
    }
}

fn part(request: &str, at: usize) -> String {
    format!("{request}/{at}")
}

fn denial(reason: &str) -> Value {
    json!({"behavior": "deny", "message": reason})
}

fn respond(request: &str, response: Value) -> Deed {
    let body = json!({"subtype": "success", "request_id": request, "response": response});
    Deed::write(&json!({"type": "control_response", "response": body}), None)
}
