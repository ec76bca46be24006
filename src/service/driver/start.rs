//! Before there is an executor: the queue, the claim, the start of the executor, and the wait where none of it can be
//! done now.

use super::lease::{Permit, Word};
use super::*;

impl Driver {
    pub(super) async fn wait(&mut self) -> Result<Step, Error> {
        loop {
            if self.record.cancel_requested.is_some() {
                return self.settle_unstarted(End::Cancelled, None).await;
            }
            let granted = async {
                match &mut self.ticket {
                    Some(ticket) => ticket.granted().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = granted => return Ok(Step::Launch),
                command = self.mailbox.recv() => match command {
                    Some(Command::Cancel(reply)) => {
                        self.asked = Some((reply, Vec::new()));
                        self.wish_to_cancel().await;
                    }
                    Some(Command::Reconcile(reply)) => self.explain(reply).await,
                    None => return Ok(Step::Leave),
                },
                word = lease::word(&mut self.lease) => match word {
                    Word::Renewed { cancel_requested: true, .. } => {
                        self.note(|record| record.cancel_requested = Some(now_us())).await;
                    }
                    Word::Renewed { .. } => {}
                    Word::Lost(why) => return self.settle_unstarted(End::LeaseLost, Some(why)).await,
                },
                how = stop(&mut self.stopping) => match how {
                    Stopping::Cancel => {
                        let why = Some("the service was stopped before it began".to_owned());
                        return self.settle_unstarted(End::StoppedWithService, why).await;
                    }
                    _ => return Ok(Step::Leave),
                },
            }
        }
    }

    /// Claims the session and starts its executor.
    pub(super) async fn launch(&mut self) -> Result<Step, Error> {
        if self.record.cancel_requested.is_some() {
            return self.settle_unstarted(End::Cancelled, None).await;
        }
        if *self.stopping.borrow() != Stopping::No {
            return Ok(Step::Wait);
        }
        self.launches += 1;
        if self.launches > LAUNCHES {
            let why =
                format!("the executor {} ends as soon as it is started", self.hub.executor.path.display());
            return self.settle_unstarted(End::SpawnFailed, Some(why)).await;
        }
        match self.permitted().await {
            Permit::Granted => crash::point("daemon.permitted"),
            Permit::Refused(End::Cancelled, why) => {
                self.note(|record| record.cancel_requested = Some(now_us())).await;
                return self.settle_unstarted(End::Cancelled, Some(why)).await;
            }
            Permit::Refused(end, why) => return self.settle_unstarted(end, Some(why)).await,
            Permit::Unknown(error) => return Ok(self.held_back(&error)),
        }
        let lease_seconds = self.hub.controller.lease_seconds();
        let (dir, config, digest) = (self.live.dir.clone(), self.hub.config(), self.record.digest.clone());
        let conversation = self.live.continued.clone();
        let backend = self.hub.placer.backend();
        let claimed = blocking(move || {
            let Ownership::Taken(lock) = dir.lock_owner()? else { return Ok(Claimed::Owned) };
            crash::point("daemon.locked");
            if examine::may_have_run(&dir)? {
                return Ok(Claimed::Owned);
            }
            let submission = dir.submission_as_admitted(&digest)?;
            let given = launch::Given { folder: dir.path(), conversation: conversation.as_ref() };
            let plan = match launch::plan(&config, &submission, given, backend) {
                Ok(mut plan) => {
                    plan.lease_seconds = lease_seconds.or(plan.lease_seconds);
                    plan
                }
                Err(why) => return Ok(Claimed::NoPlan(why)),
            };
            // A claim without a journal is one that came to nothing: nobody holds the lock but us.
            dir.remove_claim(&lock)?;
            let run_id = dir.run_id();
            let (epoch, boot_id) = (new_epoch(), examine::boot_id());
            let claim = Claim {
                version: CLAIM_VERSION,
                run_id,
                attempt: 1,
                epoch,
                boot_id,
                time: now_us(),
                digest,
                plan,
            };
            dir.write_claim(&claim)?;
            crash::point("daemon.claimed");
            Ok(Claimed::Mine(lock, Box::new(claim.plan)))
        })
        .await;
        let (lock, plan) = match claimed {
            Ok(Claimed::Mine(lock, plan)) => (lock, plan),
            Err(error @ (Error::StorageFull(_) | Error::Exhausted(_))) => return Ok(self.held_back(&error)),
            Err(error) => return Err(error),
            Ok(Claimed::Owned) => return Ok(Step::Examine(None)),
            Ok(Claimed::NoPlan(why)) => return self.settle_unstarted(End::SpawnFailed, Some(why)).await,
        };
        // The claim says it durably; what the record says of it is for observers.
        self.note(|record| {
            record.state = State::Driving;
            record.attempt = 1;
            record.containment = Some(backend.name().to_owned());
            record.error = None;
        })
        .await;
        crash::point("daemon.driving");
        let executor = &self.hub.executor;
        match executor.spawn(self.live.dir.path(), lock) {
            Ok((child, socket)) => {
                crash::point("daemon.spawned");
                let link = Link::over(socket)
                    .map_err(|error| Error::Internal(format!("the executor's socket: {error}")))?;
                self.place(&child, &plan).await?;
                crash::point("daemon.placed");
                Ok(Step::Attend(Box::new(link), Some(child)))
            }
            Err(error) if exhausted(&error) => Ok(self.held_back(&Error::Exhausted(error.to_string()))),
            Err(error) => {
                let why = format!("cannot start the executor {}: {error}", executor.path.display());
                self.settle_unstarted(End::SpawnFailed, Some(why)).await
            }
        }
    }

    /// Places an executor that waits for "go". Where it was put is durable before it is let go, so that whatever it
    /// starts is found again.
    pub(super) async fn place(&mut self, child: &Child, plan: &Plan) -> Result<(), Error> {
        // One that is gone already shows in its connection.
        let Some(pid) = child.id() else { return Ok(()) };
        let order = Order {
            run_id: self.live.run_id,
            pid,
            limits: &plan.resources,
            stop_patience: launch::stop_patience(plan),
        };
        self.placement = self.hub.placer.place(&order).await;
        let (name, cgroup) = (self.placement.backend.name(), self.placement.cgroup.clone());
        if self.record.cgroup != cgroup || self.record.containment.as_deref() != Some(name) {
            self.save(|record| {
                record.containment = Some(name.to_owned());
                record.cgroup = cgroup;
            })
            .await?;
        }
        Ok(())
    }

    /// The disk is full, or descriptors are short: what is not started yet waits, and says so.
    pub(super) fn held_back(&mut self, error: &Error) -> Step {
        self.launches -= 1;
        let text = format!("it waits to be started: {error}");
        if self.record.error.as_ref() != Some(&text) {
            tracing::warn!(run_id = %self.live.run_id, %error, "the session waits to be started");
        }
        self.record.error = Some(text);
        self.show_record();
        Step::Hold
    }

    pub(super) async fn hold(&mut self) -> Result<Step, Error> {
        tokio::select! {
            command = self.mailbox.recv() => match command {
                Some(Command::Cancel(reply)) => {
                    self.asked = Some((reply, Vec::new()));
                    self.wish_to_cancel().await;
                    Ok(Step::Launch)
                }
                Some(Command::Reconcile(reply)) => {
                    self.explain(reply).await;
                    Ok(Step::Launch)
                }
                None => Ok(Step::Leave),
            },
            _ = stop(&mut self.stopping) => Ok(Step::Wait),
            () = tokio::time::sleep(DISK_INTERVAL) => Ok(Step::Launch),
        }
    }
}

enum Claimed {
    Mine(crate::spool::OwnerLock, Box<Plan>),
    Owned,
    NoPlan(String),
}
