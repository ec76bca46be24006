//! The loop that reads a program until it is gone and its pipes are empty, and the limits of time.

use super::*;

/// How much is read in one turn of the loop, in bytes: even as lines of one byte it is done in milliseconds.
const TURN: usize = 16 << 10;

impl Run {
    /// Reads everything until the main process is gone and its pipes are empty.
    pub(super) async fn pump(
        &mut self,
        program: Program,
        link: &mut Link,
        heard: &mut mpsc::Receiver<Heard>,
    ) {
        let Program { pid: _, mut stdout, mut stderr } = program;
        let (mut out_open, mut err_open) = (true, true);
        let (mut out_buffer, mut err_buffer) = (vec![0; TURN], vec![0; TURN]);
        let mut deadline = self.boot_timer(self.claim.plan.deadline_seconds);
        let mut lease = self.lease_timer(self.lease_until);
        let (mut writing, mut dropping, mut gone) = (true, false, false);
        self.set_limits();
        self.publish_now(Stage::Running);
        loop {
            // A program that prints without a pause is always ready: timers, signals and daemons get their turn here.
            tokio::task::yield_now().await;
            if self.exit.is_some() && !gone {
                gone = true;
                stdout.program_is_gone();
                stderr.program_is_gone();
            }
            let pending = self.recorder.committer().pending();
            // A journal that failed takes nothing more, and must not keep the program from being drained either.
            dropping = !writing || (dropping && pending >= HIGH_WATER);
            let paused = pending >= HIGH_WATER && !dropping;
            if !paused {
                self.timers.clear(Timer::Stall);
            } else if !self.timers.is_set(Timer::Stall) {
                self.timers.set(Timer::Stall, STALL);
            }
            let durable = self.durable.borrow().head;
            tokio::select! {
                got = stdout.read(&mut out_buffer), if out_open && !paused => match got {
                    Ok(0) | Err(_) => { out_open = false; self.recorder.stdout_end(); self.hear_conversation(); }
                    Ok(got) => {
                        match dropping {
                            true => self.recorder.lose(&out_buffer[..got]),
                            false => self.recorder.stdout(&out_buffer[..got]),
                        }
                        self.hear_conversation();
                        self.heard_from_program();
                    }
                },
                got = stderr.read(&mut err_buffer), if err_open && !paused => match got {
                    Ok(0) | Err(_) => err_open = false,
                    Ok(got) => { self.recorder.stderr(&err_buffer[..got]); self.quiet_starts_again(); }
                },
                _ = self.children.recv() => self.reap_main(),
                _ = self.stops.terminate.recv() => {
                    self.begin_stop(End::StoppedWithService, Some("the executor was told to stop".into())).await;
                }
                _ = self.stops.scope.recv() => {
                    self.begin_stop(End::StoppedWithService, Some("its scope was stopped".into())).await;
                }
                said = heard.recv() => {
                    match said {
                        Some(Heard::Request(Request::Stop { end })) => {
                            let why = "its controller took the lease back, or let it run out";
                            self.begin_stop(end, (end == End::LeaseLost).then(|| why.to_owned())).await;
                        }
                        Some(Heard::Request(Request::Mail)) => if let Some(conversation) = &mut self.conversation { conversation.look(); },
                        Some(Heard::Request(Request::Renew { until })) => lease = self.lease_timer(until),
                        _ => {}
                    }
                }
                () = link.accept() => {}
                happened = converse::next(self.conversation.as_mut(), durable) => self.conversed(happened),
                () = passed(deadline.as_ref()) => {
                    deadline = None;
                    let seconds = self.claim.plan.deadline_seconds.unwrap_or_default();
                    self.begin_stop(End::Deadline, Some(format!("the deadline of {seconds} s passed"))).await;
                }
                () = passed(lease.as_ref()) => {
                    lease = None;
                    let seconds = self.claim.plan.lease_seconds.unwrap_or_default();
                    self.begin_stop(End::LeaseLost, Some(format!("nobody renewed its lease for {seconds} s"))).await;
                }
                timer = self.timers.next() => match timer {
                    Timer::Stall => dropping = true,
                    // What the program itself printed is read, however long that takes.
                    Timer::DrainQuiet | Timer::DrainLimit if (out_open && stdout.owes()) || (err_open && stderr.owes()) => {
                        self.timers.set(timer, DRAIN_QUIET);
                    }
                    Timer::DrainQuiet => break,
                    Timer::DrainLimit => {
                        self.recorder.cut_short();
                        break;
                    }
                    timer => self.timer(timer).await,
                },
                changed = self.durable.changed(), if writing => {
                    self.timers.clear(Timer::Stall);
                    let durable = self.durable.borrow_and_update().clone();
                    let ended = changed.err().map(|_| "its writer ended".to_owned());
                    if let Some(failure) = durable.failure.clone().or(ended) {
                        writing = false;
                        self.begin_stop(End::JournalFailed, Some(failure)).await;
                    }
                    let stage = if self.stop.is_some() { Stage::Stopping } else { Stage::Running };
                    self.publish(&durable, stage);
                    if self.spoke {
                        crash::point("executor.recorded");
                    }
                }
            }
            self.tend_conversation().await;
            if self.recorder.full() {
                let limit = self.claim.plan.journal_max;
                self.begin_stop(
                    End::JournalFull,
                    Some(format!("the journal reached its limit of {limit} bytes")),
                )
                .await;
            }
            if self.exit.is_some() && !out_open && !err_open {
                break;
            }
        }
        if out_open {
            self.recorder.stdout_end();
            self.hear_conversation();
        }
        self.recorder.stderr_end();
    }

