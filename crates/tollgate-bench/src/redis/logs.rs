//! Calls that wait in one order, and a full sliding window log: its denial rate, and its cost if it
//! is long.

use std::time::Duration;

use tollgate::policy::{Algorithm, Cost, Resolution};
use tollgate::store::Timestamp;
use tollgate::{Policy, Quota};
use tollgate_redis::protocol::{Batch, KeyedCharge, SHA1, ScriptAnswer, TEXT};
use tollgate_test_servers::{Redis, RedisClient, Value};

use crate::Failure;
use crate::redis::lab::{DECISIONS, Lab, RATE, REDIS, Work};
use crate::redis::limiters::{Call, OneEach, Plain, Tollgate, bucket};
use crate::redis::load::{LIMIT, WINDOW};
use crate::redis::peers;
use crate::report::{Goal, OURS, Page, Table};
use crate::rounds::Side;

pub(crate) fn tables(page: &mut Page<'_>, lab: &Lab<'_>) -> Result<(), Failure> {
    page.table("Calls in one order, 32 tasks", "limiter", DECISIONS, |table| queues(table, lab))?;
    page.table("The log: 1000 entries, full, 256 tasks", "limiter", DECISIONS, |table| {
        const SUM: &str = "a script that sums a ZSET's members";
        const TASKS: usize = 256;
        let policy = || log("log", LIMIT, WINDOW, Resolution::Exact);
        let forgetting = lab.store_with(|store| store.deny_cache(Duration::ZERO))?;
        let sum = lab.run(Plain::new(vec![lab.client()?], 1, Call::Sum))?;
        let remembering = Tollgate::new(lab.store()?, policy()?, 1);
        let sides = vec![
            lab.denying(SUM, TASKS, sum),
            lab.denying(OURS, TASKS, Tollgate::new(forgetting, policy()?, 1)),
            lab.denying("Tollgate with its deny cache", TASKS, remembering),
        ];
        let goal = Goal::at_least(RATE, 250.0).against(SUM);
        table.ratio("× the sum", RATE, SUM).measure(&[], sides, &[goal])
    })?;
    page.table("The log: its bounds", "log", BOUNDS, |table| bounds(table, lab.redis))
}

fn queues(table: &mut Table, lab: &Lab<'_>) -> Result<(), Failure> {
    const TASKS: usize = 32;
    const EACH: &str = "Tollgate, a script each";
    /// Nearly all calls get an instant in the future.
    const LONG: Duration = Duration::from_secs(10 * 3_600);
    let quota = Quota::per_minute(100_000);
    let queued = |name| Policy::token_bucket(name, quota)?.with_queue(LONG);
    let log = Policy::sliding_window_log("queued log", quota)?.with_queue(LONG)?;
    let each = |policy| lab.run(OneEach::new(lab.client()?, vec![(vec![policy], 1)], false));
    let ours = |policy| Ok::<_, Failure>(Tollgate::new(lab.store()?, policy, 1));
    let mut sides = vec![
        lab.side(EACH, TASKS, each(queued("queued")?)?),
        lab.side("the same, without a queue", TASKS, each(bucket("plain", 1)?)?),
        lab.side(OURS, TASKS, ours(queued("batched")?)?),
        lab.side("Tollgate, sliding window log", TASKS, ours(log)?),
    ];
    if peers::queues().is_some() {
        let port = lab.redis.address().port();
        let mut node = |name, limiter| {
            sides.push(lab.contender(name, move || peers::node(limiter, port, TASKS)));
        };
        node("Effect 4.1, shared and learned rate", "effect");
        node("bottleneck 2.19", "bottleneck");
    }
    table.ratio("×, Redis", REDIS, EACH).measure(&[], sides, &[])
}

fn log(
    name: &str,
    limit: u64,
    window: Duration,
    resolution: Resolution,
) -> Result<Policy, Failure> {
    let algorithm = Algorithm::SlidingWindowLog { resolution };
    Ok(Policy::new(name, Quota::new(limit, window), algorithm)?)
}

const BOUNDS: &str = "Redis µs, admitted | Redis µs, denied | bytes per entry | KiB";

