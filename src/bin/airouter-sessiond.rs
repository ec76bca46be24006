//! See [`airouter_sessiond::daemon`].

use std::process::ExitCode;

fn main() -> ExitCode {
    airouter_sessiond::daemon::main()
}
