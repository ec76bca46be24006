//! Stopping a program: interrupt, SIGTERM, SIGKILL, each after a grace.

use super::*;

impl Run {
    /// Begins to stop the session, once: the first reason stays, and what has exited is not stopped any more. The
    /// reason is durable before anything is signalled.
    pub(super) async fn begin_stop(&mut self, end: End, error: Option<String>) {
        if self.stop.is_some() || self.exit.is_some() {
            return;
        }
        if end == End::Cancelled {
            self.recorder.fact(&Event::notice(notice::CANCEL_REQUESTED, "cancellation was requested"));
        }
        self.recorder.fact(&Event::Notice {
            reason: notice::STOPPING.into(),
            text: error.clone().unwrap_or_else(|| format!("the session is stopped: {end}")),
            more: Map::from_iter([("end".to_owned(), json!(end))]),
        });
        self.stop = Some(Stop::new(end, error));
        self.in_conversation(|conversation, recorder| conversation.stop(recorder));
        let _ = tokio::time::timeout(REASON_PATIENCE, self.recorder.committer().flush()).await;
        self.publish_now(Stage::Stopping);
        for timer in [Timer::FirstOutput, Timer::Idle, Timer::IdleWarning, Timer::Linger] {
            self.timers.clear(timer);
        }
        match self.dialect.interrupt() {
            Interrupt::Signal(number) => {
                self.signal_main(number);
                self.timers.set(Timer::Stop, self.grace());
            }
            Interrupt::Talk if self.interrupt_in_words() => self.timers.set(Timer::Stop, self.grace()),
            Interrupt::None | Interrupt::Talk => self.next_step().await,
        }
    }

    /// Whether the program could be told in its own words.
    fn interrupt_in_words(&mut self) -> bool {
        let Some(conversation) = &mut self.conversation else { return false };
        conversation.interrupt(&mut self.recorder)
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.claim.plan.grace_ms)
    }

    pub(super) fn signal_main(&self, number: i32) {
        // The main process is our child and not reaped yet, so its pid can be nobody else's.
        if let (Some(main), None, Ok(signal)) = (self.main, &self.exit, Signal::try_from(number)) {
            let _ = kill(main, signal);
        }
    }

    /// The last step was not enough.
    pub(super) async fn next_step(&mut self) {
        let grace = self.grace();
        let Some(stop) = &mut self.stop else { return };
        let (step, wait) = match stop.step {
            Step::Interrupt => (Step::Terminate, grace),
            Step::Terminate => (Step::Kill, Duration::from_secs(10)),
            Step::Kill | Step::GiveUp => (Step::GiveUp, Duration::ZERO),
        };
        stop.step = step;
        let result = match step {
            Step::Terminate => stop::signal(&self.containment, Signal::SIGTERM).await,
            Step::Kill => stop::signal(&self.containment, Signal::SIGKILL).await,
            // The kernel does not let go of it: it is named as a leftover.
            Step::GiveUp | Step::Interrupt => return self.main_is_gone(None),
        };
        if let Err(error) = result {
            self.recorder
                .fact(&Event::notice(notice::WARNING, format!("signalling the session failed: {error}")));
        }
        self.timers.set(Timer::Stop, wait);
    }
}
