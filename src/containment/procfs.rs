//! What proc(5) tells of processes. A process that vanishes while it is read is simply not there.

use std::fs;
use std::io;

use crate::model::Leftover;

/// One living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub command: String,
    /// Clock ticks after boot at which it started: with the pid, its identity.
    pub started: u64,
}

impl From<Process> for Leftover {
    fn from(process: Process) -> Leftover {
        Leftover { pid: process.pid.unsigned_abs(), command: process.command }
    }
}

/// Every process that lives. Zombies are dead: they only wait to be reaped.
pub(super) fn processes() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(process) = process(pid) {
            found.push(process);
        }
    }
    Ok(found)
}

/// That process, if it lives.
pub(super) fn process(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&stat))
}

/// `pid (comm) state ppid ... starttime(22) ...`; the command may hold spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Process> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let pid = stat[..open].trim().parse().ok()?;
    let mut rest = stat.get(close + 1..)?.split_ascii_whitespace();
    let state = rest.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    let parent = rest.next()?.parse().ok()?;
    let started = rest.nth(17)?.parse().ok()?;
    Some(Process { pid, parent, command: stat[open + 1..close].to_owned(), started })
}

/// Whether the environment that the process was started with holds such an entry. Other accounts' processes cannot be
/// read, and are none of ours.
pub(super) fn environment_holds(pid: i32, is_such: impl Fn(&[u8]) -> bool) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(is_such))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_hold_anything() {
        let tail = "S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 1 1";
        let process = parse_stat(&format!("42 (a) (b c) {tail}")).expect("parses");
        assert_eq!(process, Process { pid: 42, parent: 7, command: "a) (b c".into(), started: 4711 });
        assert_eq!(parse_stat("42 (z) Z 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711"), None);
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat(") ("), None);
    }

    #[test]
    fn we_are_among_the_processes() {
        let me = std::process::id() as i32;
        let all = processes().expect("/proc can be read");
        assert!(all.iter().any(|p| p.pid == me));
    }
}
