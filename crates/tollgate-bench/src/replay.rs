//! `tollgate replay` over a log, compared with only reading the log and with GoAccess.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tollgate_replay::log::{Input, Options as LogOptions, Records};

use crate::report::{Goal, Options, Page, Table};
use crate::rounds::Side;
use crate::{Failure, process};

const LINES: u64 = 500_000;

const RATE: &str = "million lines per second";
const READING: &str = "`wc -l` and parsing";

const LIMITS: &str = "rateLimiter:
  target: http://localhost:1
  global: {strategy: sliding_window_counter, limit: 100000, windowSeconds: 60}
  client: {strategy: token_bucket, limit: 600, refillSeconds: 60, burst: 200}
";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    process::find("goaccess", "goaccess")?;
    let mut page = Page::new(options, 3);
    page.table("Lines of `combined`", "clients | program", RATE, |table| {
        table.ratio("× reading", RATE, READING);
        measure(table, "1 000", 1e3)?;
        measure(table, "100 000", 1e5)
    })?;
    page.write("replay", include_str!("../methods/replay.md"))
}

fn measure(table: &mut Table, case: &str, clients: f64) -> Result<(), Failure> {
    const REPLAY: &str = "`tollgate replay`";
    let folder = TempDir::new()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, limits, html) = (path("access.log"), path("limits.yaml"), path("report.html"));
    write_log(Path::new(&log), clients)?;
    fs::write(&limits, LIMITS)?;
    let this = std::env::current_exe()?;
    let gateway = this.with_file_name("tollgate").display().to_string();
    let (this, parse) = (this.display().to_string(), format!("parse {log}"));
    let (wc, parsing) = (["wc", "-l", &log], [&*this, "alone", &parse]);
    let replay = [&*gateway, "replay", &limits, &log];
    let goaccess = ["goaccess", &log, "--log-format=COMBINED", "-o", &html];
    fn side<'a, const N: usize>(name: &'static str, commands: [&'a [&'a str]; N]) -> Side<'a> {
        Side::new(name, move || {
            let seconds = commands.iter().map(|command| processor_time(command));
            Ok(vec![LINES as f64 / 1e6 / seconds.sum::<Result<f64, _>>()?])
        })
    }
    let goals = [
        Goal::at_least(RATE, 1.0).of(REPLAY),
        Goal::at_least(RATE, 0.5).of(REPLAY).against(READING),
    ];
    let sides = vec![
        side(READING, [&wc, &parsing]),
        side(REPLAY, [&replay]),
        side("GoAccess", [&goaccess]),
    ];
    table.measure(&[&case], sides, &goals)
}

/// Parses a log in this process, and returns its lines.
pub(crate) fn parse(log: &str) -> Result<Vec<f64>, Failure> {
    let mut records = Records::new(vec![Input::open(Path::new(log))?], &LogOptions::default());
    while records.next()?.is_some() {}
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
    let mut random = fastrand::Rng::with_seed(7);
    for line in 0..LINES {
        // The fourth power makes a few clients busy.
        let client = (random.f64().powi(4) * clients) as u64;
        let (second, path) = (line / 200, PATHS[random.usize(..5)]);
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
            random.u32(..50_000),
        )?;
    }
    Ok(file.flush()?)
}
