//! While an executor runs the session: its reports, and what it is asked.

use super::lease::Word;
use super::*;
use crate::dialect;

impl Driver {
    /// Listens to the executor until its connection ends.
    pub(super) async fn attend(&mut self, mut link: Link, child: Option<Child>) -> Result<Step, Error> {
        let mut told: Option<End> = None;
        let seconds = self.claim().await?.and_then(|claim| claim.plan.lease_seconds);
        self.keep_lease(seconds);
        // What was said before this connection existed may not have been told.
        let mut mail = self.live.mail.subscribe();
        if self.is_talked_to() {
            mail.mark_changed();
        }
        let mut listens = false;
        loop {
            // Whatever was asked before this connection existed is asked again; the first reason stays.
            let wanted = if *self.stopping.borrow() == Stopping::Cancel {
                Some(End::StoppedWithService)
            } else {
                let cancelled = self.record.cancel_requested.map(|_| End::Cancelled);
                cancelled.or(self.lease_lost.then_some(End::LeaseLost))
            };
            if let (None, Some(end)) = (told, wanted) {
                told = Some(end);
                let _ = link.send(&Request::Stop { end });
            }
            tokio::select! {
                word = lease::word(&mut self.lease) => match word {
                    Word::Renewed { until, cancel_requested } => {
                        let _ = link.send(&Request::Renew { until: Some(until) });
                        if cancel_requested && self.record.cancel_requested.is_none() {
                            self.note(|record| record.cancel_requested = Some(now_us())).await;
                        }
                    }
                    Word::Lost(why) => {
                        tracing::warn!(run_id = %self.live.run_id, why, "the lease is lost");
                        self.lease_lost = true;
                    }
                },
                report = link.report() => match report {
                    Some(report) if report.stage == Stage::Waiting => {
                        let stands = self.lease_stands();
                        let begin = self.record.cancel_requested.is_none()
                            && *self.stopping.borrow() == Stopping::No
                            && !self.lease_lost
                            && stands.is_ok();
                        let go = Request::Go { placement: self.placement.clone(), until: stands.ok().flatten() };
                        if !begin || link.send(&go).is_err() {
                            // An executor that is not let go exits without a trace: nothing was started.
                            drop(link);
                            return Ok(Step::Examine(child));
                        }
                        crash::point("daemon.go");
                    }
                    Some(report) => {
                        listens = report.version >= 2;
                        self.take_report(report).await?;
                    }
                    None => return Ok(Step::Examine(child)),
                },
                command = self.mailbox.recv() => match command {
                    Some(Command::Cancel(reply)) => self.cancel_running(reply).await,
                    Some(Command::Reconcile(reply)) => self.explain(reply).await,
                    None => return Ok(Step::Leave),
                },
                how = changed(&mut self.stopping) => if how == Stopping::Detach { return Ok(Step::Leave) },
                Ok(()) = mail.changed(), if listens => {
                    let _ = link.send(&Request::Mail);
                }
                () = self.advance.due() => self.show_advance(),
            }
        }
    }

    /// Its family can be told something while it runs.
    fn is_talked_to(&self) -> bool {
        let features =
            dialect::find(&self.record.dialect).map(|dialect| dialect.features()).unwrap_or_default();
        features.steer || features.follow_up || features.questions
    }

    pub(super) async fn cancel_running(&mut self, reply: Reply) {
        self.wish_to_cancel().await;
        let _ = reply.send(Ok(self.hub.status_of(&self.live)));
    }

    pub(super) async fn take_report(&mut self, report: Report) -> Result<(), Error> {
        if self.record.started.is_none() && report.started.is_some() {
            let started = report.started;
            // The journal has it: a full disk is no reason to leave a session that runs.
            self.note(|record| {
                record.started = started;
                record.phase = Phase::Running;
            })
            .await;
        }
        if let Some(containment) = report.containment
            && self.record.containment.as_ref() != Some(&containment)
        {
            self.note(|record| record.containment = Some(containment.clone())).await;
        }
        let open = self.live.status.borrow().questions.clone();
        self.live.status.send_modify(|status| {
            status.questions.clone_from(&report.questions);
            status.progress = report.progress;
            status.verdict = report.verdict;
            status.conversation = report.conversation;
            status.activity_complete = report.activity_complete;
        });
        let (receipts, asked) = (report.receipts, report.asked);
        self.live.talked.send_replace(Talked { receipts, asked, over: false, untold: false });
        self.announce_questions(&open, &report.questions);
        let moved = self.live.head.send_if_modified(|head| {
            let moved = report.head > head.offset;
            head.offset = head.offset.max(report.head);
            moved
        });
        if moved {
            if self.live.head.borrow().epoch.is_none() {
                self.learn_epoch().await?;
            }
            self.advance.moved();
        }
        Ok(())
    }

    pub(super) async fn learn_epoch(&mut self) -> Result<(), Error> {
        let epoch = self.claim().await?.map(|claim| claim.epoch);
        self.live.head.send_modify(|head| head.epoch = epoch);
        Ok(())
    }
}
