//! The gateway in front of a server, compared with nginx.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::apps::Wrapping;
use crate::redis::Server;
use crate::report::{self, Table, Target};
use crate::rounds::{Peer, Spread, interleave};
use crate::wrk::{self, Load};
use crate::{Failure, http, process};

const METHOD: &str = "\
A server returns a short text. In front of it runs the gateway without limits, the gateway with a
token bucket per address in memory or in Redis, nginx, or nginx with `limit_req` per address. All
share the same two processors with wrk, and with redis-server in its row. nginx has two worker
processes and the gateway has two worker threads; both reuse their connections to the server. All
requests come from one address and are allowed. Processor time is the user and kernel time of all
gateway or nginx processes. `× nginx` compares with nginx without limits in the same round, and `×
gateway` with the gateway without limits. At a fixed rate, wrk sends half of the requests per second
that nginx can answer.";

/// Enough rounds for a stable median.
pub(crate) const ROUNDS: usize = 12;

/// wrk's connections when it measures requests per second.
const CONNECTIONS: u32 = 64;

/// Idle connections while their memory is measured. The gateway needs twice as many open files, and
/// many systems allow 20 000.
const WAITING: usize = 9_500;

/// The row that `× gateway` refers to.
const GATEWAY: usize = 1;

/// The row that `× nginx` refers to.
const NGINX: usize = 4;

/// A row, and its targets.
struct Side {
    name: &'static str,
    /// Requests per second, divided by the gateway's without limits.
    to_gateway: Target,
    /// Requests per second, divided by nginx's without limits.
    to_nginx: Target,
    /// Processor time per request, divided by nginx's without limits.
    processor: Target,
    /// The 99th percentile at half of nginx's rate, divided by nginx's without limits.
    p99: Target,
}

impl Side {
    const fn new(name: &'static str) -> Self {
        let none = Target::None;
        Self { name, to_gateway: none, to_nginx: none, processor: none, p99: none }
    }
}

const SIDES: [Side; 6] = [
    Side::new("the server itself"),
    Side {
        to_nginx: Target::AtLeast(0.8),
        processor: Target::AtMost(1.2),
        p99: Target::AtMost(1.5),
        ..Side::new("gateway, no limits")
    },
    Side { to_gateway: Target::AtLeast(0.95), ..Side::new("gateway, token bucket in memory") },
    Side { to_gateway: Target::AtLeast(0.75), ..Side::new("gateway, token bucket in Redis") },
    Side::new("nginx, no limits"),
    Side::new("nginx, `limit_req`"),
];

