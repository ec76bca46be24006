//! What applications tell a running session: messages, and answers to its questions.
//!
//! Each is one entry of the session's inbox, durable before it is acknowledged. The lock on the inbox puts senders in
//! order; the driver then tells the executor, which reads on by itself. What was said before is answered from the inbox
//! and the receipts, for ever: while the session runs, after its end, after a restart.

use std::sync::Arc;
use std::time::Duration;

use super::blocking::blocking;
use super::live::{Live, Talked};
use super::{Error, Hub};
use crate::crash;
use crate::dialect;
use crate::executor::now_us;
use crate::model::{
    Answer, InboxEntry, Message, MessageMode, MessageStatus, OpenQuestion, RunId, State, Word, shown,
};
use crate::spool::{Inbox, Named};

/// The most entries of one inbox: messages, which have a lower limit of their own, and answers.
const ENTRIES: usize = 16_384;

/// How long it may take after a restart until it is known how far everything has come: a living executor tells it, the
/// journal of a dead one.
const TELLING: Duration = Duration::from_secs(2);

/// See [`Sessions::send`](super::Sessions::send).
pub(super) async fn send(hub: &Arc<Hub>, run_id: RunId, message: Message) -> Result<MessageStatus, Error> {
    let limits = hub.config().limits.clone();
    message.check(limits.message)?;
    let word = Word::Message(message.clone());
    let known = move |inbox: &Inbox, talked: &Talked, word: &Word| {
        Ok(match inbox.find(&Named::of(word)) {
            None => None,
            Some((_, slot)) if !slot.says(word) => {
                return Err(Error::MessageChanged { run_id, request_id: message.shown() });
            }
            Some((entry, _)) => {
                let Message { request_id, mode, .. } = message.clone();
                Some(MessageStatus { request_id, mode, receipt: talked.receipt(entry) })
            }
        })
    };
    let Some(live) = hub.reach(run_id).await? else {
        let found = in_ended(hub, run_id, move |inbox, talked| known(inbox, talked, &word)).await?;
        return found.ok_or(Error::NotRunning(run_id));
    };
    told(&live).await;
    in_inbox(&live, move |live, inbox| {
        let known = |inbox: &Inbox| known(inbox, &live.talked.borrow(), &word);
        if let Some(status) = known(inbox)? {
            return Ok(status);
        }
        takes_words(live)?;
        let Word::Message(message) = &word else { return Err(Error::NotRunning(run_id)) };
        can_be_told(live, message.mode)?;
        if inbox.messages() >= limits.messages as usize || inbox.len() >= ENTRIES {
            return Err(Error::TooManyMessages { run_id, most: limits.messages });
        }
        append(live, inbox, &word)?;
        // It may have come too late for a session that ended meanwhile.
        known(inbox)?.ok_or_else(|| Error::Internal("a stored message is not in its inbox".into()))
    })
    .await
}

/// See [`Sessions::answer`](super::Sessions::answer).
pub(super) async fn answer(
    hub: &Arc<Hub>,
    run_id: RunId,
    question: &str,
    answer: Answer,
) -> Result<(), Error> {
    let most = hub.config().limits.message;
    let word = Word::Answer { question: question.to_owned(), answer };
    let Some(live) = hub.reach(run_id).await? else {
        return in_ended(hub, run_id, move |inbox, talked| is_settled(run_id, inbox, talked, &word)).await;
    };
    told(&live).await;
    in_inbox(&live, move |live, inbox| {
        let Word::Answer { question, answer } = &word else { return Err(Error::NotRunning(run_id)) };
        let Some(open) = open_question(live, inbox, question) else {
            let stored = inbox.find(&Named::of(&word)).is_some();
            if !stored && live.status.borrow().state == State::ReconciliationRequired {
                // What was open when its executor died is settled by Reconcile, and not before.
                return Err(Error::NotRunning(run_id));
            }
            let talked = live.talked.borrow();
            if talked.untold && !stored {
                takes_words(live)?;
                return Err(Error::Internal(format!(
                    "the executor of session {run_id} does not answer, so that its questions are not known; try again"
                )));
            }
            return is_settled(run_id, inbox, &talked, &word);
        };
        open.check(answer, most)?;
        if inbox.len() >= ENTRIES {
            return Err(Error::TooManyMessages { run_id, most: ENTRIES as u32 });
        }
        append(live, inbox, &word)
    })
    .await
}

