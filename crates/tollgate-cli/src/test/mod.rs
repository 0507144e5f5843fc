//! `tollgate test`: a file with limits, tested with simulated requests.

mod generate;
pub(crate) mod report;
mod simulation;

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tollgate_config::plan::{Expect, Plan, StorePlan, TenantSource, Test, TestFile};
use tollgate_config::{self as config, Source};
use tollgate_replay::scenario::{Expectation, Expected, Scope, shortest};

pub(crate) use self::generate::generate;
use self::report::{Failed, Report, Row, Tested};
pub(crate) use self::simulation::fleet;
use self::simulation::{Simulation, TestError, happenings};
use crate::load::{Checks, WRONG, failed, load, tell, wrong};
use crate::replay::append;
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
        let text = run_files(args, &seen).map_or_else(|_| String::new(), |it| written(&it, args));
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
        append(path, &report.markdown())
            .map_err(|error| wrong(&format_args!("cannot write {}: {error}", path.display())))?;
    }
    if report.has_passed() { Ok(text) } else { Err(failed(&text)) }
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
        let plan = load(&file.limits)?;
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
                Err(error) => (0, vec![Failed::unfit(error?)]),
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
    let requests = test.requests.as_deref().unwrap_or_default();
    if requests.is_empty() {
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
    let seed = file.seed;
    let simulation = Simulation { plan, requests, happenings, replicas, seed };
    let outcomes = simulation.run().map_err(in_words)?;
    let mut failures = Vec::new();
    for expectation in expectations(test) {
        let Err(failure) = expectation.check(&outcomes) else { continue };
        let rerun = |history: &[_]| simulation.rerun(history);
        let history = shortest(&expectation, &failure, &outcomes, rerun).map_err(in_words)?;
        let about = match expectation.scope {
            Scope::All => "all requests".to_owned(),
            Scope::Sender(sender) => format!("requests[{sender}]"),
        };
        let rows = Row::of(&history, requests, &failure.expected);
        let (expected, got) = (failure.expected, failure.got);
        failures.push(Failed { about, expected, got, rows });
    }
    Ok((outcomes.len(), failures))
}

/// A test's expectations. The expectations of single senders are first.
fn expectations(test: &Test) -> Vec<Expectation> {
    let mut all = Vec::new();
    let requests = test.requests.iter().flatten();
    for (number, expect) in (0..).zip(requests.map(|requests| &requests.expect)) {
        expect.iter().for_each(|expect| add(&mut all, Scope::Sender(number), expect));
    }
    test.expect.iter().for_each(|expect| add(&mut all, Scope::All, expect));
    all
}

fn add(all: &mut Vec<Expectation>, scope: Scope, expect: &Expect) {
    let Expect { status, allowed, denied, allowed_per_client, policy, remaining, .. } = expect;
    let Expect { retry_after, max_wait, never, .. } = expect;
    let never = never.iter().flatten().map(|bound| Expected::Never {
        more_than: bound.more_than,
        window: bound.window.into(),
        per_client: bound.per_client,
    });
    let single = [
        status.map(Expected::Status),
        allowed.clone().map(Expected::Allowed),
        denied.clone().map(Expected::Denied),
        allowed_per_client.clone().map(Expected::AllowedPerClient),
        policy.clone().map(Expected::Policy),
        remaining.map(Expected::Remaining),
        retry_after.map(|time| Expected::RetryAfter(time.as_secs())),
        max_wait.map(|time| Expected::MaxWait(time.into())),
    ];
    let all_expected = single.into_iter().flatten().chain(never);
    all.extend(all_expected.map(|expected| Expectation { scope, expected }));
}