/// With fewer rounds than [`ROUNDS`], which show that the benchmark works, it writes no page.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    wrk::find()?;
    process::find("nginx", "nginx-light")?;
    let server = http::start(Wrapping::Bare)?;
    let port = server.address().port();
    let free = Running::gateway(port, "")?;
    let limit = "  client: {limit: 1000000000, window: 1s, strategy: token_bucket}\n";
    let limited = Running::gateway(port, limit)?;
    let redis = Server::start()?;
    // Fail closed, because otherwise a failed decision would count as a fast decision.
    let store = format!("  store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url());
    let shared = Running::gateway(port, &format!("{limit}{store}  onStoreError: closed\n"))?;
    let nginx = Running::nginx(port)?;
    let sides = [
        (port, server.id()),
        free.side(0),
        limited.side(0),
        shared.side(0),
        nginx.side(0),
        nginx.side(1),
    ];

    let full = measure(sides, rounds, |address| wrk::load(address, CONNECTIONS));
    let mut throughput = Table::new(
        "64 connections, as fast as they can",
        &[
            "in front",
            "thousand requests/s",
            "× nginx",
            "target",
            "met",
            "× gateway",
            "target",
            "met",
            "processor µs a request",
            "× nginx",
            "target",
            "met",
        ],
    );
    for (side, measured) in SIDES.iter().zip(&full) {
        let to = |place: usize| Spread::of_ratios(&measured.rates, &full[place].rates);
        let processor = Spread::of_ratios(&measured.micros, &full[NGINX].micros);
        let rate = Spread::of(measured.rates.iter().map(|rate| rate / 1e3));
        let micros = Spread::of(measured.micros.iter().copied());
        let cells = [side.name.to_owned(), rate.to_string()];
        let cells = cells.into_iter().chain(compared(side.to_nginx, to(NGINX)));
        let cells = cells.chain(compared(side.to_gateway, to(GATEWAY)));
        let cells = cells.chain([micros.to_string()]);
        throughput.row(cells.chain(compared(side.processor, processor)));
    }

    let half = Spread::of(full[NGINX].rates.iter().copied()).median / 2.0;
    let paced = measure(sides, rounds, |address| wrk::paced(address, half));
    let mut steady = Table::new(
        "Half of the requests per second that nginx can answer",
        &[
            "in front",
            "thousand requests/s",
            "processor µs a request",
            "half take at most µs",
            "99 in 100 take at most µs",
            "× nginx",
            "target",
            "met",
        ],
    );
    for (side, measured) in SIDES.iter().zip(&paced) {
        let [rates, micros, medians] = [
            Spread::of(measured.rates.iter().map(|rate| rate / 1e3)),
            Spread::of(measured.micros.iter().copied()),
            Spread::of(measured.medians.iter().copied()),
        ];
        let p99 = Spread::of(measured.p99s.iter().copied());
        let cells = [side.name.to_owned(), rates.to_string(), micros.to_string()];
        let cells = cells.into_iter().chain([medians.to_string(), p99.to_string()]);
        let to_nginx = Spread::of_ratios(&measured.p99s, &paced[NGINX].p99s);
        steady.row(cells.chain(compared(side.p99, to_nginx)));
    }

    let alone = measure(sides, rounds, |address| wrk::load(address, 1));
    let mut latency = Table::new(
        "Microseconds of a request, one connection",
        &["in front", "half take at most", "added", "99 in 100 take at most", "added"],
    );
    for (side, measured) in SIDES.iter().zip(&alone) {
        let added = |these: &[f64], bare: &[f64]| {
            Spread::of(these.iter().zip(bare).map(|(this, bare)| this - bare)).to_string()
        };
        let all = |these: &[f64]| Spread::of(these.iter().copied()).to_string();
        let (medians, p99s) = (&measured.medians, &measured.p99s);
        let cells = [all(medians), added(medians, &alone[0].medians)];
        let cells = cells.into_iter().chain([all(p99s), added(p99s, &alone[0].p99s)]);
        latency.row([side.name.to_owned()].into_iter().chain(cells));
    }

    let mut memory = Table::new(
        "Memory of connections that wait for their next request",
        &["gateway", "KiB a connection, of 9500", "MiB for 10 000", "target", "met"],
    );
    let kib = limited.waiting()?;
    let mib = Spread::of([kib * 10_000.0 / 1024.0]);
    let cells = ["with a policy".to_owned(), format!("{kib:.1}"), format!("{:.0}", mib.median)];
    memory.row(cells.into_iter().chain(Target::AtMost(150.0).cells(mib)));
    let tables = [throughput, steady, latency, memory];
    if rounds < ROUNDS { report::show(&tables) } else { report::write("gateway", METHOD, &tables) }
}

/// A ratio, its target, and whether the target is met.
fn compared(target: Target, ratio: Spread) -> impl Iterator<Item = String> {
    [format!("{ratio:.2}")].into_iter().chain(target.cells(ratio))
}

/// Parses a number of rounds: at least one.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of rounds, at least 1".to_owned()),
        Ok(rounds) => Ok(rounds),
    }
}

/// A side's numbers, one per round.
#[derive(Default)]
struct Measured {
    /// Requests per second.
    rates: Vec<f64>,
    /// Microseconds per request: processor time, median latency and 99th percentile.
    micros: Vec<f64>,
    medians: Vec<f64>,
    p99s: Vec<f64>,
}

