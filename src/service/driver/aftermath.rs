//! After an executor's connection has ended: what became of the session.

use super::*;

impl Driver {
    /// No connection speaks for the session: what does the disk say?
    pub(super) async fn examine(&mut self, child: Option<Child>) -> Result<Step, Error> {
        if let Some(mut child) = child {
            // Our own child: its end is an event, and reaps it.
            let _ = tokio::time::timeout(LOCK_PATIENCE, child.wait()).await;
        }
        let until = Instant::now() + LOCK_PATIENCE;
        let mut pause = Duration::from_millis(1);
        loop {
            let dir = self.live.dir.clone();
            match blocking(move || examine::examine(&dir)).await? {
                Finding::Ended(outcome) => return Ok(Step::Deliver(outcome)),
                Finding::NeverStarted(lock) => {
                    drop(lock);
                    self.live.talked.send_modify(|talked| talked.untold = false);
                    return Ok(Step::Launch);
                }
                Finding::Died(_) => return Ok(Step::Died),
                Finding::Owned => {}
            }
            if let Ok(link) = Link::connect(&self.live.dir.control_socket()).await {
                if self.record.state != State::Driving {
                    self.note(|record| {
                        record.state = State::Driving;
                        record.error = None;
                    })
                    .await;
                }
                return Ok(Step::Attend(Box::new(link), None));
            }
            if Instant::now() >= until {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
        self.save(|record| {
            record.state = State::ReconciliationRequired;
            record.error = Some("its owner lock is held by a process that does not answer".into());
        })
        .await?;
        Ok(Step::Uncertain { again: true })
    }

    /// The executor died while the program may have run. What is left of the tree is stopped before anything is said.
    pub(super) async fn died(&mut self) -> Result<Step, Error> {
        let claim = self.claim().await?;
        let left = match &claim {
            Some(claim) => examine::clear_tree(self.live.run_id, claim, self.record.cgroup.clone()).await,
            None => Ok(Vec::new()),
        };
        let (left, mut why) = match left {
            Ok(left) if left.is_empty() => (
                left,
                "its executor died while it ran: what it did after its last record is unknown; no process of it is found"
                    .to_owned(),
            ),
            Ok(left) => {
                let names: Vec<String> = left.iter().map(|l| format!("{} ({})", l.pid, l.command)).collect();
                let names = names.join(", ");
                (left, format!("its executor died while it ran, and these could not be stopped: {names}"))
            }
            Err(error) => {
                (Vec::new(), format!("its executor died while it ran, and its processes cannot be looked for: {error}"))
            }
        };
        let (dir, dialect) = (self.live.dir.clone(), self.record.dialect.clone());
        let heard = blocking(move || match dir.lock_owner()? {
            Ownership::Taken(lock) => unstarted::hear(&dir, lock, &dialect, left),
            Ownership::Held => Ok(None),
        })
        .await;
        match heard {
            // It died after it had written down how the session ended.
            Ok(Some(Testimony { outcome: Some(outcome), .. })) => {
                return Ok(Step::Deliver(Box::new(outcome)));
            }
            Ok(testimony) => {
                let (head, talked) = testimony.map(|told| (told.head, told.talked)).unzip();
                self.live.talked.send_replace(Talked { over: true, ..talked.unwrap_or_default() });
                let open = self.live.status.borrow().questions.clone();
                self.live.status.send_modify(|status| status.questions.clear());
                self.announce_questions(&open, &[]);
                let epoch = claim.map(|claim| claim.epoch);
                self.live.head.send_modify(|known| {
                    known.offset = head.unwrap_or(known.offset);
                    known.epoch = epoch.or(known.epoch.take());
                });
            }
            Err(error) => {
                tracing::error!(run_id = %self.live.run_id, %error, "its journal cannot be repaired");
                self.live.talked.send_modify(|talked| talked.untold = false);
                why = format!("{why}; its journal cannot be repaired: {error}");
            }
        }
        self.save(|record| {
            record.state = State::ReconciliationRequired;
            // There is a journal, so it may have run, whether or not its executor lived to say so.
            record.phase = Phase::Running;
            record.error = Some(why);
        })
        .await?;
        self.ticket = None;
        self.answer(None);
        Ok(Step::Uncertain { again: false })
    }

    /// Only an operator, or an executor that answers again, can say more.
    pub(super) async fn uncertain(&mut self, again: bool) -> Result<Step, Error> {
        loop {
            tokio::select! {
                command = self.mailbox.recv() => match command {
                    Some(Command::Cancel(reply)) => {
                        self.asked = Some((reply, self.evidence().await?));
                        self.wish_to_cancel().await;
                        return self.resolve().await;
                    }
                    Some(Command::Reconcile(reply)) => {
                        self.asked = Some((reply, self.evidence().await?));
                        return self.resolve().await;
                    }
                    None => return Ok(Step::Leave),
                },
                _ = stop(&mut self.stopping) => return Ok(Step::Leave),
                () = tokio::time::sleep(LOCK_INTERVAL), if again => {
                    let dir = self.live.dir.clone();
                    let owned = blocking(move || Ok(matches!(dir.lock_owner()?, Ownership::Held))).await?;
                    if !owned || Link::connect(&self.live.dir.control_socket()).await.is_ok() {
                        return Ok(Step::Examine(None));
                    }
                }
            }
        }
    }

    /// Settles an uncertain session if everything that can still be known is known.
    pub(super) async fn resolve(&mut self) -> Result<Step, Error> {
        let dir = self.live.dir.clone();
        match blocking(move || examine::examine(&dir)).await? {
            Finding::Owned => {
                self.answer(None);
                Ok(Step::Examine(None))
            }
            Finding::Ended(outcome) => Ok(Step::Deliver(outcome)),
            Finding::NeverStarted(lock) => {
                // It is taken again for the settling.
                drop(lock);
                let why = match &self.record.error {
                    Some(error) => format!("it was never started: {error}"),
                    None => "it was never started, and its record could not be kept".to_owned(),
                };
                // Whoever holds the lock now may go on; to look again starts nothing.
                match self.settle_unstarted(End::Interrupted, Some(why)).await? {
                    Step::Examine(_) => {
                        self.answer(None);
                        Ok(Step::Uncertain { again: true })
                    }
                    step => Ok(step),
                }
            }
            Finding::Died(lock) => {
                let claim = self.claim().await?;
                let left = match &claim {
                    Some(claim) => examine::clear_tree(self.live.run_id, claim, self.record.cgroup.clone())
                        .await
                        .map_err(|error| {
                            Error::Internal(format!("processes cannot be looked for: {error}"))
                        })?,
                    None => Vec::new(),
                };
                let (dir, dialect) = (self.live.dir.clone(), self.record.dialect.clone());
                let why = self.record.error.clone();
                let outcome =
                    blocking(move || unstarted::interrupted(&dir, lock, &dialect, left, why)).await?;
                Ok(Step::Deliver(Box::new(outcome)))
            }
        }
    }
}
