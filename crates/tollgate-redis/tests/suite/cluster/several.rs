//! Requests with keys in several slots.

mod failing;

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{
    Charge, Cost, Key, Lease, Outcome, Policy, Quota, ReceiptId, Settlement, Source, Store,
    StoreError, StoreExt, Verdict,
};
use tollgate_test_servers::{Cluster, until};

use super::{PATIENCE, builder, connect, is_on, keys, masters, policy, quota, remaining};

with_one_cluster! {
    keys_in_several_slots:
    denial_refunds_and_reports_remaining
    cross_slot_denials_are_refunded
    cross_slot_leases_never_overspend
    machine_copies_refund_own_charges
    cross_slot_denials_are_not_cached
    receipts_settle_in_their_slots
    queue_is_charged_last
    queues_in_two_slots_are_refused
    shadow_affects_no_request
}

/// In 400 concurrent requests, the addresses' quotas add up to more than the global quota.
async fn cross_slot_denials_are_refunded(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let pairs = [
        (policy("global", 100), policy("address", 20)),
        (
            Policy::sliding_window_log("global log", quota(100)).unwrap(),
            Policy::sliding_window_log("address log", quota(20)).unwrap(),
        ),
        (
            Policy::sliding_window_counter("global counter", quota(100)).unwrap(),
            Policy::fixed_window_counter("address of counter", quota(20)).unwrap(),
        ),
    ];
    let addresses: Vec<_> = (0..8).map(|n| Key::from(format!("10.0.0.{n}").as_str())).collect();
    for (global, address) in pairs {
        let mut requests = JoinSet::new();
        for n in 0..400 {
            let (store, global, address) = (store.clone(), global.clone(), address.clone());
            let key = addresses[n % addresses.len()].clone();
            requests.spawn(async move {
                let charges = [
                    Charge::new(&global, &Key::GLOBAL, Cost::ONE),
                    Charge::new(&address, &key, Cost::ONE),
                ];
                let verdict = store.decide(&charges).await.unwrap();
                (n, verdict)
            });
        }
        let verdicts = requests.join_all().await;
        let mut admitted = [0; 8];
        for (n, verdict) in &verdicts {
            let denied = verdict.decisions().iter().any(|decision| decision.denies());
            assert_eq!(verdict.is_admitted(), !denied, "{verdict:?}");
            admitted[n % 8] += u64::from(verdict.is_admitted());
        }
        let all: u64 = admitted.iter().sum();
        assert!(all <= 100, "{global}: {admitted:?}");
        // All denied requests were refunded, on every node.
        assert_eq!(remaining(&store, &global, &Key::GLOBAL).await, 100 - all, "{global}");
        for (key, admitted) in addresses.iter().zip(admitted) {
            assert_eq!(remaining(&store, &address, key).await, 20 - admitted, "{address}");
        }
        // Requests that were denied only until a refund are now allowed, to the last unit.
        for n in 0..200 {
            let key = &addresses[n % addresses.len()];
            let charges = [
                Charge::new(&global, &Key::GLOBAL, Cost::ONE),
                Charge::new(&address, key, Cost::ONE),
            ];
            store.decide(&charges).await.unwrap();
        }
        assert_eq!(remaining(&store, &global, &Key::GLOBAL).await, 0, "{global}");
    }
}

