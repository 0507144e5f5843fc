//! The layer with metrics, in a separate program that takes turns on request.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use clap::ValueEnum;

use crate::Failure;
use crate::apps::Wrapping;
use crate::process::Running;
use crate::rounds::Peer;

/// The recorder of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Recorder {
    /// No recorder.
    None,
    /// The exporter for Prometheus.
    Prometheus,
}

/// The running program.
struct Metered {
    _process: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// A peer that measures the time that a layer with metrics adds to a request. `None` if the program
/// was not built.
pub(crate) fn peer(
    wrapping: Wrapping,
    recorder: Recorder,
) -> Result<Option<Peer<'static>>, Failure> {
    let program = std::env::current_exe()?.with_file_name("tollgate-bench-metered");
    if !program.exists() {
        eprintln!("no {}: build tollgate-bench with the feature `metrics`", program.display());
        return Ok(None);
    }
    let word = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let args = [word(wrapping.to_possible_value()), word(recorder.to_possible_value())];
    let mut process =
        Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
        return Err("a pipe is missing".into());
    };
    let mut metered = Metered { _process: Running(process), to, from: BufReader::new(from) };
    // NaN marks a failed round, because every ratio with NaN is NaN.
    Ok(Some(Box::new(move || metered.turn().unwrap_or(f64::NAN))))
}

impl Metered {
    fn turn(&mut self) -> Result<f64, Failure> {
        self.to.write_all(b"\n")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

/// The program itself. Prints a number for each line that it reads.
#[cfg(feature = "metrics")]
pub(crate) fn run() -> Result<(), Failure> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    let mut args = std::env::args().skip(1);
    let (Some(wrapping), Some(recorder)) = (args.next(), args.next()) else {
        return Err("expected two words: the measurement and the recorder".into());
    };
    let wrapping = Wrapping::from_str(&wrapping, false)?;
    // The same setup as in the gateway.
    let handle = match Recorder::from_str(&recorder, false)? {
        Recorder::None => None,
        Recorder::Prometheus => {
            let mut builder = PrometheusBuilder::new();
            for (name, buckets) in tollgate::observe::buckets() {
                let matcher = Matcher::Full(name.to_owned());
                builder = builder.set_buckets_for_metric(matcher, buckets)?;
            }
            Some(builder.install_recorder()?)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut bare = crate::layer::peer(&runtime, Wrapping::Bare)?;
    let mut wrapped = crate::layer::peer(&runtime, wrapping)?;
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", wrapped() - bare());
        // The gateway also does this every few seconds, because recorded times accumulate.
        if let Some(handle) = &handle {
            handle.run_upkeep();
        }
    }
    Ok(())
}
