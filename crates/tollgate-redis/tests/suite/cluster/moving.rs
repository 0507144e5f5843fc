//! Slots that move between masters.

use std::time::{Duration, Instant};

use tollgate_core::{Algorithm, Charge, Cost, LeakyMode, Policy, Quota, Store, StoreExt};
use tollgate_redis::protocol::{Batch, CROSS_SLOT_TEXT, KeyedCharge, ScriptAnswer};
use tollgate_store_tests::is_long;
use tollgate_test_servers::{Cluster, RedisBuilder, Value, skip, until};

use super::load::Load;
use super::{builder, connect, is_on, keys, masters, policy, remaining, slot};

with_one_cluster! {
    slots_move:
    moving_slot_charges_requests_once
    node_reports_keys_of_other_nodes
    split_keys_delay_a_request
    missing_keys_wait_for_moved_slot
    split_keys_split_a_call
    new_node_loads_the_script
}

/// A slot moves back and forth under load. Some requests need two keys in it, and some need keys on
/// another node.
async fn moving_slot_charges_requests_once(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let [moving, staying] = [0, 2].map(|node| keys(&store, is_on(node)).next().unwrap());
    let (policy, other) = (policy("p", 1_000_000), policy("other", 2_000_000));
    let slot = slot(&store, &policy, &moving);

    let neighbour = keys(&store, |other| other == slot).nth(1).unwrap();
    let pair = [self::policy("one", 3_000_000), self::policy("two", 4_000_000)];

    let load = Load::begin(&store, std::slice::from_ref(&policy), &moving, 16);
    let pairs = Load::begin(&store, &pair, &neighbour, 8);
    let elsewhere = Load::begin(&store, std::slice::from_ref(&other), &staying, 8);
    let goes_on = |load: &Load| load.goes_on("requests go on");
    tokio::task::block_in_place(|| {
        for _ in 0..rounds() {
            for to in [1, 0] {
                goes_on(&load);
                let migration = cluster.migration(slot, to);
                goes_on(&load);
                while migration.move_keys(1) > 0 {
                    goes_on(&load);
                }
                goes_on(&pairs);
                migration.finish();
            }
        }
        goes_on(&load);
        goes_on(&pairs);
    });
    let (tally, of_pairs, untouched) = (load.end().await, pairs.end().await, elsewhere.end().await);
    tally.assert_all_admitted(1_000_000 - remaining(&store, &policy, &moving).await);
    for policy in &pair {
        of_pairs
            .assert_all_admitted(policy.capacity() - remaining(&store, policy, &neighbour).await);
    }
    untouched.assert_all_admitted(2_000_000 - remaining(&store, &other, &staying).await);
}

fn rounds() -> usize {
    if is_long() { 30 } else { 3 }
}

/// How far the nodes' clocks are ahead, in microseconds.
const AHEAD: [i64; 5] = [0, 200_000, 30_000_000, -200_000, -30_000_000];

