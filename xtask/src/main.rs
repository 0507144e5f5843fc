//! The project's tasks: `cargo xtask test`, `cargo xtask check`, `cargo xtask twin`,
//! `cargo xtask law`, `cargo xtask simulate`, `cargo xtask bench`, `cargo xtask lines`,
//! `cargo xtask up`.
//!
//! They are a program instead of shell scripts, so they run wherever Rust does, and are linted and
//! tested like the other crates.

mod arrows;
mod bench;
mod check;
mod circles;
mod documents;
mod image;
mod law;
mod lines;
mod locks;
mod mutants;
mod process;
mod purity;
mod servers;
mod simulate;
mod test;
mod tools;
mod twin;
mod untested;
mod up;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use process::Failure;

#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", about = "The tasks of the Tollgate project", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install the programs that tests start, then run every test
    Test(test::Args),
    /// Run the checks required before a merge: format, lints, docs, boundaries, packages
    Check(check::Args),
    /// Start three replicas behind nginx with a shared quota in Redis; Ctrl-C stops them
    Up(up::Args),
    /// Compare the Lua port with the core over a million decisions
    Twin(twin::Args),
    /// Check the laws of combinations with a million steps each
    Law(law::Args),
    /// Simulate fleets of replicas with faults from seeds, and check the documented guarantees
    Simulate(simulate::Args),
    /// Run the benchmarks, and write their tables to docs/benchmarks
    Bench(bench::Args),
    /// Count the lines of code by crate, with tests apart
    Lines,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Up(args) => up::run(&args),
        Task::Twin(args) => twin::run(&args),
        Task::Law(args) => law::run(&args),
        Task::Simulate(args) => simulate::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Lines => lines::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nerror: {failure}");
            match failure {
                Failure::Broken(_) => ExitCode::from(1),
                Failure::Unready(_) => ExitCode::from(2),
            }
        }
    }
}
