//! Sentinel master discovery and failovers.

use tollgate_test_servers::{Sentinels, Value};

#[test]
fn replica_replaces_a_killed_master() {
    let sentinels =
        Sentinels::builder().replicas(2).each_node(|node| node.password("secret")).start();
    assert_eq!(sentinels.master(), 0);
    assert!(sentinels.url().starts_with("redis-sentinel://:secret@127.0.0.1:"));
    assert!(sentinels.url().contains("?sentinelServiceName=mymaster&node=127.0.0.1:"));
    // WAIT only covers writes made on its own connection.
    let mut master = sentinels.node(0).connect().expect("a connection");
    master.cmd(&["SET", "key", "value"]);
    assert_eq!(master.cmd(&["WAIT", "2", "5000"]), Value::Number(2));

    let old = sentinels.kill_master();
    assert_eq!(old, 0);
    let new = sentinels.wait_for_failover(old);
    assert_eq!(sentinels.master(), new);
    assert_eq!(sentinels.node(new).cmd(&["GET", "key"]).text(), "value");
    assert_eq!(sentinels.node(new).cmd(&["INCR", "count"]), Value::Number(1));
}

#[test]
fn stopped_master_becomes_a_replica() {
    let sentinels = Sentinels::start();
    sentinels.node(0).stop();
    assert_eq!(sentinels.wait_for_failover(0), 1);
    // The old master acts as a master until a sentinel demotes it.
    sentinels.node(0).cont();
    sentinels.wait_until_follows(0);
}
