//! What a submission brought along besides its input: attachments, schema, the conversation that goes on.

use serde_json::Value;

use crate::dialect::talk;
use crate::model::Plan;
use crate::schema::{Checker, Finding};
use crate::spool::{SessionDir, SpoolError};

/// What a program's opening words take from it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Staged {
    /// The attachments with their bytes, in their order.
    pub attachments: Vec<talk::Attachment>,
    /// The schema that the answer must fit.
    pub schema: Option<Value>,
    /// The program's own name of the conversation that goes on.
    pub conversation: Option<String>,
}

/// Reads it from the session's folder. It was verified when the session was claimed, and is once more.
///
/// # Errors
/// It cannot be read, or is not what was admitted.
pub fn read(dir: &SessionDir, plan: &Plan) -> Result<Staged, SpoolError> {
    let mut attachments = Vec::with_capacity(plan.attachments.len());
    for attachment in &plan.attachments {
        attachments.push(talk::Attachment {
            name: attachment.name.clone(),
            media_type: attachment.media_type.clone(),
            path: dir.attachment_path(attachment),
            bytes: dir.attachment(attachment)?,
        });
    }
    let schema = match plan.output_schema {
        false => None,
        true => dir.admitted_schema()?.and_then(|text| serde_json::from_str(&text).ok()),
    };
    Ok(Staged { attachments, schema, conversation: plan.conversation.clone() })
}

/// What the final answer is as structured output. Blocks, at most for half a minute. The text of an error is for people.
pub fn output(dir: &SessionDir, answer: Option<&str>) -> Result<Finding, String> {
    let Some(answer) = answer else {
        return Err("there is no answer, and output-schema asks for one".to_owned());
    };
    let unchecked = |why: String| format!("the answer could not be checked against output-schema: {why}");
    let schema = dir.admitted_schema().map_err(|error| unchecked(error.to_string()))?;
    let schema = schema.ok_or_else(|| unchecked("none was submitted".into()))?;
    Checker::ourselves().answer(&schema, answer).map_err(|failure| unchecked(failure.to_string()))
}
