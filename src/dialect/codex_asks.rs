//! What `codex app-server` asks: its requests, each of which it waits for. What nobody here knows is answered with the error
//! "method not found".

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Deed;
use super::json::text;
use super::survey::{Progress, Survey, choice};
use super::talk::{Asked, Reply};
use crate::model::{About, Answer, Choice};

/// Questions that are open at the same time; one more is refused at once.
const OPEN_QUESTIONS: usize = 64;
/// What the model may read where nobody gave a reason.
const REFUSED: &str = "The user refused this.";
/// JSON-RPC: method not found.
const UNKNOWN_METHOD: i64 = -32601;

const ALLOW: &str = "allow";
const ALWAYS: &str = "allow-for-session";
const DENY: &str = "deny";
const CANCEL: &str = "cancel";

/// The server's open requests.
#[derive(Debug, Default)]
pub(super) struct Asks {
    questions: HashMap<String, Question>,
    surveys: HashMap<String, OpenSurvey>,
}

#[derive(Debug)]
struct Question {
    /// The request's id, which its answer repeats.
    id: Value,
    form: Form,
}

#[derive(Debug)]
struct OpenSurvey {
    survey: Survey,
    /// The program's names of the questions.
    names: Vec<String>,
}

/// How an answer is written.
#[derive(Debug)]
enum Form {
    /// `decision` of the items' approvals.
    Decision,
    /// `decision` of the older approvals.
    Review,
    /// The permissions that were asked for.
    Permissions(Value),
    /// An MCP server's form or page.
    Elicitation,
    /// One of several questions.
    Part(usize),
}

impl Asks {
    /// No request waits for an answer.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// A request of the server.
    pub fn asked(&mut self, method: &str, id: &Value, params: &Value, deeds: &mut Vec<Deed>) {
        let key = id.to_string();
        let known = self.surveys.contains_key(&key) || self.questions.contains_key(&key);
        if known || self.questions.len() >= OPEN_QUESTIONS {
            return fail(id, -32000, "too many requests are open", deeds);
        }
        let ask = match method {
            "item/commandExecution/requestApproval" => {
                let what = what(params, "run a command", text(params, "command"));
                permission("command", what, choices(params), params, Form::Decision)
            }
            "item/fileChange/requestApproval" => {
                let what = what(params, "change files", text(params, "grantRoot"));
                permission("fileChange", what, choices(params), params, Form::Decision)
            }
            "execCommandApproval" => {
                let words = params.get("command").and_then(Value::as_array).into_iter().flatten();
                let words: Vec<&str> = words.filter_map(Value::as_str).collect();
                let what = what(params, "run a command", Some(&words.join(" ")));
                permission("command", what, choices(params), params, Form::Review)
            }
            "applyPatchApproval" => {
                let what = what(params, "change files", text(params, "grantRoot"));
                permission("fileChange", what, choices(params), params, Form::Review)
            }
            "item/permissions/requestApproval" => {
                let wanted = params.get("permissions").cloned().unwrap_or_default();
                let what = what(params, "have more permissions", None);
                let choices = vec![
                    choice(ALLOW, "Allow in this turn"),
                    choice(ALWAYS, "Allow in this session"),
                    choice(DENY, "Refuse"),
                ];
                permission("permissions", what, choices, params, Form::Permissions(wanted))
            }
            "mcpServer/elicitation/request" => elicitation(params),
            "item/tool/requestUserInput" => return self.survey(key, id, params, deeds),
            _ => return fail(id, UNKNOWN_METHOD, "method not found", deeds),
        };
        let (mut asked, form) = ask;
        asked.key.clone_from(&key);
        deeds.push(Deed::Ask(asked));
        self.questions.insert(key, Question { id: id.clone(), form });
    }

