//! The demo as a binary of this package, because Cargo sets `CARGO_BIN_EXE_*` only for binaries of
//! the test's own package.

use std::process::ExitCode;

fn main() -> ExitCode {
    demo::run()
}
