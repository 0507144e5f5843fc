//! Decisions by Tollgate and by peers, in turns: by load, by the server's settings, and with leases.

use std::fs;
use std::sync::Arc;

use fred::prelude::{Client, Config};
use fred::types::config::TlsConnector;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::coop::consume_budget;
use tollgate::key::Key;
use tollgate::policy::{Cost, Lease};
use tollgate::store::Charge;
use tollgate::{Policy, RedisStore, Store};
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::load::Ask;
use crate::redis::peers::{self, Cell, Governor, Outside, Throttlecrab};
use crate::redis::scripts::Lean;
use crate::redis::server;
use crate::redis::sides::{
    CAPACITY, Incr, Limits, OneEach, Tollgate, address, bucket, connected, patient,
};
use crate::redis::turns::What::{Median, P99, Rate, Redis as Processor};
use crate::redis::turns::{Goal, OURS, Side, add_rows, take_turns};
use crate::report::{Table, Target};

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
    let case = |keys, limits, tasks, goals: &[Goal]| {
        let goals = goals.to_vec();
        Case { keys, limits, tasks, goals, rate: 1, with_peers: false }
    };
    let hot = [
        Goal::at_least(Rate, EACH, 4.5),
        Goal::at_most(Processor, EACH, 0.2),
        Goal::at_most(P99, EACH, 0.33),
        Goal::at_most(Processor, LEAN, 1.1).of(EACH),
        Goal::at_least(Rate, "INCR", 1.2),
        Goal::at_most(Processor, "INCR", 1.0),
        Goal::at_least(Rate, CACHED, 1.0),
    ];
    let many = [
        Goal::at_least(Rate, EACH, 1.6),
        Goal::at_most(Processor, EACH, 0.65),
        Goal::at_least(Rate, CELL, 1.5),
        Goal::at_most(Processor, "INCR", 4.0),
    ];
    let pairs = [Goal::at_least(Rate, EACH, 1.5), Goal::at_least(Rate, APART, 2.5)];
    Ok([
        case("one", one(HOT)?, 1, &[Goal::at_most(Median, EACH, 1.15)]),
        case("one", one(HOT)?, 64, &[Goal::at_least(Rate, EACH, 2.5)]),
        Case { with_peers: true, ..case("one", one(HOT)?, 256, &hot) },
        Case { with_peers: true, ..case("100 000", one(MANY)?, 256, &many) },
        Case { rate: CAPACITY, ..case("100 000, expired", dying, 256, &[]) },
        case("1 and 100 000", two, 256, &pairs),
    ])
}

/// The tables of results and goals.
pub(crate) async fn tables(server: &Redis, rounds: usize) -> Result<[Table; 2], Failure> {
    let mut rows = Table::new(
        "Decisions in Redis",
        "keys | tasks | limiter | thousand/s | median µs | p99 µs | Redis µs | ×",
    );
    let mut goals = Table::new(
        "Tollgate compared with peers",
        "keys | tasks | what | compared with | × | target | met",
    );
    for case in cases()? {
        let mut sides = case.sides(server).await?;
        let tasks = case.tasks;
        add_rows(&mut rows, &[&case.keys, &tasks], &mut sides, (tasks, rounds)).await?;
        for goal in &case.goals {
            goal.add_to(&mut goals, &[&case.keys, &tasks], &sides);
        }
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
    /// The contenders. The first is the reference.
    async fn sides(&self, server: &Redis) -> Result<Vec<Side>, Failure> {
        let client = &server::client(&server.url()).await?;
        let store = connected(patient(&server.url())?).await?;
        let each = |apart| OneEach::new(client.clone(), self.limits.clone(), apart);
        let mut sides = vec![
            Side::new(EACH, each(false).await?, client),
            Side::new(OURS, Tollgate { store, limits: self.limits.clone() }, client),
        ];
        let &[(_, keys)] = &self.limits.0[..] else {
            sides.push(Side::new(APART, each(true).await?, client));
            return Ok(sides);
        };
        sides.push(Side::new(LEAN, Lean::new(client.clone(), keys, self.rate).await?, client));
        sides.push(Side::new("INCR", Incr { client: client.clone(), keys }, client));
        if self.with_peers {
            sides.extend(others(server, client, keys)?);
        }
        Ok(sides)
    }
}

/// Limiters from other projects, if they were built.
fn others(server: &Redis, client: &Client, keys: u64) -> Result<Vec<Side>, Failure> {
    let mut sides = vec![Side::new("governor, in memory", Governor::new(keys)?, client)];
    if peers::module().is_some() {
        sides.push(Side::new(CELL, Cell { client: client.clone(), keys }, client));
    }
    let url = server.url();
    let mut outside = |name, kind| {
        let peer = Outside::start(kind, &url, keys)?;
        sides.extend(peer.map(|peer| Side::outside(name, peer, client)));
        Ok::<_, Failure>(())
    };
    outside("limitador, Redis", "limitador")?;
    if keys == HOT {
        outside(CACHED, "limitador-cached")?;
    }
    if let Some(crab) = Throttlecrab::start()? {
        let peer = Outside::start("throttlecrab", &crab.url(), keys)?;
        let side = |peer| Side::outside("throttlecrab-server", peer, client).with_server(crab);
        sides.extend(peer.map(side));
    }
    Ok(sides)
}

/// Decisions over servers with TLS, persistence or a replica. The limiters take turns, and the
/// settings follow each other.
pub(crate) async fn settings(rounds: usize) -> Result<Table, Failure> {
    let columns = "server | limiter | thousand/s | median µs | p99 µs | Redis µs | × lean script";
    let mut table = Table::new("100 000 keys, 256 tasks, by setting", columns);
    for setting in ["plain", "TLS", "AOF, everysec", "a replica"] {
        let redis = Redis::builder();
        let redis = match setting {
            "TLS" => redis.tls(),
            "AOF, everysec" => redis.set("appendonly", "yes").set("appendfsync", "everysec"),
            _ => redis,
        };
        let redis = redis.start();
        // Dropped before its master.
        let _replica =
            (setting == "a replica").then(|| Redis::builder().replica_of(&redis).start());
        let (mut store, mut config) = (patient(&redis.url())?, Config::from_url(&redis.url())?);
        if setting == "TLS" {
            store = store.certificate_authorities(fs::read(redis.authority())?);
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(redis.authority())?)?;
            let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_no_client_auth();
            config.tls = Some(TlsConnector::from(tls).into());
        }
        let client = server::connect(config).await?;
        let store = connected(store).await?;
        let limits = Limits(vec![(bucket("user", 1)?, MANY)]);
        let mut sides = [
            Side::new(LEAN, Lean::new(client.clone(), MANY, 1).await?, &client),
            Side::new(OURS, Tollgate { store, limits }, &client),
            Side::new("INCR", Incr { client: client.clone(), keys: MANY }, &client),
        ];
        add_rows(&mut table, &[&setting], &mut sides, (256, rounds)).await?;
    }
    Ok(table)
}

