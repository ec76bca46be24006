//! The live view: records as lines for people.
//!
//! Text comes as increments (`preview`) and then once more as a whole (`response-completed`, `thinking`): of the whole
//! only what was not shown yet is printed. There is one open line at most; whatever else happens closes it first.
//!
//! Programs of a known family print JSON for other programs: what of it says nothing to people (a `raw` record that
//! holds an object) is left out, and what is no JSON among it (a banner, a warning) is shown. Of any other program
//! (the dialect `jsonl`) every line is shown. With the exact lines (`--raw`) each stands before what it was read as.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::asking::{Question, Said, settled};
use super::output::Style;
use super::text::{count, duration, shortened};
use crate::model::{Entry, RunId, kind};

/// The longest tool input and output shown, in characters.
const SHORT: usize = 160;
/// The longest name of a sub-agent shown, in characters.
const NAME: usize = 40;
const DIM: &str = "2";
const CYAN: &str = "36";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

/// Who speaks: a sub-agent or the main one, aloud or in thought.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Speaker {
    sub: Option<String>,
    thinking: bool,
}

/// What was shown so far, as far as it decides what is shown next.
#[derive(Debug, Default)]
pub struct View {
    style: Style,
    start: Option<u64>,
    /// Whose text stands on the open line, and whether that line has anything on it.
    open: Option<Speaker>,
    mid_line: bool,
    previews: HashMap<Speaker, String>,
    tools: HashMap<String, u64>,
    /// What people call a sub-agent: how the tool call that it answers is described.
    names: HashMap<String, String>,
    /// The program speaks JSON of a known family.
    family: bool,
    /// The exact lines are shown too.
    exact: bool,
    tokens: (u64, u64),
    said: Said,
    /// What the session is called in the commands that are shown.
    session: String,
    /// The end is told by whoever uses the view, in a summary.
    summary: bool,
}

impl View {
    /// A view that shows text so.
    pub fn new(style: Style) -> View {
        View { style, session: "RUN_ID".to_owned(), ..View::default() }
    }

    /// The same for this session: what its program asks is shown with the commands that answer it.
    pub fn of_session(self, run_id: RunId) -> View {
        View { session: run_id.to_string(), ..self }
    }

    /// The same for one that is followed by a summary: the record `ended` shows only what a summary does not tell.
    pub fn with_summary(self) -> View {
        View { summary: true, ..self }
    }

    /// The same for a program that is read by this dialect, where the record `started` is not among what is shown.
    pub fn of_dialect(self, dialect: &str) -> View {
        View { family: is_family(dialect), ..self }
    }

    /// The same with the exact line of every record that stands for one and has it.
    pub fn exact(self, exact: bool) -> View {
        View { exact, ..self }
    }

    /// What to print for a record, complete with its line feeds; empty for what is not shown.
    pub fn entry(&mut self, entry: &Entry) -> String {
        let mut out = String::new();
        if self.exact && entry.kind != "raw" && (entry.raw.is_some() || entry.raw64.is_some()) {
            out = self.on_its_own(&self.style.paint(DIM, &self.source_line(entry)));
        }
        let details = &entry.details;
        out.push_str(&match entry.kind.as_str() {
            "preview" => self.preview(details),
            "response-completed" => self.whole(details, false),
            "thinking" => self.whole(details, true),
            _ => self.line(entry).map(|line| self.on_its_own(&line)).unwrap_or_default(),
        });
        out
    }

    fn on_its_own(&mut self, line: &str) -> String {
        format!("{}{line}\n", self.close())
    }

    /// Ends the open line, if there is one.
    pub fn close(&mut self) -> String {
        self.open = None;
        if std::mem::take(&mut self.mid_line) { "\n".to_owned() } else { String::new() }
    }

    /// The same where `people` are shown anything at all; programs get records instead.
    pub fn close_if(&mut self, people: bool) -> String {
        if people { self.close() } else { String::new() }
    }

    fn preview(&mut self, details: &Map<String, Value>) -> String {
        let speaker = Speaker { sub: sub(details), thinking: text(details, "part") == "thinking" };
        let increment = text(details, "text");
        self.previews.entry(speaker.clone()).or_default().push_str(increment);
        self.say(&speaker, increment)
    }