    fn survey(&mut self, key: String, id: &Value, params: &Value, deeds: &mut Vec<Deed>) {
        let questions = params.get("questions");
        let Some(survey) = questions.and_then(Survey::read) else {
            return fail(id, -32602, "no questions that can be asked", deeds);
        };
        let names = questions.and_then(Value::as_array).into_iter().flatten();
        let names = names.map(|question| text(question, "id").unwrap_or_default().to_owned()).collect();
        for (at, asked) in
            survey.asked("requestUserInput", |at| format!("{key}/{at}")).into_iter().enumerate()
        {
            self.questions.insert(asked.key.clone(), Question { id: id.clone(), form: Form::Part(at) });
            deeds.push(Deed::Ask(asked));
        }
        self.surveys.insert(key, OpenSurvey { survey, names });
    }

    /// A question is settled.
    pub fn answer(&mut self, key: &str, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        let Some(Question { id, form }) = self.questions.remove(key) else { return };
        let answer = match reply {
            Reply::Answer(answer) => Some(answer),
            Reply::Expired => None,
        };
        let chosen = answer.and_then(|answer| answer.choice.as_deref()).unwrap_or(DENY);
        let result = match form {
            Form::Decision => json!({"decision": match chosen {
                ALLOW => "accept",
                ALWAYS => "acceptForSession",
                CANCEL => "cancel",
                _ => "decline",
            }}),
            Form::Review => json!({"decision": match chosen {
                ALLOW => json!("approved"),
                ALWAYS => json!("approved_for_session"),
                CANCEL => json!("abort"),
                _ => json!({"denied": {"rejection": reason(answer)}}),
            }}),
            Form::Permissions(wanted) => granted(chosen, wanted),
            Form::Elicitation => elicited(answer),
            Form::Part(at) => return self.answer_part(&id, at, reply, deeds),
        };
        respond(&id, result, deeds);
    }

    fn answer_part(&mut self, id: &Value, at: usize, reply: Reply<'_>, deeds: &mut Vec<Deed>) {
        let key = id.to_string();
        let Some(open) = self.surveys.get_mut(&key) else { return };
        let answers: Map<String, Value> = match open.survey.answer(at, reply) {
            Progress::Waiting => return,
            Progress::Refused(_) => Map::new(),
            Progress::Complete(answers) => {
                let named = open.names.iter().cloned().zip(answers);
                named.map(|(name, answer)| (name, json!({"answers": [answer]}))).collect()
            }
        };
        self.resolved(id, deeds);
        respond(id, json!({"answers": answers}), deeds);
    }

    /// The server does not wait for an answer to this request any more.
    pub fn resolved(&mut self, id: &Value, deeds: &mut Vec<Deed>) {
        self.surveys.remove(&id.to_string());
        let of_it = self.questions.iter().filter(|(_, question)| question.id == *id);
        let mut keys: Vec<String> = of_it.map(|(key, _)| key.clone()).collect();
        keys.sort();
        for key in keys {
            self.questions.remove(&key);
            deeds.push(Deed::Withdraw(key));
        }
    }
}

/// A permission; its key is not known yet.
fn permission(tool: &str, text: String, choices: Vec<Choice>, details: &Value, form: Form) -> (Asked, Form) {
    let takes_text = matches!(form, Form::Review);
    let asked = Asked {
        key: String::new(),
        about: About::Permission,
        text,
        choices,
        takes_text,
        tool: Some(tool.to_owned()),
        details: details.clone(),
    };
    (asked, form)
}

fn what(params: &Value, does: &str, which: Option<&str>) -> String {
    let which = which.filter(|which| !which.is_empty()).map(|which| format!(": {which}")).unwrap_or_default();
    let why = text(params, "reason").map(|why| format!(" ({why})")).unwrap_or_default();
    format!("May it {does}{which}?{why}")
}

/// What can be answered to an approval. The server lists some of it, and takes a refusal that it does not list too.
fn choices(params: &Value) -> Vec<Choice> {
    let listed = params.get("availableDecisions").and_then(Value::as_array);
    let for_session =
        listed.is_none_or(|listed| listed.iter().any(|decision| decision == "acceptForSession"));
    let mut choices = vec![choice(ALLOW, "Allow")];
    choices.extend(for_session.then(|| choice(ALWAYS, "Allow in this session")));
    choices.extend([choice(DENY, "Refuse"), choice(CANCEL, "Refuse and stop the turn")]);
    choices
}

