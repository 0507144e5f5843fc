//! Real stores over a real Redis or Cluster with faults, replayed on the simulated server.
//!
//! A relay records what Redis executed, in order of Redis' time. The simulated server repeats these
//! calls with the core's rules. Then each answer that a client received must equal a decision of the
//! replay in every field, and each decision that no client knows must belong to a request that may
//! have been charged. The test fails at the first call that the replay does not explain.
#![cfg(unix)]

mod clients;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::sleep;
use tollgate_core::{
    Charge, Cost, Decision, Key, Lease, Micros, Outcome, Policy, Quota, Receipt, ReceiptId,
    Settlement, Source, Store, StoreError, StoreExt, Timestamp, Verdict,
};
use tollgate_redis::RedisStore;
use tollgate_simulator::{Decided, Replay, Replayed};
use tollgate_store_tests::{is_long, seed};
use tollgate_test_servers::{Cluster, Exchange, Flow, Proxy, Recorder, Redis, Value, until_async};

use self::clients::{Clients, REMEMBERED};

const REPLICAS: usize = 2;
/// A replica's concurrent requests.
const TASKS: usize = 4;
const KEYS: [&str; 3] = ["ann", "bob", "eve"];
const SOON: Duration = Duration::from_secs(60);

/// A client's knowledge about its request.
#[derive(Debug)]
enum Answer<T> {
    Known(T),
    MaybeDone,
    NotDone,
}

/// The clients' side of a history.
#[derive(Debug, Default)]
struct Record {
    /// Each request's charges, and its answer.
    decided: Vec<(Charges, Answer<Verdict>)>,
    settled: Vec<(ReceiptId, Answer<Settlement>)>,
    /// The policies and keys that were reset.
    reset: Vec<((String, Key), Answer<()>)>,
}

/// Each charge's policy, the key under which Redis stores it, and the cost.
type Charges = Vec<(Policy, Key, Cost)>;

/// A server with a relay that records its calls, and with proxies between it and the replicas.
struct Node<'a> {
    redis: &'a Redis,
    recorder: Recorder,
    proxies: Vec<Proxy>,
}

impl<'a> Node<'a> {
    fn new(redis: &'a Redis, proxies: usize) -> Self {
        let recorder = Recorder::start(redis.address());
        let proxies = (0..proxies).map(|_| Proxy::start(recorder.address())).collect();
        Self { redis, recorder, proxies }
    }

