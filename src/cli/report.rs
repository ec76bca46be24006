//! Statuses as text for people.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::asking::Question;
use super::output::Style;
use super::text::{count, duration, shortened};
use crate::client::SessionStatus;

/// Now, in µs since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// One line on how a session ended: end, exit, duration, tokens, cost.
pub fn summary(status: &SessionStatus, style: Style) -> String {
    let mut parts = vec![standing(status)];
    parts.extend(exit(status));
    if let (Some(started), Some(ended)) = (status.number("started"), status.number("ended")) {
        parts.push(duration(ended.saturating_sub(started)));
    }
    parts.extend(progress(status));
    if status.is_uncertain() || status.end().is_some_and(|end| end != "completed") {
        let error = status.text("error");
        if !error.is_empty() {
            parts.push(shortened(error, 300));
        }
    }
    let colour = match status.end() {
        Some("completed") => "32",
        _ => "31",
    };
    style.paint(colour, &style.text(&parts.join(" · ")))
}

/// A session as one line of a list.
pub fn list_line(status: &SessionStatus, style: Style) -> String {
    let age = duration(now().saturating_sub(status.number("accepted").unwrap_or_default()));
    let line = format!(
        "{}  {:<23}  {:<13}  {:>12}  {}",
        status.text("run_id"),
        standing(status),
        status.text("profile"),
        age,
        shortened(status.text("label"), 60)
    );
    style.text(line.trim_end())
}

/// A session's whole status, a line for each thing that is known.
pub fn status_lines(status: &SessionStatus, style: Style) -> String {
    let mut lines = vec![line("session", status.text("run_id"))];
    lines.push(line("state", status.state()));
    if let Some(position) = status.number("queue-position") {
        lines.push(line("queue", &format!("position {position}")));
    }
    lines.push(line("phase", status.phase()));
    for (label, value) in [
        ("end", status.end().map(str::to_owned)),
        ("ended with", exit(status)),
        ("verdict", some(status.text("verdict"))),
        ("error", some(status.text("error"))),
        ("label", some(status.text("label"))),
        ("profile", Some(format!("{} ({})", status.text("profile"), status.text("dialect")))),
        ("accepted", ago(status, "accepted")),
        ("started", ago(status, "started")),
        ("ended", ago(status, "ended")),
        ("progress", progress(status)),
        ("tool", status.json().get("progress").and_then(|p| p["tool"].as_str()).map(str::to_owned)),
        ("containment", some(status.text("containment"))),
        ("conversation", some(status.text("conversation"))),
        ("head", some(status.text("head"))),
        ("acknowledged", acknowledged(status)),
    ] {
        lines.extend(value.map(|value| line(label, &value)));
    }
    lines.extend(status.questions().map(|open| {
        let asked = Question(open);
        line("asks", &format!("{}: {}", asked.id(), [asked.subject(), asked.age()].join(", ")))
    }));
    if status.asks() {
        lines.push(line("to answer", &format!("sessionctl questions {}", status.text("run_id"))));
    }
    if flag(status, "cancel-requested") == Some(true) {
        lines.push(line("cancel", "was asked for"));
    }
    if flag(status, "activity-complete") == Some(false) {
        lines.push(line("activity", "not everything that the program printed was kept"));
    }
    lines.extend(objects(status, "leftovers").map(|leftover| {
        line(
            "left over",
            &format!("{} (pid {})", leftover["command"].as_str().unwrap_or_default(), leftover["pid"]),
        )
    }));
    lines.extend(objects(status, "evidence").map(|evidence| {
        let text = |key: &str| evidence[key].as_str().unwrap_or_default();
        line("evidence", &format!("{}: {}", text("source"), text("finding")))
    }));
    style.text(&lines.join("\n"))
}

/// The end of a session that has one, otherwise its state; `attention` where its program waits for an answer.
fn standing(status: &SessionStatus) -> String {
    match status.end() {
        Some(end) if !status.is_uncertain() => end.to_owned(),
        _ if status.asks() => {
            format!("attention ({})", plural(status.questions().count() as u64, "question"))
        }
        _ => status.state().to_owned(),
    }
}

/// The service's properties, a line for each thing that an operator asks for first.
pub fn service_lines(properties: &Map<String, Value>, style: Style) -> String {
    let text = |key: &str| properties.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| properties.get(key).and_then(Value::as_u64).unwrap_or_default();
    let upgrade = match properties.get("UpgradePending") {
        Some(Value::Bool(true)) => "another program is installed: restart the service",
        Some(Value::Bool(false)) => "none pending",
        _ => "not told by this version",
    };
    let profiles = properties.get("Profiles").and_then(Value::as_object);
    let names: Vec<&str> = profiles.into_iter().flat_map(Map::keys).map(String::as_str).collect();
    let names = if names.is_empty() { "none".to_owned() } else { shortened(&names.join(", "), 300) };
    let mut lines = vec![
        line("service", text("State")),
        line("version", &format!("{} (interface {})", text("Version"), number("InterfaceVersion"))),
        line("upgrade", upgrade),
        line("running", &format!("{} of {}", number("Active"), number("MaxActive"))),
        line("waiting", &format!("{} of {}", number("Queued"), number("MaxQueued"))),
        line("containment", text("Containment")),
        line("profiles", &names),
    ];
    // A service of an earlier version does not say.
    if let Some(controller) = properties.get("Controller").and_then(Value::as_object) {
        lines.extend(controller_lines(controller));
    }
    style.text(&lines.join("\n"))
}

