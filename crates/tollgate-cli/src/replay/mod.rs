//! `tollgate replay`: a file's decisions for the requests in an access log.

mod client_name;
mod corrections;
mod differences;
mod fail_if;
mod progress;
mod recorded;
mod replayed;
mod suggest;
mod targets;
mod words;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollgate::Policy;
use tollgate::policy::Algorithm;
use tollgate_config::plan::{Plan, Whose};
use tollgate_replay::Report;
use tollgate_replay::html::{self, ClientLimit};

pub use self::fail_if::FailIf;
use self::recorded::ASSUMPTIONS;
pub(crate) use self::recorded::{Decided, Recorded};
pub use self::replayed::{LogArgs, ReplayError};
use self::replayed::{Replayed, replay};
pub(crate) use self::replayed::{append, write_whole};
pub use self::suggest::{SuggestArgs, run as suggest};

/// The options of `tollgate replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayArgs {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Another file with limits; the report lists the requests on which the two files differ
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Exit with 1 if this is true, such as `denied_clients > 0.1%`; may be repeated
    ///
    /// The numbers are denied_clients, denied_requests and unreadable_lines. With --compare,
    /// newly_denied_clients and newly_denied_requests count denials by FILE alone.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<FailIf>,
    /// The report's format
    #[arg(long, value_enum, default_value_t)]
    pub format: ReportFormat,
    /// Also append a Markdown summary to this file, such as $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Also write the report as an HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The number of clients and lines in each list
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
}

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Replays the log and writes the report. Also returns whether it fails.
///
/// # Errors
/// See [`ReplayError`]. In this case, nothing is written.
pub fn run(
    plan: Plan,
    other: Option<Plan>,
    args: &ReplayArgs,
) -> Result<(String, bool), ReplayError> {
    if let Some(condition) = args.fail_if.iter().find(|it| it.compares() && other.is_none()) {
        let error = format!("--fail-if '{condition}' needs another file: --compare FILE [TG0710]");
        return Err(ReplayError::Plan(error));
    }
    let limits = client_limits(&plan);
    let mut replayed = replay(plan, other, &args.log, args.top)?;
    if let Some(path) = &args.html {
        write_html(path, &args.log, &replayed.report, &limits)?;
    }
    let reasons: Vec<_> = args.fail_if.iter().filter_map(|it| it.reason(&replayed)).collect();
    if let Some(path) = &args.summary {
        let text = words::in_words(&replayed, args.top, &reasons);
        let text = format!("### Replay of the access log\n\n```text\n{text}```\n\n");
        append(path, &text).map_err(|error| ReplayError::Write { path: path.clone(), error })?;
    }
    let text = match args.format {
        ReportFormat::Text => words::in_words(&replayed, args.top, &reasons),
        ReportFormat::Json => format!("{:#}\n", as_json(&mut replayed, args.top, &reasons)),
    };
    Ok((text, !reasons.is_empty()))
}

fn write_html(
    path: &Path,
    args: &LogArgs,
    report: &Report,
    limits: &[ClientLimit],
) -> Result<(), ReplayError> {
    let title = args.logs.iter().map(|path| path.display().to_string());
    let title = title.collect::<Vec<_>>().join(", ");
    let html = html::page(&title, report, limits);
    write_whole(path, html.as_bytes())
        .map_err(|error| ReplayError::Write { path: path.to_owned(), error })
}

fn client_limits(plan: &Plan) -> Vec<ClientLimit> {
    let mut limits: Vec<ClientLimit> = Vec::new();
    let all = plan.routes.iter().flat_map(|route| route.limits.everywhere());
    for limit in all.filter(|limit| limit.whose == Whose::Client) {
        for policy in limit.quotas_in(None) {
            let limit = client_limit(policy);
            if !limits.contains(&limit) {
                limits.push(limit);
            }
        }
    }
    limits
}

/// Computes how many requests a policy can allow a client within a minute.
#[expect(clippy::cast_precision_loss, reason = "for a drawing")]
fn client_limit(policy: &Policy) -> ClientLimit {
    let (quota, name) = (policy.quota(), policy.name().to_owned());
    let windows = 60.0 / quota.window().as_secs_f64();
    let capacity = policy.capacity() as f64;
    let in_a_minute = match policy.algorithm() {
        // A full bucket, and the units that are refilled in the meantime.
        Some(Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. }) => {
            (capacity + quota.limit() as f64 * windows).floor()
        }
        _ => capacity * windows.ceil(),
    };
    ClientLimit { name, in_a_minute }
}

fn as_json(replayed: &mut Replayed, top: usize, reasons: &[String]) -> Value {
    let report = |report: &mut Report| {
        report.denied_clients.truncate(top);
        // A report contains only plain numbers and strings.
        serde_json::to_value(report).unwrap_or_default()
    };
    let mut object = report(&mut replayed.report);
    object["formats"] = json!(replayed.formats);
    object["lines"] = json!(replayed.lines);
    object["unreadable"] = json!(replayed.unreadable);
    object["unreadable_lines"] = json!(replayed.shown);
    object["without_client"] = json!(replayed.without_client);
    object["not_forwarded"] = json!(replayed.not_forwarded);
    object["late"] = json!(replayed.late);
    object["exact"] = json!(replayed.report.is_exact());
    object["assumptions"] = json!(ASSUMPTIONS);
    object["failed_conditions"] = json!(reasons);
    if let Some((other, differences)) = &mut replayed.other {
        object["compared"] = report(other);
        object["differences"] = differences.as_json();
    }
    object
}