fn bounds(table: &mut Table, redis: &Redis) -> Result<(), Failure> {
    const SHORT: &str = "100 exact entries";
    const LONG: &str = "100 000 exact entries";
    const COARSE: &str = "a thousandth of the window";
    let loaded = redis.cmd(&["SCRIPT", "LOAD", TEXT]);
    assert_eq!(loaded.text(), SHA1);
    let exact = |name, entries: u64| {
        let mut log = Log::full(redis, entries)?;
        Ok::<_, Failure>(Side::new(name, move || {
            let (admitted, denied) = (log.cost(true)?, log.cost(false)?);
            let bytes = log.bytes();
            Ok(vec![admitted * 1e6, denied * 1e6, bytes / entries as f64, bytes / 1024.0])
        }))
    };
    let policy = log("thousandths", 1_000_000, WINDOW, Resolution::Thousandth)?;
    let mut coarse = Log::new(redis, policy)?;
    // The size while the log fills and is replaced twice. Only after it is full it counts.
    let coarse = Side::new(COARSE, move || {
        let mut most = 0_f64;
        for call in 0..100 {
            coarse.calls(30, 10_000, true)?;
            most = if call < 34 { 0.0 } else { most.max(coarse.bytes() / 1024.0) };
        }
        Ok(vec![f64::NAN, f64::NAN, f64::NAN, most])
    });
    let goals = [
        Goal::at_most("Redis µs, admitted", 2.0).of(LONG).against(SHORT),
        Goal::at_most("Redis µs, denied", 2.0).of(LONG).against(SHORT),
        Goal::at_most("bytes per entry", 20.0).of(LONG),
        Goal::at_most("KiB", 16.0).of(COARSE),
    ];
    table.measure(&[], vec![exact(SHORT, 100)?, exact(LONG, 100_000)?, coarse], &goals)
}

/// A log with requests at injected times.
struct Log<'a> {
    redis: &'a Redis,
    client: RedisClient,
    policy: Policy,
    now: u64,
}

impl<'a> Log<'a> {
    /// Microseconds between entries.
    const STEP: u64 = 1_000;

    fn new(redis: &'a Redis, policy: Policy) -> Result<Self, Failure> {
        // Ahead of Redis' clock, so no key expires during the measurement.
        Ok(Self { redis, client: redis.connect()?, policy, now: 2_000_000_000_000_000 })
    }

    /// A full log, in which each new entry coincides with an expiring entry.
    fn full(redis: &'a Redis, entries: u64) -> Result<Self, Failure> {
        let window = Duration::from_micros(entries * Self::STEP);
        let name = format!("log-{entries}");
        let mut log = Self::new(redis, log(&name, entries, window, Resolution::Exact)?)?;
        for begin in (0..entries).step_by(1_000) {
            log.calls(1_000.min(entries - begin), Self::STEP, true)?;
        }
        Ok(log)
    }

    /// Redis' processor time for an admitted or a denied call, in seconds.
    fn cost(&mut self, admitted: bool) -> Result<f64, Failure> {
        const CALLS: u32 = 400;
        let before = Work::so_far(self.redis)?.seconds;
        for _ in 0..CALLS {
            self.calls(1, if admitted { Self::STEP } else { 0 }, admitted)?;
        }
        Ok((Work::so_far(self.redis)?.seconds - before) / f64::from(CALLS))
    }

    /// Sends `count` requests in a pipeline. Each costs a unit and is dated `step` microseconds
    /// after the previous request.
    fn calls(&mut self, count: u64, step: u64, admitted: bool) -> Result<(), Failure> {
        let mut batch = Batch::new(1);
        let (key, policy) = (self.policy.name().as_bytes(), &self.policy);
        batch.decide(&[KeyedCharge::new(key, policy, Cost::ONE)])?;
        for _ in 0..count {
            self.now += step;
            let head = [b"EVALSHA", SHA1.as_bytes(), b"1", key].map(<[u8]>::to_vec);
            let args = batch.args(Some(Timestamp::from_micros(self.now)));
            self.client.say(&head.into_iter().chain(args).collect::<Vec<_>>());
        }
        self.client.send()?;
        for _ in 0..count {
            let Value::Text(reply) = self.client.try_hear()? else {
                return Err("the script returned no bytes".into());
            };
            match batch.parse(&reply)?.rows.first() {
                Some(ScriptAnswer::Verdict(verdict, _)) if verdict.is_admitted() == admitted => {}
                other => return Err(format!("admitted should be {admitted}: {other:?}").into()),
            }
        }
        Ok(())
    }

    fn bytes(&mut self) -> f64 {
        self.client.cmd(&["MEMORY", "USAGE", self.policy.name()]).number() as f64
    }
}
