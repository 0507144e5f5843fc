//! More requests than Redis can answer, from callers that do not wait for earlier answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::interfaces::LuaInterface;
use fred::prelude::{Client, Value};
use tokio::task::{JoinHandle, JoinSet};
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::StoreError;
use tollgate::{Policy, Quota, RedisStore, StoreExt};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::block_on;
use crate::redis::load::{self, Ask};
use crate::redis::server::{self, Work};
use crate::redis::sides::{Limits, OneEach, address, connected};
use crate::report::{self, Table};

const METHOD: &str = "\
Requests arrive at a fixed rate, independent of earlier answers, while another client keeps Redis
busy with scripts of 8 ms. A call has room for 64 requests, because Redis answers the calls in
flight between two such scripts; all other settings are defaults. `1×` is the rate at which 512
tasks receive answers if each sends its next request after an answer. *Answered* counts answers
within the timeout of 50 ms. *Charged unanswered* is the share of charges without an answer.
*Rejected* counts requests that the store shed, with the median time until then. `one EVALSHA each`
is the same script with one request per call through a plain client with a timeout of 50 ms.";

/// The measured time of each rate, after the warm-up.
const SPAN: Duration = Duration::from_secs(3);
const WARM: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_millis(50);
/// How long each of the other client's calls keeps Redis busy.
const SLICE: Duration = Duration::from_millis(8);
const KEYS: u64 = 64;

/// A request's result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Answered,
    Refused,
    Failed,
}

pub(crate) fn run() -> Result<(), Failure> {
    let table = block_on(table(&server::start()))?;
    report::write("overload", METHOD, &[table])
}

async fn table(server: &Redis) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Open loop, requests per second",
        "rate | contender | sent | answered | of 1× | charged unanswered | p99 of answered, ms | \
         rejected | median until rejected, ms",
    );
    let client = server::client(&server.url()).await?;
    let busy = keep_busy(server::client(&server.url()).await?).await?;
    let patient = store(server, true, Duration::from_secs(10)).await?;
    let tasks = Arc::new(Decides { store: patient.clone(), policy: policy("c")? });
    let capacity = load::round(&tasks, 512).await?.rate;
    for times in [1.0, 2.0, 4.0, 10.0] {
        for (name, breaker) in [("Tollgate", true), ("Tollgate, no breaker", false)] {
            let store = store(server, breaker, TIMEOUT).await?;
            let policy = policy(&format!("{times} {breaker}"))?;
            let asks = Decides { store, policy: policy.clone() };
            let seen = Seen::of(asks, capacity * times).await;
            let mut charged = 0;
            for number in 0..KEYS {
                let peek = patient.peek(&policy, &Key::new(address(number))).await?;
                charged += policy.capacity() - peek.decisions()[0].remaining;
            }
            table.row(&[&seen.cells(times, name, capacity, charged as f64)]);
        }
        let limits = Limits(vec![(policy("e")?, KEYS)]);
        let each = Each(OneEach::new(client.clone(), limits, false).await?);
        let before = Work::so_far(&client).await?;
        let seen = Seen::of(each, capacity * times).await;
        // Redis executes every request that was sent, even after its timeout.
        let charged = Work::so_far(&client).await?.scripts - before.scripts;
        table.row(&[&seen.cells(times, "one EVALSHA each", capacity, charged)]);
    }
    busy.abort();
    Ok(table)
}

async fn store(server: &Redis, breaker: bool, timeout: Duration) -> Result<RedisStore, Failure> {
    let builder = RedisStore::builder(&server.url())?.timeout(timeout).breaker(breaker);
    connected(builder.max_batch(64)).await
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

/// A limiter that reports the result of each request.
trait Tell: Send + Sync + 'static {
    fn tell(&self, number: u64) -> impl Future<Output = Told> + Send;
}

struct Decides {
    store: RedisStore,
    policy: Policy,
}

impl Decides {
    async fn charge(&self, number: u64) -> Result<(), StoreError> {
        let key = Key::new(address(number % KEYS));
        self.store.charge(&self.policy, &key, Cost::ONE).await.map(drop)
    }
}

impl Ask for Decides {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        Ok(self.charge(number).await.map(|()| true)?)
    }
}

impl Tell for Decides {
    async fn tell(&self, number: u64) -> Told {
        match self.charge(number).await {
            Ok(()) => Told::Answered,
            Err(error) if error.may_have_charged() => Told::Failed,
            Err(_) => Told::Refused,
        }
    }
}

struct Each(OneEach);

impl Tell for Each {
    async fn tell(&self, number: u64) -> Told {
        match tokio::time::timeout(TIMEOUT, self.0.ask(number)).await {
            Ok(Ok(_)) => Told::Answered,
            _ => Told::Failed,
        }
    }
}

/// The number of answered requests, and the result and latency of each request that counts.
struct Seen {
    answered: f64,
    counted: Vec<(Told, Duration)>,
}

impl Seen {
    async fn of<T: Tell>(asks: T, rate: f64) -> Self {
        let asks = Arc::new(asks);
        let all = open_loop(rate, WARM + SPAN, |number| {
            let asks = Arc::clone(&asks);
            async move {
                let asked = Instant::now();
                (asks.tell(number).await, asked.elapsed())
            }
        });
        let all = all.await;
        let answered = all.iter().filter(|(_, (told, _))| *told == Told::Answered).count() as f64;
        let counted = all.into_iter().filter(|(sent, _)| *sent >= WARM);
        Self { answered, counted: counted.map(|(_, told)| told).collect() }
    }

    fn cells(&self, times: f64, name: &str, capacity: f64, charged: f64) -> [String; 9] {
        let of = |told: Told| {
            let all = self.counted.iter().filter(|(other, _)| *other == told);
            let mut took: Vec<_> = all.map(|(_, took)| *took).collect();
            took.sort_unstable();
            took
        };
        let (answered, refused) = (of(Told::Answered), of(Told::Refused));
        let at = |took: &[Duration], percent: usize| {
            let at = took.get(took.len() * percent / 100);
            at.map_or_else(|| "–".to_owned(), |took| format!("{:.2}", took.as_secs_f64() * 1e3))
        };
        let rate = |count: usize| count as f64 / SPAN.as_secs_f64();
        let lost = (charged - self.answered).max(0.0) / charged.max(1.0);
        [
            format!("{times:.0}×"),
            name.to_owned(),
            format!("{:.0}", rate(self.counted.len())),
            format!("{:.0}", rate(answered.len())),
            format!("{:.2}", rate(answered.len()) / (capacity * times.min(1.0))),
            format!("{:.2} %", lost * 100.0),
            at(&answered, 99),
            format!("{:.0}", rate(refused.len())),
            at(&refused, 50),
        ]
    }
}

/// Sends requests at a fixed rate for a time. Returns when each was sent and what `ask` returned
/// for it.
pub(crate) async fn open_loop<T, F>(
    rate: f64,
    span: Duration,
    ask: impl Fn(u64) -> F,
) -> Vec<(Duration, T)>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < span {
        let due = (began.elapsed().as_secs_f64() * rate) as u64;
        for number in number..due {
            let (sent, request) = (began.elapsed(), ask(number));
            tasks.spawn(async move { (sent, request.await) });
        }
        number = due;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tasks.join_all().await
}
