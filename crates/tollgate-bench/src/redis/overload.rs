//! More requests than Redis can answer, from callers that do not wait for earlier answers; and many
//! replicas that lose their server and meet a new one without data or scripts.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fred::interfaces::LuaInterface;
use fred::prelude::{Client, Value};
use tokio::task::{JoinHandle, JoinSet};
use tollgate::key::Key;
use tollgate::store::StoreError;
use tollgate::{Policy, Quota, RedisStore, StoreExt};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::lab::{Lab, Work};
use crate::redis::limiters::{OneEach, Tollgate};
use crate::redis::load::{Ask, address, round};
use crate::report::{Page, Table};
use crate::rounds::{Numbers, Side};

/// The measured time of each rate, after the warm-up.
const SPAN: Duration = Duration::from_secs(3);
const WARM: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_millis(50);
/// How long each of the other client's calls keeps Redis busy.
const SLICE: Duration = Duration::from_millis(8);
const KEYS: u64 = 64;

pub(crate) fn tables(page: &mut Page<'_>, lab: &Lab<'_>) -> Result<(), Failure> {
    let columns = "sent | answered | of 1× | charged unanswered, % | p99 of answered, ms | \
                   rejected | median until rejected, ms";
    page.table("Open loop, requests per second", "rate | limiter", columns, |table| {
        let busy = lab.run(keep_busy(lab.client()?))?;
        rates(table, lab)?;
        busy.abort();
        Ok(())
    })
}

fn rates(table: &mut Table, lab: &Lab<'_>) -> Result<(), Failure> {
    let store = |breaker, timeout| {
        lab.store_with(|store| store.timeout(timeout).breaker(breaker).max_batch(64))
    };
    let patient = store(true, Duration::from_secs(10))?;
    let tasks = Arc::new(Tollgate::new(patient.clone(), policy("c")?, KEYS));
    let capacity = lab.run(round(&tasks, 512))?.rate;
    for times in [1.0, 2.0, 4.0, 10.0] {
        let ours = |name, breaker| {
            let (patient, store) = (&patient, store(breaker, TIMEOUT)?);
            let policy = policy(&format!("{times} {breaker}"))?;
            let asks = Arc::new(Tollgate::new(store, policy.clone(), KEYS));
            let charged = move || -> Result<f64, Failure> {
                let remaining = async |number| {
                    let peek = patient.peek(&policy, &Key::new(address(number))).await?;
                    Ok::<_, Failure>(policy.capacity() - peek.decisions()[0].remaining)
                };
                let of_keys = (0..KEYS).map(|number| lab.run(remaining(number)));
                Ok(of_keys.sum::<Result<u64, _>>()? as f64)
            };
            let run = move || numbers(lab, &asks, times, capacity, &charged);
            Ok::<_, Failure>(Side::new(name, run))
        };
        let each = OneEach::new(lab.client()?, vec![(vec![policy("e")?], KEYS)], false);
        let each = Arc::new(Impatient(lab.run(each)?));
        // Redis executes every request that was sent, even after its timeout.
        let scripts = || Ok(Work::so_far(lab.redis)?.scripts);
        let sides = vec![
            ours("Tollgate", true)?,
            ours("Tollgate, no breaker", false)?,
            Side::new("one EVALSHA each", move || numbers(lab, &each, times, capacity, &scripts)),
        ];
        table.rounds = 1;
        table.measure(&[&format!("{times:.0}×")], sides, &[])?;
    }
    Ok(())
}

fn policy(name: &str) -> Result<Policy, Failure> {
    Ok(Policy::fixed_window_counter(name, Quota::new(1_000_000_000, Policy::MAX_WINDOW))?)
}

/// Makes Redis busy: a client runs scripts that each take about one slice of time, one after the
/// other.
async fn keep_busy(client: Client) -> Result<JoinHandle<()>, Failure> {
    const SPIN: &str = "for i = 1, tonumber(ARGV[1]) do end";
    let spin = async move |client: &Client, times: u64| {
        client.eval::<Value, _, _, _>(SPIN, Vec::<String>::new(), vec![times.to_string()]).await
    };
    let (times, began) = (10_000_000, Instant::now());
    spin(&client, times).await?;
    let slice = times as f64 * SLICE.as_secs_f64() / began.elapsed().as_secs_f64();
    Ok(tokio::spawn(async move { while spin(&client, slice as u64).await.is_ok() {} }))
}

/// A client with a timeout.
struct Impatient(OneEach);

