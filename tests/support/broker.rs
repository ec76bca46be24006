//! A message bus of a test's own.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A `dbus-daemon` that lets every account in: who may use the service is then the service's own decision.
pub struct Broker {
    child: Child,
    socket: PathBuf,
    config: PathBuf,
    account: u32,
}

impl Broker {
    pub fn start(dir: &Path) -> Broker {
        Broker::start_as(dir, nix::unistd::geteuid().as_raw())
    }

    /// The bus of that account, in a directory that it may write; of another one only as root.
    pub fn start_as(dir: &Path, account: u32) -> Broker {
        let socket = dir.join("bus");
        let config = dir.join("bus.conf");
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n<busconfig><type>session</type>\
             <listen>unix:path={}</listen><servicedir>{}</servicedir><auth>EXTERNAL</auth><policy context=\"default\"><allow user=\"*\"/>\
             <allow own=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/></policy>\
             </busconfig>",
            socket.display(),
            dir.join("services").display()
        );
        fs::write(&config, text).expect("bus configuration");
        Broker { child: spawn(&config, account), socket, config, account }
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// Has the bus start this when somebody calls the name. Ends with the bus at the latest, if it does so.
    pub fn activate(&self, name: &str, command: &str) {
        let services = self.config.with_file_name("services");
        fs::create_dir_all(&services).expect("a directory");
        let text = format!("[D-BUS Service]\nName={name}\nExec={command}\n");
        fs::write(services.join(format!("{name}.service")), text).expect("writes");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everybody may reach the socket.
    pub fn open_to_all(&self) {
        fs::set_permissions(&self.socket, Permissions::from_mode(0o666)).expect("modes");
    }

    /// Ends the bus with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("ends");
        let _ = fs::remove_file(&self.socket);
    }

    /// A new bus at the same address.
    pub fn restart(&mut self) {
        self.child = spawn(&self.config, self.account);
    }
}

fn spawn(config: &Path, account: u32) -> Child {
    let mut command = Command::new("dbus-daemon");
    if account != nix::unistd::geteuid().as_raw() {
        command.uid(account).gid(account);
    }
    let mut child = command
        .arg(format!("--config-file={}", config.display()))
        .args(["--nofork", "--print-address"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dbus-daemon runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its address");
    assert!(line.starts_with("unix:"), "dbus-daemon started: {line:?}");
    child
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
