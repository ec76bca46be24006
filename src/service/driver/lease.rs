//! The lease: renewed at a third of its time, on the clock that goes on while the machine sleeps.
//!
//! It counts from the moment at which a renewal was asked for, so that it never stands here for longer than it does at the
//! controller, whatever the clocks say. That a controller cannot be asked means nothing until the lease has run out;
//! the executor knows that moment too, and ends the session by itself.

use tokio::task::JoinHandle;

use super::*;
use crate::controller::{ControllerError, Renewed};
use crate::executor::{BootTimer, boot_ms};

/// A renewal that was asked for. It ends by itself, and nobody minds if nobody waits for it any more.
type Asking = JoinHandle<Result<Renewed, ControllerError>>;

/// The longest pause before a renewal that could not be asked for is tried again, in milliseconds.
const PAUSE_MS: u64 = 5000;

/// The right to drive a session, as its driver keeps it.
pub(super) struct Lease {
    hub: Arc<Hub>,
    binding: Binding,
    seconds: u64,
    /// Until when it stands, in milliseconds of boot time; absent while this daemon has not renewed it.
    until: Option<u64>,
    next: u64,
    timer: Option<BootTimer>,
    asking: Option<(u64, Asking)>,
    /// That nobody can be asked was said.
    away: bool,
    /// Nothing more is to be known of it.
    over: bool,
}

/// What became of a lease.
pub(super) enum Word {
    /// It stands until then, in milliseconds of boot time.
    Renewed { until: u64, cancel_requested: bool },
    /// It does not stand any more, and why.
    Lost(String),
}

/// Whether a session may be started.
pub(super) enum Permit {
    Granted,
    Refused(End, String),
    /// Nobody can say.
    Unknown(Error),
}

impl Lease {
    /// A lease of `seconds` that is to be renewed at once.
    pub(super) fn new(hub: Arc<Hub>, binding: Binding, seconds: u64) -> Lease {
        Lease {
            hub,
            binding,
            seconds,
            until: None,
            next: boot_ms(),
            timer: None,
            asking: None,
            away: false,
            over: false,
        }
    }

    /// It holds for its whole time from `asked` on, a moment of boot time.
    fn renewed(&mut self, asked: u64) -> u64 {
        let until = asked.saturating_add(self.seconds * 1000);
        self.until = Some(until);
        // After a third of it, so that two renewals may fail.
        self.wake(asked.saturating_add(self.seconds * 1000 / 3));
        until
    }

    fn wake(&mut self, at: u64) {
        self.next = at;
        self.timer = None;
    }

    async fn due(&mut self) {
        if self.timer.is_none() {
            self.timer = BootTimer::at(self.next).ok();
        }
        match &self.timer {
            Some(timer) => timer.passed().await,
            // Out of descriptors: a clock that stands still in sleep is better than none.
            None => tokio::time::sleep(Duration::from_millis(self.next.saturating_sub(boot_ms()))).await,
        }
    }

    /// Renews it when it is time, and says what came of it. Safe to drop at any await.
    async fn word(&mut self) -> Word {
        if self.over {
            return std::future::pending().await;
        }
        loop {
            let Some((asked, asking)) = &mut self.asking else {
                self.due().await;
                let (hub, binding, seconds) = (self.hub.clone(), self.binding.clone(), self.seconds);
                let asking = async move { hub.controller.renew(&binding, seconds).await };
                self.asking = Some((boot_ms(), tokio::spawn(asking)));
                continue;
            };
            let (asked, answer) = (*asked, asking.await);
            let answer =
                answer.unwrap_or_else(|cut| Err(ControllerError::Unavailable(format!("its renewal {cut}"))));
            self.asking = None;
            match answer {
                Ok(Renewed { cancel_requested }) => {
                    self.away = false;
                    return Word::Renewed { until: self.renewed(asked), cancel_requested };
                }
                Err(ControllerError::Refused { text, .. }) => return self.lost(text),
                Err(ControllerError::Unavailable(why)) => {
                    let now = boot_ms();
                    match self.until {
                        Some(until) if until <= now => {
                            return self.lost(format!("it ran out while nobody could be asked: {why}"));
                        }
                        until => {
                            if !std::mem::replace(&mut self.away, true) {
                                tracing::warn!(run_id = %self.binding.run_id, why, "the lease cannot be renewed now");
                            }
                            let pause = (self.seconds * 1000 / 20).min(PAUSE_MS);
                            self.wake((now + pause).min(until.unwrap_or(u64::MAX)));
                        }
                    }
                }
                Err(ControllerError::Binding(invalid)) => return self.lost(invalid.to_string()),
            }
        }
    }