    /// The lease's end: that moment, or its whole time from now; never later than that, whatever a daemon says.
    fn lease_timer(&mut self, until: Option<u64>) -> Option<BootTimer> {
        let seconds = self.claim.plan.lease_seconds?;
        let whole = boot_ms().saturating_add(seconds.saturating_mul(1000));
        match BootTimer::at(until.unwrap_or(whole).min(whole)) {
            Ok(timer) => Some(timer),
            Err(_) => self.boot_timer(Some(seconds)),
        }
    }

    /// A moment of boot time. Without the kernel's timer a limit cannot be kept, and that is said.
    fn boot_timer(&mut self, seconds: Option<u64>) -> Option<BootTimer> {
        match BootTimer::after(Duration::from_secs(seconds?)) {
            Ok(timer) => Some(timer),
            Err(error) => {
                let text = format!("a limit of {} s is not kept: {error}", seconds.unwrap_or_default());
                self.recorder.fact(&Event::notice(notice::WARNING, text));
                None
            }
        }
    }

    pub(super) fn set_limits(&mut self) {
        let plan = &self.claim.plan;
        if let Some(seconds) = plan.start_seconds {
            self.timers.set(Timer::FirstOutput, Duration::from_secs(seconds));
        }
        self.quiet_starts_again();
    }

    /// Something came on standard output.
    pub(super) fn heard_from_program(&mut self) {
        self.spoke = true;
        self.timers.clear(Timer::FirstOutput);
        self.quiet_starts_again();
        self.lingering_starts();
    }

    /// The program has said its last word, and can be told nothing more: only its exit is to come.
    pub(super) fn lingering_starts(&mut self) {
        let linger = self.claim.plan.linger_ms;
        let listens = self.conversation.as_ref().is_some_and(Conversation::is_open);
        if self.recorder.reading().settled
            && linger > 0
            && self.exit.is_none()
            && !listens
            && self.stop.is_none()
        {
            self.timers.set(Timer::Linger, Duration::from_millis(linger));
        } else {
            self.timers.clear(Timer::Linger);
        }
    }

    pub(super) fn quiet_starts_again(&mut self) {
        if self.exit.is_some() {
            self.timers.set(Timer::DrainQuiet, DRAIN_QUIET);
        } else if self.conversation.as_ref().is_some_and(Conversation::asks) {
            self.timers.clear(Timer::Idle);
            self.timers.clear(Timer::IdleWarning);
        } else if let Some(seconds) = self.claim.plan.idle_seconds {
            let limit = Duration::from_secs(seconds);
            self.timers.set(Timer::Idle, limit);
            self.timers.set(Timer::IdleWarning, limit * 4 / 5);
        }
    }

    pub(super) async fn timer(&mut self, timer: Timer) {
        let plan = &self.claim.plan;
        match timer {
            Timer::FirstOutput => {
                let seconds = plan.start_seconds.unwrap_or_default();
                let why = format!("nothing was printed within {seconds} s of the start");
                self.begin_stop(End::NoOutput, Some(why)).await;
            }
            Timer::IdleWarning => {
                let left = plan.idle_seconds.unwrap_or_default().div_ceil(5);
                let event = Event::Notice {
                    reason: notice::IDLE.into(),
                    text: format!("nothing is printed; the idle limit ends the session in about {left} s"),
                    more: Map::from_iter([("seconds".to_owned(), json!(left))]),
                };
                self.recorder.fact(&event);
            }
            Timer::Idle => {
                let seconds = plan.idle_seconds.unwrap_or_default();
                self.begin_stop(End::Idle, Some(format!("nothing was printed for {seconds} s"))).await;
            }
            Timer::Linger => {
                let why =
                    format!("did not exit within {} ms of its last word, and was stopped", plan.linger_ms);
                self.recorder.fact(&Event::notice(notice::LINGERING, why.clone()));
                let end = derive_end(&self.recorder.reading().verdict, Some(Exit::Code(0)), true);
                self.begin_stop(end, Some(why)).await;
            }
            Timer::Stop => self.next_step().await,
            Timer::DrainQuiet | Timer::DrainLimit | Timer::Stall => {}
        }
    }

    pub(super) fn reap_main(&mut self) {
        let Some(main) = self.main else { return };
        if let Some(exit) = stop::reap(main) {
            self.main_is_gone(Some(exit));
        }
    }

    pub(super) fn main_is_gone(&mut self, exit: Option<Exit>) {
        self.exit = Some(exit);
        self.in_conversation(|conversation, recorder| conversation.shut(EXITED, recorder));
        for timer in [Timer::FirstOutput, Timer::Idle, Timer::IdleWarning, Timer::Linger, Timer::Stop] {
            self.timers.clear(timer);
        }
        self.timers.set(Timer::DrainQuiet, DRAIN_QUIET);
        self.timers.set(Timer::DrainLimit, Duration::from_millis(self.claim.plan.drain_ms));
    }
}

async fn passed(deadline: Option<&BootTimer>) {
    match deadline {
        Some(deadline) => deadline.passed().await,
        None => std::future::pending().await,
    }
}
