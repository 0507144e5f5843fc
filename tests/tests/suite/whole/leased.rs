//! Replicas that lease units from a shared quota.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_replicas::{Replica, Set};

use super::support::start;
use tollgate_test_servers::http::Client;

const LIMIT: u64 = 4_000;
/// The leases' time to live. If the machine stalls for longer, unspent units expire. Therefore no
/// test here checks a minimum of allowed requests. The Redis store's tests check that with a manual
/// clock.
const TTL: Duration = Duration::from_secs(1);

fn set() -> Set {
    start(&["--limit", &LIMIT.to_string(), "--window", "1h", "--lease", "1/10"])
}

/// Sends up to `most` requests to a replica over eight connections, until it denies a request.
/// Returns the number of allowed requests.
async fn spend(replica: &Replica, most: u64) -> u64 {
    spend_over(8, replica, most).await
}

async fn spend_over(connections: u64, replica: &Replica, most: u64) -> u64 {
    let client = Client::new(replica.address());
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let client = client.clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            while admitted < most.div_ceil(connections) {
                match client.get("/items").await.status.as_u16() {
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
async fn leases_never_exceed_the_limit() {
    let set = set();
    let [a, b, c] = &set.replicas[..] else { panic!("three replicas") };
    let spend = |replica| spend_over(2, replica, LIMIT);
    let (a, b, c) = tokio::join!(spend(a), spend(b), spend(c));
    let admitted = a + b + c;
    assert!(admitted <= LIMIT, "{admitted}");
    // Without leases, a call covers at most a replica's two concurrent requests.
    let mut redis = tollgate_test_servers::Client::tcp(set.redis.address()).unwrap();
    let (calls, _) = redis.stats("evalsha");
    assert!(calls < admitted / 2, "{calls} calls for {admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replica_spends_no_unit_twice() {
    let mut set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    // The replica still holds a lease.
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
async fn frozen_replica_spends_no_expired_lease() {
    let set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    set.replicas[0].process.freeze();
    // The frozen replica's lease expires, and the other replicas use the entire quota.
    tokio::time::sleep(TTL + TTL / 4).await;
    admitted += spend(&set.replicas[1], LIMIT).await;
    admitted += spend(&set.replicas[2], LIMIT).await;
    set.replicas[0].process.thaw();
    admitted += spend(&set.replicas[0], LIMIT).await;
    assert!(admitted <= LIMIT, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_replica_spends_no_unit_twice() {
    let mut set = set();
    let mut admitted = spend(&set.replicas[0], 600).await;
    set.replicas[0].process.terminate();
    assert!(set.replicas[0].process.wait(Duration::from_secs(20)).is_some());
    admitted += spend(&set.replicas[1], LIMIT).await;
    assert!(admitted <= LIMIT, "{admitted}");
}
