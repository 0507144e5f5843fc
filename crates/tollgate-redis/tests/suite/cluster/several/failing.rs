//! Requests with keys in several slots, of which one fails.

use super::*;

with_one_cluster! {
    one_of_several_slots_fails:
    lost_shadow_call_may_have_charged
    second_slot_obeys_the_deadline
    unrefundable_charge_is_reported
    failed_node_refunds_earlier_charges
}

/// The call for the first shadow policy is lost, and the second policy's node does not decide
/// either.
async fn lost_shadow_call_may_have_charged(cluster: &Cluster) {
    let store = connect(builder(cluster).timeout(SHORT)).await;
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
async fn failed_node_refunds_earlier_charges(cluster: &Cluster) {
    // After a timeout a store reconnects, and meanwhile requests may fail immediately. The test's
    // other caller has to wait, so it uses another store.
    let stores = [
        connect(builder(cluster).timeout(SHORT)).await,
        connect(builder(cluster).timeout(SHORT)).await,
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
async fn second_slot_obeys_the_deadline(cluster: &Cluster) {
    let timeout = Duration::from_secs(4);
    let store = connect(builder(cluster).timeout(timeout).max_calls(1)).await;
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
async fn unrefundable_charge_is_reported(cluster: &Cluster) {
    let store = connect(builder(cluster)).await;
    let here = keys(&store, is_on(0)).next().unwrap();
    let there = keys(&store, is_on(1)).next().unwrap();
    let queue = |name, limit| Policy::leaky_bucket(name, Quota::per_hour(limit)).unwrap();
    let (first, second) = (queue("first", 1_000), queue("second", 2_000));
    // The node rejects writes with an immediate error.
    let set_memory = |most| {
        let answer = cluster.node(1).cmd(&["CONFIG", "SET", "maxmemory", most]);
        assert_eq!(answer.error(), None);
    };
    set_memory("1");
    let mut requests = JoinSet::new();
    for n in 0..200 {
        let (store, first, second) = (store.clone(), first.clone(), second.clone());
        let (here, there) = (here.clone(), there.clone());
        requests.spawn(async move {
            let charges =
                [Charge::new(&first, &here, Cost::ONE), Charge::new(&second, &there, Cost::ONE)];
            store.decide(&charges[..1 + n % 2]).await
        });
    }
    let answers = requests.join_all().await;
    set_memory("0");
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    assert!(
        failed >= 100,
        "only {failed} requests failed, but the second policy cannot be charged"
    );
    let may_be_charged = |answer: &Result<Verdict, StoreError>| match answer {
        Ok(verdict) => verdict.is_admitted(),
        Err(error) => error.may_have_charged(),
    };
    let most = answers.iter().filter(|answer| may_be_charged(answer)).count() as u64;
    let used = 1_000 - remaining(&store, &first, &here).await;
    assert!(used <= most, "{used} were charged, and {most} knew that they might be");
}
