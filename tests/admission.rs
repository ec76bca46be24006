//! Promise 8: only the account that owns the service can reach it, on both transports, before anything is dispatched.

mod support;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use support::broker::Broker;
use support::{Bench, text};

/// An account that is nobody's here.
const STRANGER: &str = "65534";

fn as_stranger(program: &str, arguments: &[&str]) -> Output {
    Command::new("setpriv")
        .args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", program])
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .expect("setpriv runs")
}

/// These tests change accounts, which only root can.
fn skipped() -> bool {
    let skip = !nix::unistd::geteuid().is_root();
    if skip {
        eprintln!("SKIPPED: only root can become another account");
    }
    skip
}

fn open_up(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("modes");
}

const CALLS: [&[&str]; 3] = [
    &[
        "call",
        "org.airouter.Sessions1",
        "/org/airouter/Sessions1",
        "org.airouter.Sessions1",
        "List",
        "a{sv}",
        "0",
    ],
    &[
        "get-property",
        "org.airouter.Sessions1",
        "/org/airouter/Sessions1",
        "org.airouter.Sessions1",
        "Version",
    ],
    &["introspect", "org.airouter.Sessions1", "/org/airouter/Sessions1"],
];

#[test]
fn another_account_is_refused_on_the_private_socket_even_where_modes_let_it_in() {
    if skipped() {
        return;
    }
    let bench = Bench::new();
    for call in CALLS {
        assert!(bench.busctl(call).status.success(), "our own account is served");
    }
    open_up(bench.path(), 0o755);
    open_up(&bench.path().join("run"), 0o755);
    open_up(&bench.socket(), 0o666);
    let address = format!("--address={}", bench.address());
    for call in CALLS {
        let mut arguments = vec![address.as_str()];
        arguments.extend(call);
        let output = as_stranger("busctl", &arguments);
        assert!(!output.status.success(), "{call:?}: {}", text(&output.stdout));
    }
}

#[test]
fn another_account_is_refused_on_a_bus_that_lets_it_in() {
    if skipped() {
        return;
    }
    let mut bench = Bench::prepared("bus = \"required\"\n");
    let broker = Broker::start(bench.path());
    bench.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
    bench.start();
    open_up(bench.path(), 0o755);
    broker.open_to_all();
    let address = format!("--address={}", broker.address());
    for call in CALLS {
        let mut arguments = vec![address.as_str()];
        arguments.extend(call);
        let ours = Command::new("busctl").args(&arguments).output().expect("busctl runs");
        assert!(ours.status.success(), "our own account is served: {}", text(&ours.stderr));
        let output = as_stranger("busctl", &arguments);
        assert!(!output.status.success(), "{call:?}: {}", text(&output.stdout));
    }
    // The bus itself does let it in: the refusal is ours.
    let names = as_stranger("busctl", &[&address, "list"]);
    assert!(text(&names.stdout).contains("org.airouter.Sessions1"), "{}", text(&names.stderr));
}

#[test]
fn root_runs_no_sessions_unless_it_is_said() {
    if skipped() {
        return;
    }
    let mut bench = Bench::prepared("");
    let config = std::fs::read_to_string(bench.config()).expect("config").replace("allow_root = true", "");
    std::fs::write(bench.config(), config).expect("config");
    let error = bench.try_start().expect_err("root is refused");
    assert!(error.contains("allow_root"), "says what to do: {error}");
}
