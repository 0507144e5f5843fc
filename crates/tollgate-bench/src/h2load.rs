//! Load over HTTP/2, from h2load.

use std::path::Path;
use std::process::Command;

use crate::wrk::Load;
use crate::{Failure, process};

/// What h2load sends.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'a> {
    pub(crate) connections: u32,
    /// Requests in flight per connection.
    pub(crate) streams: u32,
    /// The body of a gRPC call. Without a body, each request is a GET.
    pub(crate) grpc: Option<&'a Path>,
}

/// Installs h2load if it is missing and no password is needed.
pub(crate) fn find() -> Result<(), Failure> {
    process::find("h2load", "nghttp2-client")
}

/// Runs h2load for one second. h2load reports no percentiles.
pub(crate) fn load(url: &str, calls: Calls<'_>) -> Load {
    run(url, calls).unwrap_or_else(Load::failed)
}

fn run(url: &str, Calls { connections, streams, grpc }: Calls<'_>) -> Result<Load, Failure> {
    let mut command = Command::new("h2load");
    command.args(["--threads=1", "--duration=1", &format!("--clients={connections}")]);
    command.arg(format!("--max-concurrent-streams={streams}"));
    if let Some(body) = grpc {
        command.args(["--header=content-type: application/grpc", "--header=te: trailers"]);
        command.arg(format!("--data={}", body.display()));
    }
    let output = command.arg(url).output()?;
    read(&String::from_utf8(output.stdout)?)
}

fn read(printed: &str) -> Result<Load, Failure> {
    let counts = printed.lines().find(|line| line.starts_with("requests:"));
    let count = |word: &str| -> Option<f64> {
        let part = counts?.split(", ").find_map(|part| part.strip_suffix(word))?;
        part.trim().parse().ok()
    };
    let succeeded = count(" succeeded").ok_or("h2load counted nothing")?;
    let refused = count(" failed").unwrap_or(f64::NAN);
    if refused != 0.0 {
        return Err(format!("{refused} requests failed").into());
    }
    let rate = printed.split(", ").find_map(|part| part.strip_suffix(" req/s")?.parse().ok());
    let rate = rate.ok_or("h2load measured nothing")?;
    Ok(Load { requests: succeeded, rate, median: f64::NAN, p99: f64::NAN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_h2load_output() {
        let printed = "\nfinished in 1.01s, 1204.50 req/s, 1.2MB/s\nrequests: 1300 total, 1234 \
                       started, 1217 done, 1210 succeeded, 0 failed, 0 errored, 0 timeout\n";
        let load = read(printed).unwrap();
        assert_eq!((load.requests, load.rate), (1210.0, 1204.5));
        assert!(read(&printed.replace("0 failed", "7 failed")).is_err());
    }
}
