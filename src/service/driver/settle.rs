//! The end: the outcome delivered, the record finished, the session put away.

use super::*;

impl Driver {
    /// Ends a session whose program was never started, in a journal of one record.
    pub(super) async fn settle_unstarted(&mut self, end: End, error: Option<String>) -> Result<Step, Error> {
        let dir = self.live.dir.clone();
        let attempt = self.record.attempt;
        match blocking(move || unstarted::settle(&dir, attempt, end, error)).await? {
            Some(outcome) => Ok(Step::Deliver(Box::new(outcome))),
            None => Ok(Step::Examine(None)),
        }
    }

    /// Hands the outcome to the controller, finishes the record and moves the session to the ended ones.
    pub(super) async fn deliver(&mut self, outcome: Outcome) -> Result<Step, Error> {
        crash::point("daemon.outcome");
        self.ticket = None;
        self.lease = None;
        let phase = match self.hub.controller.deliver(&self.binding(), &outcome).await {
            Ok(phase) => phase,
            Err(error) => return Ok(self.keep_outcome(outcome, &error).await),
        };
        crash::point("daemon.delivered");
        let mut record = self.record.clone();
        record.state = State::Finished;
        record.phase = phase;
        record.end = Some(outcome.end);
        record.error = outcome.error.clone();
        record.started = outcome.started.or(record.started);
        record.ended = Some(outcome.ended);
        record.attempt = record.attempt.max(outcome.attempt);
        record.delivered = true;
        let put_away = self.put_away(&record).await;
        if let Some(cgroup) = record.cgroup.clone() {
            // Nobody waits for it: what is left of it is empty, or was to stay.
            tokio::task::spawn_blocking(move || containment::discard(&cgroup));
        }
        // The outcome is durable, whatever became of the record: this is how the session ended, now and after a restart.
        self.record = record;
        self.show_end(&outcome);
        match put_away {
            Ok(()) => {
                self.hub.live().remove(&self.live.run_id);
                Ok(Step::Leave)
            }
            Err(error) => {
                tracing::error!(run_id = %self.live.run_id, %error, "the ended session cannot be put away yet");
                Ok(Step::PutAway(Box::new(outcome)))
            }
        }
    }

    /// Shows how the session ended: to readers, who come to the end of its journal, and to whoever waits for an answer.
    pub(super) fn show_end(&mut self, outcome: &Outcome) {
        let head = Head::settled(Some(outcome));
        if self.live.head.borrow().offset < head.offset {
            self.advance.moved();
        }
        self.live.head.send_replace(head);
        self.live.talked.send_replace(Talked::of(outcome));
        self.show_advance();
        self.show(live::status(&self.record, Some(outcome)));
        self.answer(Some(outcome));
    }

    /// Stores the last record and moves the session to the ended ones.
    pub(super) async fn put_away(&self, record: &Record) -> Result<(), Error> {
        let (dir, hub, saved) = (self.live.dir.clone(), self.hub.clone(), record.clone());
        // Nothing is acknowledged while the folder is tidied and moved.
        let _turn = self.hub.turns.take(record.run_id).await;
        blocking(move || {
            // A settling that failed half-way may have moved it already.
            if !matches!(hub.spool.locate(saved.run_id)?, Place::Ended(_)) {
                dir.write_record(&saved)?;
                crash::point("daemon.finished");
            }
            hub.spool.settle(saved.run_id)?;
            crash::point("daemon.settled");
            Ok(())
        })
        .await?;
        self.hub.retention_due.notify_one();
        Ok(())
    }

    /// The session ended and everybody knows it, but the disk did not take that. It is tried again now and then, when
    /// somebody asks, and at the next start.
    pub(super) async fn put_away_later(&mut self, outcome: Outcome) -> Result<Step, Error> {
        loop {
            let asked = tokio::select! {
                command = self.mailbox.recv() => match command {
                    Some(Command::Cancel(reply) | Command::Reconcile(reply)) => Some(reply),
                    None => return Ok(Step::Leave),
                },
                _ = stop(&mut self.stopping) => return Ok(Step::Leave),
                () = tokio::time::sleep(DISK_INTERVAL) => None,
            };
            let put_away = self.put_away(&self.record).await;
            if let Some(reply) = asked {
                let mut status = live::status(&self.record, Some(&outcome));
                status.acknowledged = self.live.acknowledged();
                status.evidence = self.evidence().await?;
                let _ = reply.send(Ok(status));
            }
            if put_away.is_ok() {
                self.hub.live().remove(&self.live.run_id);
                return Ok(Step::Leave);
            }
        }
    }
}
