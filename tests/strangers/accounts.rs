//! Other accounts, root among them, and buses of other accounts. Only root can play them all.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::broker::Broker;
use super::support::{Bench, text};
use super::{NAME, OBJECT};

/// The account that owns the service.
const OWNER: u32 = 65_534;
/// One that has nothing to do with it; a bus lets in only accounts that have a name.
const STRANGER: u32 = 1;

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can call as other accounts");
    }
    root
}

/// Asks for the version as that account: whether it was answered, and what was said otherwise.
fn asks(uid: u32, address: &str) -> (bool, String) {
    let output = Command::new("gdbus")
        .args(["call", "--address", address, "--dest", NAME, "--object-path", OBJECT])
        .args(["--method", "org.freedesktop.DBus.Properties.Get", NAME, "Version"])
        .env_clear()
        .current_dir("/")
        .uid(uid)
        .gid(uid)
        .output()
        .expect("gdbus runs");
    (output.status.success(), text(&output.stderr))
}

#[test]
fn root_and_strangers_are_refused_on_both_ways_unless_root_is_let_in() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::prepared("bus = \"required\"\n");
    bench.as_account(OWNER);
    let broker = Broker::start_as(bench.path(), OWNER);
    bench.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
    for root_is_let_in in [false, true] {
        if root_is_let_in {
            let text = fs::read_to_string(bench.config()).expect("configuration");
            fs::write(bench.config(), format!("allow_root = true\n{text}")).expect("configuration");
        }
        bench.start();
        for address in [bench.address(), broker.address()] {
            let (answered, said) = asks(OWNER, &address);
            assert!(answered, "{address}: {said}");
            for (uid, expected) in [(0, root_is_let_in), (STRANGER, false)] {
                let (answered, said) = asks(uid, &address);
                assert_eq!(answered, expected, "{uid} at {address}: {said}");
                if !answered && address == broker.address() {
                    assert!(said.contains("belongs to the account"), "{said}");
                }
            }
        }
        bench.stop();
    }
}

#[test]
fn the_bus_of_another_account_is_refused_at_the_start() {
    if !is_root() {
        return;
    }
    for owner in [0, STRANGER] {
        let mut bench = Bench::prepared("bus = \"required\"\n");
        bench.as_account(OWNER);
        let home = tempfile::tempdir().expect("scratch directory");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(home.path(), mode).expect("modes");
        std::os::unix::fs::chown(home.path(), Some(owner), Some(owner)).expect("gives it away");
        let broker = Broker::start_as(home.path(), owner);
        broker.open_to_all();
        bench.environment("DBUS_SESSION_BUS_ADDRESS", &broker.address());
        let error = bench.try_start().expect_err("it is not this account's");
        assert!(
            format!("{error}{}", bench.log()).contains("belongs to the account"),
            "{error}\n{}",
            bench.log()
        );
    }
}
