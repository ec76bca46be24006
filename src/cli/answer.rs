use clap::Args;
use serde_json::json;

use super::message::given_or_read;
use super::{Context, Exit, Failure};
use crate::model::Answer;

/// Answers a question of a session's program.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Its run_id, or the first 4 or more characters of it
    pub session: String,
    /// The question, such as q1: `sessionctl questions` lists those that are open
    pub question: String,
    /// The id of the choice, where the question has choices
    pub choice: Option<String>,
    /// A text, where the question takes one; - reads standard input. The process list shows a text given here to every
    /// account while sessionctl runs; it does not show a pipe
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Option<String>,
}

pub async fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let text = arguments.text.map(|text| given_or_read(Some(text), context)).transpose()?;
    let answer = Answer { choice: arguments.choice, text };
    let mut client = context.connect().await?;
    let run_id = context.session(&client, &arguments.session).await?;
    let question = arguments.question.as_str();
    context.insist(&mut client, async |client| client.answer(run_id, question, &answer).await).await?;
    match context.out.json {
        true => context.out.value(&json!({"run_id": run_id, "question": question, "stored": true}))?,
        false => context.out.line(&context.out.style.text(&format!("stored  the answer to {question}")))?,
    }
    Ok(Exit::Ok)
}
