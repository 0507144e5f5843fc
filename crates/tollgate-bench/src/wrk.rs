//! Requests over sockets, by wrk.

use std::net::SocketAddr;
use std::process::Command;

use crate::{Failure, process};

/// What a second of wrk showed; not a number where it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Milliseconds from request to answer.
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Says what to do where wrk is missing, and installs it where that needs no question.
pub(crate) fn find() -> Result<(), Failure> {
    process::find("wrk", "wrk")
}

/// Asks for a second over so many connections.
pub(crate) fn load(address: SocketAddr, connections: u32) -> Load {
    run(address, connections).unwrap_or_else(|failure| {
        eprintln!("{failure}");
        Load { requests: f64::NAN, rate: f64::NAN, median: f64::NAN, p99: f64::NAN }
    })
}

fn run(address: SocketAddr, connections: u32) -> Result<Load, Failure> {
    let output = Command::new("wrk")
        .args(["--threads=1", "--latency", &format!("--connections={connections}")])
        // The shortest that wrk knows.
        .arg("--duration=1s")
        .arg(format!("http://{address}/"))
        .output()?;
    read(&String::from_utf8(output.stdout)?)
}

fn read(printed: &str) -> Result<Load, Failure> {
    let before = |words: &str| {
        let line = printed.lines().find(|line| line.contains(words))?;
        line.replace(words, "").split_whitespace().next()?.parse().ok()
    };
    if let Some(bad) = before("Non-2xx or 3xx responses:") {
        let bad: f64 = bad;
        return Err(format!("{bad} requests were refused").into());
    }
    let percentile = |percent: &str| {
        let mut words =
            printed.lines().find(|line| line.trim().starts_with(percent))?.split_whitespace();
        millis(words.nth(1)?)
    };
    Ok(Load {
        requests: before("requests in").ok_or("wrk counted nothing")?,
        rate: before("Requests/sec:").ok_or("wrk measured nothing")?,
        median: percentile("50%").ok_or("wrk gave no median")?,
        p99: percentile("99%").ok_or("wrk gave no 99th percentile")?,
    })
}

/// `412.00us`, `1.61ms` or `1.02s` in milliseconds.
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)];
    units
        .iter()
        .find_map(|(unit, millis)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let printed = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  \
                       Latency Distribution\n     50%  500.00us\n     99%    1.61ms\n  1234 requests \
                       in 1.02s, 1.20MB read\nRequests/sec:   1209.80\n";
        let load = read(printed).unwrap();
        assert_eq!((load.requests, load.rate), (1234.0, 1209.8));
        assert_eq!((load.median, load.p99), (0.5, 1.61));
        assert!(read(&format!("{printed}Non-2xx or 3xx responses: 7\n")).is_err());
        assert_eq!(millis("1.5s"), Some(1500.0));
    }
}