impl Ask for Impatient {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        tokio::time::timeout(TIMEOUT, self.0.ask(number)).await?
    }
}

/// Sends `times` as many requests as the server's `capacity`. `charged` returns the units charged
/// so far.
fn numbers(
    lab: &Lab<'_>,
    asks: &Arc<impl Ask>,
    times: f64,
    capacity: f64,
    charged: &impl Fn() -> Result<f64, Failure>,
) -> Result<Numbers, Failure> {
    let before = charged()?;
    let all = lab.run(open_loop(asks, capacity * times, WARM + SPAN));
    let charged = charged()? - before;
    let lost = charged - all.iter().filter(|it| it.result.is_ok()).count() as f64;
    let counted = all.iter().filter(|it| it.sent >= WARM);
    let took = |is_meant: fn(&Asked) -> bool| -> Vec<_> {
        counted.clone().filter(|it| is_meant(it)).map(|it| it.took).collect()
    };
    // The store rejects a request without a charge.
    let is_rejected = |it: &Asked| match &it.result {
        Ok(_) => false,
        Err(error) => error.downcast_ref().is_some_and(|it: &StoreError| !it.may_have_charged()),
    };
    let (mut answered, mut rejected) = (took(|it| it.result.is_ok()), took(is_rejected));
    let rate = |count: usize| count as f64 / SPAN.as_secs_f64();
    Ok(vec![
        rate(counted.clone().count()),
        rate(answered.len()),
        rate(answered.len()) / (capacity * times.min(1.0)),
        lost.max(0.0) / charged.max(1.0) * 100.0,
        at(&mut answered, 99) * 1e3,
        rate(rejected.len()),
        at(&mut rejected, 50) * 1e3,
    ])
}

/// The seconds that this share of the requests did not exceed.
pub(crate) fn at(took: &mut [Duration], percent: usize) -> f64 {
    took.sort_unstable();
    took.get(took.len() * percent / 100).map_or(f64::NAN, Duration::as_secs_f64)
}

/// A request of an open loop.
pub(crate) struct Asked {
    /// When it was sent, since the begin.
    sent: Duration,
    pub(crate) took: Duration,
    pub(crate) result: Result<bool, Failure>,
}

/// Sends requests at a fixed rate for a time.
pub(crate) async fn open_loop<A: Ask>(asks: &Arc<A>, rate: f64, span: Duration) -> Vec<Asked> {
    let mut tasks = JoinSet::new();
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < span {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        for number in number..due {
            let (asks, sent) = (Arc::clone(asks), began.elapsed());
            tasks.spawn(async move {
                let asked = Instant::now();
                let result = asks.ask(number).await;
                Asked { sent, took: asked.elapsed(), result }
            });
        }
        number = due;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tasks.join_all().await
}

const REPLICAS: usize = 300;

/// Replicas without requests that lose their server, and a new server until they have checked it.
pub(crate) fn herd(page: &mut Page<'_>, lab: &Lab<'_>) -> Result<(), Failure> {
    let columns = "all connected after, s | most in 0.1 s | commands per replica | scripts sent | \
                   Redis ms | Redis µs per replica";
    page.table("Replicas that meet a new server", "replicas", columns, |table| {
        let connect = |_| lab.store_with(|store| store.timeout(Duration::from_millis(50)));
        let _stores: Vec<RedisStore> = (0..REPLICAS).map(connect).collect::<Result<_, _>>()?;
        table.measure(&[], vec![Side::new("300", || outage(lab.redis))], &[])
    })
}

fn outage(redis: &Redis) -> Result<Numbers, Failure> {
    redis.kill();
    sleep(Duration::from_secs(3));
    redis.restart();
    let (start, mut checked, mut most) = (Instant::now(), 0, 0);
    while checked < REPLICAS as u64 {
        sleep(Duration::from_millis(100));
        // Only a check sends this command.
        let all = redis.calls("pexpireat");
        most = most.max(all - checked);
        checked = all;
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("only {checked} replicas have returned").into());
        }
    }
    let took = start.elapsed().as_secs_f64();
    let commands = redis.info("total_commands_processed").parse::<f64>()?;
    let (loads, seconds) = (redis.calls("eval") as f64, Work::so_far(redis)?.seconds);
    let (commands, each) = (commands / REPLICAS as f64, seconds * 1e6 / REPLICAS as f64);
    Ok(vec![took, most as f64, commands, loads, seconds * 1e3, each])
}
