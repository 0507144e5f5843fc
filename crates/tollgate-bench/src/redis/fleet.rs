//! Many replicas over one Redis or over a single-node Cluster, leases, and the excess over a limit
//! that two replicas share.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tollgate::policy::Lease;
use tollgate::{Policy, Quota, RedisStore};

use crate::Failure;
use crate::redis::lab::{DECISIONS, Lab, RATE, REDIS, Work};
use crate::redis::limiters::{Call, Plain, Tollgate, bucket};
use crate::redis::load::{Ask, LIMIT, WINDOW, worst};
use crate::redis::overload::{at, open_loop};
use crate::redis::peers::{self, CACHED};
use crate::report::{Goal, OURS, Page, Table};
use crate::rounds::Side;

/// The last two tables of the page on Redis.
pub(crate) fn shared(page: &mut Page<'_>, lab: &Lab<'_>) -> Result<(), Failure> {
    page.table("One hot key, three replicas", "limiter", DECISIONS, |table| {
        const EXACT: &str = "three replicas, exact";
        const LEASED: &str = "three replicas, leased";
        let side = |name, policy| {
            let stores = (0..3).map(|_| lab.store()).collect::<Result<_, _>>()?;
            let limits = vec![(vec![policy], 1)];
            Ok::<_, Failure>(lab.side(name, 192, Tollgate { stores, limits }))
        };
        let leased = bucket("leased", 1)?.with_lease(Lease::of(1, 20))?;
        let sides = vec![side(EXACT, bucket("hot", 1)?)?, side(LEASED, leased)?];
        let goal = Goal::at_most(REDIS, 0.05).of(LEASED).against(EXACT);
        table.ratio("× exact, Redis", REDIS, EXACT).measure(&[], sides, &[goal])
    })?;
    let title = "Excess of two replicas over a limit of 1000 in 10 s";
    page.table(title, "limiter", "most in 10 s | over the limit, %", |table| {
        let over = |most: f64| Ok(vec![most, (most / LIMIT as f64 - 1.0) * 100.0]);
        let mut sides = vec![Side::new("Tollgate, sliding window log", || {
            let replica = || {
                let policy = Policy::sliding_window_log("excess", Quota::new(LIMIT, WINDOW))?;
                Ok::<_, Failure>(Arc::new(Tollgate::new(lab.store()?, policy, 1)))
            };
            over(lab.run(worst([replica()?, replica()?]))? as f64)
        })];
        for (name, limiter) in [("limitador, Redis", "limitador"), (CACHED, "limitador-cached")] {
            if let Some(peer) = peers::outside(limiter, &lab.url, 1)? {
                let worst = move || over(*peer.say("worst")?.first().ok_or("no number")?);
                sides.push(Side::new(name, worst));
            }
        }
        table.rounds = 1;
        table.measure(&[], sides, &[])
    })
}

/// The page on fleets, over one Redis and over a Cluster.
pub(crate) fn tables(
    page: &mut Page<'_>,
    labs: &[(&'static str, Lab<'_>); 2],
) -> Result<(), Failure> {
    let heads = "server | replicas | requests/s | limiter";
    page.table("Replicas over one Redis", heads, FLEET, |table| fleets(table, labs))?;
    let columns =
        "99.9th percentile, ms | longest EVALSHA, ms | longest EVAL, with compilation, ms";
    page.table("Duration of a script", "server", columns, |table| {
        table.rounds = 1;
        for (name, lab) in labs {
            let goals = columns.split(" | ").zip([2.0, 5.0, 5.0]);
            let goals = goals.map(|(column, most)| Goal::at_most(column, most).of(name));
            let stores = stores(lab, MOST)?;
            let limits = vec![(vec![bucket("durations", 1)?], KEYS)];
            let fleet = Arc::new(Tollgate { stores: stores.clone(), limits });
            let side = Side::new(name, || {
                lab.forget_scripts();
                paced(lab, 40_000, &fleet, &stores)?;
                lab.script_times()
            });
            table.measure(&[], vec![side], &Vec::from_iter(goals))?;
        }
        Ok(())
    })?;
    page.table("A Cluster with one node, 100 000 keys, 512 tasks", "server", DECISIONS, |table| {
        let mut sides = Vec::new();
        for (name, lab) in labs {
            let limiter = Tollgate::new(lab.store()?, bucket("fleet", 1)?, 100_000);
            sides.push(lab.side(name, 512, limiter));
        }
        let [(single, _), (cluster, _)] = *labs;
        let goal = Goal::at_least(RATE, 0.85).of(cluster).against(single);
        table.rounds *= 2;
        table.ratio("×", RATE, single).ratio("×, Redis", REDIS, single);
        table.measure(&[], sides, &[goal])
    })
}

