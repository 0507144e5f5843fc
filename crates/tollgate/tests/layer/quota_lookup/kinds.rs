//! What a look-up may return, and where it may be used.

use super::*;

#[tokio::test]
async fn client_quota_may_be_tier_with_costs() {
    let database = Database::default();
    database.set("ann", Tier::from("pro"));
    database.set("bob", ClientQuota::from(Tier::from("pro")).costs(Costs::flat(7)));
    database.set("cid", Tier::from("unknown"));
    let lookup = database.builder().build();
    let client = by_name(log("client", OWN), &lookup).in_tier("pro", per_minute(20)).unwrap();
    let service = limited(&memory().1, [client]);
    for (name, expected) in [("ann", "19"), ("bob", "13"), ("cid", "4")] {
        let answer = ask(&service, named(name)).await;
        let remaining = field(answer.headers(), "x-ratelimit-remaining");
        assert_eq!(remaining.as_deref(), Some(expected), "{name}");
    }
}

#[tokio::test]
async fn fraction_applies_to_looked_up_quota() {
    let database = Database::default();
    database.set("ann", per_minute(100));
    let lookup = database.builder().build();
    let client = by_name(log("client", OWN), &lookup);
    let ai = client.fraction("ai", 1, 5).unwrap().fraction("chat", 1, 2).unwrap();
    let service = limited(&memory().1, [client, ai]);
    let answer = ask(&service, named("ann")).await;
    let policies = field(answer.headers(), "ratelimit-policy").unwrap();
    assert_eq!(policies, r#""client";q=100;w=60, "chat";q=10;w=60"#);
    assert_eq!(database.looked_up(), ["ann"], "both limits share the look-up");
}

#[tokio::test]
async fn owner_has_the_quota_of_all_its_keys() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let name = || Header::trust_unverified(NAME);
    let per_route = Limit::new(log("client", OWN), (name(), MatchedRoute));
    let lookup = database.builder().build();
    let limit = per_route.quota_from_owner(&lookup, name()).on_missing_key(OnMissingKey::Pass);
    let service = limited(&memory().1, [limit]);
    for route in ["/a", "/b"] {
        let mut request = named("ann");
        request.extensions_mut().insert(RoutePattern::new(route));
        let answer = ask(&service, request).await;
        let remaining = field(answer.headers(), "x-ratelimit-remaining");
        assert_eq!(remaining.as_deref(), Some("19"), "{route}");
    }
    assert_eq!(database.looked_up(), ["ann"]);
}

#[tokio::test]
async fn refund_returns_to_the_clients_quota() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let lookup = database.builder().build();
    let (_, store) = memory();
    // The responses are not 401, so all are refunded.
    let client = by_name(log("client", OWN), &lookup).count_only(|it| it.status == 401);
    let service = layer(&store, [client]).layer(hello());
    for _ in 0..30 {
        assert_eq!(answer(&service, "ann").await, (200, Some(20)));
    }
}

#[tokio::test]
async fn limiter_looks_up_its_keys() {
    let database = Database::default();
    database.set("ann", per_minute(2));
    let lookup = database.builder().on_unknown(OnUnknownClient::Refuse).build();
    let jobs = Limiter::builder(memory().1).policy_from(log("jobs", OWN), &lookup).build().unwrap();
    let (ann, bob) = (Key::from("ann"), Key::from("bob"));
    assert_eq!(jobs.peek(&ann).await.unwrap().get("jobs").unwrap().decision().limit, 2);
    for allowed in [true, true, false] {
        let permit = jobs.try_acquire(&ann, 1).await.unwrap();
        assert_eq!(permit.is_some(), allowed);
    }
    let unknown = jobs.acquire(&bob, 1).await.map(drop).unwrap_err();
    assert!(matches!(unknown, AcquireError::UnknownClient), "{unknown}");
    database.fault(Fault::Fails);
    let lookup = database.builder().on_failure(OnLookupFailure::Refuse).build();
    let jobs = Limiter::builder(memory().1).policy_from(log("jobs", OWN), &lookup).build().unwrap();
    let failed = jobs.acquire(&ann, 1).await.map(drop).unwrap_err();
    assert!(matches!(failed, AcquireError::LookUpFailed), "{failed}");
}

/// A call that cannot wait for the look-up has the policy's own quota.
#[tokio::test(start_paused = true)]
async fn look_up_delays_no_call_beyond_its_deadline() {
    let database = Database::default();
    database.set("ann", per_minute(2));
    database.takes(Duration::from_secs(1));
    let lookup = database.builder().build();
    let jobs = Limiter::builder(memory().1).policy_from(log("jobs", OWN), &lookup).build().unwrap();
    let (key, started) = (Key::from("ann"), Instant::now());
    let call = jobs.request().policy("jobs", &key, 1).within(Duration::from_millis(200));
    let permit = call.acquire().await.unwrap();
    assert_eq!(permit.verdicts().get("jobs").unwrap().decision().limit, OWN);
    assert!(started.elapsed() <= Duration::from_millis(201), "{:?}", started.elapsed());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(jobs.peek(&key).await.unwrap().get("jobs").unwrap().decision().limit, 2);
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn operators_see_the_clients_quota() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let lookup = database.builder().build();
    let (_, store) = memory();
    let layer = layer(&store, [by_name(log("client", OWN), &lookup)]);
    assert_eq!(limit(&layer.layer(hello()), "ann").await, 20);
    let handle = layer.handle();
    let client = handle.limits()[0];
    let key = client.key_of(&"header:ann".parse().unwrap()).unwrap();
    let peek = handle.peek(client, None, &key).await.unwrap();
    assert_eq!((peek.decisions()[0].limit, peek.decisions()[0].remaining), (20, 19));
}
