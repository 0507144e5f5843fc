//! `cargo xtask compose-test`: tests the container setups with a Docker engine.

mod gateway;
mod page;
mod project;
mod prometheus;
mod replicas;

use clap::ValueEnum;

use crate::process::Failure;
use project::Engine;

/// Command-line arguments of `cargo xtask compose-test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The parts to run; by default all, in this order
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// docker-compose.yml: the shared quota, outages and shutdown
    Replicas,
    /// The same with deploy/page.yml: each replica's live page
    Page,
    /// The same with Prometheus from the profile `observability`: the collected metrics
    Prometheus,
    /// examples/gateway/docker-compose.yml: limits, reloads and shutdown
    Gateway,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let engine = Engine::find()?;
    let parts = if args.parts.is_empty() { Part::value_variants() } else { &args.parts };
    for part in parts {
        match part {
            Part::Replicas => {
                replicas::share_a_quota(&engine)?;
                replicas::limit_by_address(&engine)?;
            }
            Part::Page => page::shows_each_replica(&engine)?,
            Part::Prometheus => prometheus::scrapes_each_replica(&engine)?,
            Part::Gateway => gateway::limits_reloads_and_drains(&engine)?,
        }
    }
    Ok(())
}

/// Prints a result, or fails with the expected and the observed state.
fn check(what: &str, holds: bool, seen: &str) -> Result<(), Failure> {
    if holds {
        println!("ok: {what} ({})", seen.split_whitespace().collect::<Vec<_>>().join(" "));
        return Ok(());
    }
    Err(Failure::Broken(format!("it does not hold that {what}: {}", seen.trim())))
}
