//! A decision in Redis: compared with peers, in a long log, and in a server.
//!
//! | file | contains |
//! |---|---|
//! | `decisions.rs` | decisions by Tollgate and by peers, in turns |
//! | `herd.rs` | many replicas that meet a new server |
//! | `excess.rs`, `worst.rs` | admitted requests above a limit |
//! | `fleet.rs` | many replicas, and a single-node Cluster; has its own page |
//! | `log.rs` | a full sliding window log |
//! | `overload.rs` | more requests than Redis can answer; has its own page |
//! | `over_http.rs` | servers that decide in Redis |
//! | `queues.rs` | calls in one queue, compared with other clients |
//! | `sides.rs`, `scripts.rs`, `peers.rs` | the limiters: Tollgate, custom scripts, peers |
//! | `turns.rs`, `load.rs`, `server.rs` | turns, the load in a turn, and the Redis server |

mod decisions;
mod excess;
pub(crate) mod fleet;
mod herd;
mod load;
mod log;
mod over_http;
pub(crate) mod overload;
pub(crate) mod peers;
mod queues;
mod scripts;
pub(crate) mod server;
mod sides;
mod turns;
mod worst;

use axum::Router;

pub(crate) use self::sides::bucket;
use crate::Failure;
use crate::report;

const METHOD: &str = "\
All tasks run in one process with two worker threads, beside a redis-server on the same two cores,
over TCP. Each task sends its next request when it receives an answer, and every request is allowed.
Buckets hold 10^9 units and regain one per second (redis-cell and throttlecrab-server: 10^6), so keys
live on after a request, like those of real quotas. In the row *expired* buckets are full again after
a nanosecond, so nearly every request finds its key expired.
`one EVALSHA each` is Tollgate's own script with one request per call through a plain fred client.
`lean script each` is the token bucket that a team would write for itself (TIME, HMGET, HSET,
PEXPIRE) through the same client. `INCR` is the same client with a bare counter. `×` divides the
decisions per second by the rate of one EVALSHA each in the same round. Redis' time is its processor
time per decision.

governor decides in memory for its own process only, so it is the floor. redis-cell 0.2.2 is a
native Redis module. The write-behind cache of limitador 0.14.0 answers from memory and writes once
per second. It stalls permanently with many keys, so it is measured with one key.
throttlecrab-server 0.4.40 stores the keys itself, and the column shows its own processor time.
`crates/tollgate-bench/peers/install` builds these three, limitador without RocksDB and with a patch
of two lines. The client library of limitador calls limitador and throttlecrab-server from a
separate process.

By setting: the limiters take turns on a server with TLS, one that writes its append-only file and
syncs it every second, or one that sends its writes to a replica on the same two cores.

Leases: three stores in one process share a bucket and take turns. The last column compares the
decisions per second of Redis' processor time with the same stores without leases. trypema 2.2.1
needs Redis 7.2 or later, so it is not measured; its hybrid mode also answers from memory and may
pass the limit.

The excess over a limit of 1000 in 10 s is the maximum that two replicas with 32 tasks each admitted
in any 10 s.

Calls in one order: each call is allowed at once or gets its instant in the future, and no task
sleeps. Effect's client calls Redis for a rate and for what it has learned, bottleneck registers,
starts and ends each call. Redis' time is its processor time, so it contains the sockets.

The log is full with 1000 entries in 10 s, so Redis denies nearly every request. The deny cache is
off except in the row that names it. The sum runs over a ZSET with a member per request. Redis' time
for a long log is measured with single calls that a process sends one after the other.

Over HTTP, a server with two worker threads, redis-server and `wrk -t1 -c128` share the same two
cores, and all requests share one quota. `a script per request` is Tollgate with one request per call,
and `lean script` is a middleware with the lean script that sends no headers.";

/// Rounds per table.
pub(crate) const ROUNDS: usize = 6;

/// Measures, and writes the page unless there are fewer than [`ROUNDS`] rounds.
pub(crate) fn run(rounds: usize) -> Result<(), Failure> {
    let server = server::start();
    let mut tables = block_on(async {
        let [decisions, mut goals] = decisions::tables(&server, rounds).await?;
        let leases = decisions::leases(&server, rounds, &mut goals).await?;
        let tenants = decisions::tenants(&server, rounds).await?;
        let queues = queues::table(&server, rounds).await?;
        let excess = excess::table(&server).await?;
        let [denials, bounds] = log::tables(&server, rounds).await?;
        let settings = decisions::settings(rounds).await?;
        Ok::<_, Failure>(vec![
            decisions, goals, settings, leases, tenants, queues, excess, denials, bounds,
        ])
    })?;
    tables.extend(over_http::tables(&server, rounds)?);
    if rounds < ROUNDS {
        return report::show(&tables);
    }
    report::write("redis", &method(), &tables)
}

/// Measures only tenants with their own quotas.
pub(crate) fn tenants(rounds: usize) -> Result<(), Failure> {
    report::show(&[block_on(async { decisions::tenants(&server::start(), rounds).await })?])
}

/// Measures only the queues.
pub(crate) fn queues(rounds: usize) -> Result<(), Failure> {
    report::show(&[block_on(queues::table(&server::start(), rounds))?])
}

/// Runs a measurement on two worker threads.
fn block_on<T>(measured: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measured)
}

/// The measurement method, and the limiters that were not installed.
fn method() -> String {
    match &peers::missing()[..] {
        [] => METHOD.to_owned(),
        missing => format!("{METHOD}\n\nNot built here, so not measured: {}.", missing.join(", ")),
    }
}

/// `router` behind the middleware that a team would write for itself, for the servers over HTTP.
pub(crate) async fn limited(router: Router, url: &str) -> Result<Router, Failure> {
    Ok(scripts::limited(router, server::client(url).await?).await?.with_state(()))
}
