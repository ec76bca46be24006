//! A `dbus-broker` of a test's own, on a machine without systemd.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::broker::Broker;

/// Its launcher wants what systemd gives it: the listening socket, the journal's socket (made in a mount namespace of
/// its own), and a bus on which to look for a service manager.
pub struct DbusBroker {
    launcher: Option<Child>,
    dir: PathBuf,
    managers: Broker,
    _journal: UnixDatagram,
}

impl DbusBroker {
    /// `None`, said loudly, where this account or machine cannot run one.
    pub fn start(dir: &Path) -> Option<DbusBroker> {
        if !nix::unistd::geteuid().is_root() || !Path::new("/usr/bin/dbus-broker-launch").exists() {
            eprintln!("SKIPPED with dbus-broker: needs root and dbus-broker");
            return None;
        }
        let dir = dir.join("dbus-broker");
        for dir in [dir.clone(), dir.join("journal"), dir.join("managers")] {
            fs::create_dir(dir).expect("scratch directory");
        }
        let policy = "<busconfig><policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>\
                      <allow send_destination=\"*\"/><allow eavesdrop=\"true\"/></policy></busconfig>";
        fs::write(dir.join("bus.conf"), policy).expect("bus configuration");
        let journal = UnixDatagram::bind(dir.join("journal/socket")).expect("a socket");
        let managers = Broker::start(&dir.join("managers"));
        let mut broker = DbusBroker { launcher: None, dir, managers, _journal: journal };
        broker.restart();
        Some(broker)
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket().display())
    }

    /// The broker itself, which its launcher starts; not before it serves.
    pub fn pid(&self) -> u32 {
        let launcher = self.launcher.as_ref().expect("it runs").id();
        let mut broker = None;
        super::until("the broker runs", || {
            let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
            broker = children.unwrap_or_default().split_whitespace().next().and_then(|pid| pid.parse().ok());
            broker.is_some_and(|pid: u32| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "dbus-broker")
            })
        });
        broker.expect("was seen")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("bus")
    }

    /// Ends the bus with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            launcher.kill().expect("kill");
            launcher.wait().expect("ends");
        }
        let _ = fs::remove_file(self.socket());
    }

    /// A new bus at the same address. Who connects waits until it serves.
    pub fn restart(&mut self) {
        let listener = UnixListener::bind(self.socket()).expect("a socket");
        let script = "mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal
            mount --bind \"$0/journal\" /run/systemd/journal
            exec 3<&0 </dev/null
            LISTEN_FDS=1 LISTEN_PID=$$ exec dbus-broker-launch --scope user --config-file=\"$0/bus.conf\"";
        let launcher = Command::new("unshare")
            .args(["--mount", "--", "sh", "-ec", script])
            .arg(&self.dir)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("DBUS_SESSION_BUS_ADDRESS", self.managers.address())
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare runs");
        self.launcher = Some(launcher);
    }
}

impl Drop for DbusBroker {
    fn drop(&mut self) {
        self.kill();
    }
}