/// Without blocks each slot is called in turn. With blocks a replica answers immediately.
async fn cross_slot_leases_never_overspend(cluster: &Cluster) {
    let builder = builder(cluster);
    let (store, other) = (connect(builder.clone()).await, connect(builder).await);
    let leased = |name| policy(name, 4_000).with_lease(Lease::of(1, 10)).unwrap();
    let (global, address) = (leased("global"), leased("address"));
    let key = keys(&store, is_on(0)).next().unwrap();
    let everybody = keys(&store, is_on(2)).next().unwrap();
    let charges =
        [Charge::new(&global, &everybody, Cost::ONE), Charge::new(&address, &key, Cost::ONE)];
    let (mut admitted, mut leased) = (0, 0);
    for n in 0..6_000 {
        let store = if n % 2 == 0 { &store } else { &other };
        let verdict = store.decide(&charges).await.unwrap();
        admitted += u64::from(verdict.is_admitted());
        leased += u64::from(verdict.source() == Source::Lease);
        if n % 8 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(admitted <= 4_000 && admitted > 3_000 && leased > 1_000, "{admitted}, {leased}");
}

async fn denial_refunds_and_reports_remaining(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let (global, address) = (policy("global", 3), policy("address", 10));
    let (wide, key) = (policy("wide", 50), Key::from("10.0.0.1"));
    let network = Key::from("10.0.0.0/24");
    let charges = [
        Charge::new(&global, &Key::GLOBAL, Cost::new(2)),
        Charge::new(&address, &key, Cost::ONE),
        Charge::new(&wide, &network, Cost::ONE),
    ];
    let verdict = store.decide(&charges).await.unwrap();
    let left: Vec<_> = verdict.decisions().iter().map(|decision| decision.remaining).collect();
    assert!(verdict.is_admitted());
    assert_eq!(left, [1, 9, 49]);
    assert_eq!(verdict.receipts(&charges, || ReceiptId(1)).count(), 3);

    let verdict = store.decide(&charges).await.unwrap();
    let [all, one, some] = verdict.decisions() else { panic!("{verdict:?}") };
    assert!(!verdict.is_admitted());
    assert!(matches!(all.outcome, Outcome::Deny { .. }));
    assert_eq!((one.outcome, one.remaining), (Outcome::WouldAllow, 9));
    assert_eq!((some.outcome, some.remaining), (Outcome::WouldAllow, 49));
    assert_eq!(verdict.receipts(&charges, || ReceiptId(1)).count(), 0);
    assert_eq!(remaining(&store, &address, &key).await, 9);

    // Receipts expire soon, because many denials must not fill the memory.
    for node in cluster.nodes() {
        for name in node.cmd(&["KEYS", "*#*"]).list() {
            let left = node.cmd(&["PTTL", name.text()]).number();
            // A key lives up to two seconds longer than its state.
            assert!(left <= 7_000, "{name:?} lives for {left} ms");
        }
    }

    // The global key denied recently, so it is called first, and no other key is charged and
    // refunded.
    let writes = || -> u64 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| node.calls("set") + node.calls("del")).sum()
    };
    let calls = || -> u64 { cluster.nodes().iter().map(|node| node.calls("evalsha")).sum() };
    let before = (calls(), writes());
    let verdict = store.decide(&charges).await.unwrap();
    assert!(matches!(verdict.decisions()[0].outcome, Outcome::Deny { .. }));
    assert_eq!(verdict.decisions()[1].outcome, Outcome::Undecided);
    assert_eq!((calls(), writes()), (before.0 + 1, before.1));

    // The narrowest remaining quota is next, so its denial affects no other key.
    let before = calls();
    let denied = Charge::new(&address, &key, Cost::new(10));
    let verdict = store.decide(&[denied, charges[2]]).await.unwrap();
    assert!(matches!(verdict.decisions()[0].outcome, Outcome::Deny { .. }));
    assert_eq!(calls() - before, 1);
}

/// Machine copies number their receipts equally, but each copy settles its own receipts.
async fn machine_copies_refund_own_charges(cluster: &Cluster) {
    let builder = builder(cluster).seed(7);
    let copies = [connect(builder.clone()).await, connect(builder).await];
    let (global, address) = (policy("global", 20), policy("address", 10));
    let key = keys(&copies[0], is_on(0)).next().unwrap();
    // Each store gets each key only once. Otherwise it would first call the key that denied.
    let everybody: Vec<_> = keys(&copies[0], is_on(2)).take(10).collect();
    for n in 0..20 {
        let all = Charge::new(&global, &everybody[n / 2], Cost::new(20));
        assert_eq!(copies[0].decide(&[all]).await.unwrap().is_admitted(), n % 2 == 0);
        let charges = [all, Charge::new(&address, &key, Cost::ONE)];
        // The address is charged, and then refunded, because the other policy denies.
        let verdict = copies[n % 2].decide(&charges).await.unwrap();
        assert!(!verdict.is_admitted());
        assert_eq!(verdict.decisions()[1].outcome, Outcome::WouldAllow, "after {n}");
        assert_eq!(verdict.decisions()[1].remaining, 10, "after {n}");
    }
}

/// Refunded units may admit the next request, so such denials are not remembered.
async fn cross_slot_denials_are_not_cached(cluster: &Cluster) {
    let store = connect(builder(cluster).deny_cache(PATIENCE)).await;
    let (global, address, alone) = (policy("global", 1), policy("address", 14), policy("alone", 1));
    let key = Key::from("10.0.0.1");
    let both =
        [Charge::new(&global, &Key::GLOBAL, Cost::ONE), Charge::new(&address, &key, Cost::new(5))];
    for n in 0..3 {
        assert_eq!(store.decide(&both).await.unwrap().is_admitted(), n == 0);
        assert_eq!(store.charge(&alone, &key, Cost::ONE).await.unwrap().is_admitted(), n == 0);
    }
    // The hit is for the single-slot policy, which the cache may remember.
    assert_eq!(store.stats().deny_cache_hits, 1);
    // A request may be denied while another holds five units that it will refund. It could be
    // allowed a moment later.
    for _ in 0..3 {
        assert!(!store.charge(&address, &key, Cost::new(10)).await.unwrap().is_admitted());
    }
    assert_eq!(store.stats().deny_cache_hits, 1);
}

