//! The conversation within the pump.

use super::*;
use crate::dialect::Stdin;
use crate::executor::conversation::{Conversation, Happened, Opening};
use crate::executor::opening::opening;

/// A conversation that is ready to begin, and the program's end of it.
pub(super) struct Ready {
    conversation: Conversation,
    opening: Opening,
}

impl Run {
    /// What the program gets on its standard input, and the conversation where its family has one.
    pub(super) fn stdin(&self) -> Result<(Option<std::fs::File>, Option<Ready>), Fatal> {
        let plan = &self.claim.plan;
        let talk = match self.dialect.launch().stdin {
            Stdin::Conversation => self.dialect.talk(&plan.arguments),
            Stdin::InputThenClose => None,
        };
        let Some(talk) = talk else { return Ok((self.dir.input()?, None)) };
        let opening = opening(plan, &self.dir)?;
        let (conversation, stdin) = Conversation::new(talk, self.dir.inbox_reader(), plan.question_seconds)?;
        Ok((Some(stdin.into()), Some(Ready { conversation, opening })))
    }

    /// The program was started: the first lines wait for its standard input.
    pub(super) fn begin_conversation(&mut self, ready: Option<Ready>) {
        let Some(Ready { mut conversation, opening }) = ready else { return };
        self.recorder.listen();
        conversation.open(opening, &mut self.recorder);
        self.conversation = Some(conversation);
    }

    /// Something happened in the conversation.
    pub(super) fn conversed(&mut self, happened: Happened) {
        self.in_conversation(|conversation, recorder| conversation.take(happened, recorder));
    }

    /// The program printed something: what it says to people, and whether it has said its last word.
    pub(super) fn hear_conversation(&mut self) {
        self.in_conversation(|conversation, recorder| conversation.hear(recorder));
    }

    /// Closes the program's standard input when there is nothing more to say, and ends what cannot go on.
    pub(super) async fn tend_conversation(&mut self) {
        let settled = self.recorder.reading().settled;
        let mut failure = None;
        self.in_conversation(|conversation, recorder| {
            failure = conversation.failure();
            conversation.close_when_done(settled, recorder);
        });
        if let Some(why) = failure {
            self.begin_stop(End::Failed, Some(why)).await;
        }
    }

    pub(super) fn in_conversation(&mut self, act: impl FnOnce(&mut Conversation, &mut Recorder)) {
        let Some(conversation) = &mut self.conversation else { return };
        let (asked, open) = (conversation.asks(), conversation.is_open());
        act(conversation, &mut self.recorder);
        let (asks, is_open) = (conversation.asks(), conversation.is_open());
        if asks != asked && self.stop.is_none() {
            // The program does not idle while it waits for people.
            self.quiet_starts_again();
        }
        if is_open != open {
            // From here on only its exit is to come.
            self.lingering_starts();
        }
    }
}

/// Waits for what is next in a conversation; for ever if there is none.
pub(super) async fn next(conversation: Option<&mut Conversation>, durable: u64) -> Happened {
    match conversation {
        Some(conversation) => conversation.next(durable).await,
        None => std::future::pending().await,
    }
}
