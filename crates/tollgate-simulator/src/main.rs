//! `cargo xtask simulate`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tollgate_simulator::{run, search};

#[derive(Debug, Parser)]
struct Args {
    /// The number of seeds, from 0 on
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Simulate a single seed, and print its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Print how often the seeds entered each branch of the script, the deny cache, leases, the
    /// topology and the local fallback
    #[arg(long)]
    reached: bool,
    /// Stop after this number of minutes
    #[arg(long)]
    minutes: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let run = run(seed);
        print!("{}", run.trace);
        return match run.violation {
            None => ExitCode::SUCCESS,
            Some(violation) => {
                eprintln!("violation: {violation}");
                ExitCode::FAILURE
            }
        };
    }
    let start = Instant::now();
    let limit = args.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let search = search(0..args.seeds, limit);
    let (runs, took) = (search.runs, start.elapsed());
    println!("{runs} seeds in {took:.1?}: {:?}", search.counts);
    if args.reached {
        print!("{}", search.reached);
    }
    if let Some(run) = search.violating {
        let seed = run.seed;
        eprintln!("\n{run}`cargo xtask simulate --seed {seed}` prints the complete trace");
        return ExitCode::FAILURE;
    }
    let holes = search.reached.holes();
    if runs >= ENOUGH && !holes.is_empty() {
        eprintln!("\nno seed entered these branches, so nothing checks them:");
        holes.iter().for_each(|hole| eprintln!("  {hole}"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The number of seeds that must enter each branch.
const ENOUGH: u64 = 2_000;
