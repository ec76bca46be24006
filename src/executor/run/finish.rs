//! The last records, and the outcome.

use serde_json::Value;

use super::*;
use crate::executor::staged;
use crate::schema::{Finding, VALUE_MAX};

impl Run {
    /// The last records, then the outcome, then the last report.
    pub(super) async fn finish(&mut self) -> Result<(), Fatal> {
        if let Some(conversation) = &mut self.conversation {
            conversation.end(&mut self.recorder).await;
        }
        if self.main.is_some() {
            self.recorder.reader_end();
            self.recorder.fact(&Event::Exited { exit: self.exit.flatten() });
        }
        let (end, error) = self.end();
        let (end, error, value) = self.output(end, error).await;
        self.recorder.fact(&Event::Ended {
            end,
            error: error.clone(),
            leftovers: self.leftovers.clone(),
            activity_complete: self.recorder.complete(),
            value: value.clone(),
        });
        let durable = self.recorder.committer().flush().await;
        crash::point("executor.ended");
        let outcome = self.outcome(&durable, end, error, value);
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || dir.write_outcome(&outcome)).await??;
        crash::point("executor.outcome");
        let _ = std::fs::remove_file(self.capture_path());
        if self.leftovers.is_empty() {
            self.containment.remove();
        }
        self.publish(&durable, Stage::Ended);
        Ok(())
    }

    pub(super) fn end(&self) -> (End, Option<String>) {
        if let Some(stop) = &self.stop {
            return (stop.end, stop.error.clone());
        }
        let verdict = &self.recorder.reading().verdict;
        let exit = self.exit.flatten();
        if stop::was_killed_for_memory(exit, self.memory_kills, self.containment.memory_kills()) {
            let limit = self.claim.plan.resources.memory_max;
            let limit = limit.map_or(String::new(), |limit| format!(" (its limit is {limit} bytes)"));
            let why = format!("the kernel killed it for lack of memory{limit}");
            return (End::OutOfMemory, Some(why));
        }
        let end = derive_end(verdict, exit, self.dialect.has_verdicts());
        let error = (end != End::Completed).then(|| match (&verdict.message, exit) {
            (Some(message), _) => message.clone(),
            (None, Some(Exit::Code(0))) => "exited without saying whether it succeeded".to_owned(),
            (None, Some(Exit::Code(code))) => format!("exited with code {code}"),
            (None, Some(Exit::Signal(signal))) => format!("was ended by signal {signal}"),
            (None, None) => "is gone, and nobody knows how".to_owned(),
        });
        (end, error)
    }

    /// The structured output of a session that completed, where one was asked for: what its answer is as a value. An
    /// answer that does not fit changes the end.
    async fn output(&mut self, end: End, error: Option<String>) -> (End, Option<String>, Value) {
        if end != End::Completed || !self.claim.plan.output_schema {
            return (end, error, Value::Null);
        }
        let (dir, answer) = (self.dir.clone(), self.recorder.reading().text.clone());
        // Another process does it, with limits; this thread only waits for that.
        match tokio::task::spawn_blocking(move || staged::output(&dir, answer.as_deref())).await {
            Ok(Ok(Finding::Fits(value))) => (end, error, value),
            Ok(Ok(Finding::TooLong(bytes))) => {
                let text = format!(
                    "the structured output is {bytes} bytes of JSON, more than {VALUE_MAX}: it is not kept apart from the \
                     answer's text"
                );
                self.recorder.fact(&Event::notice(notice::WARNING, text));
                (end, error, Value::Null)
            }
            Ok(Ok(Finding::Misfit(fault))) => (End::InvalidOutput, Some(fault.to_string()), Value::Null),
            Ok(Err(why)) => (End::InvalidOutput, Some(why), Value::Null),
            Err(_) => {
                let why = "the check of the answer against output-schema broke off".to_owned();
                (End::InvalidOutput, Some(why), Value::Null)
            }
        }
    }

    pub(super) fn outcome(
        &self,
        durable: &Durable,
        end: End,
        error: Option<String>,
        value: Value,
    ) -> Outcome {
        let reading = self.recorder.reading();
        // A journal that failed says less than happened, however the program ended.
        let (end, error) = match &durable.failure {
            Some(failure) => (End::JournalFailed, Some(failure.clone())),
            None => (end, error),
        };
        let (text, text_cut) = cut(reading.text.clone());
        Outcome {
            version: OUTCOME_VERSION,
            run_id: self.dir.run_id(),
            attempt: self.claim.attempt,
            epoch: self.claim.epoch.clone(),
            head: durable.head,
            end,
            error,
            exit: self.exit.flatten(),
            verdict: reading.verdict.clone(),
            text,
            text_cut,
            value: if end == End::Completed { value } else { Value::Null },
            receipts: self.conversation.as_ref().map(|c| c.receipts().to_vec()).unwrap_or_default(),
            asked: self.conversation.as_ref().map_or(0, Conversation::asked),
            usage: reading.usage,
            conversation: reading.conversation.clone(),
            progress: reading.progress.clone(),
            leftovers: self.leftovers.clone(),
            activity_complete: self.recorder.complete() && durable.failure.is_none(),
            started: self.started,
            ended: now_us(),
        }
    }
}

/// The outcome of a session whose journal could not be created: nothing was started.
pub(super) fn without_journal(dir: &SessionDir, claim: &Claim, error: &JournalError) -> Outcome {
    Outcome {
        error: Some(format!("the program was not started: {error}")),
        ..Outcome::of_nothing(dir.run_id(), claim.attempt, claim.epoch.clone(), End::JournalFailed, now_us())
    }
}

fn cut(text: Option<String>) -> (Option<String>, bool) {
    match text {
        Some(mut text) if text.len() > TEXT_MAX => {
            let end = (0..=TEXT_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(end);
            (Some(text), true)
        }
        text => (text, false),
    }
}