/// A slot moves to a node with another clock and back, each time right after all units were
/// charged. `docs/guarantees.md` has the bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clock_difference_bounds_refill_after_move() {
    let patient = |node: RedisBuilder| node.set("cluster-node-timeout", 60_000);
    let cluster = Cluster::builder().masters(AHEAD.len()).replicas(0);
    let cluster = cluster.each_node(patient).clocks_ahead(AHEAD).start();
    let store = connect(builder(&cluster)).await;
    let bucket = Quota::per_second(1_000).burst(100_000);
    let policies = [
        Policy::token_bucket("bucket", bucket),
        Policy::new("meter", bucket, Algorithm::LeakyBucket { mode: LeakyMode::Meter }),
        Policy::sliding_window_log("log", Quota::new(50, Duration::from_secs(20))),
    ];
    let policies = policies.map(|policy| policy.expect("builds"));
    let is_at_home = |slot: u16| usize::from(slot) * AHEAD.len() / 16_384 == 0;
    let key = keys(&store, is_at_home).next().expect("endless");
    let slot = slot(&store, &policies[0], &key);
    for (node, ahead) in AHEAD.into_iter().enumerate().skip(1) {
        for (to, ahead) in [(node, ahead), (0, -ahead)] {
            for policy in &policies {
                store.reset(policy, &key).await.expect("reset");
            }
            let begin = Instant::now();
            for policy in &policies {
                let all = Cost::new(policy.capacity());
                assert!(store.charge(policy, &key, all).await.expect("charged").is_admitted());
            }
            let charged = Instant::now();
            tokio::task::block_in_place(|| cluster.migrate(slot, to));
            let moved = charged.elapsed();
            let mut left = Vec::new();
            for policy in &policies {
                left.push(remaining(&store, policy, &key).await);
            }
            // The time that passed for the keys, by the clocks of both nodes.
            let [least, most] = [moved, begin.elapsed()].map(|passed| {
                let passed = u64::try_from(passed.as_micros()).expect("a short test");
                passed.saturating_add_signed(ahead)
            });
            println!("{ahead} µs ahead, {least} to {most} µs later: {left:?} left");
            for left in &left[..2] {
                // Each bucket refills one unit per millisecond.
                let refilled = [least / 1_000, most / 1_000].map(|units| units.min(100_000));
                assert!((refilled[0]..=refilled[1]).contains(left), "{left} not in {refilled:?}");
            }
            assert!(left[2] == 0 || most >= 20_000_000, "the log has {} units", left[2]);
            assert!(left[2] == 50 || least < 20_000_000, "the log has {} units", left[2]);
        }
    }
}

/// The node does not have all slots in the call.
async fn node_reports_keys_of_other_nodes(cluster: &Cluster) {
    if !cluster.node(0).allows_cross_slot() {
        return skip("before Redis 7, no script may use keys of several slots");
    }
    let store = connect(builder(cluster)).await;
    let policy = policy("p", 10);
    let mut ours = keys(&store, is_on(0));
    let (kept, moving) = (ours.next().unwrap(), ours.next().unwrap());
    let other = keys(&store, is_on(1)).next().unwrap();
    // A missing key must be created at the node that the slot moves to.
    let slot = slot(&store, &policy, &moving);
    let migration = cluster.migration(slot, 2);
    let mut batch = Batch::new(1);
    batch.set_cross_slot();
    for key in [&kept, &other, &moving, &kept] {
        let name = store.name_of(&policy, key);
        let line = KeyedCharge::new(&name, &policy, Cost::ONE);
        batch.decide(&[line]).unwrap();
    }
    let args = batch.args(None);
    let mut call: Vec<&[u8]> = vec![b"EVAL", CROSS_SLOT_TEXT.as_bytes(), b"0"];
    call.extend(args.iter().map(Vec::as_slice));
    let answer = cluster.node(0).connect().unwrap().cmd(&call);
    let Value::Text(reply) = answer else { panic!("{answer:?}") };
    let rows = batch.parse(&reply).unwrap().rows;
    let is_admitted =
        |row: &ScriptAnswer| matches!(row, ScriptAnswer::Verdict(it, _) if it.is_admitted());
    assert!(is_admitted(&rows[0]) && is_admitted(&rows[3]), "{rows:?}");
    assert_eq!(rows[1..3], [ScriptAnswer::Elsewhere, ScriptAnswer::Elsewhere]);
    migration.finish();
    for (key, left) in [(&kept, 8), (&other, 10), (&moving, 10)] {
        assert_eq!(remaining(&store, &policy, key).await, left);
    }
    move_back(cluster, slot);
}

/// The scenes use the same slots.
fn move_back(cluster: &Cluster, slot: u16) {
    tokio::task::block_in_place(|| cluster.migrate(slot, 0));
}

