//! What a conversation begins with, from the claim and the session's folder.

use std::io::Read;

use super::staged::{self, Staged};
use crate::dialect::Opening;
use crate::model::Plan;
use crate::spool::SessionDir;

/// The opening of a session's conversation.
///
/// # Errors
/// The input or an attachment cannot be read, the input is not UTF-8, or an attachment is not what was admitted.
pub fn opening(plan: &Plan, dir: &SessionDir) -> Result<Opening, Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    if let Some(mut input) = dir.input()? {
        input.read_to_end(&mut bytes).map_err(|error| format!("its input cannot be read: {error}"))?;
    }
    let prompt = String::from_utf8(bytes).map_err(|_| {
        let dialect = &plan.dialect;
        format!("its input is not UTF-8, and the dialect {dialect} writes it to the program as text")
    })?;
    let Staged { attachments, schema, conversation } = staged::read(dir, plan)?;
    Ok(Opening { prompt, attachments, schema, conversation, directory: plan.directory.clone() })
}