    fn whole(&mut self, details: &Map<String, Value>, thinking: bool) -> String {
        let speaker = Speaker { sub: sub(details), thinking };
        let whole = text(details, "text");
        let shown = self.previews.remove(&speaker).unwrap_or_default();
        // Where the whole is not what came in pieces, the whole is right.
        let rest = match whole.strip_prefix(shown.as_str()) {
            Some(rest) => rest,
            None => {
                self.open = None;
                whole
            }
        };
        let mut out = self.say(&speaker, rest.trim_end_matches('\n'));
        if details.get("cut").and_then(Value::as_bool) == Some(true) {
            out.push_str(&self.style.paint(YELLOW, " (cut)"));
            self.mid_line = true;
        }
        if self.open.as_ref() == Some(&speaker) {
            out.push_str(&self.close());
        }
        out
    }

    /// More of a speaker's text: on the open line if it is theirs, otherwise on one of their own.
    fn say(&mut self, speaker: &Speaker, words: &str) -> String {
        if words.is_empty() {
            return String::new();
        }
        let mut out = String::new();
        if self.open.as_ref() != Some(speaker) {
            if self.mid_line {
                out.push('\n');
            }
            out.push_str(&self.style.paint(DIM, &self.heading(speaker)));
            self.open = Some(speaker.clone());
        }
        let words = self.style.text(words);
        self.mid_line = !words.ends_with('\n');
        out.push_str(&if speaker.thinking { self.style.paint(DIM, &words) } else { words });
        out
    }

    fn heading(&self, speaker: &Speaker) -> String {
        match (&speaker.sub, speaker.thinking) {
            (None, false) => String::new(),
            (None, true) => "thinking: ".to_owned(),
            (Some(sub), false) => format!("[{}] ", self.name(sub)),
            (Some(sub), true) => format!("[{}] thinking: ", self.name(sub)),
        }
    }

    fn name(&self, sub: &str) -> String {
        self.style.text(self.names.get(sub).map_or(sub, String::as_str))
    }

    /// The line of a record that is not text, with how long after the start it happened.
    fn line(&mut self, entry: &Entry) -> Option<String> {
        let details = &entry.details;
        if entry.kind == "started" {
            self.start.get_or_insert(entry.time);
            self.family = is_family(text(details, "dialect"));
        }
        let line = match entry.kind.as_str() {
            "started" => self.started(details),
            "response-started" => return None,
            "tool-started" => self.tool_started(entry),
            "tool-finished" => self.tool_finished(entry),
            "usage" => return self.usage(details),
            "question" => self.question(details),
            "question-settled" => self.style.paint(YELLOW, &self.style.text(&settled(details))),
            "message" => self.message(details),
            "verdict" => self.verdict(details),
            "stderr" => return Some(self.style.paint(DIM, &self.labelled("stderr", text(details, "text")))),
            "raw" => return self.raw(entry),
            "notice" => self.style.paint(YELLOW, &self.labelled("note", text(details, "text"))),
            "exited" => self.style.paint(DIM, &exited(details)),
            "ended" => self.ended(details)?,
            kind if kind::ALL.contains(&kind) => {
                self.style.paint(YELLOW, &self.labelled(kind, &Value::Object(details.clone()).to_string()))
            }
            // A newer service tells more kinds than this version knows; they are shown as they are.
            kind => self.labelled(&self.style.text(kind), &Value::Object(details.clone()).to_string()),
        };
        let elapsed = entry.time.saturating_sub(self.start.unwrap_or(entry.time)) / 1_000_000;
        let label = format!("{:>2}:{:02}", elapsed / 60, elapsed % 60);
        Some(format!("{} {line}", self.style.paint(DIM, &label)))
    }

    fn labelled(&self, label: &str, words: &str) -> String {
        format!("{label}: {}", self.style.text(words.trim_end()))
    }

    fn started(&self, details: &Map<String, Value>) -> String {
        let attempt = details.get("attempt").and_then(Value::as_u64).unwrap_or(1);
        let again = if attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        let words = format!(
            "started: dialect {}, containment {}{again}",
            text(details, "dialect"),
            text(details, "containment")
        );
        self.style.paint(DIM, &self.style.text(&words))
    }

