//! What applications tell a running session: messages, and answers to its questions.

use std::sync::Arc;

use super::{Error, Hub};
use crate::model::{Answer, Message, MessageStatus, RunId};

/// See [`Sessions::send`](super::Sessions::send).
pub(super) async fn send(hub: &Arc<Hub>, run_id: RunId, message: Message) -> Result<MessageStatus, Error> {
    message.check(hub.config().limits.message)?;
    Err(Error::NotRunning(run_id))
}

/// See [`Sessions::answer`](super::Sessions::answer).
pub(super) async fn answer(
    hub: &Arc<Hub>,
    run_id: RunId,
    question: &str,
    answer: Answer,
) -> Result<(), Error> {
    let _ = (hub, question, answer);
    Err(Error::NotRunning(run_id))
}
