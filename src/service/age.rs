//! Which ended sessions are due for removal: what counts as their age, and what a policy wants.
//!
//! Age is reckoned by wall clocks, and those are moved. So
//!
//! - a session that ended in the future is kept: either its clock was wrong or this one is;
//! - a clock that is set forward while the service runs ages nothing until it has stood for a day ([`Clock`]);
//! - which session ended first follows from the order in which they were put away, never from their times.

use std::time::Duration;

use crate::spool::EndedSession;

/// How far a clock may run away by itself between two looks, in µs: what an adjustment of its speed can do.
const TOLERANCE: i64 = 60_000_000;
/// How long a clock that was set forward must stand before it counts, in µs.
const PROVEN_AFTER: u64 = 24 * 3600 * 1_000_000;

/// The wall clock, as far as it is believed. Boot time, which nobody can set, says how long it has stood.
#[derive(Debug)]
pub(super) struct Clock {
    /// Wall clock less boot time, in µs, as it is believed.
    offset: i64,
    /// An offset further ahead, and when it was first seen, in µs of boot time.
    ahead: Option<(i64, u64)>,
}

impl Clock {
    /// A clock that is believed as it stands: wall clock and boot time, in µs.
    pub(super) fn new(wall: u64, boot: u64) -> Clock {
        Clock { offset: offset(wall, boot), ahead: None }
    }

    /// What time is believed, in µs since 1970.
    pub(super) fn now(&mut self, wall: u64, boot: u64) -> u64 {
        let seen = offset(wall, boot);
        if seen <= self.offset.saturating_add(TOLERANCE) {
            (self.offset, self.ahead) = (seen, None);
        } else {
            match self.ahead {
                Some((ahead, since)) if seen.abs_diff(ahead) <= TOLERANCE.unsigned_abs() => {
                    if boot.saturating_sub(since) >= PROVEN_AFTER {
                        (self.offset, self.ahead) = (seen, None);
                    }
                }
                _ => self.ahead = Some((seen, boot)),
            }
        }
        boot.saturating_add_signed(self.offset)
    }
}

fn offset(wall: u64, boot: u64) -> i64 {
    // Half a million years of microseconds on either side.
    i64::try_from(i128::from(wall) - i128::from(boot)).unwrap_or(if wall > boot {
        i64::MAX
    } else {
        i64::MIN
    })
}

/// What is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    /// Only sessions whose events were acknowledged up to the last.
    pub acknowledged: bool,
    /// Those that ended so long ago.
    pub older_than: Option<Duration>,
    /// The first that ended, while all together take more bytes.
    pub keep_bytes: Option<u64>,
}

/// What the rules want of one session, before anything is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// It stays.
    Stay,
    /// It goes, if nothing in its folder keeps it.
    Go,
    /// It stays, since its age is not known: it ended in the future.
    Future,
    /// It stays, since its age is not known: its record cannot be read.
    Unread,
}

/// One pass over all ended sessions, the first ended first.
#[derive(Debug)]
pub(super) struct Pass {
    rules: Rules,
    /// The time, µs since 1970.
    now: u64,
    /// Bytes of all that are there.
    total: u64,
}

impl Pass {
    /// A pass at a time that is believed, over sessions that take `total` bytes.
    pub(super) fn new(rules: Rules, now: u64, total: u64) -> Pass {
        Pass { rules, now, total }
    }

    /// What the rules want of the next session.
    pub(super) fn want(&self, session: &EndedSession) -> Want {
        let Some(ended) = session.ended else { return Want::Unread };
        let Some(age) = self.now.checked_sub(ended) else { return Want::Future };
        let old = self.rules.older_than.is_some_and(|least| Duration::from_micros(age) >= least);
        let too_much = self.rules.keep_bytes.is_some_and(|keep| self.total > keep);
        if old || too_much { Want::Go } else { Want::Stay }
    }

