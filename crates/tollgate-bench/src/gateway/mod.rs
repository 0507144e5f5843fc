//! The gateway in front of a server, compared with nginx and Envoy.

mod fronts;
mod programs;
mod traffic;

use std::net::{Ipv4Addr, SocketAddr};

use self::programs::{PORT, Program, proxy_pass, upstream};
use crate::apps::Wrapping;
use crate::redis::Server;
use crate::report::{self, Table, Target};
use crate::rounds::{Peer, Spread, interleave};
use crate::wrk::{self, Load};
use crate::{Failure, h2load, http, process};

const METHOD: &str = "\
A server returns a short text. In front of it runs the gateway without limits, the gateway with a
token bucket per address in memory or in Redis, nginx, or nginx with `limit_req` per address. All
share the same two processors with wrk, and with redis-server in its row. nginx has two worker
processes and the gateway has two worker threads; both reuse their connections to the server. All
requests come from one address and are allowed. Processor time is the user and kernel time of all
gateway or nginx processes. `× nginx` compares with nginx without limits in the same round, and `×
gateway` with the gateway without limits. At a fixed rate, wrk sends half of the requests per second
that nginx can answer.

The rows of other requests have headers of 256 bytes, TLS between the client and the program in
front, or HTTP/2 on both sides. nginx forwards over HTTP/2 with `grpc_pass`. Envoy has two worker
threads. In the rows of decisions for other proxies, the processor time of the proxy and of Tollgate
are added; all limits are per address.";

/// Enough rounds for a stable median.
pub(crate) const ROUNDS: usize = 12;

/// wrk's connections when it measures requests per second.
const CONNECTIONS: u32 = 64;

/// Idle connections while their memory is measured. The gateway needs twice as many open files, and
/// many systems allow 20 000.
const WAITING: usize = 9_500;

/// A token bucket per address in the gateway, which allows all requests.
const LIMIT: &str = "  client: {limit: 1000000000, window: 1s, strategy: token_bucket}\n";

/// nginx's limit per address, which allows all requests.
const LIMIT_REQ: &str = "limit_req zone=clients burst=100000 nodelay;";

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

/// With fewer rounds than [`ROUNDS`], for example to test the benchmark, it writes no page.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    wrk::find()?;
    h2load::find()?;
    process::find("nginx", "nginx-light")?;
    let server = http::start(Wrapping::Bare)?;
    let port = server.address().port();
    let target = format!("http://127.0.0.1:{port}");
    let free = Program::gateway(&target, "")?;
    let limited = Program::gateway(&target, LIMIT)?;
    let redis = Server::start()?;
    // Fail closed, because otherwise a failed decision would count as a fast decision.
    let store = format!("  store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url());
    let shared = Program::gateway(&target, &format!("{LIMIT}{store}  onStoreError: closed\n"))?;
    let listen = format!("listen 127.0.0.1:{PORT};");
    let pass = proxy_pass("server");
    let nginx = Program::nginx(
        &[
            format!("{listen} location / {{ {pass} }}"),
            format!("{listen} location / {{ {LIMIT_REQ} {pass} }}"),
        ],
        &upstream("server", port),
    )?;
    let ports = [
        MeasuredPort { port, processes: vec![server.id()] },
        free.measured_port(0),
        limited.measured_port(0),
        shared.measured_port(0),
        nginx.measured_port(0),
        nginx.measured_port(1),
    ];

    let full = measure(&ports, rounds, |port| wrk::load(local(port), CONNECTIONS));
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
            "processor µs per request",
            "× nginx",
            "target",
            "met",
        ],
    );
    for (side, measured) in SIDES.iter().zip(&full) {
        let to = |index: usize| Spread::of_ratios(&measured.rates, &full[index].rates);
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
    let paced = measure(&ports, rounds, |port| wrk::paced(local(port), half));
    let mut steady = Table::new(
        "Half of the requests per second that nginx can answer",
        &[
            "in front",
            "thousand requests/s",
            "processor µs per request",
            "median µs",
            "p99 µs",
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

    let alone = measure(&ports, rounds, |port| wrk::load(local(port), 1));
    let mut latency = Table::new(
        "Microseconds of a request, one connection",
        &["in front", "median", "added", "p99", "added"],
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
        &["gateway", "KiB per connection, of 9500", "MiB for 10 000", "target", "met"],
    );
    let kib = limited.waiting(WAITING)?;
    let mib = Spread::of([kib * 10_000.0 / 1024.0]);
    let cells = ["with a policy".to_owned(), format!("{kib:.1}"), format!("{:.0}", mib.median)];
    memory.row(cells.into_iter().chain(Target::AtMost(150.0).cells(mib)));
    drop((free, limited, shared, nginx));
    let others = traffic::table(port, rounds)?;
    let [proxies, calls] = fronts::tables(port, rounds)?;
    let tables = [throughput, steady, latency, memory, others, proxies, calls];
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

/// A measured port, and the processes that serve it. Their processor time counts.
#[derive(Clone)]
struct MeasuredPort {
    port: u16,
    processes: Vec<u32>,
}

/// Measures each port with `load`, which gets the port.
fn measure(ports: &[MeasuredPort], rounds: usize, load: impl Fn(u16) -> Load) -> Vec<Measured> {
    let mut measured: Vec<_> = ports.iter().map(|_| Measured::default()).collect();
    let mut peers: Vec<Peer<'_>> = Vec::new();
    for (port, measured) in ports.iter().zip(&mut measured) {
        let load = &load;
        peers.push(Box::new(move || {
            let time = || {
                let times = port.processes.iter().map(|process| process::family_time(*process));
                times.sum::<Result<f64, _>>().unwrap_or(f64::NAN)
            };
            let before = time();
            let load = load(port.port);
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
