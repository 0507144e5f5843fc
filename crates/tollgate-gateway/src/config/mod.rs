//! From the text of a configuration file to a [`Plan`], or to everything that is wrong.

mod env;
mod files;
mod form;
mod format;
mod problem;
mod rate_limits;
mod read;
mod secrets;
mod source;
pub mod spec;
pub mod tables;
mod tree;
mod typed;

pub use self::env::Env;
pub use self::files::NamedFile;
pub use self::problem::{Place, Problem, Report, Severity, Span};
pub use self::rate_limits::{is_rate_limits, read_rate_limit_files, read_rate_limits};
pub use self::source::{Source, SourceError};

use std::rc::Rc;

use self::problem::Problems;
use self::tables::File;
use self::typed::{At, Checked, Kind as _, Reported};
use crate::plan::Plan;

#[derive(Debug)]
pub struct Outcome {
    pub plan: Option<Plan>,
    pub report: Report,
    pub files: Vec<NamedFile>,
}

impl Outcome {
    #[must_use]
    pub fn with_files(mut self) -> Self {
        let wrong: Vec<_> = self.files.iter().filter_map(NamedFile::problem).collect();
        if !wrong.is_empty() {
            self.plan = None;
            self.report.add(wrong);
        }
        self
    }
}

/// Reads a configuration; variables come from `env`.
///
/// It reads only the text and never blocks. [`Outcome::with_files`] opens the files that the
/// configuration names, and so does the server.
pub fn read(source: &Source, env: Env<'_>) -> Outcome {
    let problems = Rc::new(Problems::default());
    let plan = plan(source, env, &problems);
    let mut plan = plan.ok().filter(|_| !problems.has_errors());
    let files = problems.named_files();
    if let Some(plan) = &mut plan {
        plan.files = files.iter().flat_map(NamedFile::paths).cloned().collect();
    }
    Outcome { plan, report: problems.report(source), files }
}

pub fn read_with_process_env(source: &Source) -> Outcome {
    read(source, &|name| std::env::var(name).ok())
}

fn plan(source: &Source, env: Env<'_>, problems: &Rc<Problems>) -> Checked<Plan> {
    if source.text.len() as u64 > Source::MAX_BYTES {
        let place = Place { span: 0..0, path: String::new() };
        let what = format!("the file is larger than {} KiB", Source::MAX_BYTES >> 10);
        return Err(problems.error(place, what, "is it the right one?"));
    }
    let root = tree::parse(&source.text, env, problems).ok_or(Reported)?;
    form::check(&File::SHAPE, &root, "", problems);
    read::plan(&*File::read(At { node: &root, path: "", problems })?)
}
