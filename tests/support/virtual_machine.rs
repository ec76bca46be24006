//! Tests in a virtual machine, for what this machine's kernel does not offer: the test binary runs itself there.

use std::process::Command;

/// Runs that test of the calling binary in a virtual machine; where none can be had, says loudly that it is skipped.
pub fn run(test: &str) {
    let programs = super::program("airouter-sessiond");
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/virtual-machine"))
        .arg(programs.parent().expect("a directory"))
        .arg(std::env::current_exe().expect("own path"))
        .args([test, "--exact", "--test-threads=1"])
        .output()
        .expect("the tool runs");
    let (out, err) = (super::text(&output.stdout), super::text(&output.stderr));
    if output.status.code() == Some(2) {
        eprintln!("SKIPPED {test}: this kernel does not offer what it needs, and {err}");
        return;
    }
    println!("{out}");
    assert!(output.status.success(), "{test} in a virtual machine: {}\n{out}\n{err}", output.status);
    assert!(out.contains("test result: ok. 1 passed"), "nothing ran:\n{out}");
    assert!(!out.contains("SKIPPED"), "it was skipped there:\n{out}");
}
