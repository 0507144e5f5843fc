//! Sentinels: who they name, and what becomes of a master that dies.

use tollgate_test_servers::{Sentinels, Value};

#[test]
fn sentinels_replace_a_master_that_died_and_welcome_it_back_as_a_replica() {
    let sentinels =
        Sentinels::builder().replicas(2).each_node(|node| node.password("secret")).start();
    assert_eq!(sentinels.master(), 0);
    assert!(sentinels.url().starts_with("redis-sentinel://:secret@127.0.0.1:"));
    assert!(sentinels.url().contains("?sentinelServiceName=mymaster&node=127.0.0.1:"));
    let master = sentinels.node(0);
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
fn a_master_that_is_only_stopped_is_replaced_too() {
    let sentinels = Sentinels::start();
    sentinels.node(0).stop();
    assert_eq!(sentinels.wait_for_failover(0), 1);
    // It wakes up and still thinks that it is the master, until a sentinel tells it.
    sentinels.node(0).cont();
    sentinels.wait_until_follows(0);
}