    fn tool_started(&mut self, entry: &Entry) -> String {
        let details = &entry.details;
        let (tool, name) = (text(details, "tool"), text(details, "name"));
        self.tools.insert(tool.to_owned(), entry.time);
        let task = details.get("input").and_then(|input| input["description"].as_str()).unwrap_or(name);
        self.names.insert(tool.to_owned(), shortened(task, NAME));
        let who = sub(details).map(|sub| format!("[{}] ", self.name(&sub))).unwrap_or_default();
        let name = format!("{who}{}", self.style.text(name));
        let input = self.style.text(&shortened(&tool_input(details.get("input")), SHORT));
        format!("{} {input}", self.style.paint(CYAN, &format!("> {name}"))).trim_end().to_owned()
    }

    fn tool_finished(&mut self, entry: &Entry) -> String {
        let details = &entry.details;
        let took = self.tools.remove(text(details, "tool")).map(|started| entry.time.saturating_sub(started));
        let failed = details.get("error").and_then(Value::as_bool) == Some(true);
        let mut head = format!("{} {}", if failed { "failed" } else { "done" }, text(details, "name"));
        if let Some(code) = details.get("exit-code").and_then(Value::as_i64).filter(|code| *code != 0) {
            head.push_str(&format!(", exit {code}"));
        }
        if let Some(took) = took {
            head.push_str(&format!(", {}", duration(took)));
        }
        let head =
            self.style.paint(if failed { RED } else { GREEN }, &format!("< {}", self.style.text(&head)));
        let output = self.style.text(&shortened(text(details, "output"), SHORT));
        if output.is_empty() { head } else { format!("{head}: {output}") }
    }

    /// Tokens so far, where they have changed.
    fn usage(&mut self, details: &Map<String, Value>) -> Option<String> {
        let tokens = (number(details, "input-tokens"), number(details, "output-tokens"));
        if tokens == self.tokens {
            return None;
        }
        self.tokens = tokens;
        let line = format!("      tokens: {} in, {} out", count(tokens.0), count(tokens.1));
        Some(self.style.paint(DIM, &line))
    }

    /// What the program asks, what the tool in question was given, and the commands that answer it.
    fn question(&self, details: &Map<String, Value>) -> String {
        let asked = Question(details);
        let subject = asked.subject();
        let subject = if subject.is_empty() { subject } else { format!(" ({subject})") };
        let mut lines = vec![format!("? {}{subject}: {}", asked.id(), asked.text())];
        let input = shortened(&tool_input(details.get("details")), SHORT);
        if !input.is_empty() {
            lines.push(format!("| {input}"));
        }
        lines.extend(asked.commands(&self.session));
        self.style.paint(YELLOW, &self.style.text(&lines.join("\n").replace('\n', "\n      ")))
    }

    fn message(&mut self, details: &Map<String, Value>) -> String {
        let colour = if text(details, "receipt") == "undeliverable" { RED } else { CYAN };
        self.style.paint(colour, &self.style.text(&self.said.line(details)))
    }

    fn verdict(&self, details: &Map<String, Value>) -> String {
        let result = text(details, "result");
        let message = text(details, "message");
        let words = match (result, message.is_empty()) {
            ("none", _) => "the program has not said how it went".to_owned(),
            (_, true) => format!("the program says: {result}"),
            (_, false) => format!("the program says: {result}: {message}"),
        };
        self.style.paint(if result == "failure" { RED } else { DIM }, &self.style.text(&words))
    }

    /// A line that says nothing more than itself.
    fn raw(&self, entry: &Entry) -> Option<String> {
        let bookkeeping = self.family && !self.exact && entry.raw.as_deref().is_some_and(is_object);
        (!bookkeeping).then(|| self.source_line(entry))
    }

    fn source_line(&self, entry: &Entry) -> String {
        match (&entry.raw, &entry.raw64) {
            (Some(raw), _) => self.style.text(raw),
            (None, Some(raw64)) => {
                let bytes = raw64.len() / 4 * 3;
                self.style.paint(DIM, &format!("(a line that is not UTF-8, about {bytes} bytes)"))
            }
            (None, None) => self.style.paint(DIM, "(a line; --raw shows it)"),
        }
    }

