//! The session ended, that is durable, and the controller does not have it.

use super::*;
use crate::controller::ControllerError;

impl Driver {
    /// Says that the outcome waits for the controller: how the session ended is known, and shown.
    pub(super) async fn keep_outcome(&mut self, outcome: Outcome, error: &ControllerError) -> Step {
        tracing::warn!(run_id = %self.live.run_id, %error, "the outcome waits for the controller");
        let mut record = self.record.clone();
        record.state = State::ReconciliationRequired;
        record.end = Some(outcome.end);
        record.started = outcome.started.or(record.started);
        record.ended = Some(outcome.ended);
        record.attempt = record.attempt.max(outcome.attempt);
        record.error = Some(format!(
            "it ended as {}; the outcome waits for the controller: {error}; Reconcile delivers it",
            outcome.end
        ));
        let (dir, saved) = (self.live.dir.clone(), record.clone());
        // The outcome is durable: what the record says of it is for observers.
        if let Err(error) = blocking(move || Ok(dir.write_record(&saved)?)).await {
            tracing::warn!(run_id = %self.live.run_id, %error, "its record cannot be stored");
        }
        self.record = record;
        self.show_end(&outcome);
        Step::Undelivered(Box::new(outcome))
    }

    /// Delivery is repeated by Reconcile, and by the next daemon; nothing else asks for it.
    pub(super) async fn undelivered(&mut self, outcome: Outcome) -> Result<Step, Error> {
        loop {
            tokio::select! {
                command = self.mailbox.recv() => match command {
                    // It ended: that is the answer.
                    Some(Command::Cancel(reply)) => {
                        let _ = reply.send(Ok(live::status(&self.record, Some(&outcome))));
                    }
                    Some(Command::Reconcile(reply)) => {
                        self.asked = Some((reply, self.evidence().await.unwrap_or_default()));
                        return Ok(Step::Deliver(Box::new(outcome)));
                    }
                    None => return Ok(Step::Leave),
                },
                _ = stop(&mut self.stopping) => return Ok(Step::Leave),
            }
        }
    }
}
