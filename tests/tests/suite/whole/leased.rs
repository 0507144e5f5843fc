//! Replicas that hold units of one quota, and what becomes of those.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_replicas::{Replica, Set};

use super::support::start;
use crate::client::Client;

const LIMIT: u64 = 4_000;
/// How long a lease lasts. If the machine stands still for longer, units lapse that no replica has
/// spent. So no test here expects a least number of admitted requests: tests of the Redis store, which
/// move the clock, check how many units leases may leave.
const TTL: Duration = Duration::from_secs(1);

fn set() -> Set {
    start(&["--limit", &LIMIT.to_string(), "--window", "1h", "--lease", "1/10"])
}

/// Sends up to `most` requests to one replica over eight connections, until the replica denies
/// one. Returns how many were allowed.
async fn spend(replica: &Replica, most: u64) -> u64 {
    spend_over(8, replica, most).await
}

async fn spend_over(connections: u64, replica: &Replica, most: u64) -> u64 {
    let client = Client::new(None, replica.address());
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let client = client.clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            while admitted < most.div_ceil(connections) {
                match client.get("/items", &[]).await.status.as_u16() {
                    200 => admitted += 1,
                    429 => break,
                    status => panic!("{status}"),
                }
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_on_one_busy_key_admit_no_more_than_there_is() {
    let set = set();
    let [a, b, c] = &set.replicas[..] else { panic!("three replicas") };
    let spend = |replica| spend_over(2, replica, LIMIT);
    let (a, b, c) = tokio::join!(spend(a), spend(b), spend(c));
    let admitted = a + b + c;
    assert!(admitted <= LIMIT, "{admitted}");
    // Without leases, at most the two requests of a replica share a call.
    let mut redis = tollgate_test_servers::Client::tcp(set.redis.address()).unwrap();
    let (calls, _) = redis.stats("evalsha");
    assert!(calls < admitted / 2, "{calls} calls for {admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_replica_held_is_never_spent_twice() {
    let mut set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    // With a block in its hands.
    set.replicas[0].process.kill();
    admitted += spend(&set.replicas[1], LIMIT).await;
    tokio::time::sleep(TTL).await;
    set.replicas[0].restart().unwrap();
    for replica in &set.replicas {
        admitted += spend(replica, LIMIT).await;
    }
    assert!(admitted <= LIMIT, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stood_still_spends_nothing_that_has_lapsed() {
    let set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    set.replicas[0].process.freeze();
    // Past the end of what it holds, which lapses; the others take all there is.
    tokio::time::sleep(TTL + TTL / 4).await;
    admitted += spend(&set.replicas[1], LIMIT).await;
    admitted += spend(&set.replicas[2], LIMIT).await;
    set.replicas[0].process.thaw();
    admitted += spend(&set.replicas[0], LIMIT).await;
    assert!(admitted <= LIMIT, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_replica_spends_no_unit_twice() {
    let mut set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    set.replicas[0].process.terminate();
    assert!(set.replicas[0].process.wait(Duration::from_secs(20)).is_some());
    admitted += spend(&set.replicas[1], LIMIT).await;
    assert!(admitted <= LIMIT, "{admitted}");
}
