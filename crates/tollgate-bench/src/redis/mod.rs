//! A decision in Redis.

mod load;
mod server;
mod sides;

use std::sync::Arc;
use std::time::Duration;

use fred::prelude::Client;
use tollgate::{Policy, Quota, RedisStore};

use self::load::{Ask, Round, round};
use self::server::Server;
use self::sides::{Incr, Limits, OneEach, Tollgate};
use crate::Failure;
use crate::report::{self, Table, Target};
use crate::rounds::Spread;

const METHOD: &str = "\
Tasks that ask as soon as they were answered, all in one process with two worker threads, and a
redis-server on the same two cores, over TCP. `one EVALSHA each` is Tollgate's own script with one
request a call, through one plain fred client; `INCR` the same client counting and nothing else.
`×` is the number of decisions a second over those of one EVALSHA each in the same round, and
`Redis ×` and `p99 ×` its processor time a decision and its 99th percentile over theirs.";

const ROUNDS: usize = 8;
const HOT: u64 = 1;
const MANY: u64 = 100_000;

pub(crate) fn run() -> Result<(), Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(measured())
}

async fn measured() -> Result<(), Failure> {
    let server = Server::start()?;
    let one = |keys| Ok::<_, Failure>(Limits(vec![(bucket("user")?, keys)]));
    let two = Limits(vec![(bucket("global")?, HOT), (bucket("ip")?, MANY)]);
    let mut table = Table::new(
        "Decisions in Redis",
        &[
            "keys",
            "tasks",
            "who",
            "thousand/s",
            "median µs",
            "p99 µs",
            "Redis µs",
            "×",
            "target",
            "met",
            "Redis ×",
            "target",
            "met",
            "p99 ×",
            "target",
            "met",
        ],
    );
    let cases = [
        Case {
            name: "one",
            limits: one(HOT)?,
            tasks: 1,
            rate: Target::None,
            redis: Target::None,
            p99: Target::None,
            latency: Target::AtMost(1.15),
        },
        Case {
            name: "one",
            limits: one(HOT)?,
            tasks: 64,
            rate: Target::AtLeast(2.5),
            redis: Target::None,
            p99: Target::None,
            latency: Target::None,
        },
        Case {
            name: "one",
            limits: one(HOT)?,
            tasks: 256,
            rate: Target::AtLeast(4.5),
            redis: Target::AtMost(0.2),
            p99: Target::AtMost(0.33),
            latency: Target::None,
        },
        Case {
            name: "100 000",
            limits: one(MANY)?,
            tasks: 256,
            rate: Target::AtLeast(1.6),
            redis: Target::AtMost(0.65),
            p99: Target::None,
            latency: Target::None,
        },
        Case {
            name: "1 and 100 000",
            limits: two,
            tasks: 256,
            rate: Target::AtLeast(1.5),
            redis: Target::None,
            p99: Target::None,
            latency: Target::None,
        },
    ];
    for case in cases {
        case.measure(&server, &mut table).await?;
    }
    report::write("redis", METHOD, &[table])
}

/// Far more than is asked for: every request is admitted.
fn bucket(name: &str) -> Result<Policy, Failure> {
    Ok(Policy::token_bucket(name, Quota::per_second(1_000_000_000))?)
}

struct Case {
    name: &'static str,
    limits: Limits,
    tasks: usize,
    rate: Target,
    redis: Target,
    p99: Target,
    latency: Target,
}

impl Case {
    async fn measure(self, server: &Server, table: &mut Table) -> Result<(), Failure> {
        let client = server.client().await?;
        let store = RedisStore::builder(&server.url())?.timeout(Duration::from_secs(5));
        let store = store.connect()?;
        store.connected().await;
        let ours = Arc::new(Tollgate { store, limits: self.limits.clone() });
        let each = OneEach::new(client.clone(), self.limits.clone(), false).await?;
        let apart = OneEach::new(client.clone(), self.limits.clone(), true).await?;
        let keys = self.limits.0.last().map_or(1, |(_, keys)| *keys);
        let incr = Incr { client: client.clone(), keys };
        let mut sides =
            vec![Side::new("one EVALSHA each", Arc::new(each)), Side::new("Tollgate", ours)];
        if self.limits.0.len() > 1 {
            sides.push(Side::new("an EVALSHA for each policy", Arc::new(apart)));
        } else {
            sides.push(Side::new("INCR", Arc::new(incr)));
        }
        for side in &mut sides {
            side.run(self.tasks, &client).await?;
            side.rounds.clear();
        }
        for turn in 0..ROUNDS {
            let count = sides.len();
            for place in 0..count {
                sides[(turn + place) % count].run(self.tasks, &client).await?;
            }
        }
        let reference = sides[0].rounds.clone();
        for side in &sides {
            let of = |what: fn(&Round) -> f64| Spread::of(side.rounds.iter().map(what));
            let ratio = |what: fn(&Round) -> f64| {
                let [ours, theirs] = [&side.rounds, &reference]
                    .map(|rounds| rounds.iter().map(what).collect::<Vec<_>>());
                Spread::of_ratios(&ours, &theirs)
            };
            let is_ours = side.name == "Tollgate";
            let target = |target| if is_ours { target } else { Target::None };
            let mut cells = vec![
                self.name.to_owned(),
                self.tasks.to_string(),
                side.name.to_owned(),
                of(|round| round.rate / 1e3).to_string(),
                format!("{:.0}", of(|round| round.median * 1e6)),
                format!("{:.0}", of(|round| round.p99 * 1e6)),
                format!("{:.2}", of(|round| round.redis * 1e6)),
            ];
            let rate = ratio(|round| round.rate);
            cells.push(format!("{rate:.2}"));
            cells.extend(target(self.rate).cells(rate));
            let redis = ratio(|round| round.redis);
            cells.push(format!("{redis:.2}"));
            cells.extend(target(self.redis).cells(redis));
            let (p99, bound) = if self.tasks == 1 {
                (ratio(|round| round.median), self.latency)
            } else {
                (ratio(|round| round.p99), self.p99)
            };
            cells.push(format!("{p99:.2}"));
            cells.extend(target(bound).cells(p99));
            table.row(cells);
        }
        Ok(())
    }
}

/// A contender, and what its rounds showed.
struct Side {
    name: &'static str,
    load: Box<dyn Load>,
    rounds: Vec<Round>,
}

impl Side {
    fn new<A: Ask>(name: &'static str, asks: Arc<A>) -> Self {
        Self { name, load: Box::new(asks), rounds: Vec::new() }
    }

    async fn run(&mut self, tasks: usize, redis: &Client) -> Result<(), Failure> {
        self.rounds.push(self.load.round(tasks, redis).await?);
        Ok(())
    }
}

/// A round of any contender.
trait Load: Send {
    fn round<'a>(
        &'a self,
        tasks: usize,
        redis: &'a Client,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Round, Failure>> + 'a>>;
}

impl<A: Ask> Load for Arc<A> {
    fn round<'a>(
        &'a self,
        tasks: usize,
        redis: &'a Client,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Round, Failure>> + 'a>> {
        Box::pin(round(self, tasks, redis))
    }
}
