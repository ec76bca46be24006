//! The operator's program. It carries the daemon and the executor too, under their names.

use std::process::ExitCode;

use airouter_sessiond::program::{self, DAEMON, EXECUTOR};

fn main() -> ExitCode {
    match program::called_as().as_deref() {
        Some(DAEMON) => airouter_sessiond::daemon::main(),
        Some(EXECUTOR) => airouter_sessiond::executor::main(),
        _ => airouter_sessiond::cli::main(),
    }
}