    /// A session is gone, or would be.
    pub(super) fn gone(&mut self, session: &EndedSession) {
        self.total = self.total.saturating_sub(session.bytes.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::RunId;

    const HOUR: u64 = 3600 * 1_000_000;
    /// Some day in 2026.
    const NOW: u64 = 1_790_000_000 * 1_000_000;

    fn session(ended: u64, bytes: u64) -> EndedSession {
        EndedSession { run_id: RunId::random(), ended: Some(ended), bytes: Some(bytes) }
    }

    fn rules(older_than: Option<u64>, keep_bytes: Option<u64>) -> Rules {
        Rules { acknowledged: true, older_than: older_than.map(Duration::from_micros), keep_bytes }
    }

    #[test]
    fn a_clock_that_runs_is_believed() {
        let mut clock = Clock::new(NOW, HOUR);
        for hours in 1..100 {
            // A second an hour too fast.
            let wall = NOW + hours * (HOUR + 1_000_000);
            assert_eq!(clock.now(wall, HOUR + hours * HOUR), wall);
        }
    }

    #[test]
    fn a_clock_set_forward_counts_after_it_stood_for_a_day() {
        let mut clock = Clock::new(NOW, 0);
        let year = 365 * 24 * HOUR;
        for hour in 1..=24 {
            assert_eq!(clock.now(NOW + year + hour * HOUR, hour * HOUR), NOW + hour * HOUR, "hour {hour}");
        }
        assert_eq!(clock.now(NOW + year + 25 * HOUR, 25 * HOUR), NOW + year + 25 * HOUR);
    }

    #[test]
    fn a_clock_that_jumps_about_is_not_believed_and_one_set_back_is_at_once() {
        let mut clock = Clock::new(NOW, 0);
        for hour in 1..100 {
            let jump = (1 + hour % 2) * 1000 * HOUR;
            assert_eq!(clock.now(NOW + jump + hour * HOUR, hour * HOUR), NOW + hour * HOUR);
        }
        assert_eq!(clock.now(NOW - 50 * HOUR, 100 * HOUR), NOW - 50 * HOUR);
        assert_eq!(Clock::new(0, u64::MAX).now(0, u64::MAX), u64::MAX.saturating_add_signed(i64::MIN));
    }

    #[test]
    fn the_first_go_until_the_rest_fits() {
        let sessions: Vec<EndedSession> = (0..10).map(|n| session(NOW - HOUR + n, 100)).collect();
        let mut pass = Pass::new(rules(None, Some(350)), NOW, 1000);
        let mut gone = 0;
        for session in &sessions {
            if pass.want(session) == Want::Go {
                pass.gone(session);
                gone += 1;
            }
        }
        assert_eq!(gone, 7, "the smallest number that leaves at most 350 bytes");
    }

    proptest! {
        #[test]
        fn nothing_from_the_future_goes_and_nothing_too_young(
            now in any::<u64>(),
            ended in any::<u64>(),
            older_than in proptest::option::of(any::<u64>()),
            keep in proptest::option::of(any::<u64>()),
            total in any::<u64>(),
        ) {
            let want = Pass::new(rules(older_than, keep), now, total).want(&session(ended, 1));
            if ended > now {
                prop_assert_eq!(want, Want::Future);
            } else {
                let old = older_than.is_some_and(|least| now - ended >= least);
                let large = keep.is_some_and(|keep| total > keep);
                prop_assert_eq!(want == Want::Go, old || large);
            }
        }

        #[test]
        fn no_walk_of_the_wall_clock_makes_time_run_faster_than_boot_time(
            walls in proptest::collection::vec(0..2 * NOW, 1..50),
        ) {
            // Looked at every minute for less than a day: whatever the wall clock says, what is believed never gains more
            // on boot time than the tolerance of each look.
            let mut clock = Clock::new(NOW, 0);
            for (minute, wall) in walls.iter().enumerate() {
                let boot = (minute as u64 + 1) * 60_000_000;
                let most = NOW + boot + (minute as u64 + 1) * TOLERANCE.unsigned_abs();
                prop_assert!(clock.now(*wall, boot) <= most);
            }
        }
    }
}
