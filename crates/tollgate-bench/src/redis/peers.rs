//! Limiters from other projects. Limiters that take long to build are in the package `peers`, which
//! must be built by hand. If it is not built, their rows are omitted.

use std::path::PathBuf;
use std::process::Command;

use crate::Failure;
use crate::process::Answering;
use crate::redis::lab::Lab;
use crate::redis::limiters::{Call, Plain};
use crate::redis::load::Round;
use crate::rounds::Side;

pub(crate) const CACHED: &str = "limitador, write-behind cache";
pub(crate) const CELL: &str = "redis-cell";

/// The limiters that were built, with this number of keys.
pub(crate) fn sides<'a>(lab: &Lab<'a>, keys: u64, tasks: usize) -> Result<Vec<Side<'a>>, Failure> {
    let mut sides = Vec::new();
    if module().is_some() {
        let cell = lab.run(Plain::new(vec![lab.client()?], keys, Call::Cell))?;
        sides.push(lab.side(CELL, tasks, cell));
    }
    let mut names = vec![("limitador, Redis", "limitador")];
    // It stalls with many keys.
    if keys == 1 {
        names.push((CACHED, "limitador-cached"));
    }
    for (name, limiter) in names {
        if let Some(peer) = outside(limiter, &lab.url, keys)? {
            sides.push(lab.contender(name, move || round(&peer, tasks)));
        }
    }
    Ok(sides)
}

/// The module redis-cell, if it was built.
pub(crate) fn module() -> Option<PathBuf> {
    Some(folder()?.join("build/release/libredis_cell.so")).filter(|path| path.is_file())
}

/// Starts the named limiter of the package `peers` with `keys` keys at `url`. `None` if it was not
/// built.
pub(crate) fn outside(name: &str, url: &str, keys: u64) -> Result<Option<Answering>, Failure> {
    let Some(program) = program("tollgate-peers") else { return Ok(None) };
    Ok(Some(Answering::start(&program, &[name, url, &keys.to_string()])?))
}

fn round(peer: &Answering, tasks: usize) -> Result<Round, Failure> {
    let numbers = peer.say(&format!("round {tasks}"))?;
    let &[decisions, admitted, rate, median, p99] = &numbers[..] else {
        return Err(format!("a peer's round has other numbers than expected: {numbers:?}").into());
    };
    Ok(Round { decisions, admitted, rate, median, p99 })
}

/// A client in Node that lets calls wait in one order, without its times: they would count the
/// start of Node.
pub(crate) fn node(limiter: &str, port: u16, tasks: usize) -> Result<Round, Failure> {
    const CALLS: u32 = 10_000;
    let program = queues().ok_or("no Node clients")?.join("queues.mjs");
    let numbers = [port.to_string(), CALLS.to_string(), tasks.to_string()];
    let status = Command::new("node").arg(program).arg(limiter).args(numbers).status()?;
    if !status.success() {
        return Err(format!("{limiter} failed: {status}").into());
    }
    let (decisions, nan) = (f64::from(CALLS), f64::NAN);
    Ok(Round { decisions, admitted: decisions, rate: nan, median: nan, p99: nan })
}

/// The folder of the clients in Node, if they are installed.
pub(crate) fn queues() -> Option<PathBuf> {
    Some(folder()?.join("queues")).filter(|folder| folder.join("node_modules").is_dir())
}

/// A program that `peers/install` installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    Some(folder()?.join("bin").join(name)).filter(|path| path.is_file())
}

/// `target/peers`: this program is `target/release/tollgate-bench`.
fn folder() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.parent()?.join("peers"))
}
