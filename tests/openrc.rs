//! The OpenRC service: its functions, run as OpenRC runs them, for an account of the tests in a cgroup of the tests.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::cgroup::Scratch;
use support::{lives, text, until};

const ACCOUNT: &str = "sessiontest";

/// What openrc-run gives a script.
const OPENRC: &str = "ebegin() { echo \"$*\"; }; einfo() { echo \"$*\"; }; ewarn() { echo \"$*\" >&2; }
eerror() { echo \"$*\" >&2; }
eend() { status=$1; shift; [ \"$status\" -eq 0 ] || echo \"$*\" >&2; return \"$status\"; }
";

/// The service as it is installed, and where it keeps its things here.
struct Service {
    directory: tempfile::TempDir,
    cgroups: Scratch,
}

impl Service {
    /// `None`, said loudly: this machine or account cannot.
    fn new(test: &str) -> Option<Service> {
        let cgroups = Scratch::new(test)?;
        if !Command::new("id").arg(ACCOUNT).output().is_ok_and(|output| output.status.success()) {
            let made = Command::new("useradd").args(["--create-home", ACCOUNT]).status();
            assert!(made.expect("useradd").success());
        }
        let directory = tempfile::tempdir().expect("scratch directory");
        open(directory.path());
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/install"))
            .arg("--openrc")
            .args([directory.path(), Path::new("/prefix"), Path::new("/etc")])
            .output()
            .expect("the installer runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let service = Service { directory, cgroups };
        // The programs are where the account can read them.
        fs::create_dir(service.path("bin")).expect("a directory");
        open(&service.path("bin"));
        for name in ["airouter-sessiond", "airouter-native-exec", "sessionctl"] {
            fs::copy(support::program(name), service.path("bin").join(name)).expect("copies");
            open(&service.path("bin").join(name));
        }
        fs::create_dir(service.path("work")).expect("a directory");
        service.give(&service.path("work"));
        service.configure("detach");
        Some(service)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn give(&self, path: &Path) {
        let given = Command::new("chown").arg(ACCOUNT).arg(path).status();
        assert!(given.expect("chown").success());
    }

    fn configure(&self, on_stop: &str) {
        let work = self.path("work");
        let text = format!(
            "spool = \"{0}/spool\"\nsocket = \"{0}/run/sock\"\nbus = \"off\"\non_stop = \"{on_stop}\"\n\
             containment = \"cgroup\"\n[limits]\ngrace_ms = 300\n\
             [profiles.sh]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\n",
            work.display()
        );
        fs::write(self.path("sessiond.toml"), text).expect("writes");
        fs::set_permissions(self.path("sessiond.toml"), Permissions::from_mode(0o644)).expect("modes");
    }

    fn cgroup(&self) -> PathBuf {
        self.cgroups.path.join(format!("airouter-sessiond.{ACCOUNT}"))
    }

    /// Runs one function of the service under a name.
    fn call_as(&self, name: &str, function: &str) -> Output {
        let script = fs::read_to_string(self.path("etc/init.d/airouter-sessiond")).expect("it was installed");
        assert!(script.contains("/prefix/bin/airouter-sessiond"));
        let script = script.replace("/prefix/bin", &self.path("bin").display().to_string());
        let settings = format!(
            "RC_SVCNAME={name}\nsessiond_options='--config {}'\nsessiond_stop_seconds=30\nsessiond_log={}\n\
             sessiond_pidfile={}\nsessiond_cgroups={}\n",
            self.path("sessiond.toml").display(),
            self.path("log").display(),
            self.path("pid").display(),
            self.cgroups.path.display()
        );
        Command::new("/bin/sh")
            .args(["-c", &format!("{OPENRC}{settings}{script}\n{function}\n")])
            .output()
            .expect("a shell")
    }

    fn call(&self, function: &str) -> Output {
        self.call_as(&format!("airouter-sessiond.{ACCOUNT}"), function)
    }

    fn done(&self, function: &str) {
        let output = self.call(function);
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(output.status.success(), "{function}: {}\n{log}", text(&output.stderr));
    }

    fn sessionctl(&self, arguments: &[&str]) -> Output {
        Command::new("setpriv")
            .args(["--reuid", ACCOUNT, "--regid", ACCOUNT, "--init-groups", "--"])
            .arg(self.path("bin/sessionctl"))
            .arg("--config")
            .arg(self.path("sessiond.toml"))
            .args(arguments)
            .current_dir(self.path("work"))
            .output()
            .expect("sessionctl runs")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.call("stop");
    }
}

fn open(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("modes");
}

#[test]
fn an_account_gets_a_cgroup_in_which_its_sessions_outlive_a_stop() {
    let Some(service) = Service::new("openrc-detach") else { return };
    service.done("start");
    service.done("start");
    let pid = service.read("pid");
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", pid.trim())).expect("it runs");
    assert!(cgroup.contains(&format!("/airouter-sessiond.{ACCOUNT}")), "{cgroup}");
    let owner =
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{}", pid.trim())).expect("runs"));
    assert_ne!(owner, 0);
    assert!(text(&service.call("status").stdout).contains(pid.trim()));

    let script = "echo $$ >>starts; until [ -e go ]; do sleep 0.02; done";
    let submitted = service.sessionctl(&["submit", "--profile", "sh", "--", script]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    until("it runs", || service.read("work/starts").ends_with('\n'));
    let main = service.read("work/starts");
    let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", main.trim())).expect("it runs");
    assert!(cgroup.contains(&format!("/airouter-sessiond.{ACCOUNT}/exec-")), "{cgroup}");

    service.done("reload");
    service.done("stop");
    assert!(!lives(&pid) && lives(&main), "the daemon ended and the session did not");
    assert!(service.cgroup().exists(), "its cgroup stays with it");
    assert_eq!(service.call("status").status.code(), Some(3));
    service.done("start");
    fs::write(service.path("work/go"), "").expect("writes");
    let waited = service.sessionctl(&["wait", text(&submitted.stdout).trim()]);
    assert!(waited.status.success(), "{}", text(&waited.stderr));
    assert_eq!(service.read("work/starts").lines().count(), 1, "started once");
    service.done("stop");
    assert!(!service.cgroup().exists(), "nothing is left");
}

#[test]
fn a_stop_waits_for_sessions_that_end_with_the_service() {
    let Some(service) = Service::new("openrc-cancel") else { return };
    service.configure("cancel");
    service.done("start");
    let script = "trap 'sleep 0.5; echo >cleaned; exit 0' TERM; echo >ready; while :; do sleep 0.02; done";
    let submitted = service.sessionctl(&["submit", "--profile", "sh", "--", script]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    until("it runs", || service.path("work/ready").exists());
    service.done("stop");
    assert!(!service.cgroup().exists(), "nothing is left");
}

#[test]
fn root_and_missing_accounts_are_refused_and_a_failed_start_says_why() {
    let Some(service) = Service::new("openrc-refused") else { return };
    for (name, why) in [
        ("airouter-sessiond", "template"),
        ("airouter-sessiond.root", "Root runs no sessions"),
        ("airouter-sessiond.nobody-of-that-name", "no account"),
    ] {
        for function in ["start", "stop", "reload"] {
            let output = service.call_as(name, function);
            assert!(!output.status.success(), "{name} {function}");
            assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        }
    }
    fs::write(service.path("sessiond.toml"), "bus = \"sometimes\"\n").expect("writes");
    let output = service.call("start");
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("must be one of"), "{}", text(&output.stderr));
    assert!(!service.cgroup().exists() && !service.path("pid").exists(), "nothing is left");
    service.configure("detach");
    service.done("start");
    fs::write(service.path("sessiond.toml"), "bus = \"sometimes\"\n").expect("writes");
    let output = service.call("reload");
    assert!(!output.status.success() && text(&output.stderr).contains("must be one of"));
    service.done("status");
}
