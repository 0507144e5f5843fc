//! Three replicas with a shared quota under load from wrk: a single replica, and all through nginx.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::ValueEnum;
use tempfile::TempDir;
use tollgate::{Limit, RateLimitLayer, RedisStore};
use tollgate_test_servers::{Nginx, Redis};

use crate::Failure;
use crate::measured::{MeasuredPort, measure};
use crate::process::local;
use crate::report::{self, Table};
use crate::rounds::Spread;
use crate::serve::Server;
use crate::wrk;

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

impl ReplicaLimiter {
    /// Starts a server with this limiter.
    pub(crate) fn start(self, redis: &Redis) -> Result<Server, Failure> {
        let name = self.to_possible_value().ok_or("a limiter without a name")?;
        Server::start(&["replica", name.get_name(), "--redis", &redis.url()])
    }
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
        "target | server | thousand requests/s | p50 ms | p99 ms | × | p99 ×",
    );
    let all = fleets.iter().map(|fleet| fleet.nginx.address().port());
    let one = fleets.iter().map(|fleet| fleet.servers[0].address().port());
    for (way, ports) in
        [("a single replica", Vec::from_iter(one)), ("three through nginx", all.collect())]
    {
        let port = |port| MeasuredPort { port, processes: Vec::new() };
        let ports: Vec<_> = ports.into_iter().map(port).collect();
        let measured = measure(&ports, ROUNDS, |port| wrk::load(local(port), CONNECTIONS));
        for ((_, name), side) in LIMITERS.iter().zip(&measured) {
            let each = &measured[1];
            let rates = Spread::of_ratios(&side.rates, &each.rates);
            let ratios = [(rates, 2), (Spread::of_ratios(&side.p99s, &each.p99s), 2)];
            table.row(&[&way, name, &side.work()[0], &side.latency(), &ratios]);
        }
    }
    report::write("replicas", METHOD, &[table])
}

/// Three equal replicas behind nginx.
struct Fleet {
    nginx: Nginx,
    servers: Vec<Server>,
    _folder: TempDir,
}

impl Fleet {
    fn start(limiter: ReplicaLimiter, redis: &Redis) -> Result<Self, Failure> {
        let servers: Vec<_> = (0..3).map(|_| limiter.start(redis)).collect::<Result<_, _>>()?;
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        let folder = tempfile::tempdir()?;
        let nginx = Nginx::start((Ipv4Addr::LOCALHOST, 0).into(), &addresses, folder.path())?;
        Ok(Self { nginx, servers, _folder: folder })
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
