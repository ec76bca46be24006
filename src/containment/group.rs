//! One directory of the cgroup v2 file system (cgroups(7), "Control Group v2" of the kernel's documentation).
//!
//! A cgroup that is removed while it is looked at (`ENOENT`, or `ENODEV` from a file that was open) is empty: the
//! kernel removes none that has a living process.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// How deep below a session's cgroup processes are looked for; programs may make cgroups of their own.
const DEPTH: usize = 32;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    path: PathBuf,
}

impl Group {
    /// The cgroup at `path`; `None` if there is none.
    ///
    /// # Errors
    /// Something else than a cgroup is there, or it cannot be looked at.
    pub(super) fn at(path: &Path) -> io::Result<Option<Group>> {
        match statfs(path) {
            Ok(found) if found.filesystem_type() == CGROUP2_SUPER_MAGIC => {
                Ok(Some(Group { path: path.to_owned() }))
            }
            Ok(_) => Err(io::Error::other(format!("{} is not a cgroup v2 directory", path.display()))),
            Err(nix::errno::Errno::ENOENT) => Ok(None),
            Err(errno) => Err(told("look at", path)(errno.into())),
        }
    }

    /// The cgroup that a process is in; `None` for the own process.
    ///
    /// # Errors
    /// Cgroup v2 is not mounted, or what is mounted does not reach that cgroup.
    pub(super) fn of(pid: Option<u32>) -> io::Result<Group> {
        let file = match pid {
            Some(pid) => format!("/proc/{pid}/cgroup"),
            None => "/proc/self/cgroup".to_owned(),
        };
        let table = fs::read_to_string(&file).map_err(told("read", Path::new(&file)))?;
        let name = table
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .ok_or_else(|| io::Error::other("cgroup v2 is not mounted on this machine"))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        for path in directories(&mounts, name) {
            if let Ok(Some(group)) = Group::at(&path) {
                return Ok(group);
            }
        }
        Err(io::Error::other(format!("the cgroup {name} is not reachable through any cgroup2 mount")))
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The last part of its path.
    pub(super) fn name(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// The cgroup of that name in it, made if need be.
    pub(super) fn make(&self, name: &str) -> io::Result<Group> {
        let path = self.path.join(name);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(told("make the cgroup", &path)(error))
            }
            _ => Ok(Group { path }),
        }
    }

    /// The cgroup of that name in it, if there is one.
    pub(super) fn child(&self, name: &str) -> Option<Group> {
        let path = self.path.join(name);
        path.is_dir().then_some(Group { path })
    }

    /// Whether that is the machine's own root cgroup, which is nobody's to divide: it alone has no such file.
    pub(super) fn is_machine_root(&self) -> bool {
        !self.path.join("cgroup.events").exists()
    }

    /// Moves a process into it.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Where a process writes `0` to move itself into it.
    pub(super) fn entrance(&self) -> io::Result<File> {
        let path = self.path.join("cgroup.procs");
        OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(&path).map_err(told("open", &path))
    }