    fn ended(&self, details: &Map<String, Value>) -> Option<String> {
        let mut words = Vec::new();
        let (end, error) = (text(details, "end"), text(details, "error"));
        match (self.summary, error.is_empty()) {
            (true, _) => {}
            (false, true) => words.push(format!("ended: {end}")),
            (false, false) => words.push(format!("ended: {end}: {error}")),
        }
        for leftover in details.get("leftovers").and_then(Value::as_array).into_iter().flatten() {
            let (pid, command) = (&leftover["pid"], leftover["command"].as_str().unwrap_or_default());
            words.push(format!("could not be stopped: {command} (pid {pid})"));
        }
        if details.get("activity-complete").and_then(Value::as_bool) == Some(false) {
            words.push("not everything that the program printed was kept".to_owned());
        }
        let colour = if end == "completed" { GREEN } else { RED };
        (!words.is_empty()).then(|| self.style.paint(colour, &self.style.text(&words.join("\n      "))))
    }
}

/// A dialect that knows what its program prints.
fn is_family(dialect: &str) -> bool {
    !matches!(dialect, "" | "jsonl")
}

/// A line that looks like a JSON object. Strict parsing would miss what programs print with half a character in it.
fn is_object(line: &str) -> bool {
    let line = line.trim();
    line.starts_with('{') && line.ends_with('}')
}

fn text<'a>(details: &'a Map<String, Value>, key: &str) -> &'a str {
    details.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn number(details: &Map<String, Value>, key: &str) -> u64 {
    details.get(key).and_then(Value::as_u64).unwrap_or_default()
}

fn sub(details: &Map<String, Value>) -> Option<String> {
    details.get("sub").and_then(Value::as_str).map(str::to_owned)
}

fn exited(details: &Map<String, Value>) -> String {
    match (details.get("exit-code"), details.get("exit-signal")) {
        (Some(code), _) => format!("the program exited with {code}"),
        (None, Some(signal)) => format!("the program was ended by signal {signal}"),
        (None, None) => "the program is gone; how is not known".to_owned(),
    }
}