async fn receipts_settle_in_their_slots(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let (global, address) = (policy("global", 100), policy("address", 10));
    let key = Key::from("10.0.0.1");
    let charges = [
        Charge::new(&global, &Key::GLOBAL, Cost::new(5)),
        Charge::new(&address, &key, Cost::new(5)),
    ];
    let verdict = store.decide(&charges).await.unwrap();
    let mut ids = (1..).map(ReceiptId);
    for receipt in verdict.receipts(&charges, || ids.next().unwrap()) {
        let settled = store.settle(&receipt, Cost::new(2)).await.unwrap();
        assert_eq!(settled, Settlement::Returned { units: 3 });
        assert_eq!(store.settle(&receipt, Cost::ZERO).await.unwrap(), Settlement::Repeated);
    }
    assert_eq!(remaining(&store, &global, &Key::GLOBAL).await, 98);
    assert_eq!(remaining(&store, &address, &key).await, 8);
}

async fn queue_is_charged_last(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let queue = Policy::leaky_bucket("queue", Quota::per_hour(5)).unwrap();
    let (global, key) = (policy("global", 2), Key::from("upload"));
    let charges =
        [Charge::new(&queue, &key, Cost::ONE), Charge::new(&global, &Key::GLOBAL, Cost::ONE)];
    let first = store.decide(&charges).await.unwrap();
    let second = store.decide(&charges).await.unwrap();
    assert_eq!(first.delay().get(), 0);
    assert!(second.delay().get() > 700_000_000, "{second:?}");
    for _ in 0..5 {
        assert!(!store.decide(&charges).await.unwrap().is_admitted());
    }
    assert_eq!(remaining(&store, &queue, &key).await, 3);
}

/// Two nodes cannot agree on the instant at which a request leaves. With the same key, both queues
/// share a slot.
async fn queues_in_two_slots_are_refused(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let log = |name| {
        let policy = Policy::sliding_window_log(name, Quota::per_hour(1)).unwrap();
        policy.with_queue(Duration::from_secs(7_200)).unwrap()
    };
    let (all, each, key) = (log("all"), log("each"), Key::from("upload"));
    let two = |other| [Charge::new(&all, &key, Cost::ONE), Charge::new(&each, other, Cost::ONE)];
    let error = store.decide(&two(&Key::GLOBAL)).await.unwrap_err();
    assert!(error.to_string().contains("give both policies the same key"), "{error}");
    assert_eq!(remaining(&store, &all, &key).await, 1);
    store.decide(&two(&key)).await.unwrap();
    let later = store.decide(&two(&key)).await.unwrap();
    assert!(later.delay().get() > 3_500_000_000, "{later:?}");
}

/// Long enough for healthy nodes on a busy machine, and short enough to wait for a failed node.
const SHORT: Duration = Duration::from_millis(1_500);

/// A shadow policy neither denies requests nor is charged for requests that other policies deny,
/// and its node may be down.
async fn shadow_affects_no_request(cluster: &Cluster) {
    let store = connect(builder(cluster).timeout(SHORT)).await;
    let (enforced, shadow) = (policy("enforced", 3), policy("shadow", 2));
    let here = keys(&store, is_on(0)).next().unwrap();
    let there = keys(&store, is_on(1)).next().unwrap();
    let charges = [
        Charge::new(&shadow, &there, Cost::ONE).shadow(),
        Charge::new(&enforced, &here, Cost::ONE),
    ];
    for n in 0..5 {
        let verdict = store.decide(&charges).await.unwrap();
        assert_eq!(verdict.is_admitted(), n < 3, "request {n}");
    }
    assert_eq!(remaining(&store, &shadow, &there).await, 0);

    cluster.node(1).stop();
    let enforced = policy("another", 3);
    let charges = [charges[0], Charge::new(&enforced, &here, Cost::ONE)];
    let verdict = store.decide(&charges).await.unwrap();
    assert!(verdict.is_admitted());
    assert_eq!(verdict.decisions()[0].outcome, Outcome::Undecided);
    assert_eq!(verdict.decisions()[1].remaining, 2);
    cluster.node(1).cont();
}
