//! See [`airouter_sessiond::executor`].

use std::process::ExitCode;

fn main() -> ExitCode {
    airouter_sessiond::executor::main()
}
