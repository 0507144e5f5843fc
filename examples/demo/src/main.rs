//! The demo; see `demo --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    demo::run()
}
