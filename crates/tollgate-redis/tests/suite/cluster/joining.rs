//! Clusters that require a password, announce names, or grow.

use std::time::Duration;

use tollgate_core::{Cost, Key, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Cluster, Redis, skip, until};

use super::{
    PATIENCE, builder, builder_at, connect, is_on, keys, masters, policy, remaining, slot,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_node_gets_the_password() {
    let cluster = Cluster::builder().replicas(0).each_node(|node| node.password("secret")).start();
    let store = connect(builder(&cluster)).await;
    let policy = policy("p", 10);
    for node in 0..3 {
        let key = keys(&store, is_on(node)).next().unwrap();
        assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    }
    assert!(!format!("{store:?}").contains("secret"));
}

/// A certificate is valid for names, so the store must not use addresses instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn announced_names_are_used() {
    if !Redis::start().can_announce_names() {
        return skip("before Redis 7, nodes announce no names");
    }
    let cluster = Cluster::builder()
        .replicas(0)
        .each_node(|node| {
            node.set("cluster-announce-hostname", "localhost")
                .set("cluster-preferred-endpoint-type", "hostname")
        })
        .start();
    let named = |node: &Redis| {
        let slots = node.cmd(&["CLUSTER", "SLOTS"]);
        slots.list().iter().all(|part| part.list()[2].list()[0].text() == "localhost")
    };
    tokio::task::block_in_place(|| {
        until("all nodes know all names", Duration::from_secs(10), || {
            cluster.nodes().iter().all(named).then_some(())
        });
    });
    let store = connect(builder(&cluster)).await;
    let policy = policy("p", 10);
    for node in 0..3 {
        let key = keys(&store, is_on(node)).next().unwrap();
        assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    }
    // Connections to the URL's addresses and to the slot map's names.
    let more = || (store.stats().connections > 3).then_some(());
    tokio::task::block_in_place(|| until("both are connected", Duration::from_secs(5), more));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_connect_after_promotion() {
    let cluster = Cluster::start();
    // The default URL names all nodes, so use one that only names a master.
    let store =
        connect(builder_at(&format!("redis-cluster://{}", cluster.node(0).address()))).await;
    let key = keys(&store, is_on(0)).next().unwrap();
    let policy = policy("p", 10);
    assert_eq!(store.stats().connections, 3);
    let replica = cluster.replicas_of(0)[0];
    tokio::task::block_in_place(|| cluster.failover(replica));
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    // There may be more than one, because the old master may close its connection.
    let more = || (store.stats().connections > 3).then_some(());
    tokio::task::block_in_place(|| until("the replica is connected", PATIENCE, more));
}

/// The new node is in no slot map until it has a slot, but gets requests for keys before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn new_node_is_found_by_redirection() {
    let cluster = masters();
    let store = connect(builder(&cluster)).await;
    let (policy, key) = (policy("p", 10), keys(&store, is_on(0)).next().unwrap());
    let slot = slot(&store, &policy, &key).to_string();
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());

    let newcomer = Redis::builder().set("cluster-enabled", "yes").start();
    let (from, address) = (cluster.node(0), newcomer.address());
    let [new, old] = [&newcomer, from].map(|node| node.cmd(&["CLUSTER", "MYID"]));
    tokio::task::block_in_place(|| {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        from.cmd(&["CLUSTER", "MEET", &ip, &port]);
        until("they have met", Duration::from_secs(10), || {
            let know = |node: &Redis, other: &str| {
                let nodes = node.cmd(&["CLUSTER", "NODES"]);
                let knows = |line: &str| line.starts_with(other) && !line.contains("handshake");
                nodes.text().lines().any(knows)
            };
            let is_ok = newcomer.cmd(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok");
            (know(from, new.text()) && know(&newcomer, old.text()) && is_ok).then_some(())
        });
        newcomer.cmd(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", old.text()]);
        from.cmd(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", new.text()]);
        let name = store.name_of(&policy, &key);
        let name = std::str::from_utf8(&name).unwrap();
        let moved = from.cmd(&["MIGRATE", &ip, &port, name, "0", "5000"]);
        assert_eq!(moved.error(), None);
    });
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    for node in [&newcomer, from] {
        assert_eq!(node.cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", new.text()]).error(), None);
    }
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    assert_eq!(remaining(&store, &policy, &key).await, 7);
}

/// The URL does not show whether the server belongs to a Cluster.
#[tokio::test]
async fn standalone_server_fails_before_timeout() {
    let server = Redis::start();
    let url = server.url().replacen("redis", "redis-cluster", 1);
    let builder = RedisStore::builder(&url).unwrap().timeout(Duration::from_millis(200));
    let store = builder.connect().unwrap();
    let error = store.charge(&policy("p", 10), &Key::GLOBAL, Cost::ONE).await.expect_err("no map");
    assert!(!error.may_have_charged(), "{error}");
}
