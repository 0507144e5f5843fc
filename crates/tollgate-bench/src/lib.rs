//! Benchmarks of Tollgate's decisions against other limiters.
//!
//! | file | measures |
//! |---|---|
//! | `memory/` | a decision in memory, and the bytes per key |
//! | `flood.rs` | a store that receives far more keys than it may hold |
//! | `layer.rs` | the layer in process, without sockets |
//! | `metered.rs` | the same with metrics |
//! | `http.rs` | the layer in a server, over sockets |
//! | `redis/` | a decision in Redis, beside peers; a full log; servers that decide in Redis |
//! | `replicas.rs` | the layer over Redis in three servers behind nginx |
//! | `gateway/` | the gateway in front of a server, and its decisions for other proxies, compared with nginx and Envoy |
//! | `replay.rs` | `tollgate replay` over a log, compared with GoAccess |
//!
//! The machine may be busy with other work. So peers take turns in many short rounds, and the
//! result is the median of the ratios to a peer in the same round.

mod apps;
mod clock;
mod flood;
mod gateway;
mod h2load;
mod http;
mod layer;
mod machine;
mod measured;
mod memory;
mod metered;
mod process;
mod redis;
mod replay;
mod replicas;
mod report;
mod rounds;
mod serve;
mod wrk;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::apps::Wrapping;

/// An error that stops a benchmark. Its message contains the cause and the place.
type Failure = Box<dyn Error + Send + Sync>;

#[derive(Parser)]
#[command(
    about = "Measure the cost of decisions; tables are written to docs/benchmarks/amd or intel"
)]
struct Cli {
    #[command(subcommand)]
    bench: Option<Bench>,
}

#[derive(Subcommand)]
enum Bench {
    /// A decision in memory, and the bytes per key
    Memory,
    /// A store that receives far more keys than it may hold
    Flood,
    /// The layer in process, without sockets
    Layer,
    /// The layer in a server, measured over sockets with wrk
    Http,
    /// A decision in Redis
    Redis {
        /// Rounds per table; with fewer than 6, no page is written
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = redis::ROUNDS)]
        rounds: usize,
    },
    /// Calls that wait in one order, without a page
    Queues {
        /// Rounds
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = redis::ROUNDS)]
        rounds: usize,
    },
    /// Tenants with their own quotas in Redis, without a page
    Tenants {
        /// Rounds
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = redis::ROUNDS)]
        rounds: usize,
    },
    /// More requests than Redis can answer
    Overload,
    /// Up to a hundred replicas, and a single-node Cluster
    Fleet {
        /// Rounds per table; with fewer than 3, no page is written
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = redis::fleet::ROUNDS)]
        rounds: usize,
    },
    /// Three replicas with a shared quota in Redis: a single replica, and all through nginx
    Replicas,
    /// The gateway in front of a server, compared with nginx
    Gateway {
        /// Rounds of one second per program; with fewer than 12, no page is written
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = gateway::ROUNDS)]
        rounds: usize,
    },
    /// `tollgate replay` over a log, compared with GoAccess
    Replay {
        /// Rounds, in which each program reads the log; with fewer than 3, no page is written
        #[arg(long, value_parser = gateway::at_least_one, default_value_t = replay::ROUNDS)]
        rounds: usize,
    },
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

/// Runs the benchmark that the command line names, by default all benchmarks.
pub fn run() -> ExitCode {
    ended(match Cli::parse().bench {
        None => memory::run()
            .and_then(|()| flood::run())
            .and_then(|()| layer::run())
            .and_then(|()| http::run())
            .and_then(|()| redis::run(redis::ROUNDS))
            .and_then(|()| redis::overload::run())
            .and_then(|()| redis::fleet::run(redis::fleet::ROUNDS))
            .and_then(|()| replicas::run())
            .and_then(|()| gateway::run(gateway::ROUNDS))
            .and_then(|()| replay::run(replay::ROUNDS)),
        Some(Bench::Memory) => memory::run(),
        Some(Bench::Flood) => flood::run(),
        Some(Bench::Layer) => layer::run(),
        Some(Bench::Http) => http::run(),
        Some(Bench::Redis { rounds }) => redis::run(rounds),
        Some(Bench::Queues { rounds }) => redis::queues(rounds),
        Some(Bench::Tenants { rounds }) => redis::tenants(rounds),
        Some(Bench::Overload) => redis::overload::run(),
        Some(Bench::Fleet { rounds }) => redis::fleet::run(rounds),
        Some(Bench::Gateway { rounds }) => gateway::run(rounds),
        Some(Bench::Replay { rounds }) => replay::run(rounds),
        Some(Bench::Alone { what }) => alone(&what),
        Some(Bench::Serve { mode, port }) => serve::run(async { apps::app(mode) }, port),
        Some(Bench::Replicas) => replicas::run(),
        Some(Bench::Replica { limiter, redis, port }) => {
            serve::run(replicas::app(limiter, &redis), port)
        }
    })
}

/// Runs a measurement in its own process and prints the numbers.
fn alone(what: &str) -> Result<(), Failure> {
    let numbers = match what.split_once(' ') {
        Some(("spin", side)) => memory::spin(side)?,
        Some(("requests", wrapping)) => layer::spin(wrapping)?,
        Some(("bytes", side)) => memory::bytes::resident(side)?,
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
        Some(("bytes", side)) => memory::bytes::counted(side, counter),
        Some(("layer", mode)) => layer::allocations(mode, counter),
        _ => Err(format!("there is no count named `{what}`").into()),
    };
    ended(number.map(|number| println!("{number}")))
}

/// Measures the layer with metrics. Prints a number for each line on stdin.
#[cfg(feature = "metrics")]
pub fn metered() -> ExitCode {
    ended(metered::run())
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