/// Measures each side, a port and a process, with one kind of load.
fn measure(
    sides: [(u16, u32); 6],
    rounds: usize,
    load: impl Fn(SocketAddr) -> Load,
) -> [Measured; 6] {
    let mut measured: [Measured; 6] = Default::default();
    let mut peers: Vec<Peer<'_>> = Vec::new();
    for ((port, process), measured) in sides.into_iter().zip(&mut measured) {
        let load = &load;
        peers.push(Box::new(move || {
            let time = || process::family_time(process).unwrap_or(f64::NAN);
            let before = time();
            let load = load(local(port));
            measured.micros.push((time() - before) * 1e6 / load.requests);
            measured.medians.push(load.median * 1e3);
            measured.p99s.push(load.p99 * 1e3);
            load.rate
        }));
    }
    let rates = interleave(&mut peers, rounds);
    drop(peers);
    for (measured, rates) in measured.iter_mut().zip(rates) {
        measured.rates = rates;
        // The first run only warms up.
        for numbers in [&mut measured.micros, &mut measured.medians, &mut measured.p99s] {
            numbers.remove(0);
        }
    }
    measured
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The gateway or nginx, stopped on drop.
struct Running {
    process: Child,
    ports: Vec<u16>,
    folder: TempDir,
}

impl Running {
    fn gateway(target: u16, limits: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe()?.with_file_name("tollgate");
        if !program.exists() {
            return Err(format!("no {}: use `cargo xtask bench gateway`", program.display()).into());
        }
        let folder = TempDir::new()?;
        let file = folder.path().join("limits.yaml");
        let lines = format!(
            "rateLimiter:\n  listen: {{address: '127.0.0.1:0', maxConnectionsPerAddress: 10000}}\n  \
             admin: 127.0.0.1:0\n  target: http://127.0.0.1:{target}\n{limits}"
        );
        fs::write(&file, lines)?;
        let mut process = Command::new(program)
            .args(["serve", "--config"])
            .arg(&file)
            .env("TOKIO_WORKER_THREADS", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut banner = String::new();
        let stdout = process.stdout.take().ok_or("the gateway has no output")?;
        BufReader::new(stdout).read_line(&mut banner)?;
        let port = banner.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.ok_or("the gateway does not listen")?;
        Ok(Self { process, ports: vec![port], folder })
    }

    fn nginx(target: u16) -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let free = || -> Result<u16, Failure> {
            Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
        };
        let ports = vec![free()?, free()?];
        let file = folder.path().join("nginx.conf");
        fs::write(&file, nginx_conf(folder.path(), target, &ports))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stderr(Stdio::null());
        let process = command.spawn()?;
        let running = Self { process, ports, folder };
        for port in &running.ports {
            let started = Instant::now();
            while TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err() {
                if started.elapsed() > Duration::from_secs(10) {
                    return Err("nginx does not listen".into());
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(running)
    }

    /// A port and the process.
    fn side(&self, port: usize) -> (u16, u32) {
        (self.ports[port], self.process.id())
    }

    /// KiB per idle connection that has sent one request.
    fn waiting(&self) -> Result<f64, Failure> {
        let memory = || process::memory_of(&self.process.id().to_string(), "VmRSS");
        let before = memory()?;
        let mut waiting = Vec::new();
        for _ in 0..WAITING {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[0]))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            if stream.read(&mut [0; 4096])? == 0 {
                return Err("the gateway closed a connection".into());
            }
            waiting.push(stream);
        }
        Ok((memory()? - before) / 1024.0 / waiting.len() as f64)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM, because with SIGKILL nginx would leave its workers running.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(self.folder.path());
    }
}

fn nginx_conf(folder: &Path, target: u16, ports: &[u16]) -> String {
    let (folder, free, limited) = (folder.display(), ports[0], ports[1]);
    let proxy = "proxy_pass http://server; proxy_http_version 1.1; \
                 proxy_set_header Connection ''; proxy_set_header Host $host; \
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; \
                 proxy_set_header X-Forwarded-Proto $scheme;";
    format!(
        "worker_processes 2; daemon off; pid {folder}/pid; error_log /dev/null;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;\n\
         fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
         keepalive_requests 1000000000;\n\
         limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;\n\
         upstream server {{ server 127.0.0.1:{target}; keepalive 128;\n\
         keepalive_requests 1000000000; }}\n\
         server {{ listen 127.0.0.1:{free}; location / {{ {proxy} }} }}\n\
         server {{ listen 127.0.0.1:{limited}; location / {{\n\
         limit_req zone=clients burst=100000 nodelay; {proxy} }} }}\n\
         }}\n"
    )
}
