//! Stopping a tree of processes, and the proof that it is gone.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::Signal as Arrivals;
use tokio::time::{Instant, timeout_at};

use crate::containment::{self, Containment};
use crate::model::{Exit, Leftover};

/// How long after SIGKILL the kernel may take to end a process before it counts as a leftover.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Reaps every child that has ended. The exit of `main` is returned when it is among them.
///
/// Asks waitpid(2) itself: nix has no names for real-time signals, and loses a child that one of them ended.
pub fn reap(main: Pid) -> Option<Exit> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: takes plain numbers and writes into the integer that is borrowed for the call.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) };
        match pid {
            0 => return found,
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return found,
            pid if pid != main.as_raw() => {}
            _ if libc::WIFEXITED(status) => found = Some(Exit::Code(libc::WEXITSTATUS(status))),
            _ if libc::WIFSIGNALED(status) => found = Some(Exit::Signal(libc::WTERMSIG(status))),
            _ => {}
        }
    }
}

/// Whether the kernel ended the main process for lack of memory, by its count before the start and now. A SIGKILL alone
/// says nothing: anybody may send one.
pub fn was_killed_for_memory(exit: Option<Exit>, before: Option<u64>, now: Option<u64>) -> bool {
    let grew = before.zip(now).is_some_and(|(before, now)| now > before);
    grew && exit == Some(Exit::Signal(libc::SIGKILL))
}

/// Signals every member, away from the thread that reads: killing a large cgroup takes milliseconds.
pub async fn signal(containment: &Arc<dyn Containment>, signal: Signal) -> io::Result<()> {
    let containment = containment.clone();
    tokio::task::spawn_blocking(move || containment.signal(signal)).await?
}

/// Stops everything that is left of a session whose main process is gone: SIGTERM, `grace`, SIGKILL until nothing is
/// left. Returns what could not be stopped.
///
/// `children` wakes at every SIGCHLD; the containment's own events wake it too. A member that may not be signalled (a
/// setuid program) is not stopped, and is a leftover like any other.
pub async fn stop_rest(
    containment: &Arc<dyn Containment>,
    main: Pid,
    grace: Duration,
    children: &mut Arrivals,
) -> io::Result<Vec<Leftover>> {
    reap(main);
    if containment.empty()? {
        return Ok(Vec::new());
    }
    let mut events = Events::of(containment.as_ref())?;
    let _ = signal(containment, Signal::SIGTERM).await;
    let mut until = Instant::now() + grace;
    while !containment.empty()? {
        if timeout_at(until, events.next(children)).await.is_err() {
            break;
        }
        reap(main);
    }
    until = Instant::now() + KILL_PATIENCE;
    while !containment.empty()? {
        if Instant::now() >= until {
            return containment.members();
        }
        // Again and again: what forked while the list was made is on the next one.
        let _ = signal(containment, Signal::SIGKILL).await;
        let _ =
            timeout_at(until.min(Instant::now() + Duration::from_millis(50)), events.next(children)).await;
        reap(main);
    }
    Ok(Vec::new())
}

/// Tells when the tree may have become empty.
struct Events {
    watched: Option<AsyncFd<File>>,
}

impl Events {
    fn of(containment: &dyn Containment) -> io::Result<Events> {
        let watch = |file| {
            // SAFETY: a File keeps its one descriptor open until it is dropped, and nothing replaces this one.
            unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY) }
                .map_err(|error| error.into_parts().1)
        };
        let watched = containment.watch()?.map(watch).transpose()?;
        Ok(Events { watched })
    }

    async fn next(&mut self, children: &mut Arrivals) {
        let Some(watched) = &mut self.watched else {
            children.recv().await;
            return;
        };
        tokio::select! {
            _ = children.recv() => {}
            ready = watched.ready_mut(Interest::PRIORITY) => if let Ok(mut ready) = ready {
                ready.clear_ready();
                let _ = containment::read_events(ready.get_inner_mut());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_that_the_kernel_counted_is_out_of_memory() {
        let killed = Some(Exit::Signal(libc::SIGKILL));
        assert!(was_killed_for_memory(killed, Some(0), Some(1)));
        assert!(was_killed_for_memory(killed, Some(3), Some(5)));
        for (exit, before, now) in [
            (killed, Some(1), Some(1)),
            (killed, None, Some(1)),
            (killed, Some(0), None),
            (killed, None, None),
            (Some(Exit::Signal(libc::SIGTERM)), Some(0), Some(1)),
            // A tool was killed; the program went on and said so itself.
            (Some(Exit::Code(1)), Some(0), Some(1)),
            (None, Some(0), Some(1)),
        ] {
            assert!(!was_killed_for_memory(exit, before, now), "{exit:?} {before:?} {now:?}");
        }
    }
}
