//! The gateway in front of a server, beside nginx.

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
use crate::{Failure, http, process, wrk};

const METHOD: &str = "\
A server that says hello, and in front of it the gateway without limits, the gateway with a token
bucket for each address in memory, the same in Redis, nginx, and nginx with `limit_req` for each
address; all on the same two processors, which wrk has to share, and redis-server in its row. nginx has two worker processes and the gateway two threads;
both keep their connections to the server. All requests come from one address and pass. `× floor`
is the requests a second over those of the gateway without limits in the same round, `× nginx`
over those of nginx with `limit_req`. Latencies are those of one connection at a time; what is
added is what the same part of the requests takes longer than without anything in between.";

/// So many that a median says something.
pub(crate) const ROUNDS: usize = 12;

/// Connections of wrk where requests a second are counted.
const CONNECTIONS: u32 = 64;

/// Connections that wait, of which the memory is measured.
const WAITING: usize = 2_000;

/// Who is measured, and what a row is to reach of the requests of the gateway without limits.
const NAMES: [(&str, Target); 6] = [
    ("the server itself", Target::None),
    ("gateway, no limits", Target::None),
    ("gateway, token bucket in memory", Target::AtLeast(0.85)),
    ("gateway, token bucket in Redis", Target::AtLeast(0.6)),
    ("nginx, no limits", Target::None),
    ("nginx, `limit_req`", Target::None),
];

/// With fewer rounds than [`ROUNDS`], to see that it runs, nothing is written down.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    wrk::find()?;
    process::find("nginx", "nginx-light")?;
    let server = http::start(Wrapping::Bare)?;
    let port = server.address().port();
    let floor = Running::gateway(port, "")?;
    let limit = "  client: {limit: 1000000000, window: 1s, strategy: token_bucket}\n";
    let limited = Running::gateway(port, limit)?;
    let redis = Server::start()?;
    // Closed, so that a decision that was not made shows as a failure and not as a fast one.
    let store = format!("  store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url());
    let shared = Running::gateway(port, &format!("{limit}{store}  onStoreError: closed\n"))?;
    let nginx = Running::nginx(port)?;
    let ports =
        [port, floor.ports[0], limited.ports[0], shared.ports[0], nginx.ports[0], nginx.ports[1]];

    let rates = rates(ports, rounds);
    let mut throughput = Table::new(
        "Requests a second, 64 connections",
        &["in front", "thousand requests/s", "× floor", "target", "met", "× nginx"],
    );
    for (place, (name, target)) in NAMES.iter().enumerate() {
        let to_floor = Spread::of_ratios(&rates[place], &rates[1]);
        let to_nginx = Spread::of_ratios(&rates[place], &rates[5]);
        let spread = Spread::of(rates[place].iter().map(|rate| rate / 1e3));
        let cells = [(*name).to_owned(), spread.to_string(), format!("{to_floor:.2}")];
        let cells = cells.into_iter().chain(target.cells(to_floor));
        throughput.row(cells.chain([format!("{to_nginx:.2}")]));
    }

    let latencies = latencies(ports, rounds);
    let mut latency = Table::new(
        "Microseconds of a request, one connection",
        &["in front", "half take at most", "added", "99 in 100 take at most", "added"],
    );
    for ((name, _), [half, most]) in NAMES.iter().zip(&latencies) {
        let [bare_half, bare_most] = &latencies[0];
        let added = |these: &[f64], bare: &[f64]| {
            Spread::of(these.iter().zip(bare).map(|(this, bare)| this - bare)).to_string()
        };
        let all = |these: &[f64]| Spread::of(these.iter().copied()).to_string();
        let cells = [all(half), added(half, bare_half), all(most), added(most, bare_most)];
        latency.row([(*name).to_owned()].into_iter().chain(cells));
    }

    let mut memory = Table::new(
        "Memory of a connection that waits for its next request",
        &["gateway", "KiB a connection, of 2000"],
    );
    memory.row(["with a policy".to_owned(), format!("{:.1}", limited.waiting()?)]);
    let tables = [throughput, latency, memory];
    if rounds < ROUNDS { report::show(&tables) } else { report::write("gateway", METHOD, &tables) }
}

/// The number of rounds that the command line asks for: at least one.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of rounds, at least 1".to_owned()),
        Ok(rounds) => Ok(rounds),
    }
}

fn rates(ports: [u16; 6], rounds: usize) -> Vec<Vec<f64>> {
    let mut peers: Vec<Peer<'_>> = ports
        .map(|port| -> Peer<'_> { Box::new(move || wrk::load(local(port), CONNECTIONS).rate) })
        .into();
    interleave(&mut peers, rounds)
}

/// Of each: what half of the requests take at most, and what 99 in 100 do, by round.
fn latencies(ports: [u16; 6], rounds: usize) -> Vec<[Vec<f64>; 2]> {
    let mut most = vec![Vec::new(); ports.len()];
    let mut peers: Vec<Peer<'_>> = Vec::new();
    for (port, most) in ports.into_iter().zip(&mut most) {
        peers.push(Box::new(move || {
            let load = wrk::load(local(port), 1);
            most.push(load.p99 * 1e3);
            load.median * 1e3
        }));
    }
    let half = interleave(&mut peers, rounds);
    drop(peers);
    // The first was not measured.
    half.into_iter().zip(most).map(|(half, most)| [half, most[1..].to_vec()]).collect()
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A program of others, ended when it is dropped.
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
            "rateLimiter:\n  listen: 127.0.0.1:0\n  admin: 127.0.0.1:0\n  \
             target: http://127.0.0.1:{target}\n{limits}"
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

    /// KiB of each connection that has asked once and waits.
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
        // nginx ends its workers when it is asked, and leaves them when it is killed.
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
