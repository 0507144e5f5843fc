//! The demo, under a name of this package: cargo tells a test where to find a program
//! only if it is of its own package.

use std::process::ExitCode;

fn main() -> ExitCode {
    demo::run()
}