    fn calls(&self) -> usize {
        self.recorder.calls("EVALSHA")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_follow_from_the_calls_of_redis() {
    let redis = Redis::start();
    let node = Node::new(&redis, REPLICAS);
    let urls = node.proxies.iter().map(Proxy::url).collect::<Vec<_>>();
    check(&[node], &urls).await;
}

/// All servers have this machine's clock, so their calls are replayed together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_follow_from_the_calls_of_a_cluster() {
    let cluster = Cluster::builder().masters(2).replicas(0).start();
    let nodes: Vec<_> = cluster.nodes().iter().map(|redis| Node::new(redis, 1)).collect();
    let addresses: Vec<_> = nodes.iter().map(|node| node.proxies[0].address()).collect();
    for (node, address) in nodes.iter().zip(&addresses) {
        node.redis.configure("cluster-announce-port", &address.port().to_string());
        node.redis.restart();
    }
    let announces = || async {
        let knows = |view: &str| addresses.iter().all(|it| view.contains(&format!("{it}@")));
        let views = nodes.iter().map(|node| node.redis.cmd(&["CLUSTER", "NODES"]));
        views.into_iter().all(|view| knows(view.text())).then_some(())
    };
    until_async("all nodes know the proxies", SOON, announces).await;
    block_in_place(|| cluster.wait_until_ok());
    let url = format!("redis-cluster://{}?node={}", addresses[0], addresses[1]);
    check(&nodes, &vec![url; REPLICAS]).await;
}

/// Runs replicas under faults, and replays the calls.
async fn check(nodes: &[Node<'_>], urls: &[String]) {
    let rounds = if is_long() { 40 } else { 2 };
    let mut rng = Rng::with_seed(seed());
    let run = Arc::new(Run::new(urls, &mut rng).await);
    let mut tasks = JoinSet::new();
    for replica in 0..REPLICAS {
        for _ in 0..TASKS {
            tasks.spawn(Arc::clone(&run).requests(replica, rng.fork()));
        }
    }
    let mut restarts = Vec::new();
    for round in 0..rounds {
        let node = &nodes[rng.usize(..nodes.len())];
        let proxy = &node.proxies[rng.usize(..node.proxies.len())];
        run.goes_on().await;
        // Redis executes calls, and their replies are lost. If no replica gets a reply, breakers
        // open soon.
        let least = if node.proxies.len() > 1 { 20 } else { 2 };
        let executed = node.calls();
        proxy.swallow_replies();
        let lost = || async { (node.calls() > executed + least).then_some(()) };
        until_async("Redis executes calls", SOON, lost).await;
        if round % 2 == 0 {
            proxy.cut();
        } else {
            // The store replaces a silent connection.
            sleep(Duration::from_millis(700)).await;
        }
        proxy.pass();
        run.goes_on().await;
        node.redis.cmd(&["SCRIPT", "FLUSH"]);
        run.goes_on().await;
        proxy.flows(Flow::Hold, Flow::Late(Duration::from_millis(20)));
        sleep(Duration::from_millis(150)).await;
        proxy.pass();
        run.goes_on().await;
        node.redis.stop();
        sleep(Duration::from_millis(200)).await;
        node.redis.cont();
        run.goes_on().await;
        if nodes.len() == 1 {
            node.redis.kill();
            restarts.push(now());
            node.redis.restart();
        }
    }
    run.goes_on().await;
    run.is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    // Calls whose callers have gone may still be on their way.
    sleep(Duration::from_millis(500)).await;
    let record = std::mem::take(&mut *run.record.lock());
    let calls = calls(nodes.iter().flat_map(|node| node.recorder.exchanges()));
    println!("{} calls, {} requests", calls.len(), record.decided.len());
    assert!(record.decided.iter().any(|(_, answer)| matches!(answer, Answer::MaybeDone)));
    explain(&calls, &restarts, record);
}

/// Stores under load.
struct Run {
    stores: Vec<RedisStore>,
    policies: Vec<Policy>,
    record: Mutex<Record>,
    ids: AtomicU64,
    /// The number of decisions.
    decided: AtomicU64,
    is_over: AtomicBool,
}

impl Run {
    async fn new(urls: &[String], rng: &mut Rng) -> Self {
        let mut stores = Vec::new();
        for url in urls {
            // A busy machine must not shed most requests.
            let store = RedisStore::builder(url).expect("a URL").seed(rng.u64(..));
            let store = store.timeout(Duration::from_millis(250)).connect().expect("a store");
            store.connected().await;
            stores.push(store);
        }
        let (record, ids, decided, is_over) = Default::default();
        Self { stores, policies: policies(rng), record, ids, decided, is_over }
    }

    /// Waits until each replica has had some decisions.
    async fn goes_on(&self) {
        let before = self.decided.load(Ordering::Relaxed);
        let decides =
            || async { (self.decided.load(Ordering::Relaxed) > before + 200).then_some(()) };
        until_async("requests are decided", SOON, decides).await;
        for (store, key) in self.stores.iter().flat_map(|store| KEYS.map(|key| (store, key))) {
            let key = Key::new(key);
            let peeks = || async { store.peek(&self.policies[0], &key).await.ok().map(drop) };
            until_async("the store decides", SOON, peeks).await;
        }
    }

    /// Sends requests until the run is over.
    async fn requests(self: Arc<Self>, replica: usize, mut rng: Rng) {
        let store = &self.stores[replica];
        let mut receipts = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            match rng.u8(..20) {
                0..4 if !receipts.is_empty() => {
                    let receipt = receipts.swap_remove(rng.usize(..receipts.len()));
                    self.settle(store, &receipt, &mut rng).await;
                }
                4 => self.reset(store, &mut rng).await,
                _ => receipts.extend(self.decide(store, &mut rng).await),
            }
            sleep(Duration::from_micros(rng.u64(..4_000))).await;
        }
    }

    async fn decide(&self, store: &RedisStore, rng: &mut Rng) -> Vec<Receipt> {
        let key = Key::new(KEYS[rng.usize(..KEYS.len())]);
        let first = rng.usize(..self.policies.len());
        let count = rng.usize(1..=2);
        let policies = self.policies.iter().cycle().skip(first).take(count);
        let charges: Vec<_> =
            policies.map(|policy| Charge::new(policy, &key, Cost::new(rng.u64(1..4)))).collect();
        let verdict = store.decide(&charges).await;
        self.decided.fetch_add(u64::from(verdict.is_ok()), Ordering::Relaxed);
        let ids = || ReceiptId(self.ids.fetch_add(1, Ordering::Relaxed).into());
        let receipts = match &verdict {
            Ok(verdict) if verdict.is_admitted() => verdict
                .receipts(&charges, ids)
                .filter(|receipt| is_settled(&receipt.policy))
                .collect(),
            _ => Vec::new(),
        };
        let known = charges.iter().map(|charge| {
            (charge.policy.clone(), subject(store, charge.policy, charge.key), charge.cost)
        });
        self.record.lock().decided.push((known.collect(), Answer::new(verdict)));
        receipts
    }

    async fn settle(&self, store: &RedisStore, receipt: &Receipt, rng: &mut Rng) {
        for _ in 0..rng.u8(1..=2) {
            let settled = store.settle(receipt, Cost::new(rng.u64(..6))).await;
            self.record.lock().settled.push((receipt.id, Answer::new(settled)));
        }
    }

    async fn reset(&self, store: &RedisStore, rng: &mut Rng) {
        let policies: Vec<_> = self.policies.iter().filter(|policy| is_settled(policy)).collect();
        let policy = policies[rng.usize(..policies.len())];
        let key = Key::new(KEYS[rng.usize(..KEYS.len())]);
        let reset = store.reset(policy, &key).await;
        let policy_key = (policy.name().to_owned(), subject(store, policy, &key));
        self.record.lock().reset.push((policy_key, Answer::new(reset)));
    }
}

impl<T> Answer<T> {
    fn new(result: Result<T, StoreError>) -> Self {
        match result {
            Ok(known) => Self::Known(known),
            Err(error) if error.may_have_charged() => Self::MaybeDone,
            Err(_) => Self::NotDone,
        }
    }
}

/// Windows are short, because charges should expire during the run.
fn policies(rng: &mut Rng) -> Vec<Policy> {
    let mut quota = || Quota::new(rng.u64(5..30), Duration::from_millis(rng.u64(100..1_000)));
    let leased = Quota::new(200, Duration::from_millis(500));
    let leased = Policy::sliding_window_log("leased", leased).expect("builds");
    let policies = [
        Policy::sliding_window_log("log", quota()),
        Policy::fixed_window_counter("settled-fixed", quota()),
        Policy::sliding_window_counter("counter", quota()),
        Policy::sliding_window_log("settled-log", quota()),
        Policy::concurrent_requests("settled-permits", 9, Duration::from_millis(400)),
        leased.with_lease(Lease::of(1, 4).ttl(Duration::from_millis(250))),
    ];
    policies.into_iter().map(|policy| policy.expect("builds")).collect()
}

/// Remembered denials of the other policies are always right, because no unit returns early.
fn is_settled(policy: &Policy) -> bool {
    policy.name().starts_with("settled")
}

/// Returns the part of a Redis key that identifies the client.
fn subject(store: &RedisStore, policy: &Policy, key: &Key) -> Key {
    let name = store.name_of(policy, key);
    let end = name.iter().position(|byte| *byte == b'}').expect("a subject in braces");
    Key::new(&name[..=end])
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
    Timestamp::from_micros(u64::try_from(since.as_micros()).expect("this millennium"))
}

/// Returns the calls with their times and replies, in order of time.
fn calls(exchanges: impl Iterator<Item = Exchange>) -> Vec<(Timestamp, Exchange)> {
    let time = |exchange: &Exchange| match &exchange.reply {
        // A nonce precedes the time.
        Value::Text(reply) if exchange.command[0].starts_with(b"EVAL") => {
            let time = reply.get(8..15)?.iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
            Some(Timestamp::from_micros(time))
        }
        _ => None,
    };
    let mut calls: Vec<_> = exchanges.filter_map(|it| time(&it).map(|at| (at, it))).collect();
    calls.sort_by_key(|(at, _)| *at);
    calls
}

/// Replays the calls, and compares both sides.
fn explain(calls: &[(Timestamp, Exchange)], restarts: &[Timestamp], record: Record) {
    let mut clients = Clients::new(record);
    let (mut replay, mut restarts) = (Replay::new(), restarts.iter().peekable());
    for (number, (at, exchange)) in calls.iter().enumerate() {
        clients.expect_none_before(*at);
        if let Some(restart) = restarts.next_if(|restart| **restart < *at) {
            clients.compare_remembered(&mut replay, *restart);
            replay = Replay::new();
            // Clients remember denials of the lost data for a while.
            let later = clients.remembered.split_off(&(*restart + REMEMBERED).as_micros());
            clients.remembered = later;
        }
        clients.compare_remembered(&mut replay, *at);
        let Some(replayed) = replay.call(&exchange.command, *at) else { continue };
        if let Err(difference) = clients.compare(*at, &replayed, &exchange.reply) {
            panic!("call {number} at {at:?}: {difference}\n{replayed:#?}");
        }
    }
    clients.finish();
}

/// Marks a reply with a row for each request.
const ROWS: u8 = 2;
