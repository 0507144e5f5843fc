//! A full sliding window log: its denial rate, and the cost if it is long.

use std::time::Duration;

use fred::interfaces::{ClientLike as _, LuaInterface};
use fred::prelude::{Client, Value};
use fred::types::CustomCommand;
use tollgate::policy::{Algorithm, Cost, Resolution};
use tollgate::store::Timestamp;
use tollgate::{Policy, Quota};
use tollgate_redis::protocol::{Batch, KeyedCharge, SHA1, ScriptAnswer, TEXT};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::scripts::Summing;
use crate::redis::server::{self, Work};
use crate::redis::sides::{Limits, Tollgate, patient};
use crate::redis::turns::What::Rate;
use crate::redis::turns::{Side, take_turns};
use crate::redis::worst::{LIMIT, WINDOW};
use crate::report::{Table, Target};
use crate::rounds::Spread;

const TASKS: usize = 256;
const ROUNDS: usize = 8;

/// The tables for the denial rate and for long logs.
pub(crate) async fn tables(server: &Redis, rounds: usize) -> Result<[Table; 2], Failure> {
    let redis = server::client(&server.url()).await?;
    Ok([denials(server, &redis, rounds).await?, bounds(&redis).await?])
}

async fn denials(server: &Redis, redis: &Client, rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "The log: 1000 entries, full, 256 tasks",
        "limiter | thousand/s | median µs | p99 µs | Redis µs | × the sum | target | met",
    );
    let ours = |remembers: bool| {
        let store = patient(&server.url())?;
        let store = if remembers { store } else { store.deny_cache(Duration::ZERO) };
        let limits = Limits(vec![(log("log", LIMIT, WINDOW, Resolution::Exact)?, 1)]);
        Ok::<_, Failure>(Tollgate { store: store.connect()?, limits })
    };
    let mut sides = [
        Side::new("a script that sums a ZSET's members", Summing::new(redis.clone()).await?, redis),
        Side::new("Tollgate", ours(false)?, redis),
        Side::new("Tollgate with its deny cache", ours(true)?, redis),
    ];
    take_turns(&mut sides, TASKS, rounds).await?;
    for (side, target) in sides.iter().zip([Target::None, Target::AtLeast(250.0), Target::None]) {
        let ratio = side.over(&sides[0], Rate);
        table.row(&[&side.name, &side.numbers([0, 0, 2]), &(ratio, 0), &target.met(ratio)]);
    }
    Ok(table)
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

async fn bounds(client: &Client) -> Result<Table, Failure> {
    let _: Value = client.script_load(TEXT).await?;
    let mut table = Table::new("The log: its bounds", "what | is | target | met");
    let mut row = |what: &'static str, is: Spread, bound: f64| {
        table.row(&[&what, &(is, Target::AtMost(bound))]);
    };
    let mut short = Log::full(client, 100).await?;
    let mut long = Log::full(client, 100_000).await?;
    let [mut admit, mut deny, mut bytes] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        admit.push(long.cost(true).await? / short.cost(true).await?);
        deny.push(long.cost(false).await? / short.cost(false).await?);
        bytes.push(long.bytes().await? / 1e5);
    }
    row("admitting at 100 000 entries, Redis' time over that at 100", Spread::of(admit), 2.0);
    row("denying at 100 000 entries, Redis' time over that at 100", Spread::of(deny), 2.0);
    row("bytes per entry, 100 000 exact ones", Spread::of(bytes), 20.0);
    row("KiB per key, at a thousandth of the window", thousandths(client).await?, 16.0);
    Ok(table)
}

/// KiB per log at a thousandth of the window, while the log fills and is replaced twice.
async fn thousandths(client: &Client) -> Result<Spread, Failure> {
    const STEP: u64 = 10_000;
    let policy = log("thousandths", 1_000_000, WINDOW, Resolution::Thousandth)?;
    let mut log = Log { client, policy, now: BEGIN };
    let mut kib = Vec::new();
    for _ in 0..100 {
        log.calls(30, STEP, true).await?;
        kib.push(log.bytes().await? / 1024.0);
    }
    // Only the rounds after the log is full count.
    Ok(Spread::of(kib.split_off(34)))
}

/// Ahead of Redis' clock, so no key expires during the measurement.
const BEGIN: u64 = 2_000_000_000_000_000;

/// A log with requests at injected times.
struct Log<'a> {
    client: &'a Client,
    policy: Policy,
    now: u64,
}

impl<'a> Log<'a> {
    /// Microseconds between entries.
    const STEP: u64 = 1_000;

    /// A full log, in which each new entry coincides with an expiring entry.
    async fn full(client: &'a Client, entries: u64) -> Result<Self, Failure> {
        let window = Duration::from_micros(entries * Self::STEP);
        let name = format!("log-{entries}");
        let policy = log(&name, entries, window, Resolution::Exact)?;
        let mut log = Self { client, policy, now: BEGIN };
        for begin in (0..entries).step_by(1_000) {
            log.calls(1_000.min(entries - begin), Self::STEP, true).await?;
        }
        Ok(log)
    }

    /// Redis' processor time for an admitted or a denied call.
    async fn cost(&mut self, admitted: bool) -> Result<f64, Failure> {
        const CALLS: u32 = 400;
        let before = Work::so_far(self.client).await?;
        for _ in 0..CALLS {
            self.calls(1, if admitted { Self::STEP } else { 0 }, admitted).await?;
        }
        Ok((Work::so_far(self.client).await?.seconds - before.seconds) / f64::from(CALLS))
    }

    /// Sends `count` requests in a pipeline. Each costs a unit and is dated `step` microseconds
    /// after the previous request.
    async fn calls(&mut self, count: u64, step: u64, admitted: bool) -> Result<(), Failure> {
        let mut batch = Batch::new(1);
        let (key, policy) = (self.policy.name().as_bytes(), &self.policy);
        batch.decide(&[KeyedCharge::new(key, policy, Cost::ONE)])?;
        let pipeline = self.client.pipeline();
        for _ in 0..count {
            self.now += step;
            let args = batch.args(Some(Timestamp::from_micros(self.now)));
            // A pipeline has no method for scripts.
            let head = [SHA1.as_bytes(), b"1", key].map(<[u8]>::to_vec).into_iter();
            let args = head.chain(args).map(|arg| Value::Bytes(arg.into())).collect::<Vec<_>>();
            let evalsha = CustomCommand::new_static("EVALSHA", None, false);
            let () = pipeline.custom(evalsha, args).await?;
        }
        let replies: Vec<Value> = pipeline.all().await?;
        for reply in replies {
            let reply = reply.into_bytes().ok_or("the script returned no bytes")?;
            match batch.parse(&reply)?.rows.first() {
                Some(ScriptAnswer::Verdict(verdict, _)) if verdict.is_admitted() == admitted => {}
                other => return Err(format!("admitted should be {admitted}: {other:?}").into()),
            }
        }
        Ok(())
    }

    async fn bytes(&self) -> Result<f64, Failure> {
        let command = CustomCommand::new_static("MEMORY", None, false);
        let bytes: f64 = self.client.custom(command, vec!["USAGE", self.policy.name()]).await?;
        Ok(bytes)
    }
}
