//! `cargo xtask screenshot`: takes pictures of the live page after two minutes of traffic, and of a
//! replay's report, into docs/images.

use crate::process::{self, Failure};
use crate::tools;

/// The browser tests of the page and the report take the pictures.
pub(crate) fn run() -> Result<(), Failure> {
    let path = tools::provide(false)?;
    let mut command = process::cargo(&["test", "--package", "tollgate-tests", "--test", "suite"]);
    command.args(["--", "--exact", "page::picture::live_page_in_light_and_dark"]);
    command.arg("page::report::report_is_readable_on_every_screen");
    command.env("PATH", path).envs([("TOLLGATE_BLESS", "1"), ("TOLLGATE_LONG", "1")]);
    process::run(&mut command)
}
