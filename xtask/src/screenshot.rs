//! `cargo xtask screenshot`: the live page after two minutes of traffic, into docs/images.

use crate::process::{self, Failure};
use crate::tools;

/// The test that looks at the page is the one that takes the pictures.
pub(crate) fn run() -> Result<(), Failure> {
    let path = tools::provide(tools::FOR_TESTS, false)?;
    let mut command = process::cargo(&["test", "--package", "tollgate-tests", "--test", "suite"]);
    command.args(["--", "--exact", "page::picture::a_picture_in_light_and_in_dark"]);
    command.env("PATH", path).envs([("TOLLGATE_BLESS", "1"), ("TOLLGATE_LONG", "1")]);
    process::run(&mut command)
}