const KEYS: u64 = 1_000;
/// The number of replicas in the largest fleet.
const MOST: u64 = 100;

/// A fleet's stores.
fn stores(lab: &Lab<'_>, replicas: u64) -> Result<Vec<RedisStore>, Failure> {
    let store = |_| lab.store_with(|store| store.timeout(Duration::from_secs(1)));
    (0..replicas).map(store).collect()
}

const FLEET: &str = "answered, % | requests per call | Redis µs | p99 ms | over the limit";

/// Sends requests at a fixed rate to many replicas, and to as many plain clients.
fn fleets(table: &mut Table, labs: &[(&'static str, Lab<'_>)]) -> Result<(), Failure> {
    const LEAN: &str = "lean script each";
    table.ratio("× lean script, Redis", REDIS, LEAN);
    let cases =
        [1, 10, MOST].into_iter().flat_map(|replicas| [(replicas, 20_000), (replicas, 40_000)]);
    let cases = Vec::from_iter(cases);
    for (server, lab) in labs {
        for &(replicas, rate) in &cases {
            let stores = stores(lab, replicas)?;
            let clients = (0..replicas).map(|_| lab.client()).collect::<Result<_, _>>()?;
            let lean = Arc::new(lab.run(Plain::new(clients, KEYS, Call::Lean(1)))?);
            let ours = |policy, keys| {
                Arc::new(Tollgate { stores: stores.clone(), limits: vec![(vec![policy], keys)] })
            };
            let fleet = ours(bucket("fleet", 1)?, KEYS);
            let sides = vec![
                Side::new(OURS, || {
                    let mut numbers = paced(lab, rate, &fleet, &stores)?;
                    numbers.push(excess(lab, rate, ours)?);
                    Ok(numbers)
                }),
                Side::new(LEAN, || paced(lab, rate, &lean, &[])),
            ];
            let most = if rate == 20_000 { 1.1 } else { 0.5 };
            let has_goal = replicas == MOST && *server == labs[0].0;
            let goals = Vec::from_iter(has_goal.then(|| Goal::at_most(REDIS, most).against(LEAN)));
            let case: [&dyn Display; 3] = [server, &replicas, &rate];
            table.measure(&case, sides, &goals)?;
        }
    }
    Ok(())
}

const SPAN: Duration = Duration::from_secs(2);

/// The answered share, the requests per call, Redis' time per decision and the 99th percentile.
fn paced(
    lab: &Lab<'_>,
    rate: u64,
    asks: &Arc<impl Ask>,
    stores: &[RedisStore],
) -> Result<Vec<f64>, Failure> {
    let totals = || {
        let stats = stores.iter().map(RedisStore::stats);
        stats.fold((0, 0), |sum, it| (sum.0 + it.calls, sum.1 + it.requests))
    };
    let (before, (calls, requests)) = (Work::so_far(lab.redis)?.seconds, totals());
    let asked = lab.run(open_loop(asks, rate as f64, SPAN));
    let (seconds, after) = (Work::so_far(lab.redis)?.seconds - before, totals());
    let mut waits: Vec<_> = asked.iter().filter(|it| it.result.is_ok()).map(|it| it.took).collect();
    let answered = waits.len() as f64;
    Ok(vec![
        answered / asked.len() as f64 * 100.0,
        (after.1 - requests) as f64 / (after.0 - calls) as f64,
        seconds * 1e6 / answered,
        at(&mut waits, 99) * 1e3,
    ])
}

/// By how much all replicas together exceed a new limit of half of the requests.
fn excess(
    lab: &Lab<'_>,
    rate: u64,
    replicas: impl Fn(Policy, u64) -> Arc<Tollgate>,
) -> Result<f64, Failure> {
    let limit = rate * SPAN.as_secs() / 2;
    let name = format!("half {}", fastrand::u64(..));
    let policy = Policy::fixed_window_counter(name, Quota::new(limit, Policy::MAX_WINDOW))?;
    let asked = lab.run(open_loop(&replicas(policy, 1), rate as f64, SPAN));
    let admitted = asked.iter().filter(|it| matches!(it.result, Ok(true))).count() as u64;
    Ok(admitted.saturating_sub(limit) as f64)
}
