//! The executor's running-time limits (`CLOCK_MONOTONIC`: sleep does not count), as a small table of moments.

use std::time::Duration;

use tokio::time::Instant;

/// What a moment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The program must have printed something by then.
    FirstOutput,
    /// The idle limit is near: say so.
    IdleWarning,
    /// The program has printed nothing for too long.
    Idle,
    /// It said its last word long ago and has not exited.
    Linger,
    /// The next step of stopping it.
    Stop,
    /// Its pipes have been quiet since it exited.
    DrainQuiet,
    /// Its pipes have been read long enough since it exited.
    DrainLimit,
    /// The disk has not moved while reading waits for it.
    Stall,
}

const COUNT: usize = Timer::Stall as usize + 1;

/// The moments that are set.
#[derive(Debug, Default)]
pub struct Timers {
    at: [Option<Instant>; COUNT],
}

impl Timers {
    /// Sets a moment, or moves it.
    pub fn set(&mut self, timer: Timer, after: Duration) {
        self.at[timer as usize] = Some(Instant::now() + after);
    }

    /// Takes a moment back.
    pub fn clear(&mut self, timer: Timer) {
        self.at[timer as usize] = None;
    }

    /// It is set.
    pub fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize].is_some()
    }

    /// Waits for the next moment and takes it off the table; for ever if none is set. Safe to drop at any await.
    pub async fn next(&mut self) -> Timer {
        use Timer::*;
        let all = [FirstOutput, IdleWarning, Idle, Linger, Stop, DrainQuiet, DrainLimit, Stall];
        let next =
            all.into_iter().filter_map(|timer| Some((self.at[timer as usize]?, timer))).min_by_key(|n| n.0);
        let Some((at, timer)) = next else { return std::future::pending().await };
        tokio::time::sleep_until(at).await;
        self.clear(timer);
        timer
    }
}
