//! The clocks: wall time labels, boot time (sleep counts) for deadlines. Running time is tokio's own.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};
use tokio::io::unix::AsyncFd;

/// Microseconds since 1970; 0 if the clock stands before that.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Milliseconds since the boot, with those in which the machine slept: the same for every process of this boot.
pub fn boot_ms() -> u64 {
    // It cannot fail: the clock exists since Linux 2.6.39.
    let now = clock_gettime(Clock::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A moment on `CLOCK_BOOTTIME`, which goes on while the machine sleeps (timerfd_create(2)).
#[derive(Debug)]
pub struct BootTimer {
    fd: AsyncFd<OwnedFd>,
}

impl BootTimer {
    /// The moment `after` from now.
    pub fn after(after: Duration) -> io::Result<BootTimer> {
        let timer =
            TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        timer.set(Expiration::OneShot(TimeSpec::from_duration(after)), TimerSetTimeFlags::empty())?;
        // SAFETY: the descriptor is owned until it is dropped, and always names the same timer.
        Ok(BootTimer { fd: unsafe { AsyncFd::register(OwnedFd::from(timer)) }? })
    }

    /// That moment, as [`boot_ms`] counts.
    pub fn at(moment: u64) -> io::Result<BootTimer> {
        // A timer of no time at all would never pass (timerfd_settime(2)).
        BootTimer::after(Duration::from_millis(moment.saturating_sub(boot_ms()).max(1)))
    }

    /// Waits for it. It stays passed: asking again answers at once.
    pub async fn passed(&self) {
        // An error here can only mean that the runtime is going down.
        let _ = self.fd.readable().await.map(|mut guard| guard.retain_ready());
    }
}
