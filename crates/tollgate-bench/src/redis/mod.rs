//! A decision in Redis: beside others, in a long log, and in a server.
//!
//! | file | is |
//! |---|---|
//! | `decisions.rs`, `goals.rs` | a decision of Tollgate and of others, in turns; what it is to be |
//! | `leases.rs` | a hot key of which replicas lease units |
//! | `excess.rs`, `worst.rs` | by how much a limit is passed |
//! | `fleet.rs` | many replicas, and a Cluster of one node, a section of its own |
//! | `log.rs` | a sliding window log that is full |
//! | `overload.rs` | more requests than Redis can answer, a section of its own |
//! | `over_http.rs` | servers that decide in Redis |
//! | `sides.rs`, `scripts.rs`, `peers.rs` | who decides: Tollgate, scripts of one's own, others |
//! | `turns.rs`, `load.rs`, `server.rs` | who asks, in turns, and the server |

mod decisions;
mod excess;
pub(crate) mod fleet;
mod goals;
mod leases;
mod load;
mod log;
#[cfg(unix)]
mod over_http;
pub(crate) mod overload;
mod peers;
mod scripts;
mod server;
mod sides;
mod turns;
mod worst;

use axum::Router;

pub(crate) use self::server::Server;
use crate::Failure;
use crate::report;

const METHOD: &str = "\
Tasks that ask as soon as they were answered, all in one process with two worker threads, and a
redis-server on the same two cores, over TCP. Nothing is refused. `one EVALSHA each` is Tollgate's
own script with one request a call, through one plain fred client; `lean script each` the token
bucket that a team would write for itself (TIME, HMGET, HSET, PEXPIRE), through the same client;
`INCR` that client counting and nothing else. `×` is the number of decisions a second over those of
one EVALSHA each in the same round; Redis' time is that of its processor, a decision.

governor decides in memory and for its process alone: the floor. redis-cell 0.2.2 is a native module
for Redis. The write-behind cache of limitador 0.14.0 answers from memory and writes once a second;
over many keys it stops for good, so it is asked for one. throttlecrab-server 0.4.40 keeps the keys
itself, and the time is its own. These three are built by `crates/tollgate-bench/peers/install`,
limitador without RocksDB, with a patch of two lines. limitador and throttlecrab-server
are asked by the client that limitador uses, from a process of their own.

Leases: three stores in one process, which share a bucket and are asked in turn; the last column is
how many decisions a second of Redis' processor time serves, over that where Redis decides each.
trypema 2.2.1, whose hybrid answers from memory too and may pass the limit, wants Redis 7.2 or later,
so it is not among them.

How far a limit of 1000 in 10 s is passed is the most that two replicas, 32 tasks each, admitted in
any 10 s.

The log holds 1000 entries in 10 s and is full, so nearly all is denied, by Redis each time: the
deny cache is off but where it is named. The sum is over a ZSET with a member for each
request. Redis' time of a long log is that of single calls, in a process that waits for each.

Over HTTP there is one server with two worker threads, redis-server and `wrk -t1 -c128` on the same
two cores, and one quota for all. `a script a request` is Tollgate with one request in each call,
`lean script` a middleware with the script above that sends no fields.";

pub(crate) fn run() -> Result<(), Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    let server = Server::start()?;
    let [decisions, mut goals] = runtime.block_on(decisions::tables(&server))?;
    let leases = runtime.block_on(leases::tables(&server, &mut goals))?;
    let excess = runtime.block_on(excess::table(&server))?;
    let [denials, bounds] = runtime.block_on(log::tables(&server))?;
    let mut tables = vec![decisions, goals, leases, excess, denials, bounds];
    #[cfg(unix)]
    tables.extend(over_http::tables(&server)?);
    report::write("redis", &method(), &tables)
}

/// The method of measurement, and the limiters that were not installed.
fn method() -> String {
    match &peers::missing()[..] {
        [] => METHOD.to_owned(),
        missing => format!("{METHOD}\n\nNot built here, so not measured: {}.", missing.join(", ")),
    }
}

/// `router` behind a middleware as a team would write it, for the servers over HTTP.
pub(crate) async fn limited(router: Router, url: &str) -> Result<Router, Failure> {
    Ok(scripts::limited(router, server::client(url).await?).await?.with_state(()))
}
