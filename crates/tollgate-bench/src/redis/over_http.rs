//! Servers that decide in Redis, measured over sockets with wrk.

use tollgate_test_servers::Redis;

use crate::Failure;
use crate::measured::{Measured, measure};
use crate::process::local;
use crate::replicas::ReplicaLimiter;
use crate::report::{Table, Target};
use crate::rounds::Spread;
use crate::wrk;

const CONNECTIONS: u32 = 128;

const LIMITERS: [(ReplicaLimiter, &str); 4] = [
    (ReplicaLimiter::Bare, "bare app"),
    (ReplicaLimiter::ScriptEach, "a script per request"),
    (ReplicaLimiter::LeanScript, "lean script per request"),
    (ReplicaLimiter::Tollgate, "Tollgate"),
];
const BARE: usize = 0;
const EACH: usize = 1;
const OURS: usize = 3;

/// Selects a server's numbers.
type Numbers = fn(&Measured) -> &[f64];

/// The tables of results and goals.
pub(crate) fn tables(redis: &Redis, rounds: usize) -> Result<[Table; 2], Failure> {
    wrk::find()?;
    let servers = LIMITERS.map(|(limiter, _)| limiter.start(redis));
    let servers: Vec<_> = servers.into_iter().collect::<Result<_, _>>()?;
    let ports: Vec<_> = servers.iter().map(|server| server.measured_port()).collect();
    let measured = measure(&ports, rounds, |port| wrk::load(local(port), CONNECTIONS));
    let mut table = Table::new(
        "Over HTTP",
        "server | thousand requests/s | p50 ms | p99 ms | server's processor µs per request",
    );
    for ((_, name), side) in LIMITERS.iter().zip(&measured) {
        let ([rate, micros], latency) = (side.work(), side.latency());
        table.row(&[name, &rate, &latency, &micros]);
    }
    let mut goals = Table::new(
        "Tollgate over HTTP compared with peers",
        "what | compared with | × | target | met",
    );
    let rates: Numbers = |side| &side.rates;
    let numbers: [(&str, Numbers, usize, Target); 4] = [
        ("requests per second", rates, EACH, Target::AtLeast(1.3)),
        ("requests per second", rates, BARE, Target::AtLeast(0.65)),
        ("p99", |side| &side.p99s, EACH, Target::AtMost(0.7)),
        ("server's processor time", |side| &side.micros, EACH, Target::AtMost(0.85)),
    ];
    for (what, of, against, target) in numbers {
        let ratio = Spread::of_ratios(of(&measured[OURS]), of(&measured[against]));
        goals.row(&[&what, &LIMITERS[against].1, &(ratio, target)]);
    }
    Ok([table, goals])
}
