//! Reads configuration files, and writes their problems.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use tollgate_config::check::Count;
use tollgate_config::code;
use tollgate_config::plan::Plan;
use tollgate_config::{self as config, Source};
use tollgate_gateway::trace;

/// Options for a check.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    /// Whether a warning counts as an error.
    pub strict: bool,
    /// Whether the files that the configuration names are opened.
    pub files: bool,
}

/// Reads a file and writes its problems to stderr.
///
/// # Errors
/// The file is invalid. The error is the exit code 2.
pub fn load(path: &Path, checks: Checks) -> Result<Plan, ExitCode> {
    match Source::read(path) {
        Ok(source) => plan(&source, checks),
        Err(error) => Err(wrong(&error)),
    }
}

pub(crate) fn plan(source: &Source, checks: Checks) -> Result<Plan, ExitCode> {
    let outcome = config::read_with_process_env(source);
    let outcome = if checks.files { outcome.with_files() } else { outcome };
    let config::Outcome { plan, report, .. } = outcome;
    tell(source, &report);
    let plan = plan.ok_or_else(|| ExitCode::from(WRONG))?;
    if let Err(error) = trace::is_possible(plan.tracing.as_ref()) {
        return Err(wrong(&format_args!("{}: {error}", source.name)));
    }
    if checks.strict && report.warnings() > 0 {
        eprintln!("`--strict` treats warnings as errors");
        return Err(ExitCode::from(WRONG));
    }
    Ok(plan)
}

/// Writes a file's problems to stderr.
pub(crate) fn tell(source: &Source, report: &config::Report) {
    eprint!("{}", report.render(io::stderr().is_terminal()));
    let (errors, warnings) = (report.errors(), report.warnings());
    if errors + warnings > 0 {
        eprintln!(
            "{}: {}, {}",
            source.name,
            Count(errors as u64, "error"),
            Count(warnings as u64, "warning")
        );
    }
}

/// Writes a failed command's report.
pub(crate) fn failed(report: &str) -> ExitCode {
    let _ = io::stdout().write_all(report.as_bytes());
    ExitCode::FAILURE
}

pub(crate) fn wrong(error: &dyn fmt::Display) -> ExitCode {
    eprintln!("{}", code::titled(&error.to_string()));
    ExitCode::from(WRONG)
}

/// The exit code for an invalid configuration.
pub(crate) const WRONG: u8 = 2;
