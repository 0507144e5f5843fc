//! `tollgate explain`: which limits a hypothetical request would meet.

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

/// The key is `foo`.
const TIERS: &str = "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey, ip]
  exempt: [/healthz]
  apiKeys:
    - {sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, tier: pro}
  costs: {POST: 5}
  client: {limit: 60, windowSeconds: 3600}
  tiers: {pro: {limit: 1000, windowSeconds: 3600}}
  apis:
    - {identifier: export, path: /export/*, method: POST, share: 1/10}
";

#[test]
fn explains_matching_limits() {
    let said = explained(
        TIERS,
        &["--dry", "--method", "POST", "--path", "//export/./a?b", "--header", "X-API-Key: foo"],
    );
    assert_eq!(
        said.unwrap(),
        "POST //export/./a?b from 127.0.0.1
goes to route default, http://localhost:3000
counts for its api_key, in tier pro
  client: every request: 60 units per 3600 s per client, sliding window counter, memory
    tier pro: 1000 units per 3600 s
    units: POST 5, any other 1
    of 1000 units per 3600 s this request takes 5
  export: POST /export/*: 6 units per 3600 s per client, sliding window counter, memory
    tier pro: 100 units per 3600 s
    units: POST 5, any other 1
    of 100 units per 3600 s this request takes 5
"
    );
    let by_query = TIERS.replace("[apiKey, ip]", "[{key: query, name: id}, ip]");
    let said = explained(&by_query, &["--dry", "--path", "/?id=ann"]).unwrap();
    assert!(said.contains("counts for its other"), "{said}");
    // An unknown key does not identify a client.
    let said = explained(TIERS, &["--dry", "--header", "X-API-Key: bar"]).unwrap();
    assert!(said.contains("counts for its ip, in no tier\n"), "{said}");
    assert!(!said.contains("bar") && !said.contains("export"), "{said}");
    let error = explained(TIERS, &["--host", "a b"]).unwrap_err();
    assert!(error.contains("`a b` is not a host"), "{error}");
    let error = explained(TIERS, &["--user", "ann"]).unwrap_err();
    assert!(error.contains("has no users"), "{error}");
}

#[test]
fn explains_levels() {
    let yaml = TIERS
        .replace("tier: pro}", "levels: {team: red}}\n  levels: {team: apiKey, company: everyone}")
        .replace(
            "client: {limit: 60, windowSeconds: 3600}",
            "client: {limit: 60, windowSeconds: 3600, levels: {team: {limit: 100, windowSeconds: \
             3600}, company: {limit: 500, windowSeconds: 3600}}}",
        );
    let levels = [
        "  client/team: every request: 100 units per 3600 s per team, sliding window counter, memory\n",
        "  client/company: every request: 500 units per 3600 s per company, ",
    ];
    let said = explained(&yaml, &["--dry", "--header", "X-API-Key: foo"]).unwrap();
    assert!(
        said.contains(
            "counts for its api_key, in no tier\nits team is other:red\nits company is global\n"
        ),
        "{said}"
    );
    assert!(levels.iter().all(|level| said.contains(level)), "{said}");
    let said = explained(&yaml, &["--dry"]).unwrap();
    assert!(
        said.contains("counts for its ip, in no tier\nhas no team\nits company is global\n"),
        "{said}"
    );
    assert!(said.contains("    which does not apply: the request has no team\n"), "{said}");
}

#[test]
fn limits_by_the_body_are_not_decided() {
    let yaml = "rateLimiter:
  target: http://localhost:3000
  levels: {account: {key: body, name: email}}
  apis:
    - {identifier: login, path: /login, per: [account, ip], limit: 5, windowSeconds: 60}
";
    let said = explained(yaml, &["--dry", "--path", "/login"]).unwrap();
    let expected = "its account is in the body
  login: any method /login: 5 units per 60 s per account and ip, sliding window counter, memory
    which is not decided here, because it depends on the body
  no other limit applies
";
    assert!(said.ends_with(expected), "{said}");
}

#[test]
fn explains_requests_without_limits() {
    const PREFLIGHT: &str =
        "--method OPTIONS --header Origin:a --header Access-Control-Request-Method:b";
    let with = |lines: &str| format!("{TIERS}{lines}");
    let listed = with("  deny: {addresses: [203.0.113.0/24]}\n  allow: {addresses: [192.0.2.1]}\n");
    let users = "rateLimiter:
  target: http://localhost:3000
  identity: [user, ip]
  jwt: {secret: a-secret-of-at-least-32-characters}
  client: {limit: 60, windowSeconds: 3600}
  deny: {users: [mallory]}
  allow: {users: [ann]}
";
    for (yaml, args, expected) in [
        (TIERS, "--path /healthz", "is not limited: the path is exempt\n"),
        (TIERS, PREFLIGHT, "is a CORS preflight: 1000 units per 60 s per client address\n"),
        (
            &*with("  preflights: unlimited\n"),
            PREFLIGHT,
            "is not limited: it is a CORS preflight\n",
        ),
        (&with("  preflights: charged\n"), PREFLIGHT, "this request takes 1"),
        // The preflight limit only applies where other requests are limited.
        ("rateLimiter: {target: http://localhost:3000}\n", PREFLIGHT, "  no limit applies\n"),
        (&listed, "--ip 203.0.113.7", "is answered with 403: a list denies it\n"),
        (&listed, "--ip 203.0.113.7 --path /healthz", "is answered with 403: a list denies it\n"),
        (&listed, "--ip 192.0.2.1", "is not limited: a list allows it\n"),
        (TIERS, "--path /a%2fb", "is answered with 400: the path contains `%2F`"),
        (
            &TIERS.replace("{pro: {limit: 1000, windowSeconds: 3600}}", "{pro: unlimited}"),
            "--dry --header X-API-Key:foo",
            "does not apply in this tier\n  no limit applies\n",
        ),
        (
            &TIERS.replace("[apiKey, ip]", "apiKey\n  onMissingKey: {deny: 401}"),
            "--dry",
            "has no client: it gets 401 if a limit is per",
        ),
        (
            &with("  statusPath: /rate-limit\n"),
            "--path //rate-limit?all",
            "reads the client's limits, and is not charged\n",
        ),
        (users, "--user mallory --dry", "is answered with 403: a list denies it\n"),
        (users, "--user ann --dry", "is not limited: a list allows it\n"),
        (users, "--user bob --dry", "counts for its user, in no tier"),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        let said = explained(yaml, &args).unwrap();
        let is_last = expected.ends_with('\n');
        let is_said = if is_last { said.ends_with(expected) } else { said.contains(expected) };
        assert!(is_said, "{args:?}: {said}");
    }
}

#[test]
fn missing_client_is_not_allowed() {
    let yaml = |limit: &str| {
        format!(
            "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey]
  apiKeys: [{{sha256: {}}}]
  {limit}: {{limit: 60, windowSeconds: 3600}}
",
            "0".repeat(64)
        )
    };
    let said = explained(&yaml("client"), &["--dry"]).unwrap();
    assert!(said.ends_with("is answered with 403: it has no client\n"), "{said}");
    let said = explained(&yaml("global"), &["--dry"]).unwrap();
    assert!(!said.contains("is answered"), "{said}");
    let twice = ["--dry", "--header", "X-API-Key: a", "--header", "X-API-Key: a"];
    let said = explained(&yaml("client"), &twice).unwrap();
    assert!(said.ends_with("is answered with 400: it has several keys or tokens\n"), "{said}");
    let said = explained(&yaml("global"), &twice).unwrap();
    assert!(!said.contains("is answered"), "{said}");
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