fn granted(chosen: &str, wanted: Value) -> Value {
    let scope = if chosen == ALWAYS { "session" } else { "turn" };
    let mut wanted = match wanted {
        Value::Object(wanted) if chosen != DENY => wanted,
        _ => Map::new(),
    };
    wanted.retain(|_, value| !value.is_null());
    json!({"permissions": wanted, "scope": scope})
}

fn elicitation(params: &Value) -> (Asked, Form) {
    let server = text(params, "serverName").unwrap_or("an MCP server");
    let message = text(params, "message").unwrap_or("wants an answer");
    let page = text(params, "url").map(|url| format!(" ({url})")).unwrap_or_default();
    let words = format!("{server}: {message}{page}");
    let choices =
        vec![choice(ALLOW, "Accept; the text is the form, as a JSON object"), choice(DENY, "Refuse")];
    let (asked, form) = permission(server, words, choices, params, Form::Elicitation);
    (Asked { takes_text: true, ..asked }, form)
}

/// The answer to a form: what the text holds, if it is a JSON object.
fn elicited(answer: Option<&Answer>) -> Value {
    let refused = json!({"action": "decline", "content": null, "_meta": null});
    let Some(answer) = answer.filter(|answer| answer.choice.as_deref() == Some(ALLOW)) else {
        return refused;
    };
    let content = match &answer.text {
        None => Some(Map::new()),
        Some(text) => serde_json::from_str(text).ok(),
    };
    match content {
        Some(content) => json!({"action": "accept", "content": content, "_meta": null}),
        None => refused,
    }
}

fn reason(answer: Option<&Answer>) -> &str {
    answer.and_then(|answer| answer.text.as_deref()).unwrap_or(REFUSED)
}

fn respond(id: &Value, result: Value, deeds: &mut Vec<Deed>) {
    deeds.push(Deed::write(&json!({"jsonrpc": "2.0", "id": id, "result": result}), None));
}

