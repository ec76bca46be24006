//! What `make install` puts in place, in a real user session with each broker: the first call activates the service, a
//! failed activation says why, the unit is reloaded, restarted, upgraded and watched. The tests in `inside` run as an
//! unprivileged account.

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use airouter_sessiond::client::WaitFor;
use support::{Bench, PATIENCE, text};

/// Installs what cargo built below that prefix.
fn install(prefix: &Path) {
    let built = support::program("sessionctl");
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/install"))
        .args([built.parent().expect("a directory").as_os_str(), "".as_ref(), prefix.as_os_str()])
        .output()
        .expect("the installer runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn in_session(broker: &str) {
    let directory = tempfile::tempdir().expect("scratch directory");
    install(&directory.path().join("prefix"));
    support::user_session::run(broker, "inside::", directory.path());
}

#[test]
fn an_installed_service_under_a_user_manager_with_dbus_daemon() {
    in_session("dbus-daemon");
}

#[test]
fn an_installed_service_under_a_user_manager_with_dbus_broker() {
    in_session("dbus-broker");
}

#[test]
fn what_is_installed_is_taken_away_again() {
    let directory = tempfile::tempdir().expect("scratch directory");
    let prefix = directory.path().join("prefix");
    install(&prefix);
    let files = || {
        let output = Command::new("find").arg(&prefix).args(["-type", "f"]).output().expect("find");
        text(&output.stdout)
    };
    for file in
        ["bin/airouter-sessiond", "lib/systemd/user/airouter-sessiond.service", "man5/sessiond.toml.5"]
    {
        assert!(files().contains(file), "{file} in\n{}", files());
    }
    let installer = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/install");
    let removed = Command::new(installer)
        .args(["--remove".as_ref(), "".as_ref(), prefix.as_os_str(), directory.path().as_os_str()])
        .status();
    assert!(removed.expect("the installer runs").success());
    assert_eq!(files(), "", "left");
}

/// The story that `make qualify` tells of installed programs, and that it fails where they are not what they should be.
#[cfg(feature = "reference-controller")]
#[test]
fn qualification_counts_and_cleans_up() {
    use std::os::unix::fs::PermissionsExt;

    let present =
        |command: &str| Command::new("which").arg(command).output().is_ok_and(|o| o.status.success());
    if !nix::unistd::geteuid().is_root() || !["jq", "useradd", "dbus-daemon"].into_iter().all(present) {
        eprintln!("SKIPPED qualification_counts_and_cleans_up: needs root, jq, useradd and dbus-daemon");
        return;
    }
    let directory = tempfile::tempdir().expect("scratch directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("modes");
    let (prefix, receipt) = (directory.path().join("prefix"), directory.path().join("receipt.json"));
    install(&prefix);
    let qualify = || {
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/qualify"))
            .args([&prefix.join("bin"), &receipt])
            .arg(env!("CARGO_BIN_EXE_reference-controller"))
            .output()
            .expect("the script runs");
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        let receipt = std::fs::read_to_string(&receipt).unwrap_or_else(|error| panic!("{error}\n{said}"));
        let receipt: serde_json::Value = serde_json::from_str(&receipt).expect("JSON");
        assert_eq!(receipt["temporary_state_removed"], true, "{said}");
        (output.status.code(), receipt, said)
    };
    let (status, receipt, said) = qualify();
    assert_eq!((status, &receipt["passed"]), (Some(0), &true.into()), "{said}");
    let counted = receipt["executions"].as_array().expect("a list");
    assert!(counted.len() == 4 && counted.iter().all(|program| program["executions"] == 1), "{receipt}");
    let framework = &receipt["framework"];
    assert_eq!((&framework["deliveries"], &framework["end"]), (&1.into(), &"completed".into()), "{receipt}");
    let sum = Command::new("sha256sum").arg(prefix.join("bin/sessionctl")).output().expect("sha256sum");
    assert!(text(&sum.stdout).starts_with(receipt["programs"][2]["sha256"].as_str().expect("a sum")));

    let executor = prefix.join("bin/airouter-native-exec");
    std::fs::remove_file(&executor).expect("removes");
    std::fs::copy("/bin/true", &executor).expect("copies");
    let (status, receipt, _) = qualify();
    assert_eq!((status, &receipt["passed"]), (Some(1), &false.into()), "{receipt}");
}

#[test]
fn the_unit_names_nothing_that_a_manager_does_not_know() {
    let directory = tempfile::tempdir().expect("scratch directory");
    let prefix = directory.path().join("prefix");
    install(&prefix);
    let unit = prefix.join("lib/systemd/user/airouter-sessiond.service");
    let Ok(output) =
        Command::new("systemd-analyze").args(["--user", "--man=no", "verify"]).arg(unit).output()
    else {
        eprintln!("SKIPPED the_unit_names_nothing_that_a_manager_does_not_know: needs systemd-analyze");
        return;
    };
    let said = text(&output.stderr);
    assert!(!said.contains("airouter"), "{said}");
}

#[tokio::test]
async fn the_journal_gets_priorities_and_every_session_by_its_run_id() {
    let mut bench = Bench::prepared("on_stop = \"detach\"");
    let log = std::fs::metadata(bench.write("daemon.log", "")).expect("a file");
    // What the service manager sets for the stream that it connected.
    bench.environment("JOURNAL_STREAM", &format!("{}:{}", log.dev(), log.ino()));
    bench.start();
    let secret = "echo '{}'; until [ -e go ]; do sleep 0.02; done";
    let submission = bench.script(secret);
    let (client, run_id) = (bench.client().await, submission.run_id());
    client.submit(&submission, None).await.expect("submits");
    client.wait(run_id, WaitFor::Started, PATIENCE).await.expect("starts");
    bench.kill();
    bench.start();
    bench.write("go", "");
    bench.client().await.wait(run_id, WaitFor::Finished, PATIENCE).await.expect("ends");
    bench.stop();
    let log = bench.log();
    for line in log.lines() {
        assert!(line.starts_with("<6>") || line.starts_with("<4>"), "{line} in\n{log}");
    }
    for said in ["session admitted", "adopted", "session finished"] {
        let line = log.lines().find(|line| line.contains(said)).unwrap_or_else(|| panic!("{said} in\n{log}"));
        assert!(line.contains(&format!("run_id={run_id}")), "{line}");
    }
    assert!(!log.contains("echo"), "{log}");
    assert_eq!(log.matches("session driving").count(), 1, "each state is told once\n{log}");

    // The variable alone, inherited by somebody whose output leads elsewhere, changes nothing.
    bench.environment("JOURNAL_STREAM", "1:1");
    bench.start();
    bench.stop();
    assert!(!bench.log().lines().last().expect("lines").starts_with('<'), "{}", bench.log());
}

mod inside {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};
    use std::time::Instant;

    use airouter_sessiond::model::RunId;

    use super::support::{PATIENCE, lives, text, until};

    const UNIT: &str = "airouter-sessiond.service";
    const SERVICE: [&str; 3] =
        ["org.airouter.Sessions1", "/org/airouter/Sessions1", "org.airouter.Sessions1"];
    const GOOD: &str = "[profiles.sh]\nprogram = \"/bin/sh\"\ndialect = \"jsonl\"\narguments = [\"-c\"]\n";

    /// The installed files in the places where manager and bus look in this session, and an account's directories.
    struct Installed {
        home: tempfile::TempDir,
    }

    impl Installed {
        fn new() -> Installed {
            let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").expect("a user session"));
            let prefix = prefix();
            for (from, to) in [
                ("lib/systemd/user/airouter-sessiond.service", "systemd/user"),
                ("share/dbus-1/services/org.airouter.Sessions1.service", "dbus-1/services"),
            ] {
                let from = prefix.join(from);
                fs::create_dir_all(runtime.join(to)).expect("a directory");
                fs::copy(&from, runtime.join(to).join(from.file_name().expect("a name"))).expect("copies");
            }
            let home = tempfile::tempdir().expect("scratch directory");
            fs::create_dir_all(home.path().join("config/airouter")).expect("a directory");
            let set =
                |name: &str| format!("XDG_{}_HOME={}", name.to_uppercase(), home.path().join(name).display());
            systemctl(&["set-environment", &set("config"), &set("state")]);
            systemctl(&["daemon-reload"]);
            let bus = ["org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus"];
            busctl(&[&["call"], &bus[..], &["ReloadConfig"]].concat());
            let installed = Installed { home };
            installed.configure(GOOD);
            installed
        }

        fn configure(&self, text: &str) {
            fs::write(self.home.path().join("config/airouter/sessiond.toml"), text).expect("writes");
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.home.path().join(name)).unwrap_or_default()
        }

        /// Submits a shell script; `go` in its directory lets it end where it waits for that.
        fn submit(&self, run_id: RunId, script: &str) -> Output {
            let (run_id, home) = (run_id.to_string(), self.home.path().display().to_string());
            let submission = [
                &["call"],
                &SERVICE[..],
                &["Submit", "a{sv}", "5", "version", "s", "airouter.sessions.v1"],
                &["binding", "a{sv}", "1", "run_id", "s", &run_id, "profile", "s", "sh"],
                &["directory", "s", &home, "arguments", "as", "1", script],
            ];
            busctl(&submission.concat())
        }

        /// What `Wait` answers, as text.
        fn waited(&self, run_id: RunId, condition: &str) -> String {
            let patience = PATIENCE.as_millis().to_string();
            let wait = ["Wait", "ssu", &run_id.to_string(), condition, &patience];
            text(&busctl(&[&["call"], &SERVICE[..], &wait].concat()).stdout)
        }
    }

    impl Drop for Installed {
        fn drop(&mut self) {
            systemctl(&["stop", UNIT]);
            systemctl(&["reset-failed", UNIT]);
            let runtime = std::env::var("XDG_RUNTIME_DIR").expect("a user session");
            let _ = fs::remove_dir_all(Path::new(&runtime).join(format!("systemd/user/{UNIT}.d")));
        }
    }

    fn prefix() -> PathBuf {
        std::env::current_dir().expect("a directory").join("prefix")
    }

    fn busctl(arguments: &[&str]) -> Output {
        Command::new("busctl").arg("--user").args(arguments).output().expect("busctl")
    }

    fn systemctl(arguments: &[&str]) -> Output {
        Command::new("systemctl").arg("--user").args(arguments).output().expect("systemctl")
    }

    fn shown(property: &str) -> String {
        text(&systemctl(&["show", "-P", property, UNIT]).stdout).trim().to_owned()
    }

    fn assert_done(output: &Output) {
        assert!(output.status.success(), "{}\n{}", text(&output.stderr), shown("StatusText"));
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn the_first_call_starts_the_service_and_runs_a_session() {
        let installed = Installed::new();
        assert_eq!(shown("ActiveState"), "inactive");
        let run_id = RunId::random();
        assert_done(&installed.submit(run_id, "echo '{\"hello\":1}'; until [ -e go ]; do sleep 0.02; done"));
        assert_eq!(shown("ActiveState"), "active");
        assert!(installed.waited(run_id, "started").contains("driving"));
        until("the manager is told", || shown("StatusText").starts_with("1 running, 0 waiting"));
        fs::write(installed.home.path().join("go"), "").expect("writes");
        assert!(installed.waited(run_id, "finished").contains("completed"));
        until("the manager is told", || shown("StatusText").starts_with("0 running, 0 waiting"));
        // Its first command finds what a call on the bus had started, and nothing of its own is started.
        let list =
            Command::new(prefix().join("bin/sessionctl")).args(["list", "--all"]).output().expect("runs");
        assert!(text(&list.stdout).contains(&run_id.to_string()[..8]), "{list:?}");
        assert!(!installed.home.path().join("state/airouter/start.lock").exists());
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn a_failed_activation_says_why_at_once_and_the_next_call_starts_the_service() {
        let installed = Installed::new();
        // More often than a manager lets a unit fail that has a limit.
        for round in 0..7 {
            installed.configure("bus = \"sometimes\"\n");
            let begun = Instant::now();
            let output = installed.submit(RunId::random(), "exit 0");
            let said = text(&output.stderr);
            assert!(!output.status.success() && said.contains("NotStarted"), "round {round}: {said}");
            assert!(said.contains("sessiond.toml") && said.contains("must be one of"), "{said}");
            assert!(begun.elapsed() < PATIENCE / 12, "it says so at once");
            until("the unit has failed", || shown("ActiveState") == "failed");
            assert!(shown("StatusText").contains("must be one of"), "{}", shown("StatusText"));
            let sessionctl = Command::new(prefix().join("bin/sessionctl"))
                .env("XDG_CONFIG_HOME", installed.home.path().join("config"))
                .env("XDG_STATE_HOME", installed.home.path().join("state"))
                .args(["list"])
                .output()
                .expect("runs");
            assert!(text(&sessionctl.stderr).contains("must be one of"), "{sessionctl:?}");
            assert_eq!(sessionctl.status.code(), Some(51), "no service");
        }
        installed.configure(GOOD);
        let run_id = RunId::random();
        assert_done(&installed.submit(run_id, "exit 0"));
        assert!(installed.waited(run_id, "finished").contains("completed"));
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn a_reload_takes_a_good_configuration_and_refuses_another() {
        let installed = Installed::new();
        assert_done(&systemctl(&["start", UNIT]));
        let pid = shown("MainPID");
        installed.configure(&format!("{GOOD}[profiles.more]\nprogram = \"/bin/cat\"\ndialect = \"jsonl\"\n"));
        assert_done(&systemctl(&["reload", UNIT]));
        let profiles = || {
            let get = [&["get-property"], &SERVICE[..], &["Profiles"]].concat();
            text(&busctl(&get).stdout)
        };
        until("the new profile is there", || profiles().contains("\"more\""));
        installed.configure("bus = \"sometimes\"\n");
        assert!(!systemctl(&["reload", UNIT]).status.success(), "a reload that changes nothing has failed");
        assert_eq!((shown("ActiveState").as_str(), shown("MainPID")), ("active", pid));
        assert!(profiles().contains("\"more\""), "the old one stays");
        installed.configure(GOOD);
        assert_done(&systemctl(&["reload", UNIT]));
        until("the profile is gone", || !profiles().contains("\"more\""));
        assert_eq!(shown("ActiveState"), "active");
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn the_unit_is_upgraded_restarted_and_killed_under_a_running_session() {
        let installed = Installed::new();
        let run_id = RunId::random();
        assert_done(&installed.submit(run_id, "echo $$ >>starts; until [ -e go ]; do sleep 0.02; done"));
        until("it runs", || installed.read("starts").ends_with('\n'));
        // The unit's own file is root's; a program of ours stands in for the package that replaces it.
        let programs = installed.home.path().join("bin");
        fs::create_dir(&programs).expect("a directory");
        let put = |mark: &str| {
            for name in ["airouter-sessiond", "airouter-native-exec"] {
                let mut bytes = fs::read(prefix().join("bin").join(name)).expect("reads");
                bytes.extend(mark.bytes());
                let new = programs.join(format!("{name}.new"));
                fs::write(&new, bytes).expect("writes");
                fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                    .expect("modes");
                fs::rename(&new, programs.join(name)).expect("replaces");
            }
        };
        put("");
        drop_in(&format!("ExecStart=\nExecStart={}/airouter-sessiond", programs.display()));
        assert_done(&systemctl(&["restart", UNIT]));
        put("another version");
        // Something changes, so that the line is made anew.
        let other = RunId::random();
        assert_done(&installed.submit(other, "exit 0"));
        until("the manager is told", || shown("StatusText").contains("another program is installed"));
        assert_done(&systemctl(&["restart", UNIT]));
        until("the manager is told", || shown("StatusText").starts_with("1 running"));
        assert!(!shown("StatusText").contains("installed"), "{}", shown("StatusText"));
        let pid = shown("MainPID");
        assert_done(&systemctl(&["kill", "--signal=SIGKILL", "--kill-who=main", UNIT]));
        until("another one runs", || shown("ActiveState") == "active" && shown("MainPID") != pid);
        assert!(lives(&installed.read("starts")), "nobody touched the session");
        fs::write(installed.home.path().join("go"), "").expect("writes");
        assert!(installed.waited(run_id, "finished").contains("completed"));
        assert_eq!(installed.read("starts").lines().count(), 1, "started once");
    }

    #[test]
    #[ignore = "runs in a user session, started by the outer tests"]
    fn a_service_that_does_not_answer_is_replaced_and_its_sessions_go_on() {
        let installed = Installed::new();
        drop_in("WatchdogSec=2");
        let run_id = RunId::random();
        assert_done(&installed.submit(run_id, "echo $$ >starts; until [ -e go ]; do sleep 0.02; done"));
        until("it runs", || installed.read("starts").ends_with('\n'));
        let pid = shown("MainPID");
        // It answers for longer than that.
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(shown("MainPID"), pid);
        assert_done(&systemctl(&["kill", "--signal=SIGSTOP", "--kill-who=main", UNIT]));
        until("another one runs", || shown("ActiveState") == "active" && shown("MainPID") != pid);
        assert!(lives(&installed.read("starts")));
        fs::write(installed.home.path().join("go"), "").expect("writes");
        assert!(installed.waited(run_id, "finished").contains("completed"));
    }

    /// Adds to the unit for this session.
    fn drop_in(service: &str) {
        let runtime = std::env::var("XDG_RUNTIME_DIR").expect("a user session");
        let directory = Path::new(&runtime).join(format!("systemd/user/{UNIT}.d"));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("test.conf"), format!("[Service]\n{service}\n")).expect("writes");
        systemctl(&["daemon-reload"]);
    }
}
