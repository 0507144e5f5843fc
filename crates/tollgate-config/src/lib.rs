//! The gateway's configuration: a YAML file becomes a [`plan::Plan`], which is plain, fully checked
//! data, or a report of all its problems.

#![expect(missing_docs, reason = "a part of the gateway, and not a library for other programs")]

pub mod check;
pub mod code;
mod file;
pub mod plan;
mod rate_limits;
mod yaml;

pub use self::file::{format, schema, tables};
pub use self::plan::files;
pub use self::rate_limits::{is_rate_limits, read_rate_limit_files, read_rate_limits};
pub use self::yaml::env::Env;
pub use self::yaml::named_files::NamedFiles;
pub use self::yaml::place::{Place, Span};
pub use self::yaml::problem::{Problem, Report, Severity};
pub use self::yaml::source::{Source, SourceError};
pub use self::yaml::spec;

use std::rc::Rc;

use self::files::FileError;
use self::plan::Plan;
use self::tables::{File, TestFile};
use self::yaml::parse;
use self::yaml::problem::{Checked, Problems, Reported};
use self::yaml::typed::{Input, ValueType as _};

/// The environment variable with the token of the admin address.
pub const ADMIN_TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

#[derive(Debug)]
pub struct Outcome {
    pub plan: Option<Plan>,
    pub report: Report,
    pub files: Vec<NamedFiles>,
}

impl Outcome {
    /// Opens the files that the configuration names, and reports problems with them.
    #[must_use]
    pub fn with_files(mut self) -> Self {
        let problems: Vec<_> = self.files.iter().flat_map(file_problems).collect();
        if !problems.is_empty() {
            self.plan = None;
            self.report.add(problems);
        }
        self
    }
}

/// The errors in these files, at their places in the configuration.
fn file_problems(named: &NamedFiles) -> impl Iterator<Item = Problem> {
    (named.check)().into_iter().filter_map(|FileError { file, code, what, cure }| {
        let (_, place) = named.files.iter().find(|(named, _)| *named == file)?;
        Some(Problem { severity: Severity::Error, code, place: place.clone(), what, cure })
    })
}

/// Reads a configuration; variables come from `env`.
///
/// This reads only the text and never blocks. [`Outcome::with_files`] and the server open the files
/// that the configuration names.
pub fn read(source: &Source, env: Env<'_>) -> Outcome {
    let problems = Rc::new(Problems::default());
    let plan = plan(source, env, &problems);
    let mut plan = plan.ok().filter(|_| !problems.has_errors());
    let files = problems.named_files();
    if let Some(plan) = &mut plan {
        let files = files.iter().filter(|named| named.reload).flat_map(|named| &named.files);
        plan.files = files.map(|(file, _)| file.clone()).collect();
    }
    Outcome { plan, report: problems.report(source), files }
}

pub fn read_with_process_env(source: &Source) -> Outcome {
    read(source, &|name| std::env::var(name).ok())
}

/// Reads a file of `tollgate test`; variables come from the process's environment.
pub fn read_tests(source: &Source) -> (Option<TestFile>, Report) {
    let problems = Rc::new(Problems::default());
    let root = parse::parse(&source.text, &|name| std::env::var(name).ok(), &problems);
    let tests = root.and_then(|root| TestFile::read(Input::root(&root, &problems)).ok());
    (tests.filter(|_| !problems.has_errors()), problems.report(source))
}

fn plan(source: &Source, env: Env<'_>, problems: &Rc<Problems>) -> Checked<Plan> {
    if source.text.len() as u64 > Source::MAX_BYTES {
        let what = format!("the file is larger than {} KiB", Source::MAX_BYTES >> 10);
        return Err(problems.error(code::TOO_LARGE, Place::START, what, "is it the right file?"));
    }
    let root = parse::parse(&source.text, env, problems).ok_or(Reported)?;
    let has_admin_token = env(ADMIN_TOKEN).is_some_and(|token| !token.is_empty());
    file::read::plan(&*File::read(Input::root(&root, problems))?, has_admin_token)
}
