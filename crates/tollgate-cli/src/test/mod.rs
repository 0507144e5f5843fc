//! `tollgate test`: a file with limits, tested with simulated requests.

mod generate;
mod report;
mod simulation;

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tollgate_config::plan::{Plan, StorePlan, TenantSource, Test, TestFile};
use tollgate_config::{self as config, Source};
use tollgate_replay::scenario::Failed;
use tollgate_testing::test_of;

pub(crate) use self::generate::generate;
use self::report::{Report, Tested, unfit};
pub(crate) use self::simulation::fleet;
use self::simulation::{Simulation, TestError, happenings};
use crate::load::{Checks, WRONG, failed, load, tell, wrong};
use crate::replay::{append, write_whole};
use crate::worst::{self, Threats};

/// The options of `tollgate test`.
#[derive(Clone, Debug, clap::Args)]
pub struct TestArgs {
    /// The files with tests
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The report's format
    #[arg(long, value_enum, default_value_t)]
    format: TestFormat,
    /// Also append a Markdown summary to this file, such as $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Also write the report as an HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Only run tests with this text in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run again when a file changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// How the results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TestFormat {
    /// Readable text.
    #[default]
    Text,
    /// JUnit's XML.
    Junit,
    /// One JSON object.
    Json,
}

/// Runs the tests and writes their report.
///
/// # Errors
/// Exit code 1 if a test fails, and 2 if a file is invalid. The report is written anyway.
pub fn run(args: &TestArgs) -> Result<String, ExitCode> {
    if !args.watch {
        return run_once(args);
    }
    loop {
        let seen = RefCell::default();
        let report = run_files(args, &seen);
        let text = report.map_or_else(
            |_| String::new(),
            |report| {
                // The error is printed, and the file may be writable next time.
                let _ = write_page(&report, args);
                written(&report, args)
            },
        );
        let mut out = io::stdout();
        // Clears the screen.
        let _ = write!(out, "\x1b[2J\x1b[H{text}").and_then(|()| out.flush());
        let has_changed = |(path, before): &(PathBuf, _)| version(path) != *before;
        while !seen.borrow().iter().any(has_changed) {
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The files that were read, with their versions before that.
type Seen = RefCell<Vec<(PathBuf, Option<SystemTime>)>>;

/// When a file was last changed.
fn version(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|it| it.modified()).ok()
}

fn run_once(args: &TestArgs) -> Result<String, ExitCode> {
    let report = run_files(args, &Seen::default())?;
    let text = written(&report, args);
    if let Some(path) = &args.summary {
        append(path, &report.markdown()).map_err(|error| cannot_write(path, &error))?;
    }
    write_page(&report, args)?;
    if report.has_passed() { Ok(text) } else { Err(failed(&text)) }
}

fn cannot_write(path: &Path, error: &io::Error) -> ExitCode {
    wrong(&format_args!("cannot write {}: {error} [TG0707]", path.display()))
}

/// Writes the HTML file.
fn write_page(report: &Report, args: &TestArgs) -> Result<(), ExitCode> {
    let Some(path) = &args.html else { return Ok(()) };
    write_whole(path, report.html().as_bytes()).map_err(|error| cannot_write(path, &error))
}

fn written(report: &Report, args: &TestArgs) -> String {
    match args.format {
        TestFormat::Text => report.text(),
        TestFormat::Junit => report.junit(),
        TestFormat::Json => format!("{:#}\n", report.json()),
    }
}

/// Runs all files, and adds the files that were read to `seen`.
fn run_files(args: &TestArgs, seen: &Seen) -> Result<Report, ExitCode> {
    let mut tested = Vec::new();
    let see = |path: &PathBuf| (path.clone(), version(path));
    seen.borrow_mut().extend(args.files.iter().map(see));
    for path in &args.files {
        let source = Source::read(path).map_err(|error| wrong(&error))?;
        let (file, report) = config::read_tests(&source);
        tell(&source, &report);
        let file = file.ok_or_else(|| ExitCode::from(WRONG))?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let load = |limits: &Path| {
            let limits = folder.join(limits);
            seen.borrow_mut().push(see(&limits));
            load(&limits, Checks { strict: false, files: false })
        };
        let limits = file.limits.as_ref().ok_or_else(|| {
            let path = path.display();
            wrong(&format_args!("{path}: write `limits: FILE` to name the limits [TG0009]"))
        });
        let plan = load(limits?)?;
        for tenants in &plan.tenants {
            match &tenants.source {
                TenantSource::File(file) => seen.borrow_mut().push(see(file)),
                source => eprintln!(
                    "note: `tenants`: {source} is not asked, so the configured quotas apply"
                ),
            }
        }
        let meant = |test: &&Test| args.only.as_ref().is_none_or(|only| test.name.contains(only));
        for test in file.tests.iter().filter(meant) {
            let start = Instant::now();
            let (requests, failures) = match run_test(&file, test, &plan, &load) {
                Err(error) => (0, vec![unfit(error?)]),
                Ok(run) => run,
            };
            tested.push(Tested {
                file: path.display().to_string(),
                name: test.name.clone(),
                requests,
                time: start.elapsed(),
                failures,
            });
        }
    }
    Ok(Report { tested })
}

/// Returns how many requests were simulated, and the failed expectations.
fn run_test(
    file: &TestFile,
    test: &Test,
    plan: &Plan,
    load: &impl Fn(&Path) -> Result<Plan, ExitCode>,
) -> Result<(usize, Vec<Failed>), TestError> {
    let in_words = |error: String| Ok::<_, ExitCode>(error);
    let replicas = NonZeroU32::new(test.replicas.unwrap_or(file.replicas));
    let replicas = replicas.unwrap_or(NonZeroU32::MIN);
    if let Some(bound) = &test.worst {
        let (store_lost, failover) = (bound.store_lost, bound.failover);
        let threats = Threats { replicas, store_lost, failover };
        let failed = worst::check(plan, bound, threats).map_err(in_words)?;
        return Ok((0, failed.into_iter().collect()));
    }
    if test.requests.as_ref().is_none_or(Vec::is_empty) {
        return Err(Ok("it has no `requests` and no `worst`, so it shows nothing".to_owned()));
    }
    let faults = test.faults.as_deref().unwrap_or_default();
    let happenings = happenings(faults, load)?;
    if let StorePlan::Memory(_) = plan.store
        && faults.iter().any(|fault| fault.reload.is_none())
    {
        let error = "its faults concern a shared store, but the limits have `store: memory`";
        return Err(Ok(error.to_owned()));
    }
    let simulation = Simulation { plan, happenings, replicas };
    let test = test_of(test, file.seed).map_err(Ok)?;
    test.run(None, |arrivals| simulation.run(arrivals)).map_err(in_words)
}
