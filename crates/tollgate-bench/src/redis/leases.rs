//! One hot key and three replicas, which call Redis for every request or lease units.

use std::time::Duration;

use tokio::task::coop::consume_budget;
use tollgate::key::Key;
use tollgate::policy::{Cost, Lease};
use tollgate::store::Charge;
use tollgate::{Policy, RedisStore, Store};

use crate::Failure;
use crate::redis::goals::Goal;
use crate::redis::goals::What::{Median, P99, Rate, Redis};
use crate::redis::load::Ask;
use crate::redis::server::Server;
use crate::redis::sides::bucket;
use crate::redis::turns::{Side, take_turns};
use crate::report::Table;

const TASKS: usize = 192;

const EACH: &str = "three replicas, exact";
const LEASED: &str = "three replicas, leased";

/// Stores that share a key and take turns.
struct Replicas {
    stores: [RedisStore; 3],
    policy: Policy,
}

impl Ask for Replicas {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let store = &self.stores[(number % 3) as usize];
        let verdict = store.decide(&[Charge::new(&self.policy, &Key::GLOBAL, Cost::ONE)]).await?;
        // A service does other things between two decisions.
        consume_budget().await;
        Ok(verdict.is_admitted())
    }
}

/// The table of results; the goals are added to `goals`.
pub(crate) async fn tables(
    server: &Server,
    rounds: usize,
    goals: &mut Table,
) -> Result<Table, Failure> {
    let mut table = Table::new(
        "One hot key, three replicas",
        &[
            "limiter",
            "thousand/s",
            "median µs",
            "p99 µs",
            "Redis µs",
            "decisions per Redis second, ×",
        ],
    );
    let exact = bucket("hot", 1)?;
    let leased = bucket("leased", 1)?.with_lease(Lease::of(1, 20))?;
    let mut sides = [
        Side::new(EACH, replicas(server, exact).await?),
        Side::new(LEASED, replicas(server, leased).await?),
    ];
    let redis = server.client().await?;
    take_turns(&mut sides, TASKS, rounds, &redis).await?;
    for side in &sides {
        let per_second = sides[0].over(side, Redis);
        table.row([
            side.name.to_owned(),
            side.spread(Rate, 1e3).to_string(),
            format!("{:.2}", side.spread(Median, 1e-6)),
            format!("{:.0}", side.spread(P99, 1e-6)),
            format!("{:.3}", side.spread(Redis, 1e-6)),
            format!("{per_second:.1}"),
        ]);
    }
    let goal = Goal::at_most(Redis, EACH, 0.05);
    let ratio = sides[1].over(&sides[0], goal.what);
    let what = ["one, leased", "192", goal.what.name(), goal.against].map(str::to_owned);
    goals.row(what.into_iter().chain([format!("{ratio:.4}")]).chain(goal.target.cells(ratio)));
    if sides.iter().any(|side| side.refused() > 0.0) {
        return Err("a replica denied a request that fits the quota".into());
    }
    Ok(table)
}

async fn replicas(server: &Server, policy: Policy) -> Result<Replicas, Failure> {
    let store = || {
        let store = RedisStore::builder(&server.url())?.timeout(Duration::from_secs(5));
        Ok::<_, Failure>(store.connect()?)
    };
    let stores = [store()?, store()?, store()?];
    for store in &stores {
        store.connected().await;
    }
    Ok(Replicas { stores, policy })
}
