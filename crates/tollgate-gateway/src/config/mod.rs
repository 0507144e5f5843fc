//! From the text of a configuration file to a [`Plan`], or to everything that is wrong.
//!
//! | file | step |
//! |---|---|
//! | `source.rs` | the text, bounded in size |
//! | `tree.rs`, `env.rs` | YAML as a tree of values with places, and variables filled in |
//! | `typed.rs`, `tables/`, `format.rs` | declare each key once: a table and a typed struct |
//! | `spec.rs` | the parts of a table |
//! | `form.rs` | compares the tree with the tables |
//! | `read/` | makes a plan of the values |
//! | `files.rs` | the files that a configuration names |
//! | `rate_limits.rs` | the rules of Envoy's Rate Limit Service |
//! | `problem.rs` | problems with place and cure |

mod env;
mod files;
mod form;
mod format;
mod problem;
mod rate_limits;
mod read;
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

/// The result of reading a configuration.
#[derive(Debug)]
pub struct Outcome {
    /// The plan, if the configuration has no errors.
    pub plan: Option<Plan>,
    /// Everything that is wrong, and everything that is odd.
    pub report: Report,
    /// The files that it names.
    pub files: Vec<NamedFile>,
}

impl Outcome {
    /// Opens the files that the configuration names, and tells what is wrong with these, too.
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
    let plan = plan.ok().filter(|_| !problems.has_errors());
    let files = problems.named_files();
    Outcome { plan, report: problems.report(source), files }
}

/// Reads a configuration with the variables of this process.
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
