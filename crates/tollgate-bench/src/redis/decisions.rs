//! Decisions by Tollgate and by peers: by load, with tenants' quotas, and over HTTP.

use crate::Failure;
use crate::redis::lab::{DECISIONS, Lab, MEDIAN, P99, RATE, REDIS};
use crate::redis::limiters::{CAPACITY, Call, Limits, OneEach, Plain, Tollgate, bucket};
use crate::redis::peers::{self, CACHED, CELL};
use crate::replicas::ReplicaLimiter;
use crate::report::{Goal, OURS, Page, Table};
use crate::served::{self, PROCESSOR, SERVED, wrk};

const HOT: u64 = 1;
const MANY: u64 = 100_000;
const TASKS: usize = 256;

const EACH: &str = "one EVALSHA each";
const APART: &str = "an EVALSHA for each policy";
const LEAN: &str = "lean script each";
const INCR: &str = "INCR";

pub(crate) fn tables(page: &mut Page<'_>, lab: &Lab<'_>) -> Result<(), Failure> {
    page.table("Decisions in Redis", "keys | tasks | limiter", DECISIONS, |table| {
        table.ratio("×", RATE, EACH);
        loads(table, lab)
    })?;
    let title = "100 000 keys of one policy with a quota each, 256 tasks";
    page.table(title, "quotas", DECISIONS, |table| {
        let side = |name, quotas| {
            let base = bucket(name, 1)?;
            let quota = |number| base.with_quota(base.quota().burst(CAPACITY - number));
            let quotas = (0..quotas).map(quota).collect::<Result<_, _>>()?;
            let tenants = Tollgate { stores: vec![lab.store()?], limits: vec![(quotas, MANY)] };
            Ok::<_, Failure>(lab.side(name, TASKS, tenants))
        };
        let goal = Goal::at_most(REDIS, 1.15).of("5 000").against("one");
        table.ratio("× one, Redis", REDIS, "one");
        table.measure(&[], vec![side("one", 1)?, side("5 000", 5_000)?], &[goal])
    })?;
    page.table("Over HTTP", "server", SERVED, |table| over_http(table, lab))
}

fn loads(table: &mut Table, lab: &Lab<'_>) -> Result<(), Failure> {
    let more = |column, bound| Goal::at_least(column, bound).against(EACH);
    let less = |column, bound| Goal::at_most(column, bound).against(EACH);
    let hot = [
        more(RATE, 4.5),
        less(REDIS, 0.2),
        less(P99, 0.33),
        less(REDIS, 1.1).of(EACH).against(LEAN),
        more(RATE, 1.2).against(INCR),
        less(REDIS, 1.0).against(INCR),
        more(RATE, 1.0).against(CACHED),
    ];
    let many = [
        more(RATE, 1.6),
        less(REDIS, 0.65),
        more(RATE, 1.5).against(CELL),
        less(REDIS, 4.0).against(INCR),
    ];
    let pairs = [more(RATE, 1.5), more(RATE, 2.5).against(APART)];
    let one = |name, rate, keys| Ok::<_, Failure>(vec![(vec![bucket(name, rate)?], keys)]);
    let two = vec![(vec![bucket("global", 1)?], HOT), (vec![bucket("ip", 1)?], MANY)];
    let cases: [(_, Limits, _, &[Goal]); 6] = [
        ("one", one("user", 1, HOT)?, 1, &[less(MEDIAN, 1.15)]),
        ("one", one("user", 1, HOT)?, 64, &[more(RATE, 2.5)]),
        ("one", one("user", 1, HOT)?, TASKS, &hot),
        ("100 000", one("user", 1, MANY)?, TASKS, &many),
        ("100 000, expired", one("dying", CAPACITY, MANY)?, TASKS, &[]),
        ("1 and 100 000", two, TASKS, &pairs),
    ];
    for (name, limits, tasks, goals) in cases {
        let each = |apart| lab.run(OneEach::new(lab.client()?, limits.clone(), apart));
        let ours = Tollgate { stores: vec![lab.store()?], limits: limits.clone() };
        let mut sides = vec![lab.side(EACH, tasks, each(false)?), lab.side(OURS, tasks, ours)];
        if let &[(ref policies, keys)] = &limits[..] {
            let rate = policies[0].quota().limit();
            let plain = |command| lab.run(Plain::new(vec![lab.client()?], keys, command));
            sides.push(lab.side(LEAN, tasks, plain(Call::Lean(rate))?));
            sides.push(lab.side(INCR, tasks, plain(Call::Incr)?));
            if tasks == TASKS && rate == 1 {
                sides.extend(peers::sides(lab, keys, tasks)?);
            }
        } else {
            sides.push(lab.side(APART, tasks, each(true)?));
        }
        table.measure(&[&name, &tasks], sides, goals)?;
    }
    Ok(())
}

/// Servers that decide in Redis.
fn over_http(table: &mut Table, lab: &Lab<'_>) -> Result<(), Failure> {
    const CONNECTIONS: u32 = 128;
    served::find()?;
    let [bare, each] =
        [ReplicaLimiter::Bare, ReplicaLimiter::ScriptEach].map(ReplicaLimiter::title);
    let limiters = [ReplicaLimiter::LeanScript, ReplicaLimiter::Tollgate];
    let limiters = [ReplicaLimiter::Bare, ReplicaLimiter::ScriptEach].into_iter().chain(limiters);
    let servers: Vec<_> = limiters
        .map(|limiter| Ok::<_, Failure>((limiter.title(), limiter.start(lab.redis)?)))
        .collect::<Result<_, _>>()?;
    let load = |url: &str| wrk(url, CONNECTIONS, &[]);
    let sides = servers.iter().map(|(name, server)| server.port().side(name, load)).collect();
    let goals = [
        Goal::at_least(served::RATE, 1.3).against(each),
        Goal::at_least(served::RATE, 0.65).against(bare),
        Goal::at_most(served::P99, 0.7).against(each),
        Goal::at_most(PROCESSOR, 0.85).against(each),
    ];
    table.ratio("× a script per request", served::RATE, each);
    table.measure(&[], sides, &goals)
}