/// Waits until it is known how far everything has come; not for ever, the executor may be stopped.
async fn told(live: &Live) {
    let mut talked = live.talked.subscribe();
    let _ = tokio::time::timeout(TELLING, talked.wait_for(|talked| !talked.untold)).await;
}

/// An open question to which no answer is stored.
fn open_question(live: &Live, inbox: &Inbox, id: &str) -> Option<OpenQuestion> {
    if inbox.find(&Named::Answer(id.to_owned())).is_some() {
        return None;
    }
    live.status.borrow().questions.iter().find(|open| open.question == id).cloned()
}

/// The answer to an answer that changes nothing: it was given before, the question is settled, or was never asked.
fn is_settled(run_id: RunId, inbox: &Inbox, talked: &Talked, word: &Word) -> Result<(), Error> {
    let Word::Answer { question, .. } = word else { return Err(Error::NotRunning(run_id)) };
    let name = shown(question);
    match inbox.find(&Named::of(word)) {
        Some((_, slot)) if slot.says(word) => Ok(()),
        Some(_) => Err(Error::QuestionSettled { run_id, question: name }),
        None if was_asked(question, talked.asked) => Err(Error::QuestionSettled { run_id, question: name }),
        None => Err(Error::UnknownQuestion { run_id, question: name }),
    }
}

/// Whether that is the id of one of the first so many questions.
fn was_asked(id: &str, asked: u32) -> bool {
    let number = id.strip_prefix('q').and_then(|number| number.parse::<u32>().ok());
    number.is_some_and(|number| (1..=asked).contains(&number) && id == format!("q{number}"))
}

/// The session has a program, or is going to have one.
fn takes_words(live: &Live) -> Result<(), Error> {
    match live.status.borrow().state {
        State::Queued | State::Accepted | State::Driving => Ok(()),
        State::Finished | State::ReconciliationRequired => Err(Error::NotRunning(live.run_id)),
    }
}

fn can_be_told(live: &Live, mode: MessageMode) -> Result<(), Error> {
    let name = live.status.borrow().dialect.clone();
    let dialect = dialect::find(&name)
        .ok_or_else(|| Error::Unsupported(format!("the dialect {name:?} is not known any more")))?;
    match dialect::unable_to_hear(dialect, mode) {
        Some(unable) => Err(Error::Unsupported(unable.to_string())),
        None => Ok(()),
    }
}

/// Stores an entry and has it passed on. Only what is durable is acknowledged.
fn append(live: &Live, inbox: &mut Inbox, word: &Word) -> Result<(), Error> {
    let read = live.talked.borrow().receipts.len();
    if read > inbox.len() {
        // One that was added now would get the receipt of one that is gone.
        let what = format!("its executor read {read} entries of its inbox, and {} are left", inbox.len());
        return Err(Error::Damaged { run_id: live.run_id, what });
    }
    inbox.append(&InboxEntry { time: now_us(), word: word.clone() })?;
    crash::point("daemon.told");
    live.mail.send_modify(|count| *count += 1);
    Ok(())
}

/// Does something with the inbox of a session that has a driver, after everybody who came before.
async fn in_inbox<T: Send + 'static>(
    live: &Arc<Live>,
    act: impl FnOnce(&Live, &mut Inbox) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let live = live.clone();
    // The lock goes along, so that a caller who leaves does not let the next one in too early.
    let mut held = live.inbox.clone().lock_owned().await;
    blocking(move || {
        let inbox = match held.take() {
            Some(inbox) => inbox,
            None => live.dir.inbox()?,
        };
        act(&live, held.insert(inbox))
    })
    .await
}

/// Looks into the inbox of a session that has none.
async fn in_ended<T: Send + 'static>(
    hub: &Arc<Hub>,
    run_id: RunId,
    look: impl FnOnce(&Inbox, &Talked) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let dir = hub.folder(run_id).await?;
    blocking(move || {
        let talked = dir.outcome()?.as_ref().map(Talked::of).unwrap_or_default();
        look(&dir.inbox()?, &talked)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_as_they_were_given_were_asked() {
        for (id, asked) in [("q1", true), ("q3", true), ("q4", false), ("q0", false), ("q01", false)] {
            assert_eq!(was_asked(id, 3), asked, "{id}");
        }
        for id in ["", "q", "1", "q-1", "q+1", "q99999999999"] {
            assert!(!was_asked(id, u32::MAX), "{id}");
        }
    }
}