    /// Writes one of its files.
    pub(super) fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.path.join(file);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(told("write", &path))
    }

    fn read(&self, file: &str) -> io::Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).map_err(told("read", &path))
    }

    /// The controllers that it may give to its children.
    pub(super) fn controllers(&self) -> Vec<String> {
        let list = self.read("cgroup.controllers").unwrap_or_default();
        list.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// The processes in it and below, without zombies.
    pub(super) fn processes(&self) -> io::Result<BTreeSet<i32>> {
        let mut found = BTreeSet::new();
        collect(&self.path, DEPTH, &mut found)?;
        Ok(found)
    }

    /// Whether a process lives in it or below.
    pub(super) fn populated(&self) -> io::Result<bool> {
        match self.read("cgroup.events") {
            Ok(events) => Ok(value(&events, "populated") != Some(0)),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many processes in it and below the kernel killed for lack of memory; `None` without that controller.
    pub(super) fn memory_kills(&self) -> Option<u64> {
        value(&self.read("memory.events").ok()?, "oom_kill")
    }

    /// Kills every process in it and below, also those that fork meanwhile. `false`: this kernel (before 5.14) cannot.
    /// Blocks for some milliseconds.
    pub(super) fn kill(&self) -> io::Result<bool> {
        match self.write("cgroup.kill", "1") {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(!self.path.exists()),
            Err(error) => Err(error),
        }
    }

    /// Its `cgroup.events`, read once, so that poll(2) tells the next change.
    pub(super) fn watch(&self) -> io::Result<Option<File>> {
        let path = self.path.join("cgroup.events");
        match File::open(&path) {
            Ok(mut file) => {
                read_events(&mut file)?;
                Ok(Some(file))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(told("open", &path)(error)),
        }
    }

    /// Waits until no process lives in it, at most so long. Blocks. `true`: none does.
    pub(super) fn wait_until_empty(&self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        let Some(mut events) = self.watch()? else { return Ok(true) };
        while self.populated()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = PollTimeout::try_from(left.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => read_events(&mut events)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Removes it and what is below. Fails where a process lives.
    pub(super) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.path, DEPTH)
    }
}

/// Reads a `cgroup.events` from its start: poll(2) then tells the next change.
pub fn read_events(file: &mut File) -> io::Result<()> {
    let mut text = [0; 256];
    match file.rewind().and_then(|()| file.read(&mut text)) {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The cgroup or its file is not there any more, or never was.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Adds to an error what could not be done, and where.
fn told(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.to_owned();
    move |error| match is_gone(&error) {
        true => io::Error::new(ErrorKind::NotFound, format!("cannot {doing} {}: {error}", path.display())),
        false => io::Error::new(error.kind(), format!("cannot {doing} {}: {error}", path.display())),
    }
}

/// `key number` in a file of such lines.
fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn collect(path: &Path, depth: usize, found: &mut BTreeSet<i32>) -> io::Result<()> {
    let file = path.join("cgroup.procs");
    match fs::read_to_string(&file) {
        // 0 is a process of another pid namespace: it cannot be named here, and is killed with the cgroup.
        Ok(list) => {
            found.extend(list.lines().filter_map(|line| line.parse().ok()).filter(|pid: &i32| *pid > 0))
        }
        Err(error) if is_gone(&error) => return Ok(()),
        // A threaded cgroup; its processes are listed in the one above.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(told("read", &file)(error)),
    }
    if depth > 0 {
        for below in directories_in(path)? {
            collect(&below, depth - 1, found)?;
        }
    }
    Ok(())
}

fn remove_tree(path: &Path, depth: usize) -> io::Result<()> {
    if depth > 0 {
        for below in directories_in(path)? {
            remove_tree(&below, depth - 1)?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if !is_gone(&error) => Err(told("remove the cgroup", path)(error)),
        _ => Ok(()),
    }
}

/// The directories in `path`.
pub(super) fn directories_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(path) {
        Ok(entries) => Ok(entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect()),
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(error) => Err(told("list", path)(error)),
    }
}

/// Where the cgroup `name` can be, by proc_pid_mountinfo(5): below each cgroup2 mount whose root holds it.
fn directories(mountinfo: &str, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        if kind.split(' ').next() != Some("cgroup2") {
            continue;
        }
        let mut fields = mount.split(' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
        let below = match root {
            "/" => name.strip_prefix('/'),
            root => name.strip_prefix(root).and_then(|rest| match rest {
                "" => Some(""),
                rest => rest.strip_prefix('/'),
            }),
        };
        // `/..`: outside of this cgroup namespace.
        if let Some(below) = below.filter(|below| !below.starts_with("..")) {
            let point = PathBuf::from(unescaped(point));
            found.push(if below.is_empty() { point } else { point.join(below) });
        }
    }
    found
}

/// `\040` and the like, as mountinfo writes spaces, tabs, newlines and backslashes.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_found_below_the_mounts_that_hold_it() {
        let mounts = "25 30 0:23 / /proc rw - proc proc rw\n\
                      36 35 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n\
                      37 35 0:30 /user /mnt/a\\040b rw - cgroup2 cgroup2 rw\n";
        let path = |text: &str| PathBuf::from(text);
        assert_eq!(directories(mounts, "/"), [path("/sys/fs/cgroup")]);
        assert_eq!(directories(mounts, "/user/x"), [path("/sys/fs/cgroup/user/x"), path("/mnt/a b/x")]);
        assert_eq!(directories(mounts, "/user"), [path("/sys/fs/cgroup/user"), path("/mnt/a b")]);
        assert_eq!(directories(mounts, "/users"), [path("/sys/fs/cgroup/users")]);
        assert_eq!(directories(mounts, "/../other"), [] as [PathBuf; 0]);
        assert_eq!(unescaped("a\\134\\040b\\x"), "a\\ b\\x");
    }

    #[test]
    fn counters_are_read_by_their_whole_key() {
        let directory = tempfile::tempdir().expect("scratch directory");
        let group = Group { path: directory.path().to_owned() };
        assert_eq!(group.memory_kills(), None, "without the controller there is no count");
        fs::write(group.path.join("memory.events"), "low 0\noom 7\noom_kill 3\noom_group_kill 9\n").unwrap();
        assert_eq!(group.memory_kills(), Some(3));
        assert!(!group.populated().expect("a removed cgroup is empty"));
        fs::write(group.path.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        assert!(group.populated().unwrap());
        fs::write(group.path.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        assert!(!group.populated().unwrap());
    }

    #[test]
    fn processes_are_found_in_cgroups_below_too() {
        let directory = tempfile::tempdir().expect("scratch directory");
        let below = directory.path().join("tool/more");
        fs::create_dir_all(&below).unwrap();
        fs::write(directory.path().join("cgroup.procs"), "11\n0\n").unwrap();
        fs::write(below.join("cgroup.procs"), "12\n").unwrap();
        fs::write(directory.path().join("tool/cgroup.procs"), "").unwrap();
        let group = Group { path: directory.path().to_owned() };
        assert_eq!(group.processes().unwrap(), BTreeSet::from([11, 12]));
    }

    #[test]
    fn what_is_no_cgroup_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("scratch directory");
        let error = Group::at(directory.path()).expect_err("a plain directory");
        assert!(error.to_string().contains(&directory.path().display().to_string()), "{error}");
        assert_eq!(Group::at(&directory.path().join("none")).expect("nothing there"), None);
    }
}