/// While a request's keys are split over two nodes, neither can decide it.
async fn split_keys_delay_a_request(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let key = keys(&store, is_on(0)).next().unwrap();
    let policies = [policy("one", 10), policy("two", 20)];
    let charges = policies.each_ref().map(|policy| Charge::new(policy, &key, Cost::ONE));
    assert!(store.decide(&charges).await.unwrap().is_admitted());

    let slot = slot(&store, &policies[0], &key);
    let migration = cluster.migration(slot, 1);
    assert_eq!(migration.move_keys(1), 1);
    let refused = || store.stats().refused;
    let before = refused();
    let waiting = tokio::spawn(store.decide(&charges));
    tokio::task::block_in_place(|| {
        // Before Redis 7 the two nodes redirect the request to each other: two rejections per
        // round.
        until("it is refused", Duration::from_secs(5), || (refused() > before + 12).then_some(()));
        assert!(!waiting.is_finished());
        assert_eq!(migration.move_keys(1), 1);
    });
    assert!(waiting.await.unwrap().unwrap().is_admitted());
    // From now on the request is redirected immediately.
    let before = refused();
    assert!(store.decide(&charges).await.unwrap().is_admitted());
    assert_eq!(refused(), before + 1, "a single ASK redirection");
    tokio::task::block_in_place(|| migration.finish());
    assert!(store.decide(&charges).await.unwrap().is_admitted());
    let before = refused();
    assert!(store.decide(&charges).await.unwrap().is_admitted());
    assert_eq!(refused(), before, "the slot map is up to date");
    for (policy, limit) in policies.iter().zip([10, 20]) {
        assert_eq!(remaining(&store, policy, &key).await, limit - 5);
    }
    move_back(cluster, slot);
}

/// The old node redirects requests for keys that it lacks, and the new node only accepts one
/// missing key per request.
async fn missing_keys_wait_for_moved_slot(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let key = keys(&store, is_on(0)).next().unwrap();
    let policies = [policy("one", 10), policy("two", 20)];
    let charges = policies.each_ref().map(|policy| Charge::new(policy, &key, Cost::ONE));
    let slot = slot(&store, &policies[0], &key);
    let migration = cluster.migration(slot, 1);
    let refused = || store.stats().refused;
    let waiting = tokio::spawn(store.decide(&charges));
    tokio::task::block_in_place(|| {
        until("it is refused", Duration::from_secs(5), || (refused() > 12).then_some(()));
        assert!(!waiting.is_finished());
        migration.finish();
    });
    assert!(waiting.await.unwrap().unwrap().is_admitted());
    for (policy, limit) in policies.iter().zip([10, 20]) {
        assert_eq!(remaining(&store, policy, &key).await, limit - 1);
    }
    move_back(cluster, slot);
}

/// No request waits for another request's keys.
async fn split_keys_split_a_call(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let policy = policy("p", 1_000);
    let first = keys(&store, is_on(0)).next().unwrap();
    let slot = slot(&store, &policy, &first);
    let neighbours: Vec<_> = keys(&store, |other| other == slot).take(3).collect();
    for key in &neighbours {
        assert!(store.charge(&policy, key, Cost::ONE).await.unwrap().is_admitted());
    }
    let migration = cluster.migration(slot, 1);
    assert_eq!(migration.move_keys(1), 1);
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..300 {
        requests.spawn(store.charge(&policy, &neighbours[n % 3], Cost::ONE));
    }
    for verdict in requests.join_all().await {
        assert!(verdict.unwrap().is_admitted());
    }
    assert!(store.stats().requests > store.stats().calls, "no requests shared a call");
    tokio::task::block_in_place(|| {
        while migration.move_keys(1) > 0 {}
        migration.finish();
    });
    for key in &neighbours {
        assert_eq!(remaining(&store, &policy, key).await, 1_000 - 101);
    }
    move_back(cluster, slot);
}

/// The node that the keys move to has never seen the script.
async fn new_node_loads_the_script(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let (policy, key) = (policy("p", 10), keys(&store, is_on(0)).next().unwrap());
    let migration = cluster.migration(slot(&store, &policy, &key), 1);
    cluster.node(1).cmd(&["SCRIPT", "FLUSH"]);
    // A check of the node may have loaded the script before.
    let before = cluster.node(1).calls("eval");
    // No key exists yet, so the other node answers ASK immediately.
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    assert!(cluster.node(1).calls("eval") > before);
    tokio::task::block_in_place(|| migration.finish());
    assert_eq!(remaining(&store, &policy, &key).await, 9);
}
