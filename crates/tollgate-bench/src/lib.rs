//! Benchmarks of Tollgate's decisions against other limiters.
//!
//! | file | measures |
//! |---|---|
//! | `memory/` | a decision in memory, and the bytes per key |
//! | `flood.rs` | a store that receives far more keys than it may hold |
//! | `layer.rs` | the layer in process, without sockets, also with metrics |
//! | `http.rs` | the layer in a server, over sockets |
//! | `redis/` | a decision in Redis, beside peers; logs and queues; fleets; overload |
//! | `replicas.rs` | the layer over Redis in three servers behind nginx |
//! | `gateway/` | the gateway in front of a server, and its decisions for other proxies, compared with nginx and Envoy |
//! | `replay.rs` | `tollgate replay` over a log, compared with GoAccess |
//! | `rounds.rs`, `report.rs` | sides that take turns, and tables of their numbers and ratios |
//!
//! The machine may be busy with other work. So sides take turns in many short rounds, and the
//! result is the median of the ratios to another side in the same round. The folder `methods`
//! explains the pages' tables.

mod apps;
mod clock;
mod flood;
mod gateway;
mod http;
mod layer;
mod machine;
mod memory;
mod process;
mod redis;
mod replay;
mod replicas;
mod report;
mod rounds;
mod serve;
mod served;

use std::error::Error;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

use crate::apps::Wrapping;
use crate::report::Options;

/// An error that stops a benchmark. Its message contains the cause and the place.
type Failure = Box<dyn Error + Send + Sync>;

type Bench = (&'static str, fn(&Options) -> Result<(), Failure>);

const BENCHES: [Bench; 10] = [
    ("memory", memory::run),
    ("flood", flood::run),
    ("layer", layer::run),
    ("http", http::run),
    ("redis", redis::run),
    ("overload", redis::overload),
    ("fleet", redis::fleet),
    ("replicas", replicas::run),
    ("gateway", gateway::run),
    ("replay", replay::run),
];

#[derive(Parser)]
#[command(
    about = "Measure the cost of decisions; tables are written to docs/benchmarks/amd or intel",
    args_conflicts_with_subcommands = true
)]
struct Cli {
    /// The benchmarks to run; by default all
    #[arg(value_parser = PossibleValuesParser::new(BENCHES.map(|bench| bench.0)))]
    names: Vec<String>,
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What a benchmark runs in processes of its own.
#[derive(Subcommand)]
enum Part {
    /// A measurement that needs its own process
    #[command(hide = true)]
    Alone { what: String },
    /// The server for benchmarks over sockets
    #[command(hide = true)]
    Serve {
        mode: Wrapping,
        #[arg(long)]
        port: u16,
    },
    /// A replica
    #[command(hide = true)]
    Replica {
        limiter: replicas::ReplicaLimiter,
        #[arg(long)]
        redis: String,
        #[arg(long)]
        port: u16,
    },
}

/// Runs the benchmarks that the command line names.
pub fn run() -> ExitCode {
    let Cli { names, options, part } = Cli::parse();
    let mut meant =
        BENCHES.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|it| it == name));
    ended(match part {
        None => meant.try_for_each(|(_, run)| run(&options)).and_then(|()| options.check()),
        Some(Part::Alone { what }) => alone(&what),
        Some(Part::Serve { mode, port }) => serve::run(async { apps::app(mode) }, port),
        Some(Part::Replica { limiter, redis, port }) => {
            serve::run(replicas::app(limiter, &redis), port)
        }
    })
}

/// Runs a measurement in its own process and prints the numbers.
fn alone(what: &str) -> Result<(), Failure> {
    let numbers = match what.split_once(' ') {
        Some(("spin", side)) => memory::spin(side)?,
        Some(("requests", wrapping)) => layer::spin(wrapping)?,
        Some(("bytes", side)) => memory::resident(side)?,
        Some(("parse", log)) => replay::parse(log)?,
        Some(("flood", side)) => flood::alone(side)?,
        _ => return Err(format!("there is no measurement `{what}`").into()),
    };
    let numbers: Vec<_> = numbers.iter().map(f64::to_string).collect();
    println!("{}", numbers.join(" "));
    Ok(())
}

/// Runs code, and returns the number of allocations and the bytes that remain allocated.
pub type Counter = fn(&mut dyn FnMut()) -> (u64, i64);

/// Measures the case that the command line names with `counter`, and prints the number.
pub fn count(counter: Counter) -> ExitCode {
    let what = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let number = match what.split_once(' ') {
        Some(("bytes", side)) => memory::counted(side, counter),
        Some(("layer", mode)) => layer::allocations(mode, counter),
        _ => Err(format!("there is no count named `{what}`").into()),
    };
    ended(number.map(|number| println!("{number}")))
}

/// Measures the layer with metrics. Prints a number for each line on stdin.
#[cfg(feature = "metrics")]
pub fn metered() -> ExitCode {
    ended(layer::metered())
}

fn ended(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
