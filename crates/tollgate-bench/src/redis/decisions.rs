//! Decisions by Tollgate and by peers, in turns.

use std::time::Duration;

use fred::prelude::Client;
use tollgate::RedisStore;

use crate::Failure;
use crate::redis::goals::What::{Median, P99, Rate, Redis};
use crate::redis::goals::{Goal, OURS};
use crate::redis::peers::{self, Cell, Governor, Outside, Throttlecrab};
use crate::redis::scripts::Lean;
use crate::redis::server::Server;
use crate::redis::sides::{CAPACITY, Incr, Limits, OneEach, Tollgate, bucket};
use crate::redis::turns::{Side, take_turns};
use crate::report::Table;

const HOT: u64 = 1;
const MANY: u64 = 100_000;

const EACH: &str = "one EVALSHA each";
const APART: &str = "an EVALSHA for each policy";
const CACHED: &str = "limitador, write-behind cache";
const CELL: &str = "redis-cell";
const LEAN: &str = "lean script each";

/// The measured cases and their goals.
fn cases() -> Result<[Case; 6], Failure> {
    let one = |keys| Ok::<_, Failure>(Limits(vec![(bucket("user", 1)?, keys)]));
    let two = Limits(vec![(bucket("global", 1)?, HOT), (bucket("ip", 1)?, MANY)]);
    let dying = Limits(vec![(bucket("dying", CAPACITY)?, MANY)]);
    Ok([
        Case::new("one", one(HOT)?, 1, &[Goal::at_most(Median, EACH, 1.15)]),
        Case::new("one", one(HOT)?, 64, &[Goal::at_least(Rate, EACH, 2.5)]),
        Case::new(
            "one",
            one(HOT)?,
            256,
            &[
                Goal::at_least(Rate, EACH, 4.5),
                Goal::at_most(Redis, EACH, 0.2),
                Goal::at_most(P99, EACH, 0.33),
                Goal::at_most(Redis, LEAN, 1.1).of(EACH),
                Goal::at_least(Rate, "INCR", 1.2),
                Goal::at_most(Redis, "INCR", 1.0),
                Goal::at_least(Rate, CACHED, 1.0),
            ],
        )
        .with_peers(),
        Case::new(
            "100 000",
            one(MANY)?,
            256,
            &[
                Goal::at_least(Rate, EACH, 1.6),
                Goal::at_most(Redis, EACH, 0.65),
                Goal::at_least(Rate, CELL, 1.5),
                Goal::at_most(Redis, "INCR", 4.0),
            ],
        )
        .with_peers(),
        Case::new("100 000, expired", dying, 256, &[]).with_rate(CAPACITY),
        Case::new(
            "1 and 100 000",
            two,
            256,
            &[Goal::at_least(Rate, EACH, 1.5), Goal::at_least(Rate, APART, 2.5)],
        ),
    ])
}

/// The tables of results and goals.
pub(crate) async fn tables(server: &Server, rounds: usize) -> Result<[Table; 2], Failure> {
    let mut rows = Table::new(
        "Decisions in Redis",
        &["keys", "tasks", "limiter", "thousand/s", "median µs", "p99 µs", "Redis µs", "×"],
    );
    let mut goals = Table::new(
        "Tollgate compared with peers",
        &["keys", "tasks", "what", "compared with", "×", "target", "met"],
    );
    for case in cases()? {
        case.measure(server, rounds, (&mut rows, &mut goals)).await?;
    }
    Ok([rows, goals])
}

struct Case {
    keys: &'static str,
    limits: Limits,
    tasks: usize,
    goals: Vec<Goal>,
    /// A bucket's refill rate, in units per second.
    rate: u64,
    /// Whether limiters from other projects take part.
    with_peers: bool,
}

impl Case {
    fn new(keys: &'static str, limits: Limits, tasks: usize, goals: &[Goal]) -> Self {
        Self { keys, limits, tasks, goals: goals.to_vec(), rate: 1, with_peers: false }
    }

