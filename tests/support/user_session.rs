//! Tests inside a real user session: an unprivileged account, a systemd user manager, a user bus, delegated cgroups.
//!
//! A test binary runs itself there: an outer test, as root, calls [`run`] with the name of an ignored one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Names the directory of the programs that a test in a user session uses.
pub const PROGRAMS: &str = "AIROUTER_TEST_PROGRAMS";

/// Runs ignored tests of the calling binary, those whose names contain `filter`, in a user session with that broker.
/// `directory` is a scratch directory that the other account may enter. `false`, said loudly: this machine has none.
pub fn run(broker: &str, filter: &str, directory: &Path) -> bool {
    let present = |path: &str| Path::new(path).exists();
    if !nix::unistd::geteuid().is_root()
        || !present("/lib/systemd/systemd")
        || !present(&format!("/usr/bin/{broker}"))
    {
        eprintln!("SKIPPED {filter}: needs root, systemd and {broker}");
        return false;
    }
    let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).expect("modes");
    open(directory);
    let programs = directory.join("programs");
    fs::create_dir_all(&programs).expect("scratch directory");
    open(&programs);
    let tests = programs.join("tests");
    fs::copy(std::env::current_exe().expect("own path"), &tests).expect("copies");
    for name in ["airouter-sessiond", "airouter-native-exec", "sessionctl"] {
        fs::copy(super::program(name), programs.join(name)).expect("copies");
        open(&programs.join(name));
    }
    open(&tests);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/user-session"))
        .args(["--broker", broker, "--", "env"])
        .arg(format!("{PROGRAMS}={}", programs.display()))
        .arg(&tests)
        .args(["--ignored", "--test-threads=1", filter])
        .current_dir(directory)
        .output()
        .expect("the tool runs");
    let (out, err) = (super::text(&output.stdout), super::text(&output.stderr));
    println!("{out}");
    assert!(output.status.success(), "{filter} with {broker}: {}\n{out}\n{err}", output.status);
    assert!(out.contains("test result: ok.") && !out.contains(" 0 passed"), "nothing ran:\n{out}");
    true
}
