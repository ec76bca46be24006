use std::collections::HashMap;

use clap::Args;
use serde_json::{Map, Value};

use super::asking::Question;
use super::text::shortened;
use super::view::tool_input;
use super::{Context, Exit, Failure};
use crate::client::{Client, Error, Filter, FollowOptions, SessionStatus};
use crate::model::{Entry, RunId, State};

/// The longest input of a tool shown, in characters.
const DETAILS: usize = 2000;

/// Lists the questions that wait for an answer.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The session's run_id, or the first 4 or more characters of it [default: all sessions]
    pub session: Option<String>,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect().await?;
    let mut found = 0;
    for session in sessions(arguments.session.as_deref(), &client, context).await? {
        let records = records(&client, &session, context).await?;
        for open in session.questions() {
            found += 1;
            let record = records.get(Question(open).id());
            match context.out.json {
                true => context.out.value(&joined(&session, open, record))?,
                false => {
                    let lines = lines(&session, open, record);
                    context.out.line(&context.out.style.text(&lines.join("\n")))?;
                }
            }
        }
    }
    if found == 0 && !context.out.json {
        context.out.note("no question waits for an answer");
    }
    Ok(Exit::Ok)
}

/// The sessions that ask something.
async fn sessions(
    named: Option<&str>,
    client: &Client,
    context: &Context,
) -> Result<Vec<SessionStatus>, Failure> {
    if let Some(name) = named {
        let run_id = context.session(client, name).await?;
        return Ok(vec![client.status(run_id).await?]);
    }
    let mut filter = Filter { state: Some(State::Driving), limit: Some(1000), ..Filter::default() };
    let mut asking = Vec::new();
    loop {
        let (page, next) = client.list(&filter).await?;
        asking.extend(page.into_iter().filter(SessionStatus::asks));
        if next.is_empty() {
            return Ok(asking);
        }
        filter.cursor = Some(next);
    }
}

/// What the journal says of the session's open questions, by their ids: a status has only what is not private.
async fn records(
    client: &Client,
    session: &SessionStatus,
    context: &Context,
) -> Result<HashMap<String, Map<String, Value>>, Failure> {
    let run_id = session.run_id()?;
    let mut wanted: Vec<&str> = session.questions().map(|open| Question(open).id()).collect();
    match search(client, run_id, &mut wanted).await {
        // The questions can be answered all the same.
        Err(Error::Refused { name, text }) => {
            context.out.note(&format!("what session {run_id} asks cannot be read: {name}: {text}"));
            Ok(HashMap::new())
        }
        other => Ok(other?),
    }
}

async fn search(
    client: &Client,
    run_id: RunId,
    wanted: &mut Vec<&str>,
) -> Result<HashMap<String, Map<String, Value>>, Error> {
    let mut found = HashMap::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    let mut follow = client.follow(run_id, "start", FollowOptions { raw: false, live: false }).await?;
    while let Some(line) = follow.next_line().await? {
        // Most lines of a long journal are something else, and need not be read whole.
        if !line.contains("\"question\"") {
            continue;
        }
        let entry: Entry = serde_json::from_str(&line).map_err(|error| Error::Answer(error.to_string()))?;
        let id = Question(&entry.details).id().to_owned();
        if entry.kind == "question" && wanted.contains(&id.as_str()) {
            wanted.retain(|wanted| *wanted != id);
            found.insert(id, entry.details);
        }
        if wanted.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// A question for programs: what the status says, with what only the record has (`text`, `labels` by the choices' ids,
/// `details`).
fn joined(
    session: &SessionStatus,
    open: &Map<String, Value>,
    record: Option<&Map<String, Value>>,
) -> Map<String, Value> {
    let mut joined = open.clone();
    joined.insert("run_id".to_owned(), Value::from(session.text("run_id")));
    let Some(record) = record else { return joined };
    for key in ["text", "details"] {
        joined.extend(record.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    let choices = record.get("choices").and_then(Value::as_array).into_iter().flatten();
    let labels: Map<String, Value> = choices
        .filter_map(|choice| Some((choice["id"].as_str()?.to_owned(), choice.get("label")?.clone())))
        .collect();
    if !labels.is_empty() {
        joined.insert("labels".to_owned(), Value::Object(labels));
    }
    joined
}

/// A question for people: the session, what is asked, and how to answer it.
fn lines(
    session: &SessionStatus,
    open: &Map<String, Value>,
    record: Option<&Map<String, Value>>,
) -> Vec<String> {
    let run_id = session.text("run_id");
    let label = shortened(session.text("label"), 60);
    let asked = Question(open);
    let head = [run_id, asked.id(), &asked.subject(), &asked.age(), &label];
    let mut lines = vec![head.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")];
    if let Some(record) = record {
        lines.extend(Question(record).text().lines().map(|line| format!("    {line}")));
        let details: String = tool_input(record.get("details")).chars().take(DETAILS).collect();
        lines.extend(details.lines().map(|line| format!("    | {line}")));
    }
    let commands = Question(record.unwrap_or(open)).commands(run_id);
    lines.extend(commands.into_iter().map(|command| format!("    {command}")));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn example() -> (SessionStatus, Map<String, Value>, Map<String, Value>) {
        let session = SessionStatus::from_json(object(json!({"run_id": "RUN", "label": "nightly"})));
        let open =
            json!({"question": "q1", "about": "permission", "tool": "Bash", "choices": ["allow", "deny"]});
        let record = json!({
            "question": "q1", "about": "permission", "tool": "Bash", "text": "Run this?\nIt cannot be undone.",
            "choices": [{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Deny"}],
            "details": {"command": "rm -rf build\nmake"}
        });
        (session, object(open), object(record))
    }

    #[test]
    fn people_read_what_is_asked_and_how_to_answer() {
        let (session, open, record) = example();
        assert_eq!(
            lines(&session, &open, Some(&record)),
            [
                "RUN  q1  permission, Bash  nightly",
                "    Run this?",
                "    It cannot be undone.",
                "    | rm -rf build",
                "    | make",
                "    Allow: sessionctl answer RUN q1 allow",
                "    Deny: sessionctl answer RUN q1 deny",
            ]
        );
        assert_eq!(lines(&session, &open, None).len(), 3, "a damaged journal keeps nobody from answering");
    }

    #[test]
    fn programs_get_the_keys_of_the_status_and_what_is_asked() {
        let (session, open, record) = example();
        let joined = Value::Object(joined(&session, &open, Some(&record)));
        assert_eq!(joined["choices"], json!(["allow", "deny"]));
        assert_eq!(joined["labels"], json!({"allow": "Allow", "deny": "Deny"}));
        assert_eq!(
            (&joined["run_id"], &joined["details"]["command"]),
            (&json!("RUN"), &record["details"]["command"])
        );
    }
}
