//! The gateway in front of a server, compared with nginx and Envoy.

mod fronts;
mod programs;
mod traffic;

use self::programs::{PORT, Program, proxy_pass, upstream};
use crate::apps::Wrapping;
use crate::measured::measure;
use crate::process::local;
use crate::report::{self, Table, Target};
use crate::rounds::Spread;
use crate::wrk;
use crate::{Failure, h2load, http, process, redis};

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
are added; all limits are per address. The decision API and limitador-server get one JSON call per
decision, from wrk; `crates/tollgate-bench/peers/install` builds limitador-server.";

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
    let redis = redis::server::start();
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
        server.measured_port(),
        free.measured_port(0),
        limited.measured_port(0),
        shared.measured_port(0),
        nginx.measured_port(0),
        nginx.measured_port(1),
    ];

    let full = measure(&ports, rounds, |port| wrk::load(local(port), CONNECTIONS));
    let mut throughput = Table::new(
        "64 connections, as fast as they can",
        "in front | thousand requests/s | × nginx | target | met | × gateway | target | met | processor µs per request | × nginx | target | met",
    );
    for (side, measured) in SIDES.iter().zip(&full) {
        let to = |index: usize| Spread::of_ratios(&measured.rates, &full[index].rates);
        let processor = Spread::of_ratios(&measured.micros, &full[NGINX].micros);
        let [rate, micros] = measured.work();
        let ratios = [(to(NGINX), side.to_nginx), (to(GATEWAY), side.to_gateway)];
        throughput.row(&[&side.name, &rate, &ratios, &micros, &(processor, side.processor)]);
    }

    let half = Spread::of(&full[NGINX].rates).median / 2.0;
    let paced = measure(&ports, rounds, |port| wrk::paced(local(port), half));
    let mut steady = Table::new(
        "Half of the requests per second that nginx can answer",
        "in front | thousand requests/s | processor µs per request | median µs | p99 µs | × nginx | target | met",
    );
    for (side, measured) in SIDES.iter().zip(&paced) {
        let latency = [&measured.medians, &measured.p99s].map(Spread::of);
        let to_nginx = Spread::of_ratios(&measured.p99s, &paced[NGINX].p99s);
        steady.row(&[&side.name, &measured.work(), &latency, &(to_nginx, side.p99)]);
    }

    let alone = measure(&ports, rounds, |port| wrk::load(local(port), 1));
    let mut latency = Table::new(
        "Microseconds of a request, one connection",
        "in front | median | added | p99 | added",
    );
    for (side, measured) in SIDES.iter().zip(&alone) {
        let added = |these: &[f64], bare: &[f64]| {
            [Spread::of(these), Spread::of(these.iter().zip(bare).map(|(this, bare)| this - bare))]
        };
        let medians = added(&measured.medians, &alone[0].medians);
        latency.row(&[&side.name, &medians, &added(&measured.p99s, &alone[0].p99s)]);
    }

    let mut memory = Table::new(
        "Memory of connections that wait for their next request",
        "gateway | KiB per connection, of 9500 | MiB for 10 000 | target | met",
    );
    let kib = limited.waiting(WAITING)?;
    let mib = Spread::of([kib * 10_000.0 / 1024.0]);
    let cells = [(Some(kib), 1), (Some(mib.median), 0)];
    memory.row(&[&"with a policy", &cells, &Target::AtMost(150.0).met(mib)]);
    drop((free, limited, shared, nginx));
    let others = traffic::table(port, rounds)?;
    let [proxies, calls] = fronts::tables(port, rounds)?;
    let tables = [throughput, steady, latency, memory, others, proxies, calls];
    if rounds < ROUNDS { report::show(&tables) } else { report::write("gateway", METHOD, &tables) }
}

/// Parses a number of rounds: at least one.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a number of rounds, at least 1".to_owned()),
        Ok(rounds) => Ok(rounds),
    }
}
