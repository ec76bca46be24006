//! A cgroup of a test's own, where this machine lets root make one.

use std::fs;
use std::path::{Path, PathBuf};

/// Gone with everything in it when it is dropped.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    /// `None`, said loudly, where this account cannot make one.
    pub fn new(test: &str) -> Option<Scratch> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mount = mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            kind.starts_with("cgroup2 ")
                .then(|| PathBuf::from(mount.split(' ').nth(4).expect("a mount point")))
        });
        let path = mount.map(|mount| mount.join(format!("sessiond-test-{}-{test}", std::process::id())));
        match path {
            Some(path) if fs::create_dir(&path).is_ok() => Some(Scratch { path }),
            _ => {
                eprintln!("SKIPPED {test}: needs cgroup v2 and the right to make a cgroup (root)");
                None
            }
        }
    }
}

impl Scratch {
    /// Whether sessions in it can be limited by that controller; handed down to it where that is not so yet.
    pub fn has(&self, controller: &str) -> bool {
        let above = self.path.parent().expect("a mount point");
        let _ = fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"));
        let there = fs::read_to_string(self.path.join("cgroup.controllers")).unwrap_or_default();
        there.split_whitespace().any(|there| there == controller)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        super::until("the cgroup is empty", || {
            fs::read_to_string(self.path.join("cgroup.events")).is_ok_and(|text| text.contains("populated 0"))
        });
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