    fn with_peers(mut self) -> Self {
        self.with_peers = true;
        self
    }

    fn with_rate(mut self, rate: u64) -> Self {
        self.rate = rate;
        self
    }

    async fn measure(
        self,
        server: &Server,
        rounds: usize,
        (rows, goals): (&mut Table, &mut Table),
    ) -> Result<(), Failure> {
        let mut sides = self.sides(server).await?;
        let redis = server.client().await?;
        take_turns(&mut sides, self.tasks, rounds, &redis).await?;
        for side in &sides {
            if side.refused() > 0.0 {
                return Err(format!("{} refused {} requests", side.name, side.refused()).into());
            }
            rows.row(self.row(side, &sides[0]));
        }
        let named = |name| sides.iter().find(|side| side.name == name);
        for goal in self.goals {
            let what = if goal.of == OURS {
                goal.what.name().to_owned()
            } else {
                format!("{} of {}", goal.what.name(), goal.of)
            };
            let what = [self.keys, &self.tasks.to_string(), &*what, goal.against];
            let what = what.into_iter().map(str::to_owned);
            let Some((ours, theirs)) = named(goal.of).zip(named(goal.against)) else {
                goals.row(what.chain(["–", "–", "not measured"].map(str::to_owned)));
                continue;
            };
            let ratio = ours.over(theirs, goal.what);
            goals.row(what.chain([format!("{ratio:.2}")]).chain(goal.target.cells(ratio)));
        }
        Ok(())
    }

    /// The contenders. The first is the reference.
    async fn sides(&self, server: &Server) -> Result<Vec<Side>, Failure> {
        let client = server.client().await?;
        let store = RedisStore::builder(&server.url())?.timeout(Duration::from_secs(5));
        let store = store.connect()?;
        store.connected().await;
        let each = |apart| OneEach::new(client.clone(), self.limits.clone(), apart);
        let mut sides = vec![
            Side::new(EACH, each(false).await?),
            Side::new(OURS, Tollgate { store, limits: self.limits.clone() }),
        ];
        let &[(_, keys)] = &self.limits.0[..] else {
            sides.push(Side::new(APART, each(true).await?));
            return Ok(sides);
        };
        sides.push(Side::new(LEAN, Lean::new(client.clone(), keys, self.rate).await?));
        sides.push(Side::new("INCR", Incr { client: client.clone(), keys }));
        if self.with_peers {
            sides.extend(others(server, client, keys)?);
        }
        Ok(sides)
    }

    fn row(&self, side: &Side, reference: &Side) -> [String; 8] {
        [
            self.keys.to_owned(),
            self.tasks.to_string(),
            side.name.to_owned(),
            side.spread(Rate, 1e3).to_string(),
            format!("{:.0}", side.spread(Median, 1e-6)),
            format!("{:.0}", side.spread(P99, 1e-6)),
            format!("{:.2}", side.spread(Redis, 1e-6)),
            format!("{:.2}", side.over(reference, Rate)),
        ]
    }
}

/// Limiters from other projects, if they were built.
fn others(server: &Server, client: Client, keys: u64) -> Result<Vec<Side>, Failure> {
    let mut sides = vec![Side::new("governor, in memory", Governor::new(keys)?)];
    if peers::module().is_some() {
        sides.push(Side::new(CELL, Cell { client, keys }));
    }
    let url = server.url();
    let limitador = Outside::start("limitador", &url, keys)?;
    sides.extend(limitador.map(|peer| Side::outside("limitador, Redis", peer)));
    if keys == HOT {
        let cached = Outside::start("limitador-cached", &url, keys)?;
        sides.extend(cached.map(|peer| Side::outside(CACHED, peer)));
    }
    if let Some(crab) = Throttlecrab::start()? {
        let peer = Outside::start("throttlecrab", &crab.url(), keys)?;
        sides.extend(peer.map(|peer| Side::outside("throttlecrab-server", peer).with_server(crab)));
    }
    Ok(sides)
}
