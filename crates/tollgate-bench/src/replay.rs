//! `tollgate replay` over a log, compared with only reading the log and with GoAccess.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tollgate_replay::log::{Input, Options, Records};

use crate::report::{self, Table, Target};
use crate::rounds::{Peer, Spread, interleave};
use crate::{Failure, process};

const METHOD: &str = "\
Two logs have half a million lines each in `combined` format, at 200 requests per second. A few
clients send most of the requests. `tollgate replay` decides each line with a limit for all clients
and a token bucket per address. GoAccess counts the same lines for a report with its default panels.
The programs take turns, each in its own process. A rate is lines per second of processor time over
all threads of the program, because the machine may be busy. `× reading` compares with `wc -l` and
parsing together in the same round.

With 100 000 clients, the replay waits for memory: each request reads its client's state in the
store and its counts in the report, and neither fits into a core's cache.";

const LINES: u64 = 500_000;
/// Enough rounds for a stable median.
pub(crate) const ROUNDS: usize = 3;

const LIMITS: &str = "rateLimiter:
  target: http://localhost:1
  global: {strategy: sliding_window_counter, limit: 100000, windowSeconds: 60}
  client: {strategy: token_bucket, limit: 600, refillSeconds: 60, burst: 200}
";

pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    process::find("goaccess", "goaccess")?;
    let tables = [
        measure("Lines of `combined`, 1 000 clients", 1e3, rounds)?,
        measure("Lines of `combined`, 100 000 clients", 1e5, rounds)?,
    ];
    if rounds < ROUNDS {
        return report::show(&tables);
    }
    report::write("replay", METHOD, &tables)
}

fn measure(title: &'static str, clients: f64, rounds: usize) -> Result<Table, Failure> {
    let folder = TempDir::new()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, limits, html) = (path("access.log"), path("limits.yaml"), path("report.html"));
    write_log(Path::new(&log), clients)?;
    fs::write(&limits, LIMITS)?;
    let this = std::env::current_exe()?;
    let gateway = this.with_file_name("tollgate").display().to_string();
    let (this, parse) = (this.display().to_string(), format!("parse {log}"));
    let commands: [(&str, Vec<&str>); 4] = [
        ("`wc -l`", vec!["wc", "-l", &log]),
        ("parsing alone", vec![&this, "alone", &parse]),
        ("`tollgate replay`", vec![&gateway, "replay", &limits, &log]),
        ("GoAccess", vec!["goaccess", &log, "--log-format=COMBINED", "-o", &html]),
    ];
    let failed = RefCell::new(None);
    let peer = |command: &[&str]| {
        processor_time(command).unwrap_or_else(|failure| {
            failed.replace(Some(failure));
            f64::NAN
        })
    };
    let mut peers: Vec<Peer<'_>> = Vec::new();
    for (_, command) in &commands {
        peers.push(Box::new(|| peer(command)));
    }
    let measured = interleave(&mut peers, rounds);
    drop(peers);
    if let Some(failure) = failed.take() {
        return Err(failure);
    }
    let reading: Vec<_> =
        measured[0].iter().zip(&measured[1]).map(|(wc, parse)| wc + parse).collect();
    let mut table = Table::new(
        title,
        "program | million lines per second | target | met | × reading | target | met",
    );
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let millions = LINES as f64 / 1e6;
    for ((name, _), seconds) in commands.iter().zip(&measured) {
        let (per_second, of_reading) = match *name {
            "`tollgate replay`" => (Target::AtLeast(1.0), Target::AtLeast(0.5)),
            _ => (Target::None, Target::None),
        };
        let rate = Spread::of(seconds.iter().map(|seconds| millions / seconds));
        let ratio = Spread::of_ratios(&reading, seconds);
        table.row(&[name, &(rate, per_second), &(ratio, of_reading)]);
    }
    Ok(table)
}

/// Parses a log in this process, and returns its lines.
pub(crate) fn parse(log: &str) -> Result<Vec<f64>, Failure> {
    let mut records = Records::new(vec![Input::open(Path::new(log))?], &Options::default());
    while records.next()?.is_some() {}
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok(vec![records.progress().lines as f64])
}

/// A program's processor time, in seconds.
fn processor_time(command: &[&str]) -> Result<f64, Failure> {
    let before = process::processor_time_of_children()?;
    let [program, args @ ..] = command else { return Err("no program".into()) };
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} ended with {}: {said}", output.status).into());
    }
    Ok(process::processor_time_of_children()? - before)
}

/// The same log in every run.
fn write_log(path: &Path, clients: f64) -> Result<(), Failure> {
    const PATHS: [&str; 5] = ["/", "/login", "/api/items/17", "/static/app.js", "/search?q=shoes"];
    let mut file = BufWriter::new(File::create(path)?);
    let mut random = 7_u64;
    for line in 0..LINES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The fourth power makes a few clients busy.
        let share = (random >> 40) as f64 / (1 << 24) as f64;
        let client = (share.powi(4) * clients) as u64;
        let (second, path) = (line / 200, PATHS[(random % 5) as usize]);
        writeln!(
            file,
            "10.{}.{}.{} - - [10/Oct/2025:{:02}:{:02}:{:02} +0000] \"GET {path} HTTP/1.1\" 200 {} \
             \"https://shop.example/\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, \
             like Gecko) Chrome/120.0 Safari/537.36\"",
            client >> 16,
            client >> 8 & 255,
            client & 255,
            second / 3_600,
            second / 60 % 60,
            second % 60,
            random % 50_000,
        )?;
    }
    Ok(file.flush()?)
}
