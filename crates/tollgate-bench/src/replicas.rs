//! Three replicas with a shared quota under load from wrk: a single replica, and all through nginx.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::ValueEnum;
use tempfile::TempDir;
use tollgate::{Limit, RateLimitLayer, RedisStore};
use tollgate_test_servers::{Nginx, Redis};

use crate::Failure;
use crate::report::{self, Table};
use crate::rounds::Spread;
use crate::serve::Server;
use crate::wrk::{self, Load};

const METHOD: &str = "\
Three servers with two worker threads each, one redis-server, nginx with the configuration of
docker-compose.yml, and `wrk -t1 -c64` share the same two cores. Requests go to a single server, or
through nginx to all three. All servers share one quota, which is never used up. `a script a
request` is Tollgate with one request per script call, which is how limiters over Redis usually
work; both send the same headers. `×` divides the throughput by the throughput of a script per request
in the same round, and `p99 ×` divides the 99th percentiles.";

const ROUNDS: usize = 8;
const CONNECTIONS: u32 = 64;

/// A replica's limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplicaLimiter {
    /// No limiter.
    Bare,
    /// The store with one request per call.
    ScriptEach,
    /// A middleware with a minimal script.
    LeanScript,
    /// The store with its defaults.
    Tollgate,
}

const LIMITERS: [(ReplicaLimiter, &str); 3] = [
    (ReplicaLimiter::Bare, "bare app"),
    (ReplicaLimiter::ScriptEach, "a script per request"),
    (ReplicaLimiter::Tollgate, "Tollgate"),
];

pub(crate) fn run() -> Result<(), Failure> {
    wrk::find()?;
    let redis = Redis::start();
    let fleets: Vec<_> = LIMITERS
        .iter()
        .map(|(limiter, _)| Fleet::start(*limiter, &redis))
        .collect::<Result<_, _>>()?;
    let mut table = Table::new(
        "Requests per second over one quota in Redis",
        &["target", "server", "thousand requests/s", "p50 ms", "p99 ms", "×", "p99 ×"],
    );
    for (way, asked) in [("a single replica", Asked::One), ("three through nginx", Asked::All)] {
        let measured = measure(&fleets, asked);
        let of = |fleet: usize, what: fn(&Load) -> f64| -> Vec<f64> {
            measured[fleet].iter().map(what).collect()
        };
        for (fleet, (_, name)) in LIMITERS.iter().enumerate() {
            let ratio = |what| format!("{:.2}", Spread::of_ratios(&of(fleet, what), &of(1, what)));
            table.row([
                way.to_owned(),
                (*name).to_owned(),
                Spread::of(of(fleet, |load| load.rate / 1e3)).to_string(),
                format!("{:.2}", Spread::of(of(fleet, |load| load.median))),
                format!("{:.2}", Spread::of(of(fleet, |load| load.p99))),
                ratio(|load| load.rate),
                ratio(|load| load.p99),
            ]);
        }
    }
    report::write("replicas", METHOD, &[table])
}

/// Measures each fleet in each round. The fleets take turns, and each round starts with another
/// fleet. The first round only warms up.
fn measure(fleets: &[Fleet], asked: Asked) -> Vec<Vec<Load>> {
    let mut measured = vec![Vec::with_capacity(ROUNDS); fleets.len()];
    for round in 0..=ROUNDS {
        for turn in 0..fleets.len() {
            let fleet = (round + turn) % fleets.len();
            let load = wrk::load(fleets[fleet].address(asked), CONNECTIONS);
            if round > 0 {
                measured[fleet].push(load);
            }
        }
    }
    measured
}

/// The target of the load.
#[derive(Clone, Copy)]
enum Asked {
    One,
    All,
}

/// Three equal replicas behind nginx.
struct Fleet {
    nginx: Nginx,
    servers: Vec<Server>,
    _folder: TempDir,
}

impl Fleet {
    fn start(limiter: ReplicaLimiter, redis: &Redis) -> Result<Self, Failure> {
        let name = limiter.to_possible_value().ok_or("a limiter without a name")?;
        let url = redis.url();
        let args = ["replica", name.get_name(), "--redis", &url];
        let servers: Vec<_> = (0..3).map(|_| Server::start(&args)).collect::<Result<_, _>>()?;
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        let folder = tempfile::tempdir()?;
        let nginx = Nginx::start((Ipv4Addr::LOCALHOST, 0).into(), &addresses, folder.path())?;
        Ok(Self { nginx, servers, _folder: folder })
    }

    fn address(&self, asked: Asked) -> SocketAddr {
        match asked {
            Asked::One => self.servers[0].address(),
            Asked::All => self.nginx.address(),
        }
    }
}

/// A replica.
pub(crate) async fn app(limiter: ReplicaLimiter, redis: &str) -> Result<Router, Failure> {
    let router = Router::new().route("/", get(|| async { "hello" }));
    let store = RedisStore::builder(redis)?.timeout(Duration::from_secs(5));
    let store = match limiter {
        ReplicaLimiter::Bare => return Ok(router.with_state(())),
        ReplicaLimiter::LeanScript => return crate::redis::limited(router, redis).await,
        // A call per request.
        ReplicaLimiter::ScriptEach => store.max_batch(1).max_calls(1 << 16),
        ReplicaLimiter::Tollgate => store,
    };
    let policy = crate::redis::bucket("global", 1)?;
    let layer = RateLimitLayer::builder(store.connect()?).limit(Limit::global(policy)).build()?;
    Ok(router.layer(layer).with_state(()))
}
