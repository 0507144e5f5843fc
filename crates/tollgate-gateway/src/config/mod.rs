//! From the text of a configuration file to a [`Plan`], or to everything that is wrong.
//!
//! | file | step |
//! |---|---|
//! | `source.rs` | the text, bounded in size |
//! | `tree.rs`, `env.rs` | YAML as a tree of values that know where they stand, with variables filled in |
//! | `spec.rs`, `tables/`, `format.rs` | what a file may say, as data |
//! | `check.rs` | holds the tree against the tables |
//! | `view.rs` | a checked section, read by key |
//! | `read/` | what the values mean together: a plan |
//! | `files.rs` | the files that a configuration names, and where it does |
//! | `rate_limits.rs` | the rules of Envoy's Rate Limit Service |
//! | `problem.rs` | what is wrong, where, and the cure |

mod check;
mod env;
mod files;
mod format;
mod problem;
mod rate_limits;
mod read;
mod source;
pub mod spec;
pub mod tables;
mod tree;
mod view;

pub use self::env::Env;
pub use self::files::NamedFile;
pub use self::problem::{Place, Problem, Report, Severity, Span};
pub use self::rate_limits::{is_rate_limits, read_rate_limit_files, read_rate_limits};
pub use self::source::{Source, SourceError};

use self::problem::Problems;
use self::spec::Shape;
use self::view::Item;
use crate::plan::Plan;

/// What came of reading a configuration.
#[derive(Debug)]
pub struct Outcome {
    /// The plan, if nothing stands in its way.
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
/// It neither blocks nor looks at anything but the text: files that the configuration names
/// are opened by whoever serves, or asks for it ([`Outcome::with_files`]).
pub fn read(source: &Source, env: Env<'_>) -> Outcome {
    let mut problems = Problems::default();
    let plan = plan(source, env, &mut problems);
    let plan = plan.filter(|_| !problems.has_errors());
    let files = problems.named_files();
    Outcome { plan, report: problems.into_report(source), files }
}

/// Reads a configuration with the variables of this process.
pub fn read_with_process_env(source: &Source) -> Outcome {
    read(source, &|name| std::env::var(name).ok())
}

fn plan(source: &Source, env: Env<'_>, problems: &mut Problems) -> Option<Plan> {
    let place = || Place { span: 0..0, path: String::new() };
    if source.text.len() as u64 > Source::MAX_BYTES {
        let what = format!("the file is larger than {} KiB", Source::MAX_BYTES >> 10);
        problems.error(place(), what, "is it the right one?");
        return None;
    }
    let root = tree::parse(&source.text, env, problems)?;
    check::check(&ROOT, &root, "", problems);
    let root = Item::new(&root, &ROOT, String::new()).view()?;
    read::plan(&root, problems)
}

static ROOT: Shape = Shape::Section(&tables::ROOT);
