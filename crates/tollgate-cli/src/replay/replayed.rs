//! Reads access logs, and replays their requests.

use std::hash::RandomState;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use tollgate::store::{StoreError, Timestamp};
use tollgate_config::plan::{Plan, Whose};
use tollgate_replay::log::{FileFormat, Format, Input, Options, ReadError, Record, Records, Zone};
use tollgate_replay::{Answer, Bounds, Report};

use super::differences::Differences;
use super::progress;
use super::recorded::{NOT_HTTP, Recorded};

/// Which log, and how to read it.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Access logs, plain or compressed with gzip or zstd; `-` reads stdin
    ///
    /// Several logs are replayed as one, in chronological order.
    #[arg(value_name = "LOG", required = true)]
    pub logs: Vec<PathBuf>,
    /// The line format: a name such as haproxy, json:time=ts,method=verb,target=url,… or a
    /// log_format of nginx; auto detects each file's format
    #[arg(long = "log", value_name = "FORMAT", default_value = "auto")]
    pub lines: Format,
    /// The time zone of times that name none, such as Europe/Berlin or +09:00
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub time_zone: Zone,
    /// How far lines may be out of order
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub reorder: Duration,
    /// Stop at the first unreadable line
    #[arg(long)]
    pub strict: bool,
    /// Hide client addresses and names, request paths in reports, and parts of unreadable lines
    #[arg(long, visible_alias = "anonymize")]
    pub anonymise: bool,
}

impl LogArgs {
    /// How the logs are read. Up to `shown` unreadable lines are shown.
    fn options(&self, shown: usize) -> Options {
        Options {
            format: self.lines.clone(),
            zone: self.time_zone.clone(),
            reorder: self.reorder,
            strict: self.strict,
            shown,
            excerpts: !self.anonymise,
            not_after: tomorrow(),
            ..Options::default()
        }
    }
}

/// Clocks differ, but not by a day, so a request with a later time has a wrong time.
fn tomorrow() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = (now + Duration::from_secs(86_400)).as_micros();
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Log(#[from] ReadError),
    /// The plan cannot be used.
    #[error("{0}")]
    Plan(String),
    #[error("{place}: {error}")]
    Store { place: String, error: StoreError },
    /// Client limits would treat all requests alike.
    #[error(
        "no request has a client: the log has no address (in a log_format $remote_addr, in JSON \
         address=…), and no user or key that the file reads; add one to --log [TG0705]"
    )]
    NoClient,
    /// The log has no requests, or none that `suggest` can use.
    #[error(
        "no limit charges any line: they are preflights, not HTTP, or requests that `serve` \
         rejects; if they are requests, describe their format with --log [TG0704]"
    )]
    NoneCharged,
    /// The log cannot be read again for the report.
    #[error("`--html` needs the log as a file: stdin cannot be read twice [TG0701]")]
    HtmlOfStdin,
    /// All proxies would count as clients.
    #[error(
        "no line has the header `{header}` of the trusted proxies; add it to --log (in a log_format \
         $http_{variable}, in JSON header.{header}=…), or omit --trusted-proxies [TG0705]",
        variable = header.to_ascii_lowercase().replace('-', "_")
    )]
    NoHeader { header: String },
    #[error("cannot write {path}: {error} [TG0707]")]
    Write { path: PathBuf, error: io::Error },
}

pub(crate) struct Replayed {
    pub(crate) report: Report,
    pub(crate) formats: Vec<FileFormat>,
    pub(crate) lines: u64,
    pub(crate) late: u64,
    pub(crate) unreadable: u64,
    /// A description of the first unreadable lines.
    pub(crate) shown: Vec<String>,
    /// Limited requests without a client.
    pub(crate) without_client: u64,
    /// Requests with `X-Forwarded-For` although their peer counts as the client.
    pub(crate) not_forwarded: u64,
    pub(crate) other: Option<(Report, Differences)>,
}

pub(crate) fn replay(
    plan: Plan,
    other: Option<Plan>,
    log: &LogArgs,
    top: usize,
) -> Result<Replayed, ReplayError> {
    // Both reports show the same hash for a client.
    let hide = log.anonymise.then(RandomState::new);
    let of = |plan| Recorded::new(plan, Bounds::default(), hide.clone()).map_err(ReplayError::Plan);
    let limits = || plan.routes.iter().flat_map(|route| route.limits.all());
    let has_client_limits = limits().any(|limit| limit.whose == Whose::Client);
    let mut one = of(plan)?;
    let mut two = other.map(of).transpose()?;
    let mut differences = Differences::new(top);
    let records = read(log, top, |number, record| {
        let store = |error| in_line(record, error);
        let answer = one.decide(record).map_err(store)?;
        if let Some(two) = &mut two {
            let other = two.decide(record).map_err(store)?;
            differences.note(number, [answer, other], || one.in_words(record));
            differences.resolve(0, one.resolved());
            differences.resolve(1, two.resolved());
        } else if answer == Answer::Waits {
            one.resolved().for_each(drop);
        }
        Ok(())
    })?;
    let report = one.finish().map_err(at_the_end)?;
    if report.routes.keys().all(|route| route == NOT_HTTP) {
        return Err(ReplayError::NoneCharged);
    }
    if report.clients == 0 && one.without_client > 0 && has_client_limits {
        return Err(ReplayError::NoClient);
    }
    let other = match two {
        Some(mut two) => {
            let report = two.finish().map_err(at_the_end)?;
            differences.resolve(0, one.resolved());
            differences.resolve(1, two.resolved());
            Some((report, differences))
        }
        None => None,
    };
    let shown = records.shown().iter();
    let shown = shown.map(|it| format!("line {} of {}: {}", it.line, it.file, it.reason));
    Ok(Replayed {
        report,
        formats: records.formats(),
        lines: records.progress().lines,
        late: records.late(),
        unreadable: records.unreadable(),
        shown: shown.collect(),
        without_client: one.without_client,
        not_forwarded: one.not_forwarded,
        other,
    })
}

pub(super) fn in_line(record: &Record<'_>, error: StoreError) -> ReplayError {
    ReplayError::Store { place: format!("line {} of {}", record.line, record.file), error }
}

pub(super) fn at_the_end(error: StoreError) -> ReplayError {
    ReplayError::Store { place: "at the end".to_owned(), error }
}

/// Passes each line to `each`, with the number of earlier lines. Retains up to `shown` unreadable
/// lines.
pub(super) fn read(
    log: &LogArgs,
    shown: usize,
    mut each: impl FnMut(u64, &Record<'_>) -> Result<(), ReplayError>,
) -> Result<Records, ReplayError> {
    // Open all files first, so a wrong name fails immediately.
    let inputs = log.logs.iter().map(|path| Input::open(path));
    let mut records = Records::new(inputs.collect::<Result<_, _>>()?, &log.options(shown));
    let bar = ProgressBar::no_length();
    for number in 0.. {
        if number % 8_192 == 0 {
            progress::show(&bar, &records.progress());
        }
        let Some(record) = records.next()? else { break };
        each(number, &record)?;
    }
    bar.finish_and_clear();
    Ok(records)
}

/// Appends to a file, such as a CI job's summary.
pub(crate) fn append(path: &Path, text: &str) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
}

/// Writes a file completely or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A rename would replace a device or a pipe with a file.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = std::fs::File::create(&beside)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}
