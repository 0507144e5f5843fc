//! `tollgate explain` and the store. `commands/cases/explain.txt` checks
//! explanations without a store.

use std::time::Duration;

use clap::Parser;
use tollgate::key::Key;
use tollgate::limit::OnMissingKey;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota, RedisStore, StoreExt};
use tollgate_cli::explain;
use tollgate_cli::{Cli, Command};
use tollgate_config::{Source, read};
use tollgate_test_servers::Redis;

fn explained(yaml: &str, args: &[&str]) -> Result<String, String> {
    let outcome = read(&Source::new("limits.yaml", yaml), &|_| None);
    let plan = outcome.plan.unwrap_or_else(|| panic!("{}", outcome.report));
    let args = ["tollgate", "explain", "limits.yaml"].iter().chain(args);
    match Cli::try_parse_from(args).unwrap().command {
        Command::Explain { request, .. } => {
            let mut said = String::new();
            match explain::explain(&plan, &request, &mut said) {
                Ok(()) => Ok(said),
                Err(error) => Err(format!("{said}{error}")),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_client_uses_the_shared_quota() {
    let redis = Redis::builder().start();
    charge(&redis, "client", &OnMissingKey::shared_key(), 8);
    let yaml = format!(
        "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey]
  apiKeys: [{{sha256: {}}}]
  onMissingKey: share
  store: {{redis: {{url: '{}', timeout: 5s}}}}
  client: {{strategy: sliding_window_log, limit: 10, windowSeconds: 3600}}
",
        "0".repeat(64),
        redis.url()
    );
    let said = explained(&yaml, &[]).unwrap();
    assert!(said.contains("  client: 2 of 10 left; "), "{said}");
}

#[test]
fn explains_store_state_without_charging() {
    let redis = Redis::builder().start();
    charge(&redis, "global", &Key::GLOBAL, 7);
    let yaml = format!(
        "rateLimiter:
  target: http://localhost:3000
  store: {{redis: {{url: '{}', timeout: 5s}}}}
  global: {{strategy: sliding_window_log, limit: 10, windowSeconds: 3600, costs: {{other: 4}}}}
  client: {{limit: 4, windowSeconds: 3600, concurrency: 2}}
",
        redis.url()
    );
    for _ in 0..3 {
        let said = explained(&yaml, &[]).unwrap();
        let global = said.lines().find(|line| line.starts_with("  global: 3 of 10 left")).unwrap();
        let (_, costs) = global.split_once("a cost of ").unwrap();
        assert!(global.contains("; this request at 20"), "{said}");
        assert!(costs.starts_with("1 now, 3 now, 5 at 20"), "{said}");
        assert!(said.contains("  client: 4 of 4 left; this request now; a cost of 1 now, 3 now, 5 never, 10 never\n"), "{said}");
        // A concurrency limit counts a request as a single unit, regardless of its cost.
        assert!(said.contains("  client/inflight: 2 of 2 left; this request now\n"), "{said}");
        assert!(said.ends_with("it would be denied\n"), "{said}");
    }
    let soft = yaml.replace("costs: {other: 4}", "costs: {other: 4}, excess: annotate");
    let said = explained(&soft.replace("limit: 4", "limit: 8"), &[]).unwrap();
    assert!(said.ends_with("it would pass, beyond the quota of global\n"), "{said}");
    // The client's quota remains free, and `global` has 10 units per hour.
    for (wait, forecast) in
        [("90m", "it would wait up to 1h 30m\n"), ("1s", "it would be denied\n")]
    {
        let costs = format!("costs: {{other: 4}}, excess: {{wait: {wait}}}");
        let waiting = yaml.replace("costs: {other: 4}", &costs);
        let said = explained(&waiting.replace("limit: 4", "limit: 8"), &[]).unwrap();
        assert!(said.ends_with(forecast), "{said}");
    }
    let queue = yaml.replace("costs: {other: 4}", "costs: {other: 4}, excess: {queue: 90m}");
    let said = explained(&queue.replace("limit: 4", "limit: 8"), &[]).unwrap();
    assert!(said.contains("a request beyond the quota queues in the store for at most 5400 s\n"));
    assert!(said.lines().last().unwrap().starts_with("it would pass after 59m "), "{said}");
    drop(redis);
    // Without Redis the command still prints the facts that need only the file.
    let said = explained(&yaml, &[]).unwrap_err();
    assert!(said.contains("of 10 units per 3600 s this request takes 4\n"), "{said}");
    assert!(said.ends_with("; check `store.redis`, or do not read it (`--dry`)"), "{said}");
}

/// Charges a sliding window log with 10 units per hour.
fn charge(redis: &Redis, policy: &str, key: &Key, units: u64) {
    let policy = Policy::sliding_window_log(policy, Quota::per_hour(10)).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let builder = RedisStore::builder(&redis.url()).unwrap();
        let store = builder.timeout(Duration::from_secs(10)).connect().unwrap();
        store.connected().await;
        store.charge(&policy, key, Cost::new(units)).await.unwrap();
    });
}