/// A policy whose keys have different quotas.
struct Tenants {
    store: RedisStore,
    quotas: Vec<Policy>,
}

impl Ask for Tenants {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let number = number % MANY;
        let policy = &self.quotas[number as usize % self.quotas.len()];
        let key = Key::new(address(number));
        Ok(self.store.decide(&[Charge::new(policy, &key, Cost::ONE)]).await?.is_admitted())
    }
}

/// Compares 5 000 quotas under one policy with a single quota.
pub(crate) async fn tenants(server: &Redis, rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "100 000 keys of one policy with a quota each, 256 tasks",
        "quotas | thousand/s | median µs | p99 µs | Redis µs | × | target | met",
    );
    let client = server::client(&server.url()).await?;
    let side = async |name, quotas| {
        let base = bucket(name, 1)?;
        let quota = |number| base.with_quota(base.quota().burst(CAPACITY - number));
        let store = connected(patient(&server.url())?).await?;
        let quotas = (0..quotas).map(quota).collect::<Result<_, _>>()?;
        Ok::<_, Failure>(Side::new(name, Tenants { store, quotas }, &client))
    };
    let mut sides = [side("one", 1).await?, side("5 000", 5_000).await?];
    take_turns(&mut sides, 256, rounds).await?;
    for side in &sides {
        let ratio = (side.over(&sides[0], Processor), Target::AtMost(1.15));
        table.row(&[&side.name, &side.numbers([1, 0, 2]), &ratio]);
    }
    if sides.iter().any(|side| side.denied() > 0.0) {
        return Err("a request that fits its quota was denied".into());
    }
    Ok(table)
}

/// Three stores that share a key and take turns.
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

/// One hot key and three replicas, which call Redis for every request or lease units. The goal is
/// added to `goals`.
pub(crate) async fn leases(
    server: &Redis,
    rounds: usize,
    goals: &mut Table,
) -> Result<Table, Failure> {
    const EXACT: &str = "three replicas, exact";
    const TASKS: usize = 192;
    let mut table = Table::new(
        "One hot key, three replicas",
        "limiter | thousand/s | median µs | p99 µs | Redis µs | decisions per Redis second, ×",
    );
    let client = server::client(&server.url()).await?;
    let replicas = async |policy| {
        let store = async || connected(patient(&server.url())?).await;
        Ok::<_, Failure>(Replicas {
            stores: [store().await?, store().await?, store().await?],
            policy,
        })
    };
    let leased = bucket("leased", 1)?.with_lease(Lease::of(1, 20))?;
    let mut sides = [
        Side::new(EXACT, replicas(bucket("hot", 1)?).await?, &client),
        Side::new("three replicas, leased", replicas(leased).await?, &client),
    ];
    take_turns(&mut sides, TASKS, rounds).await?;
    for side in &sides {
        let per_second = (sides[0].over(side, Processor), 1);
        table.row(&[&side.name, &side.numbers([2, 0, 3]), &per_second]);
    }
    let goal = Goal::at_most(Processor, EXACT, 0.05);
    let ratio = sides[1].over(&sides[0], goal.what);
    let what = ["one, leased", "192", goal.what.name(), goal.against];
    goals.row(&[&what, &(ratio, 4), &goal.target.met(ratio)]);
    if sides.iter().any(|side| side.denied() > 0.0) {
        return Err("a replica denied a request that fits the quota".into());
    }
    Ok(table)
}