    fn lost(&mut self, why: String) -> Word {
        self.over = true;
        self.until = None;
        Word::Lost(why)
    }
}

/// The next word of a lease; for ever if there is none. Safe to drop at any await.
pub(super) async fn word(lease: &mut Option<Lease>) -> Word {
    match lease {
        Some(lease) => lease.word().await,
        None => std::future::pending().await,
    }
}

impl Driver {
    /// The identity under which the session runs.
    pub(super) fn binding(&self) -> Binding {
        self.record.binding.clone().unwrap_or_else(|| Binding::of_run(self.live.run_id))
    }

    /// Keeps the lease of a session that waits to be started: somebody else's run must not wait here unnoticed.
    pub(super) fn keep_lease_in_queue(&mut self) {
        if let (Some(binding), Some(seconds)) = (&self.record.binding, self.hub.controller.lease_seconds()) {
            self.lease = Some(Lease::new(self.hub.clone(), binding.clone(), seconds));
        }
    }

    /// Keeps the lease of a session that an executor has, which holds for `seconds`.
    pub(super) fn keep_lease(&mut self, seconds: Option<u64>) {
        match seconds {
            Some(seconds) if self.lease.as_ref().is_some_and(|lease| lease.seconds == seconds) => {}
            Some(seconds) => {
                self.lease = Some(Lease::new(self.hub.clone(), self.binding(), seconds));
            }
            None => self.lease = None,
        }
    }

    /// Until when the lease stands; `Err` if it has run out.
    pub(super) fn lease_stands(&self) -> Result<Option<u64>, ()> {
        match self.lease.as_ref().and_then(|lease| lease.until) {
            Some(until) if until <= boot_ms() => Err(()),
            until => Ok(until),
        }
    }

    /// Whether a framework lets the session be started now, under exactly its binding and with its whole lease.
    pub(super) async fn permitted(&mut self) -> Permit {
        let Some(binding) = self.record.binding.clone() else { return Permit::Granted };
        let hub = self.hub.clone();
        let refused = |error: ControllerError| match error {
            ControllerError::Refused { text, .. } => Permit::Refused(End::LeaseLost, text),
            error => Permit::Unknown(error.into()),
        };
        let cancelled =
            || Permit::Refused(End::Cancelled, "cancellation was asked for at the framework".to_owned());
        match hub.controller.verify(&binding).await {
            Ok(prepared) if prepared.cancel_requested => return cancelled(),
            Ok(_) => {}
            Err(error) => return refused(error),
        }
        let Some(seconds) = hub.controller.lease_seconds() else { return Permit::Granted };
        let asked = boot_ms();
        match hub.controller.renew(&binding, seconds).await {
            Ok(Renewed { cancel_requested: true }) => cancelled(),
            Ok(Renewed { cancel_requested: false }) => {
                let mut lease = Lease::new(hub, binding, seconds);
                lease.renewed(asked);
                self.lease = Some(lease);
                Permit::Granted
            }
            Err(error) => refused(error),
        }
    }

    /// Stores the wish to end the session, once, and tells a framework of it.
    pub(super) async fn wish_to_cancel(&mut self) {
        if self.record.cancel_requested.is_some() {
            return;
        }
        // A full disk must not keep anybody from stopping what fills it: executor or outcome say it durably.
        self.note(|record| record.cancel_requested = Some(now_us())).await;
        let Some(binding) = self.record.binding.clone() else { return };
        let hub = self.hub.clone();
        // Nobody waits for it: the stop does not depend on the framework, and delivery tells it the rest.
        tokio::spawn(async move {
            if let Err(error) = hub.controller.cancel(&binding).await {
                tracing::info!(run_id = %binding.run_id, %error, "the framework cannot be told of a cancellation");
            }
        });
    }

    /// What the controller says of the session, as evidence; nothing where the spool itself is the authority.
    pub(super) async fn controller_evidence(&self) -> Option<Evidence> {
        let binding = self.record.binding.as_ref()?;
        let (finding, value) = match self.hub.controller.verify(binding).await {
            Ok(prepared) => (
                format!("the framework says that the run is {}, and the lease stands", prepared.phase),
                json!({ "answers": true, "phase": prepared.phase, "cancel-requested": prepared.cancel_requested }),
            ),
            Err(ControllerError::Unavailable(why)) => (why, json!({ "answers": false })),
            Err(error) => (error.to_string(), json!({ "answers": true, "refused": true })),
        };
        Some(Evidence { source: "controller".into(), finding, value })
    }
}
