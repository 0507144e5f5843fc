//! The store with exactly the permissions that docs/deployment.md grants.

use tollgate_core::{Cost, Key, Micros, Override, OverrideChange, Policy, Quota, Store, StoreExt};
use tollgate_redis::RedisWarning;
use tollgate_test_servers::{Cluster, Redis};

use crate::cluster::connect;
use crate::support::patient;

const DEPLOYMENT: &str = include_str!("../../../../docs/deployment.md");

/// Returns the documented commands that create the user, in words: the first for every server, and
/// another for Cluster nodes.
fn documented() -> [Vec<&'static str>; 2] {
    let lines = DEPLOYMENT.lines().filter(|line| line.starts_with("ACL SETUSER tollgate "));
    let commands: Vec<_> = lines.map(|line| line.split(' ').collect()).collect();
    commands.try_into().expect("two commands in docs/deployment.md")
}

fn grant(redis: &Redis, command: &[&str]) {
    assert_eq!(redis.cmd(command).error(), None, "{command:?}");
}

/// Creates the documented user, and returns its URL.
pub(crate) fn url(redis: &Redis) -> String {
    grant(redis, &documented()[0]);
    with_user(&redis.url())
}

/// The same for a Cluster. Nodes do not tell each other about users.
fn cluster_url(cluster: &Cluster) -> String {
    for node in cluster.nodes() {
        documented().iter().for_each(|command| grant(node, command));
    }
    with_user(&cluster.url())
}

fn with_user(url: &str) -> String {
    url.replacen("://", "://tollgate:PASSWORD@", 1)
}

fn policy() -> Policy {
    Policy::fixed_window_counter("p", Quota::per_day(10)).expect("builds")
}

/// The store tries each of the script's commands when it connects, and warns about missing
/// permissions.
#[tokio::test(flavor = "multi_thread")]
async fn documented_rights_suffice_for_a_server() {
    let redis = Redis::builder().set("maxmemory-policy", "noeviction").start();
    let store = connect(patient(&url(&redis))).await;
    let report = store.reports().remove(0);
    assert_eq!(report.warnings, []);
    assert!(report.clock_ahead.is_some() && report.maxmemory_policy.is_some(), "{report:?}");
    assert!(store.charge(&policy(), &Key::GLOBAL, Cost::ONE).await.unwrap().is_admitted());
    let overrides = store.overrides().expect("overrides");
    let until = overrides.now() + Micros::new(60_000_000);
    let (policy, subject) = ("p".to_owned(), "global".to_owned());
    let it = Override { policy, subject, change: OverrideChange::Block, until };
    assert!(!overrides.set(&Key::GLOBAL, it).await.unwrap());
    assert!(overrides.remove("p", &Key::GLOBAL).await.unwrap());
    let values = patient(&url(&redis)).values().unwrap();
    assert_eq!(values.field("tollgate:tenants", "acme").await.unwrap(), None);
    assert_eq!(values.get("tollgate:tenant:acme").await.unwrap(), None);
}

/// Includes the slot map, and keys that are moving to another node.
#[tokio::test(flavor = "multi_thread")]
async fn documented_rights_suffice_for_a_cluster() {
    let cluster = Cluster::builder().replicas(0).start();
    let store = connect(patient(&cluster_url(&cluster))).await;
    for report in store.reports() {
        assert_eq!(report.warnings, []);
    }
    let (policy, key) = (policy(), Key::from("moving"));
    let name = store.name_of(&policy, &key);
    let slot = cluster.slot_of(&name);
    let from = cluster.master_of(slot);
    let migration = tokio::task::block_in_place(|| cluster.migration(slot, (from + 1) % 3));
    // The old node redirects the request with `ASK`, because it does not have the key.
    assert!(store.charge(&policy, &key, Cost::ONE).await.unwrap().is_admitted());
    assert!(store.stats().refused > 0);
    tokio::task::block_in_place(|| migration.finish());
    assert_eq!(store.peek(&policy, &key).await.unwrap().decisions()[0].remaining, 9);
}

#[test]
fn rights_warning_matches_documentation() {
    let [documented, _] = documented();
    let warning = RedisWarning::Rights("NOPERM".to_owned()).to_string();
    let asked: Vec<_> = warning.split(' ').filter(|word| word.starts_with('+')).collect();
    assert!(asked.len() > 10, "{warning}");
    assert!(asked.iter().all(|right| documented.contains(right)), "{warning}");
}
