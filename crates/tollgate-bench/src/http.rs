//! The layer in a server, asked over sockets by wrk.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::apps::Wrapping;
use crate::report::{self, Table, Target};
use crate::rounds::{Spread, interleave};
use crate::{Failure, process};

const METHOD: &str = "\
A server with two worker threads, each in a process of its own, asked by `wrk -t1` on the same
machine, so that wrk takes a core. All requests come from one address and pass. `× bare` is the
requests a second over those of the bare router in the same round; `× tower_governor` the same
over tower_governor with its headers. The time is the server's own on all processors, user and
kernel, a request.";

const ROUNDS: usize = 16;
// The shortest that wrk knows.
const SPAN: &str = "1s";

const SERVERS: [(Wrapping, &str); 3] = [
    (Wrapping::Bare, "bare router"),
    (Wrapping::GovernorHeaders, "tower_governor, headers"),
    (Wrapping::Headers, "Tollgate, all fields"),
];

pub(crate) fn run() -> Result<(), Failure> {
    find("wrk", "wrk")?;
    let servers: Vec<_> =
        SERVERS.iter().map(|(wrapping, _)| Server::start(*wrapping)).collect::<Result<_, _>>()?;
    let mut table = Table::new(
        "Requests a second",
        &[
            "server",
            "connections",
            "thousand requests/s",
            "processor µs a request",
            "× bare",
            "target",
            "met",
            "× tower_governor",
            "target",
            "met",
        ],
    );
    for (connections, least) in [(32, 0.93), (128, 0.85)] {
        let mut micros = vec![Vec::new(); servers.len()];
        let mut peers: Vec<_> = servers
            .iter()
            .zip(&mut micros)
            .map(|(server, micros)| server.peer(connections, micros))
            .collect();
        let measured = interleave(&mut peers, ROUNDS);
        drop(peers);
        let [bare, governor, _] = &measured[..] else { continue };
        for (place, ((wrapping, name), micros)) in SERVERS.iter().zip(micros).enumerate() {
            let ours = *wrapping == Wrapping::Headers;
            let target = |least| if ours { Target::AtLeast(least) } else { Target::None };
            let spread = Spread::of(measured[place].iter().map(|rate| rate / 1e3));
            let to_bare = Spread::of_ratios(&measured[place], bare);
            let to_governor = Spread::of_ratios(&measured[place], governor);
            let micros = Spread::of(micros.into_iter().skip(1));
            let cells = [(*name).to_owned(), connections.to_string(), spread.to_string()];
            let cells = cells.into_iter().chain([micros.to_string(), format!("{to_bare:.2}")]);
            let cells = cells.chain(target(least).cells(to_bare));
            let cells = cells.chain([format!("{to_governor:.2}")]);
            table.row(cells.chain(target(1.0).cells(to_governor)));
        }
    }
    report::write("http", METHOD, &[table])
}

/// Says what to do where a program is missing, and installs it where that needs no question.
pub(crate) fn find(program: &str, package: &str) -> Result<(), Failure> {
    let there = || Command::new(program).arg("-v").output().is_ok();
    if !there() {
        let mut install = Command::new("apt-get");
        let _ = install.args(["install", "--yes", package]).stdout(Stdio::null()).status();
    }
    if there() {
        return Ok(());
    }
    Err(format!("{program} is missing: sudo apt-get install {package}").into())
}

/// A server process, killed when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(wrapping: Wrapping) -> Result<Self, Failure> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mode = wrapping.to_possible_value().ok_or("a server without a name")?;
        let process = Command::new(std::env::current_exe()?)
            .args(["serve", mode.get_name(), "--port", &port.to_string()])
            .stdin(Stdio::piped())
            .spawn()?;
        let server = Self { process, port };
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if started.elapsed() > Duration::from_secs(10) {
                return Err(format!("the server `{}` does not listen", mode.get_name()).into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Measures requests a second, and leaves the server's own time a request in `micros`.
    fn peer<'a>(
        &'a self,
        connections: u32,
        micros: &'a mut Vec<f64>,
    ) -> Box<dyn FnMut() -> f64 + 'a> {
        Box::new(move || {
            let time = || process::processor_time(self.process.id()).unwrap_or(f64::NAN);
            let before = time();
            let load = self.load(connections);
            let (requests, rate) = load.unwrap_or_else(|failure| {
                eprintln!("{failure}");
                (f64::NAN, f64::NAN)
            });
            micros.push((time() - before) * 1e6 / requests);
            rate
        })
    }

    fn load(&self, connections: u32) -> Result<(f64, f64), Failure> {
        let load = wrk(self.port, connections)?;
        Ok((load.requests, load.rate))
    }
}

/// What wrk counted.
pub(crate) struct Load {
    pub(crate) requests: f64,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Microseconds of half of the requests, and of all but one in a hundred.
    pub(crate) latency: [f64; 2],
}

/// Asks whoever listens there, for a round.
pub(crate) fn wrk(port: u16, connections: u32) -> Result<Load, Failure> {
    let output = Command::new("wrk")
        .args(["--threads=1", "--latency", &format!("--connections={connections}")])
        .arg(format!("--duration={SPAN}"))
        .arg(format!("http://127.0.0.1:{port}/"))
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let word = |before: &str, after: &str| -> Option<String> {
        let line = text.lines().find(|line| line.contains(before) && line.contains(after))?;
        line.replace(before, "").split_whitespace().next().map(str::to_owned)
    };
    let number = |before, after| word(before, after)?.parse::<f64>().ok();
    if let Some(bad) = number("Non-2xx or 3xx responses:", "") {
        return Err(format!("{bad} requests were refused").into());
    }
    let requests = number("requests in", "requests in").ok_or("wrk counted nothing")?;
    let rate = number("Requests/sec:", "").ok_or("wrk measured nothing")?;
    let latency = |part| word(part, "").and_then(|word| micros(&word)).unwrap_or(f64::NAN);
    Ok(Load { requests, rate, latency: [latency("  50%"), latency("  99%")] })
}

/// `12.00us`, `1.20ms` and `1.00s` in microseconds.
fn micros(word: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let found = units.iter().find_map(|(unit, each)| Some((word.strip_suffix(unit)?, each)));
    let (number, each) = found?;
    number.parse::<f64>().ok().map(|number| number * each)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