/// Who owns runs and leases, and what waits for it.
fn controller_lines(controller: &Map<String, Value>) -> Vec<String> {
    let text = |key: &str| controller.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut lines = vec![line("controller", text("name"))];
    if !text("problem").is_empty() {
        lines.push(line("", &format!("did not answer: {}", text("problem"))));
    }
    let undelivered = controller.get("undelivered").and_then(Value::as_u64).unwrap_or_default();
    if undelivered > 0 {
        let command = "sessionctl list --state reconciliation-required, sessionctl reconcile ID";
        lines.push(line("undelivered", &format!("{}: {command}", plural(undelivered, "session"))));
    }
    lines
}

fn line(label: &str, value: &str) -> String {
    format!("{label:<13} {value}")
}

fn acknowledged(status: &SessionStatus) -> Option<String> {
    let to = some(status.text("acknowledged"))?;
    Some(if to == status.text("head") { "all events".to_owned() } else { format!("up to {to}") })
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn flag(status: &SessionStatus, key: &str) -> Option<bool> {
    status.json().get(key).and_then(Value::as_bool)
}

fn objects<'a>(status: &'a SessionStatus, key: &str) -> impl Iterator<Item = &'a Value> {
    status.json().get(key).and_then(Value::as_array).into_iter().flatten()
}

fn exit(status: &SessionStatus) -> Option<String> {
    let number = |key: &str| status.json().get(key).and_then(Value::as_i64);
    match (number("exit-code"), number("exit-signal")) {
        (Some(code), _) => Some(format!("exit {code}")),
        (None, Some(signal)) => Some(format!("signal {signal}")),
        (None, None) => None,
    }
}

fn ago(status: &SessionStatus, key: &str) -> Option<String> {
    status.number(key).map(|then| format!("{} ago", duration(now().saturating_sub(then))))
}

/// Turns, tools, tokens and cost; `None` where there is none of them.
fn progress(status: &SessionStatus) -> Option<String> {
    let progress = status.json().get("progress")?.as_object()?;
    let number = |key: &str| progress.get(key).and_then(Value::as_u64).filter(|number| *number > 0);
    let mut parts = Vec::new();
    parts.extend(number("turns").map(|turns| plural(turns, "turn")));
    parts.extend(number("tool-calls").map(|calls| plural(calls, "tool call")));
    parts.extend(tokens(progress));
    parts.extend(progress.get("cost").and_then(Value::as_f64).map(|cost| format!("${cost:.4}")));
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn tokens(progress: &Map<String, Value>) -> Option<String> {
    let number = |key: &str| progress.get(key).and_then(Value::as_u64).unwrap_or_default();
    let (input, output, cached) = (number("input-tokens"), number("output-tokens"), number("cached-tokens"));
    if input == 0 && output == 0 {
        return None;
    }
    let cached = if cached > 0 { format!(" ({} cached)", count(cached)) } else { String::new() };
    Some(format!("tokens {} in{cached}, {} out", count(input), count(output)))
}

pub fn plural(number: u64, word: &str) -> String {
    format!("{} {word}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLAIN: Style = Style { terminal: false, colour: false };

    fn status(value: Value) -> SessionStatus {
        SessionStatus::from_json(value.as_object().unwrap().clone())
    }

    #[test]
    fn the_summary_tells_end_exit_duration_tokens_and_cost() {
        let done = status(json!({
            "state": "finished", "end": "completed", "exit-code": 0, "started": 1_000_000, "ended": 13_345_678,
            "progress": {"turns": 1, "tool-calls": 2, "input-tokens": 1234, "cached-tokens": 800, "output-tokens": 56, "cost": 0.01}
        }));
        assert_eq!(
            summary(&done, PLAIN),
            "completed · exit 0 · 12.3 s · 1 turn, 2 tool calls, tokens 1 234 in (800 cached), 56 out, $0.0100"
        );
        let killed =
            status(json!({"state": "finished", "end": "killed", "exit-signal": 9, "error": "by somebody"}));
        assert_eq!(summary(&killed, PLAIN), "killed · signal 9 · by somebody");
    }

    #[test]
    fn uncertainty_is_never_shown_as_an_end() {
        let uncertain = status(
            json!({"state": "reconciliation-required", "end": "interrupted", "error": "its owner died"}),
        );
        assert_eq!(summary(&uncertain, PLAIN), "reconciliation-required · its owner died");
    }

    #[test]
    fn a_session_that_asks_wants_attention() {
        let asking = status(json!({
            "run_id": "0192f3c4-5b6a-7c8d-9e0f-112233445566", "state": "driving", "profile": "sh",
            "questions": [{"question": "q1", "about": "permission", "tool": "Bash", "asked": 1, "expires": 2}]
        }));
        assert!(
            list_line(&asking, PLAIN).contains("attention (1 question)"),
            "{}",
            list_line(&asking, PLAIN)
        );
        let lines = status_lines(&asking, PLAIN);
        assert!(lines.contains("asks          q1: permission, Bash, asked "), "{lines}");
        assert!(lines.contains("to answer     sessionctl questions 0192f3c4-"), "{lines}");
    }

    #[test]
    fn a_status_has_its_evidence_and_leftovers() {
        let lines = status_lines(
            &status(json!({
                "run_id": "0192f3c4-5b6a-7c8d-9e0f-112233445566", "state": "finished", "phase": "failed",
                "leftovers": [{"pid": 7, "command": "sleep"}], "activity-complete": false,
                "evidence": [{"source": "lock", "finding": "nobody holds it"}]
            })),
            PLAIN,
        );
        for part in ["sleep (pid 7)", "lock: nobody holds it", "not everything"] {
            assert!(lines.contains(part), "{lines}");
        }
    }
}