fn fail(id: &Value, code: i64, message: &str, deeds: &mut Vec<Deed>) {
    let error = json!({"code": code, "message": message});
    deeds.push(Deed::write(&json!({"jsonrpc": "2.0", "id": id, "error": error}), None));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(deeds: &[Deed]) -> Vec<Value> {
        let lines = deeds.iter().filter_map(|deed| match deed {
            Deed::Write { line, .. } => Some(serde_json::from_slice(line).expect("JSON")),
            _ => None,
        });
        lines.collect()
    }

    fn result(method: &str, params: &Value, choice: Option<&str>, words: Option<&str>) -> Value {
        let (mut asks, mut deeds) = (Asks::default(), Vec::new());
        asks.asked(method, &json!(7), params, &mut deeds);
        let [Deed::Ask(asked)] = deeds.as_slice() else { panic!("{method}: {deeds:?}") };
        let key = asked.key.clone();
        assert!(choice.is_none_or(|choice| asked.choices.iter().any(|offered| offered.id == choice)));
        let answer = Answer { choice: choice.map(str::to_owned), text: words.map(str::to_owned) };
        let reply = if choice.is_none() && words.is_none() { Reply::Expired } else { Reply::Answer(&answer) };
        deeds.clear();
        asks.answer(&key, reply, &mut deeds);
        asks.answer(&key, reply, &mut deeds);
        let [line] = written(&deeds).try_into().expect("one answer");
        assert!(asks.is_empty() && line["id"] == 7, "{line}");
        line["result"].clone()
    }

    #[test]
    fn approvals_are_answered_in_the_words_of_their_kind() {
        let command = json!({"command": "ls", "availableDecisions": ["accept", "cancel"]});
        let method = "item/commandExecution/requestApproval";
        assert_eq!(result(method, &command, Some(ALLOW), None), json!({"decision": "accept"}));
        assert_eq!(result(method, &command, Some(DENY), None), json!({"decision": "decline"}));
        assert_eq!(result(method, &command, Some(CANCEL), None), json!({"decision": "cancel"}));
        assert_eq!(result(method, &command, None, None), json!({"decision": "decline"}));
        let file = "item/fileChange/requestApproval";
        assert_eq!(result(file, &json!({}), Some(ALWAYS), None), json!({"decision": "acceptForSession"}));
        let older = json!({"command": ["ls", "-l"]});
        assert_eq!(result("execCommandApproval", &older, Some(ALLOW), None), json!({"decision": "approved"}));
        assert_eq!(
            result("applyPatchApproval", &json!({}), Some(DENY), Some("no")),
            json!({"decision": {"denied": {"rejection": "no"}}})
        );
    }

    #[test]
    fn permissions_are_granted_as_they_were_asked_for() {
        let params = json!({"permissions": {"network": {"enabled": true}, "fileSystem": null}});
        let method = "item/permissions/requestApproval";
        assert_eq!(
            result(method, &params, Some(ALLOW), None),
            json!({"permissions": {"network": {"enabled": true}}, "scope": "turn"})
        );
        assert_eq!(result(method, &params, Some(DENY), None), json!({"permissions": {}, "scope": "turn"}));
        assert_eq!(result(method, &params, None, None), json!({"permissions": {}, "scope": "turn"}));
    }

    #[test]
    fn forms_are_filled_by_the_text() {
        let params = json!({"serverName": "s", "mode": "form", "message": "Who?", "requestedSchema": {}});
        let method = "mcpServer/elicitation/request";
        let accepted = result(method, &params, Some(ALLOW), Some(r#"{"name":"x"}"#));
        assert_eq!(accepted, json!({"action": "accept", "content": {"name": "x"}, "_meta": null}));
        for (choice, words) in [(Some(ALLOW), Some("x")), (Some(DENY), None), (None, None)] {
            assert_eq!(result(method, &params, choice, words)["action"], "decline");
        }
    }

    #[test]
    fn questions_of_one_request_are_answered_together() {
        let (mut asks, mut deeds) = (Asks::default(), Vec::new());
        let params = json!({"questions": [
            {"id": "a", "question": "A?", "options": [{"label": "x"}]}, {"id": "b", "question": "B?", "options": null},
        ]});
        asks.asked("item/tool/requestUserInput", &json!("r"), &params, &mut deeds);
        assert_eq!(deeds.len(), 2);
        deeds.clear();
        asks.answer("\"r\"/0", Reply::Answer(&Answer { choice: Some("1".into()), text: None }), &mut deeds);
        assert!(deeds.is_empty());
        asks.answer("\"r\"/1", Reply::Answer(&Answer { choice: None, text: Some("y".into()) }), &mut deeds);
        let answers = json!({"a": {"answers": ["x"]}, "b": {"answers": ["y"]}});
        assert_eq!(written(&deeds)[0]["result"], json!({"answers": answers}));
        assert!(asks.is_empty());
    }

    #[test]
    fn what_nobody_knows_is_answered_too() {
        let (mut asks, mut deeds) = (Asks::default(), Vec::new());
        for method in ["item/tool/call", "attestation/generate", "x"] {
            deeds.clear();
            asks.asked(method, &json!(1), &Value::Null, &mut deeds);
            assert_eq!(written(&deeds)[0]["error"]["code"], UNKNOWN_METHOD, "{method}");
        }
        assert!(asks.is_empty());
    }

    #[test]
    fn a_request_that_is_resolved_is_not_answered() {
        let (mut asks, mut deeds) = (Asks::default(), Vec::new());
        asks.asked("item/fileChange/requestApproval", &json!(3), &json!({}), &mut deeds);
        asks.resolved(&json!(3), &mut deeds);
        assert_eq!(deeds.last(), Some(&Deed::Withdraw("3".into())));
        deeds.clear();
        asks.answer("3", Reply::Expired, &mut deeds);
        assert!(deeds.is_empty() && asks.is_empty());
    }
}
