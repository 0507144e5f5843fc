//! Nodes that die, freeze or lose the script.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_core::{Cost, Key, Policy, StoreExt};
use tollgate_redis::{BreakerState, RedisStore};
use tollgate_test_servers::{Cluster, Redis, until, until_async};

use super::load::{Load, Tally};
use super::{MINUTE, PATIENCE, builder, connect, is_on, keys, masters, policy, remaining, slot};

with_one_cluster! {
    one_node_is_busy_or_full:
    unpolled_requests_block_no_others
    slots_of_a_node_share_calls
    full_node_still_denies
}

/// Requests to healthy nodes must not time out while many tests share the machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The old master returns as a replica of the new one.
async fn lost_master_only_fails_its_slots(lose: impl Fn(&Redis), return_it: impl Fn(&Redis)) {
    let cluster = Cluster::start();
    let shards = Shards::begin(&cluster).await;
    tokio::task::block_in_place(|| {
        shards.go_on(&[0, 1, 2]);
        lose(cluster.node(1));
        shards.go_on(&[0, 2]);
        let heir = cluster.wait_for_failover(shards.slot(1), 1);
        assert_ne!(heir, 1);
        shards.go_on(&[1, 0, 2]);
        return_it(cluster.node(1));
        cluster.wait_until_ok();
        shards.go_on(&[0, 1, 2]);
    });
    shards.end().await.assert_all_admitted(&[0, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dead_master_only_fails_its_slots() {
    lost_master_only_fails_its_slots(|node| node.kill(), |node| node.restart()).await;
}

/// The old master still holds its connections, but is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frozen_master_only_fails_its_slots() {
    lost_master_only_fails_its_slots(|node| node.stop(), |node| node.cont()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn manual_failover_loses_no_units() {
    let cluster = Cluster::start();
    let shards = Shards::begin(&cluster).await;
    tokio::task::block_in_place(|| {
        shards.go_on(&[0, 1, 2]);
        cluster.failover(cluster.replicas_of(1)[0]);
        shards.go_on(&[1, 0, 2]);
        cluster.failover(1);
        shards.go_on(&[1, 0, 2]);
    });
    let ended = shards.end().await;
    for (tally, used) in &ended.tallies {
        // Requests in flight when a master stopped may or may not have been charged.
        tally.assert_charges_match(*used);
    }
    ended.assert_all_admitted(&[0, 2]);
}

/// Futures that are not polled: their requests are not sent, and they use no capacity on the node.
async fn unpolled_requests_block_no_others(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let policy = policy("p", 10);
    let many: Vec<_> = keys(&store, is_on(0)).take(401).collect();
    let (last, many) = many.split_last().expect("keys");
    let mut forgotten = Vec::new();
    for (number, key) in many.iter().enumerate() {
        let mut request = Box::pin(store.charge(&policy, key, Cost::ONE));
        // Every second request is polled once, and then never again.
        if number % 2 == 1 || !poll_once(request.as_mut()).await {
            forgotten.push(request);
        }
    }
    assert!(store.charge(&policy, last, Cost::ONE).await.unwrap().is_admitted());
    for request in forgotten {
        assert!(request.await.unwrap().is_admitted());
    }
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// The requests that wait for a node share a call. Before Redis 7 each slot needs a separate
/// script.
async fn slots_of_a_node_share_calls(cluster: &Cluster) {
    let scripts = if cluster.node(0).allows_cross_slot() { 1 } else { 50 };
    let store = connect(builder(cluster).max_calls(1)).await;
    let policy = policy("p", 10);
    let many: Vec<_> = keys(&store, is_on(0)).take(50).collect();
    // Learn the node's time now, so the requests need no time query.
    store.peek(&policy, &many[0]).await.unwrap();
    let (before, sent) = (cluster.node(0).calls("evalsha"), store.stats().calls);
    cluster.node(0).stop();
    let mut requests = JoinSet::new();
    for (number, key) in many.iter().chain(&many).enumerate() {
        if number == 2 {
            // The first request is sent by its caller, and the second by the task that sends all
            // later requests.
            tokio::task::block_in_place(|| {
                until("two are sent", PATIENCE, || (store.stats().queued == 0).then_some(()));
            });
        }
        requests.spawn(store.charge(&policy, key, Cost::ONE));
    }
    cluster.node(0).cont();
    let answers = requests.join_all().await;
    assert!(answers.iter().all(|it| it.as_ref().is_ok_and(|verdict| verdict.is_admitted())));
    let calls = cluster.node(0).calls("evalsha") - before;
    // Two may be sent alone, and both requests for a slot share a script.
    assert!((scripts..=scripts + 2).contains(&calls), "{calls}");
    assert_eq!(store.stats().calls - sent, calls);
    for key in &many {
        assert_eq!(remaining(&store, &policy, key).await, 8);
    }
}

/// Redis rejects a cross-slot call as a unit, but answers separately for each slot.
async fn full_node_still_denies(cluster: &Cluster) {
    let store = connect(builder(cluster).max_calls(1)).await;
    let (policy, node) = (policy("p", 1), cluster.node(0));
    let many: Vec<_> = keys(&store, is_on(0)).take(20).collect();
    for key in &many[1..] {
        assert!(store.charge(&policy, key, Cost::ONE).await.unwrap().is_admitted());
    }
    assert_eq!(node.cmd(&["CONFIG", "SET", "maxmemory", "1"]).error(), None);
    let requests: JoinSet<_> =
        many.iter().map(|key| store.charge(&policy, key, Cost::ONE)).collect();
    let mut answers = requests.join_all().await;
    answers.sort_by_key(Result::is_err);
    let error = answers.pop().unwrap().expect_err("the first key was never charged");
    assert!(error.to_string().contains("OOM") && !error.may_have_charged(), "{error}");
    assert!(answers.iter().all(|it| it.as_ref().is_ok_and(|verdict| !verdict.is_admitted())));
    assert_eq!(node.cmd(&["CONFIG", "SET", "maxmemory", "0"]).error(), None);
    assert_eq!(remaining(&store, &policy, &many[0]).await, 1);
}

/// A service that starts before its Cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn store_may_start_before_cluster() {
    let cluster = masters();
    cluster.nodes().iter().for_each(|node| node.kill());
    let store = builder(&cluster).timeout(Duration::from_millis(200)).connect().unwrap();
    let policy = policy("p", 10);
    // The request fails although no server starts meanwhile.
    let error =
        store.charge(&policy, &Key::GLOBAL, Cost::ONE).await.expect_err("no server is there");
    assert!(!error.may_have_charged(), "{error}");
    let store = builder(&cluster).timeout(TIMEOUT).connect().unwrap();
    tokio::task::block_in_place(|| {
        cluster.nodes().iter().for_each(|node| node.restart());
        cluster.wait_until_ok();
    });
    store.connected().await;
    // On a starved machine a node may again consider the others dead. The client closes the
    // connection after that answer, and has none for the requests that follow immediately.
    let verdict = until_async("the cluster decides", MINUTE, async || {
        let decided = store.charge(&policy, &Key::GLOBAL, Cost::ONE).await;
        if let Err(error) = &decided {
            let is_down = error.to_string().contains("CLUSTERDOWN");
            assert!(is_down || !error.may_have_charged(), "{error}");
        }
        decided.ok()
    });
    assert!(verdict.await.is_admitted());
}

/// A load on each of three shards. The second shard fails.
struct Shards {
    store: RedisStore,
    loads: Vec<(Load, Policy, Key)>,
}

/// The results, and the units that each shard has charged.
struct Ended {
    tallies: Vec<(Tally, u64)>,
}

impl Shards {
    async fn begin(cluster: &Cluster) -> Self {
        let store = connect(builder(cluster).timeout(TIMEOUT)).await;
        let loads = (0..3).map(|node| {
            let key = keys(&store, is_on(node)).next().expect("there are enough");
            // Different limits, so a reply to another shard's request is noticed.
            let policy = policy("p", 1_000_000 + node as u64);
            (Load::begin(&store, std::slice::from_ref(&policy), &key, 8), policy, key)
        });
        let loads = loads.collect();
        Self { store, loads }
    }

    fn slot(&self, shard: usize) -> u16 {
        let (_, policy, key) = &self.loads[shard];
        slot(&self.store, policy, key)
    }

    /// Waits until more requests have been admitted on each of these shards.
    fn go_on(&self, shards: &[usize]) {
        for &shard in shards {
            self.loads[shard].0.goes_on(&format!("requests on shard {shard} go on"));
        }
    }

    async fn end(self) -> Ended {
        let mut tallies = Vec::new();
        for (load, policy, key) in self.loads {
            let tally = load.end().await;
            let left = remaining(&self.store, &policy, &key).await;
            tallies.push((tally, policy.capacity() - left));
        }
        Ended { tallies }
    }
}

impl Ended {
    fn assert_all_admitted(&self, shards: &[usize]) {
        for &shard in shards {
            let (tally, used) = &self.tallies[shard];
            tally.assert_all_admitted(*used);
        }
    }
}

/// A store that starts while a master is dead waits until the replica takes over, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connecting_waits_for_failover() {
    let cluster = Cluster::start();
    cluster.node(1).kill();
    let store = builder(&cluster).connect().expect("settings");
    let connected = tokio::time::timeout(MINUTE, store.connected()).await;
    assert!(connected.is_ok() && store.is_connected(), "{:?}", store.reports());
}

/// A third of all requests fail. Keys on the other nodes are still decided, and requests for the
/// dead node do not all wait for the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn breaker_only_affects_its_node() {
    let cluster = masters();
    let store = connect(builder(&cluster).timeout(TIMEOUT)).await;
    let dead: Vec<_> = keys(&store, is_on(1)).take(10).collect();
    let well: Vec<_> = keys(&store, |slot| !is_on(1)(slot)).take(20).collect();
    let policy = policy("p", 1_000_000);
    cluster.node(1).kill();
    let ask = |keys: &[Key], times: usize| {
        let (store, policy, keys) = (store.clone(), policy.clone(), keys.to_vec());
        async move {
            let (mut failed, mut slow) = (0, 0);
            for n in 0..times {
                let began = Instant::now();
                let answer = store.charge(&policy, &keys[n % keys.len()], Cost::ONE).await;
                failed += u32::from(answer.is_err());
                slow += u32::from(began.elapsed() >= TIMEOUT);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (failed, slow)
        }
    };
    let dead: Vec<_> = (0..16).map(|_| tokio::spawn(ask(&dead, 300))).collect();
    let (failed, _) = ask(&well, 300).await;
    assert_eq!(failed, 0, "requests for healthy nodes");
    let mut all = 0;
    for task in dead {
        let (failed, slow) = task.await.expect("answers");
        assert_eq!(failed, 300);
        all += slow;
    }
    assert_eq!(store.breaker(), BreakerState::Down, "the dead node's breaker");
    // Only requests in the calls that opened the breaker waited.
    assert!(all < 16 * 300 / 10, "{all} waited for the timeout");
}