/// A tool's input in few words: the one text that it has (a command, a path), or its JSON.
pub(super) fn tool_input(input: Option<&Value>) -> String {
    match input {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(object)) => {
            for key in ["command", "cmd", "file_path", "path", "pattern", "query", "url", "description"] {
                if let Some(text) = object.get(key).and_then(Value::as_str) {
                    return text.to_owned();
                }
            }
            Value::Object(object.clone()).to_string()
        }
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLAIN: Style = Style { terminal: false, colour: false };
    const COLOUR: Style = Style { terminal: true, colour: true };

    fn entry(kind: &str, details: Value) -> Entry {
        let Value::Object(details) = details else { panic!("details are an object") };
        let raw = details.get("raw").and_then(Value::as_str).map(str::to_owned);
        Entry { cursor: "e-1".into(), seq: 1, time: 5_000_000, kind: kind.into(), details, raw, raw64: None }
    }

    fn show(style: Style, entries: &[(&str, Value)]) -> String {
        let mut view = View::new(style);
        let mut out: String =
            entries.iter().map(|(kind, details)| view.entry(&entry(kind, details.clone()))).collect();
        out.push_str(&view.close());
        out
    }

    #[test]
    fn the_whole_text_is_not_repeated_after_its_pieces() {
        let pieces = [
            ("preview", json!({"text": "Hel", "part": "text"})),
            ("preview", json!({"text": "lo\nwor", "part": "text"})),
            ("response-completed", json!({"text": "Hello\nworld"})),
        ];
        assert_eq!(show(PLAIN, &pieces), "Hello\nworld\n");
        assert_eq!(show(PLAIN, &pieces[2..]), "Hello\nworld\n");
        let ends_with_line = [
            ("preview", json!({"text": "Hello\n", "part": "text"})),
            ("response-completed", json!({"text": "Hello\n"})),
        ];
        assert_eq!(show(PLAIN, &ends_with_line), "Hello\n");
    }

    #[test]
    fn a_whole_that_differs_from_its_pieces_is_shown() {
        let entries = [
            ("preview", json!({"text": "Hullo", "part": "text"})),
            ("response-completed", json!({"text": "Hello"})),
        ];
        assert_eq!(show(PLAIN, &entries), "Hullo\nHello\n");
    }

    #[test]
    fn speakers_do_not_share_a_line() {
        let entries = [
            ("preview", json!({"text": "hm", "part": "thinking"})),
            ("preview", json!({"text": "main", "part": "text"})),
            ("preview", json!({"text": "child", "part": "text", "sub": "explorer"})),
            ("response-completed", json!({"text": "child done", "sub": "explorer"})),
            ("response-completed", json!({"text": "main"})),
            ("thinking", json!({"text": "hm"})),
        ];
        assert_eq!(show(PLAIN, &entries), "thinking: hm\nmain\n[explorer] child done\n");
    }

    #[test]
    fn a_tool_closes_the_open_line_and_is_short() {
        let entries = [
            ("preview", json!({"text": "let me see", "part": "text"})),
            ("tool-started", json!({"tool": "1", "name": "bash", "input": {"command": "ls\nrm"}})),
            (
                "tool-finished",
                json!({"tool": "1", "name": "bash", "error": true, "exit-code": 2, "output": "a\nb\nc"}),
            ),
            ("response-completed", json!({"text": "let me see"})),
        ];
        assert_eq!(
            show(PLAIN, &entries),
            "let me see\n 0:00 > bash ls (+1 line)\n 0:00 < failed bash, exit 2, 0.0 s: a (+2 lines)\n"
        );
    }

    #[test]
    fn nothing_of_a_program_reaches_the_terminal_as_a_command() {
        let evil = "\x1b]0;evil\x07\x1b[2J";
        let texts = json!({
            "text": evil, "name": evil, "input": evil, "output": evil, "message": evil, "result": evil, "end": evil,
            "error": evil, "sub": evil, "dialect": evil, "containment": evil, "tool": evil, "raw": evil,
            "leftovers": [{"pid": 1, "command": evil}], "part": "text", "other": evil, "question": evil, "choices": [{"id": evil, "label": evil}], "details": {"x": evil},
            "about": evil, "how": evil, "choice": evil, "request-id": evil, "mode": evil, "receipt": evil, "why": evil
        });
        let quiet = Style { terminal: true, colour: false };
        for kind in kind::ALL.into_iter().chain(["\x1b[2Jnewer"]) {
            let shown = show(quiet, &[(kind, texts.clone())]);
            assert!(!shown.contains('\x1b') && !shown.contains('\x07'), "{kind}: {shown:?}");
            let coloured = show(COLOUR, &[(kind, texts.clone())]);
            assert!(!coloured.contains("\x1b]") && !coloured.contains("\x1b[2J"), "{kind}: {coloured:?}");
        }
        assert_eq!(
            show(PLAIN, &[("raw", json!({"raw": evil}))]),
            format!("{evil}\n"),
            "a pipe gets it exactly"
        );
    }

    #[test]
    fn what_a_family_prints_for_programs_alone_is_left_out() {
        let lines = [
            ("raw", json!({"raw": "{\"type\":\"system\",\"half\":\"\\ud83d\"}\r"})),
            ("raw", json!({"raw": "npm warn: old"})),
            ("raw", json!({"raw": "{\"type\": cut"})),
            ("raw", json!({"raw": ""})),
        ];
        let of = |dialect: &str| {
            let mut all = vec![("started", json!({"dialect": dialect, "containment": "cgroup"}))];
            all.extend(lines.clone());
            let shown = show(PLAIN, &all);
            shown.split_once('\n').expect("the line of `started`").1.to_owned()
        };
        assert_eq!(of("claude"), "npm warn: old\n{\"type\": cut\n\n");
        assert!(of("jsonl").starts_with("{\"type\":\"system\""), "{}", of("jsonl"));
        assert_eq!(of("jsonl").lines().count(), lines.len());
        let mut later = View::new(PLAIN).of_dialect("claude");
        assert_eq!(later.entry(&entry(lines[0].0, lines[0].1.clone())), "", "without the record `started`");
    }

    #[test]
    fn exact_lines_stand_before_what_they_were_read_as() {
        let entries = [
            ("preview", json!({"text": "hel", "part": "text", "raw": "{\"delta\":\"hel\"}"})),
            ("raw", json!({"raw": "{\"type\":\"ping\"}"})),
            ("response-completed", json!({"text": "hello", "raw": "{\"text\":\"hello\"}"})),
            ("usage", json!({"input-tokens": 3})),
        ];
        let mut view = View::new(PLAIN).of_dialect("claude").exact(true);
        let shown: String =
            entries.iter().map(|(kind, details)| view.entry(&entry(kind, details.clone()))).collect();
        assert_eq!(
            shown,
            "{\"delta\":\"hel\"}\nhel\n{\"type\":\"ping\"}\n{\"text\":\"hello\"}\nlo\n      tokens: 3 in, 0 out\n"
        );
        let mut quiet = View::new(PLAIN).of_dialect("claude");
        let shown: String =
            entries.iter().map(|(kind, details)| quiet.entry(&entry(kind, details.clone()))).collect();
        assert_eq!(shown, "hello\n      tokens: 3 in, 0 out\n");
    }

    #[test]
    fn a_sub_agent_is_called_what_its_task_is_called() {
        let entries = [
            ("tool-started", json!({"tool": "t1", "name": "Agent", "input": {"description": "look around"}})),
            ("preview", json!({"text": "hm", "part": "thinking", "sub": "t1"})),
            ("tool-started", json!({"tool": "t2", "name": "Bash", "input": {"command": "ls"}, "sub": "t1"})),
            ("response-completed", json!({"text": "seen", "sub": "t1"})),
            ("response-completed", json!({"text": "said", "sub": "unknown"})),
        ];
        assert_eq!(
            show(PLAIN, &entries),
            " 0:00 > Agent look around\n[look around] thinking: hm\n 0:00 > [look around] Bash ls\n\
             [look around] seen\n[unknown] said\n"
        );
    }

    #[test]
    fn a_question_is_shown_with_the_commands_that_answer_it() {
        let run_id: RunId = "0192f3c4-5b6a-7c8d-9e0f-112233445566".parse().unwrap();
        let mut view = View::new(PLAIN).of_session(run_id);
        let asked = json!({
            "question": "q1", "about": "permission", "tool": "Bash", "text": "May it?\nReally?",
            "details": {"command": "rm -rf build"}, "choices": [{"id": "allow", "label": "Allow"}]
        });
        assert_eq!(
            view.entry(&entry("question", asked)),
            " 0:00 ? q1 (permission, Bash): May it?\n      Really?\n      | rm -rf build\n      \
             Allow: sessionctl answer 0192f3c4-5b6a-7c8d-9e0f-112233445566 q1 allow\n"
        );
        let answered = json!({"question": "q1", "how": "answered", "choice": "allow"});
        assert_eq!(view.entry(&entry("question-settled", answered)), " 0:00 ? q1 answered: allow\n");
        let sent = json!({"request-id": "a", "mode": "steer", "receipt": "stored", "text": "faster"});
        assert_eq!(view.entry(&entry("message", sent)), " 0:00 » steer stored: faster\n");
        let seen = json!({"request-id": "a", "mode": "steer", "receipt": "seen"});
        assert_eq!(view.entry(&entry("message", seen)), " 0:00 » steer seen: faster\n");
    }

    #[test]
    fn no_verdict_is_no_word_of_the_program() {
        let shown = show(PLAIN, &[("verdict", json!({"result": "none", "rule": "no terminal event"}))]);
        assert_eq!(shown, " 0:00 the program has not said how it went\n");
    }

    #[test]
    fn before_a_summary_the_end_tells_only_the_rest() {
        let mut view = View::new(PLAIN).with_summary();
        assert_eq!(view.entry(&entry("ended", json!({"end": "completed", "activity-complete": true}))), "");
        let shown = view.entry(&entry("ended", json!({"end": "killed", "activity-complete": false})));
        assert!(shown.contains("not everything") && !shown.contains("killed"), "{shown}");
    }

    #[test]
    fn every_kind_is_shown_and_newer_ones_too() {
        for kind in kind::ALL.into_iter().filter(|kind| !matches!(*kind, "response-started")) {
            let details = json!({"text": "t", "part": "text", "input-tokens": 3, "end": "failed"});
            assert!(!show(PLAIN, &[(kind, details)]).is_empty(), "{kind}");
        }
        assert!(show(PLAIN, &[("weather", json!({"wind": 3}))]).contains("weather: {\"wind\":3}"));
    }
}
