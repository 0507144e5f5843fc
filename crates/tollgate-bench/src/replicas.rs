//! Three replicas with a shared quota, behind nginx and under load from wrk.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::ValueEnum;
use tollgate::{Limit, RateLimitLayer, RedisStore};
use tollgate_test_servers::{Nginx, Redis};

use crate::Failure;
use crate::redis::lab;
use crate::redis::limiters::{bucket, limited};
use crate::report::{OURS, Options, Page};
use crate::serve::Server;
use crate::served::{self, P99, Port, RATE, SERVED, wrk};

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
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Bare => "bare app",
            Self::ScriptEach => "a script per request",
            Self::LeanScript => "lean script per request",
            Self::Tollgate => OURS,
        }
    }

    /// Starts a server with this limiter.
    pub(crate) fn start(self, redis: &Redis) -> Result<Server, Failure> {
        let name = self.to_possible_value().ok_or("a limiter without a name")?;
        Server::start(&["replica", name.get_name(), "--redis", &redis.url()])
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    use ReplicaLimiter::{Bare, ScriptEach, Tollgate};
    served::find()?;
    let (redis, folder) = (Redis::start(), tempfile::tempdir()?);
    let mut fleets = Vec::new();
    for limiter in [Bare, ScriptEach, Tollgate] {
        let servers = (0..3).map(|_| limiter.start(&redis)).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        let folder = folder.path().join(limiter.title());
        std::fs::create_dir(&folder)?;
        let nginx = Nginx::start((Ipv4Addr::LOCALHOST, 0).into(), &addresses, &folder)?;
        fleets.push((limiter.title(), servers, nginx));
    }
    let mut page = Page::new(options, ROUNDS);
    let title = "Three replicas behind nginx over one quota in Redis";
    page.table(title, "server", SERVED, |table| {
        let side = |(name, servers, nginx): &(&'static str, Vec<Server>, Nginx)| {
            let processes = servers.iter().flat_map(|server| server.port().processes).collect();
            let port = Port { number: nginx.address().port(), processes };
            port.side(name, |url| wrk(url, CONNECTIONS, &[]))
        };
        let each = ScriptEach.title();
        table.ratio("×", RATE, each).ratio("p99 ×", P99, each);
        table.measure(&[], fleets.iter().map(side).collect(), &[])
    })?;
    page.write("replicas", include_str!("../methods/replicas.md"))
}

/// A replica.
pub(crate) async fn app(limiter: ReplicaLimiter, redis: &str) -> Result<Router, Failure> {
    let router = Router::new().route("/", get(|| async { "hello" }));
    let store = RedisStore::builder(redis)?.timeout(Duration::from_secs(5));
    let store = match limiter {
        ReplicaLimiter::Bare => return Ok(router.with_state(())),
        ReplicaLimiter::LeanScript => return limited(router, lab::connect(redis).await?).await,
        // A call per request.
        ReplicaLimiter::ScriptEach => store.max_batch(1).max_calls(1 << 16),
        ReplicaLimiter::Tollgate => store,
    };
    let limit = Limit::global(bucket("global", 1)?);
    let layer = RateLimitLayer::builder(store.connect()?).limit(limit).build()?;
    Ok(router.layer(layer).with_state(()))
}
