//! Load over sockets, from wrk.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;

use crate::{Failure, process};

/// The results after wrk has run for one second. NaN if it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Milliseconds from the request to its response.
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Installs wrk if it is missing and no password is needed.
pub(crate) fn find() -> Result<(), Failure> {
    process::find("wrk", "wrk")
}

/// Runs wrk for one second with this number of connections.
pub(crate) fn load(address: SocketAddr, connections: u32) -> Load {
    load_url(&format!("http://{address}/"), connections, &[])
}

/// Like [`load`], for a URL and with more arguments for wrk.
pub(crate) fn load_url(url: &str, connections: u32, arguments: &[String]) -> Load {
    run(url, connections, arguments).unwrap_or_else(Load::failed)
}

impl Load {
    #[expect(clippy::needless_pass_by_value, reason = "the failure ends here")]
    pub(crate) fn failed(failure: Failure) -> Self {
        eprintln!("{failure}");
        Self { requests: f64::NAN, rate: f64::NAN, median: f64::NAN, p99: f64::NAN }
    }
}

/// Sends about this many requests per second, for one second.
pub(crate) fn paced(address: SocketAddr, rate: f64) -> Load {
    let script = format!("function delay() return math.random(1, {}) end\n", 2 * PAUSE - 1);
    let connections = (rate * f64::from(PAUSE) / 1e3).round().max(1.0) as u32;
    scripted(&format!("http://{address}/"), connections, &script)
}

/// Like [`load_url`], with POST requests and this JSON in each.
pub(crate) fn post(url: &str, connections: u32, json: &str) -> Load {
    let script = format!(
        "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n\
         wrk.body = [[{json}]]\n"
    );
    scripted(url, connections, &script)
}

fn scripted(url: &str, connections: u32, script: &str) -> Load {
    let measured = tempfile::NamedTempFile::new().map_err(Failure::from).and_then(|mut file| {
        file.write_all(script.as_bytes())?;
        run(url, connections, &[format!("--script={}", file.path().display())])
    });
    measured.unwrap_or_else(Load::failed)
}

/// The mean pause before a request on a connection in [`paced`], in milliseconds.
const PAUSE: u32 = 3;

fn run(url: &str, connections: u32, arguments: &[String]) -> Result<Load, Failure> {
    let mut wrk = Command::new("wrk");
    wrk.args(["--threads=1", "--latency", &format!("--connections={connections}")]);
    // The shortest duration that wrk supports.
    wrk.arg("--duration=1s");
    let output = wrk.args(arguments).arg(url).output()?;
    read(&String::from_utf8(output.stdout)?)
}

fn read(printed: &str) -> Result<Load, Failure> {
    let before = |words: &str| {
        let line = printed.lines().find(|line| line.contains(words))?;
        line.replace(words, "").split_whitespace().next()?.parse().ok()
    };
    if let Some(bad) = before("Non-2xx or 3xx responses:") {
        let bad: f64 = bad;
        return Err(format!("{bad} requests failed").into());
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
    fn reads_wrk_output() {
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
