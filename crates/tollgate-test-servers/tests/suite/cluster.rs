//! Cluster startup, slot migrations, and failovers.

use std::time::{Duration, Instant};

use tollgate_test_servers::{Client, Cluster, Value};

#[test]
fn default_cluster_layout() {
    let start = Instant::now();
    let cluster = Cluster::start();
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(cluster.slots(), [(0..=5460, 0), (5461..=10921, 1), (10922..=16383, 2)]);
    for master in 0..3 {
        assert_eq!(cluster.replicas_of(master), [master + 3]);
    }
    assert_eq!(cluster.slot_of("{tag}:a"), cluster.slot_of("{tag}:b"));
    assert!(cluster.url().starts_with("redis-cluster://127.0.0.1:"));
    assert_eq!(cluster.url().matches("node=127.0.0.1:").count(), 5);

    let slot = cluster.slot_of("key");
    let master = cluster.master_of(slot);
    assert_eq!(cluster.node(master).cmd(&["SET", "key", "1"]).text(), "OK");
    let moved = cluster.node((master + 1) % 3).cmd(&["GET", "key"]);
    let address = cluster.node(master).address();
    assert_eq!(moved.error(), Some(format!("MOVED {slot} {address}").as_str()));
    // Every node tells clients about all masters.
    for node in cluster.nodes() {
        let slots = node.cmd(&["CLUSTER", "SLOTS"]);
        assert_eq!(slots.list().len(), 3);
        assert!(slots.list().iter().all(|range| range.list()[2].list()[0].text() == "127.0.0.1"));
    }
}

#[test]
fn slot_migrates_step_by_step() {
    let cluster = Cluster::builder().masters(2).replicas(0).start();
    let slot = cluster.slot_of("{tag}");
    let from = cluster.master_of(slot);
    let to = 1 - from;
    let [old, new] = [cluster.node(from), cluster.node(to)];
    let keys: Vec<_> = (0..5).map(|key| format!("{{tag}}:{key}")).collect();
    for key in &keys {
        old.cmd(&["SET", key, "1", "PX", "100000"]);
    }
    let refusal = |value: Value| value.error().map(|error| error[..3].to_owned());

    let migration = cluster.migration(slot, to);
    assert_eq!(old.cmd(&["INCR", &keys[0]]), Value::Number(2));
    let ask = old.cmd(&["INCR", "{tag}:new"]);
    assert_eq!(ask.error(), Some(format!("ASK {slot} {}", new.address()).as_str()));
    assert_eq!(refusal(new.cmd(&["INCR", "{tag}:new"])), Some("MOV".to_owned()));
    let mut asking = Client::tcp(new.address()).expect("a server");
    asking.cmd(&["ASKING"]);
    assert_eq!(asking.cmd(&["INCR", "{tag}:new"]), Value::Number(1));

    assert_eq!(migration.move_keys(2), 2);
    let some = ["MGET", &keys[0], &keys[1], &keys[2], &keys[3], &keys[4]];
    // Redis 7 replies TRYAGAIN here; earlier versions reply ASK.
    let both = refusal(old.cmd(&some)).expect("no node has all of them");
    assert!(["TRY", "ASK"].contains(&&*both), "{both}");
    asking.cmd(&["ASKING"]);
    assert_eq!(refusal(asking.cmd(&some)), Some("TRY".to_owned()));
    while migration.move_keys(2) > 0 {}
    assert_eq!(migration.from(), from);
    migration.finish();

    assert_eq!(cluster.master_of(slot), to);
    assert_eq!(refusal(old.cmd(&["GET", &keys[0]])), Some("MOV".to_owned()));
    assert_eq!(new.cmd(&["GET", &keys[0]]).text(), "2");
    assert!(new.cmd(&["PTTL", &keys[4]]).number() > 50_000);
    cluster.migrate(slot, from);
    assert_eq!(old.cmd(&["GET", &keys[0]]).text(), "2");
    cluster.wait_until_ok();
}

#[test]
fn replica_takes_over() {
    let cluster = Cluster::builder().each_node(|node| node.password("secret")).start();
    cluster.failover(4);
    assert_eq!(cluster.slots(), [(0..=5460, 0), (5461..=10921, 4), (10922..=16383, 2)]);
    assert_eq!(cluster.replicas_of(4), [1]);

    // Killing a master loses the writes that have not reached its replica.
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let key = keys.into_iter().find(|key| cluster.master_of(cluster.slot_of(key)) == 0);
    let key = key.expect("no key belongs to node 0");
    let slot = cluster.slot_of(key);
    // WAIT only covers writes made on its own connection.
    let mut master = cluster.node(0).connect().expect("a connection");
    master.cmd(&["SET", key, "old"]);
    assert_eq!(master.cmd(&["WAIT", "1", "5000"]), Value::Number(1));
    cluster.node(3).stop();
    cluster.node(0).cmd(&["CLIENT", "KILL", "TYPE", "REPLICA"]);
    cluster.node(0).cmd(&["SET", key, "new"]);
    cluster.node(0).kill();
    cluster.node(3).cont();
    assert_eq!(cluster.wait_for_failover(slot, 0), 3);
    assert_eq!(cluster.node(3).cmd(&["GET", key]).text(), "old");

    cluster.node(0).restart();
    cluster.wait_until_ok();
    assert_eq!(cluster.replicas_of(3), [0]);
    assert_eq!(cluster.node(0).info("role"), "slave");
    // Migrations also work with a password.
    cluster.migrate(slot, 2);
    assert_eq!(cluster.node(2).cmd(&["GET", key]).text(), "old");
}
