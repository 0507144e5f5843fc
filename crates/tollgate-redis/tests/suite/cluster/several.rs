//! Requests with keys in several slots.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::{
    Charge, Cost, Key, Lease, Outcome, Policy, Quota, ReceiptId, Settlement, Source, Store,
    StoreExt,
};
use tollgate_test_servers::until;

use super::{PATIENCE, builder, connect, is_on, keys, masters, policy, quota, remaining};

/// In 400 concurrent requests, the addresses' quotas add up to more than the global quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cross_slot_denials_are_refunded() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cross_slot_leases_never_overspend() {
    let cluster = masters();
    let builder = builder(&cluster);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn denial_refunds_and_reports_remaining() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machine_copies_refund_own_charges() {
    let cluster = masters();
    let builder = builder(&cluster).seed(7);
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
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cross_slot_denials_are_not_cached() {
    let cluster = masters();
    let store = connect(builder(&cluster).deny_cache(PATIENCE)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn receipts_settle_in_their_slots() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queue_is_charged_last() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queues_in_two_slots_are_refused() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shadow_affects_no_request() {
    let cluster = masters();
    let store = connect(builder(&cluster).timeout(SHORT)).await;
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

/// The call for the first shadow policy is lost, and the second policy's node does not decide
/// either.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_shadow_call_may_have_charged() {
    let cluster = masters();
    let store = connect(builder(&cluster).timeout(SHORT)).await;
    let (lost, unasked) = (policy("lost", 3), policy("unasked", 3));
    let [here, there] = [0, 1].map(|node| keys(&store, is_on(node)).next().unwrap());
    let charges = [
        Charge::new(&lost, &here, Cost::ONE).shadow(),
        Charge::new(&unasked, &there, Cost::ONE).shadow(),
    ];
    assert!(store.decide(&charges).await.unwrap().is_admitted());
    // On a busy machine there may be time left for the second node, so it is stopped too.
    for node in [0, 1] {
        cluster.node(node).stop();
    }
    let error = store.decide(&charges).await.expect_err("no node decides in time");
    assert!(error.may_have_charged(), "{error}");
    for node in [0, 1] {
        cluster.node(node).cont();
    }
}

/// The refund happens whether the node fails or the caller gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_node_refunds_earlier_charges() {
    let cluster = masters();
    // After a timeout a store reconnects, and meanwhile requests may fail immediately. The test's
    // other caller has to wait, so it uses another store.
    let stores = [
        connect(builder(&cluster).timeout(SHORT)).await,
        connect(builder(&cluster).timeout(SHORT)).await,
    ];
    let (narrow, wide) = (policy("narrow", 10), policy("wide", 100));
    let key = |store: &tollgate_redis::RedisStore, node| keys(store, is_on(node)).next().unwrap();
    let here = stores.each_ref().map(|store| key(store, 0));
    let there = stores.each_ref().map(|store| key(store, 1));
    let decide = |n: usize| {
        let charges =
            [Charge::new(&wide, &there[n], Cost::ONE), Charge::new(&narrow, &here[n], Cost::ONE)];
        stores[n].decide(&charges)
    };
    for n in 0..2 {
        assert!(decide(n).await.unwrap().is_admitted());
    }
    let heals = |n: usize, what: &str| {
        let left = || {
            let left = remaining(&stores[n], &narrow, &here[n]);
            tokio::runtime::Handle::current().block_on(left)
        };
        tokio::task::block_in_place(|| {
            until(what, Duration::from_secs(5), || (left() == 9).then_some(()));
        });
    };

    cluster.node(1).stop();
    let left = tokio::time::timeout(Duration::from_millis(20), decide(1)).await;
    assert!(left.is_err(), "the caller must give up first: {left:?}");
    heals(1, "the charge of a caller that left is refunded");

    let error = decide(0).await.expect_err("a node is silent");
    assert!(error.may_have_charged(), "{error}");
    heals(0, "the charge at the first node is refunded");

    cluster.node(1).kill();
    let error = decide(0).await.expect_err("a node is dead");
    heals(0, "the charge before a dead node is refunded");
    assert!(error.is_outage());
}

/// The first slot takes most of the time, and at the second slot newer requests with later
/// deadlines are already waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn second_slot_obeys_the_deadline() {
    let cluster = masters();
    let timeout = Duration::from_secs(4);
    let store = connect(builder(&cluster).timeout(timeout).max_calls(1)).await;
    let (narrow, wide) = (policy("narrow", 10), policy("wide", 100));
    let here = keys(&store, is_on(0)).next().unwrap();
    let there = keys(&store, is_on(1)).next().unwrap();
    let charges = [Charge::new(&wide, &there, Cost::ONE), Charge::new(&narrow, &here, Cost::ONE)];
    assert!(store.decide(&charges).await.unwrap().is_admitted());

    cluster.node(0).stop();
    cluster.node(1).stop();
    let asked = {
        let (store, charges) =
            (store.clone(), charges.map(|it| (it.policy.clone(), it.key.clone())));
        tokio::spawn(async move {
            let charges =
                charges.each_ref().map(|(policy, key)| Charge::new(policy, key, Cost::ONE));
            store.decide(&charges).await
        })
    };
    tokio::time::sleep(timeout / 2).await;
    let mut others = JoinSet::new();
    for _ in 0..4 {
        others.spawn(store.decide(&charges[..1]));
    }
    tokio::time::sleep(timeout / 20).await;
    cluster.node(0).cont();
    let answer = asked.await.unwrap();
    assert!(answer.is_err(), "{answer:?}");
    // With those requests' deadline it would end with them, two seconds later.
    assert!(others.try_join_next().is_none());
    cluster.node(1).cont();
    others.join_all().await;
}

/// A queued charge cannot be refunded if other requests are behind it. Its caller must not be told
/// that it was not charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unrefundable_charge_is_reported() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
    let here = keys(&store, is_on(0)).next().unwrap();
    let there = keys(&store, is_on(1)).next().unwrap();
    let queue = |name, limit| Policy::leaky_bucket(name, Quota::per_hour(limit)).unwrap();
    let (first, second) = (queue("first", 1_000), queue("second", 2_000));
    // The node rejects writes with an immediate error.
    cluster.node(1).cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut requests = JoinSet::new();
    for n in 0..200 {
        let (store, first, second) = (store.clone(), first.clone(), second.clone());
        let (here, there) = (here.clone(), there.clone());
        requests.spawn(async move {
            let charges =
                [Charge::new(&first, &here, Cost::ONE), Charge::new(&second, &there, Cost::ONE)];
            let answer = store.decide(&charges[..1 + n % 2]).await;
            match answer {
                Ok(verdict) => u64::from(verdict.is_admitted()),
                Err(error) => u64::from(error.may_have_charged()),
            }
        });
    }
    let most: u64 = requests.join_all().await.into_iter().sum();
    let used = 1_000 - remaining(&store, &first, &here).await;
    assert!(used <= most, "{used} were charged, and {most} knew that they might be");
}
