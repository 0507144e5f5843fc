//! Servers under load from wrk or h2load, with their processor time.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::rounds::Side;
use crate::{Failure, process};

/// The columns of served sides.
pub(crate) const SERVED: &str = "median µs | p99 µs | thousand requests/s | processor µs";
pub(crate) const RATE: &str = "thousand requests/s";
pub(crate) const PROCESSOR: &str = "processor µs";
pub(crate) const P99: &str = "p99 µs";

/// A port, and the processes that serve it. Their processor time counts.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) number: u16,
    pub(crate) processes: Vec<u32>,
}

impl Port {
    pub(crate) fn url(number: u16) -> String {
        format!("http://127.0.0.1:{number}/")
    }

    /// A side that runs `load`, which gets the port's URL. Numbers of a failed run are missing.
    pub(crate) fn side<'a>(
        &self,
        name: &'static str,
        load: impl Fn(&str) -> Result<Load, Failure> + 'a,
    ) -> Side<'a> {
        let Self { number, processes } = self.clone();
        let time = move || {
            let times = processes.iter().map(|process| process::family_time(*process));
            times.sum::<Result<f64, _>>()
        };
        Side::new(name, move || {
            let before = time()?;
            let Load { requests, rate, median, p99 } = load(&Self::url(number))
                .inspect_err(|failure| eprintln!("{name}: {failure}"))
                .unwrap_or(Load::NONE);
            Ok(vec![median, p99, rate / 1e3, (time()? - before) * 1e6 / requests])
        })
    }
}

/// The results after a program has sent requests for one second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    requests: f64,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Microseconds from the request to its response.
    median: f64,
    p99: f64,
}

impl Load {
    const NONE: Self = Self { requests: f64::NAN, rate: f64::NAN, median: f64::NAN, p99: f64::NAN };
}

/// Installs wrk and h2load if they are missing and no password is needed.
pub(crate) fn find() -> Result<(), Failure> {
    process::find("wrk", "wrk")?;
    process::find("h2load", "nghttp2-client")
}

/// Runs wrk for one second with this number of connections, and with more arguments.
pub(crate) fn wrk(url: &str, connections: u32, arguments: &[String]) -> Result<Load, Failure> {
    let mut wrk = Command::new("wrk");
    wrk.args(["--threads=1", "--latency", &format!("--connections={connections}")]);
    // The shortest duration that wrk supports.
    wrk.arg("--duration=1s");
    read_wrk(&output(wrk.args(arguments).arg(url))?)
}

/// Sends about this many requests per second with wrk, for one second.
pub(crate) fn paced(url: &str, rate: f64) -> Result<Load, Failure> {
    /// The mean pause before a request on a connection, in milliseconds.
    const PAUSE: u32 = 3;
    let script = format!("function delay() return math.random(1, {}) end\n", 2 * PAUSE - 1);
    scripted(url, (rate * f64::from(PAUSE) / 1e3).round().max(1.0) as u32, &script)
}

/// Runs wrk with POST requests and this JSON in each.
pub(crate) fn post(url: &str, connections: u32, json: &str) -> Result<Load, Failure> {
    let script = format!(
        "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n\
         wrk.body = [[{json}]]\n"
    );
    scripted(url, connections, &script)
}

fn scripted(url: &str, connections: u32, script: &str) -> Result<Load, Failure> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(script.as_bytes())?;
    wrk(url, connections, &[format!("--script={}", file.path().display())])
}

/// Runs h2load for one second, with this number of requests in flight per connection: gRPC calls
/// with the body in a file, or GET requests. h2load reports no percentiles.
pub(crate) fn h2load(
    url: &str,
    connections: u32,
    streams: u32,
    grpc: Option<&Path>,
) -> Result<Load, Failure> {
    let mut h2load = Command::new("h2load");
    h2load.args(["--threads=1", "--duration=1", &format!("--clients={connections}")]);
    h2load.arg(format!("--max-concurrent-streams={streams}"));
    if let Some(body) = grpc {
        h2load.args(["--header=content-type: application/grpc", "--header=te: trailers"]);
        h2load.arg(format!("--data={}", body.display()));
    }
    read_h2load(&output(h2load.arg(url))?)
}

fn output(command: &mut Command) -> Result<String, Failure> {
    Ok(String::from_utf8(command.output()?.stdout)?)
}

fn read_wrk(printed: &str) -> Result<Load, Failure> {
    let before = |words: &str| -> Option<f64> {
        let line = printed.lines().find(|line| line.contains(words))?;
        line.replace(words, "").split_whitespace().next()?.parse().ok()
    };
    if let Some(bad) = before("Non-2xx or 3xx responses:") {
        return Err(format!("{bad} requests failed").into());
    }
    let percentile = |percent: &str| {
        let mut lines = printed.lines();
        let line = lines.find(|line| line.trim().starts_with(percent))?;
        let text = line.split_whitespace().nth(1)?;
        let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
        let number = |(unit, micros)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * micros);
        units.into_iter().find_map(number)
    };
    Ok(Load {
        requests: before("requests in").ok_or("wrk counted nothing")?,
        rate: before("Requests/sec:").ok_or("wrk measured nothing")?,
        median: percentile("50%").ok_or("wrk gave no median")?,
        p99: percentile("99%").ok_or("wrk gave no 99th percentile")?,
    })
}

fn read_h2load(printed: &str) -> Result<Load, Failure> {
    let counts = printed.lines().find(|line| line.starts_with("requests:"));
    let count = |word: &str| -> Option<f64> {
        let part = counts?.split(", ").find_map(|part| part.strip_suffix(word))?;
        part.trim().parse().ok()
    };
    let requests = count(" succeeded").ok_or("h2load counted nothing")?;
    match count(" failed") {
        Some(0.0) => {}
        failed => return Err(format!("{failed:?} requests failed").into()),
    }
    let rate = printed.split(", ").find_map(|part| part.strip_suffix(" req/s")?.parse().ok());
    Ok(Load { requests, rate: rate.ok_or("h2load measured nothing")?, ..Load::NONE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wrk_output() {
        let printed = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n  \
                       Latency Distribution\n     50%  500.00us\n     99%    1.61ms\n  1234 requests \
                       in 1.02s, 1.20MB read\nRequests/sec:   1209.80\n";
        let load = read_wrk(printed).unwrap();
        assert_eq!((load.requests, load.rate), (1234.0, 1209.8));
        assert_eq!((load.median, load.p99), (500.0, 1610.0));
        assert_eq!(read_wrk(&printed.replace("1.61ms", "1.5s")).unwrap().p99, 1_500_000.0);
        assert!(read_wrk(&format!("{printed}Non-2xx or 3xx responses: 7\n")).is_err());
    }

    #[test]
    fn reads_h2load_output() {
        let printed = "\nfinished in 1.01s, 1204.50 req/s, 1.2MB/s\nrequests: 1300 total, 1234 \
                       started, 1217 done, 1210 succeeded, 0 failed, 0 errored, 0 timeout\n";
        let load = read_h2load(printed).unwrap();
        assert_eq!((load.requests, load.rate), (1210.0, 1204.5));
        assert!(read_h2load(&printed.replace("0 failed", "7 failed")).is_err());
    }
}
