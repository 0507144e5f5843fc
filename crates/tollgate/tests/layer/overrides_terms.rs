//! Overrides of clients to which no quota of the limit applies: unlimited ones, and refused ones.

use std::time::Duration;

use tollgate::key::Key;
use tollgate::layer::RateLimitLayer;
use tollgate::limiter::AcquireError;
use tollgate::store::{ManualClock, Override, OverrideChange};
use tollgate::tier::{self, ClientQuota, OnLookupFailure, OnUnknownClient, QuotaLookupBuilder};
use tollgate::{Limit, Limiter, MemoryStore, Policy, Quota, Store};
use tower::{Layer, ServiceExt};

use crate::overrides::{by_tenant, key, of, set, units};
use crate::quota_lookup::{Database, Fault, per_minute};
use crate::support::*;

type Memory = MemoryStore<ManualClock>;

/// The statuses of three requests.
async fn three(layer: &RateLimitLayer<Memory>, tenant: &str) -> [u16; 3] {
    let service = layer.layer(hello());
    let mut all = [0; 3];
    for status in &mut all {
        *status = ask(&service, of(tenant)).await.status().as_u16();
    }
    all
}

async fn standing(layer: &RateLimitLayer<Memory>, tenant: &str) -> serde_json::Value {
    json(layer.status().oneshot(of(tenant)).await.unwrap()).await["limits"][0].take()
}

/// Without an override, all requests get `status`.
async fn check(limit: Limit, status: u16) {
    let (clock, store) = memory();
    let layer = builder(&store, [limit.clone()]).tiers(tier::in_extensions()).build().unwrap();
    let overrides = store.overrides().unwrap();
    assert_eq!(three(&layer, "acme").await, [status; 3]);
    set(&overrides, &limit, "acme", units(2), 30).await;
    assert_eq!(three(&layer, "acme").await, [200, 200, 429]);
    assert_eq!(standing(&layer, "acme").await["limit"], 2);
    assert_eq!(three(&layer, "other").await, [status; 3]);
    set(&overrides, &limit, "acme", OverrideChange::Block, 90).await;
    let answer = ask(&layer.layer(hello()), of("acme")).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(field(answer.headers(), "retry-after").as_deref(), Some("90"));
    assert_eq!(json(answer).await["code"], "blocked");
    assert_eq!(standing(&layer, "acme").await["blocked"], true);
    clock.advance(seconds(90));
    assert_eq!(three(&layer, "acme").await, [status; 3]);
}

fn looked_up(lookup: QuotaLookupBuilder) -> Limit {
    by_tenant(log("tenant", 5)).quota_from(&lookup.build())
}

#[tokio::test]
async fn unlimited_client_is_overridden() {
    let database = Database::default();
    database.set("acme", ClientQuota::unlimited());
    database.set("other", ClientQuota::unlimited());
    check(looked_up(database.builder()), 200).await;
}

#[tokio::test]
async fn client_in_tier_without_quota_is_overridden() {
    let limit = by_tenant(log("tenant", 1)).in_tier("pro", per_minute(5)).unwrap().only_in_tiers();
    check(limit, 200).await;
}

#[tokio::test]
async fn refused_client_is_overridden() {
    let database = Database::default();
    check(looked_up(database.builder().on_unknown(OnUnknownClient::Refuse)), 403).await;
    database.fault(Fault::Fails);
    check(looked_up(database.builder().on_failure(OnLookupFailure::Refuse)), 503).await;
}

/// An override needs no look-up, so it also applies while the source hangs.
#[tokio::test(start_paused = true)]
async fn override_waits_for_no_look_up() {
    let (_, store) = memory();
    let database = Database::default();
    database.fault(Fault::Hangs);
    let limit = looked_up(database.builder());
    let layer = layer(&store, [limit.clone()]);
    set(&store.overrides().unwrap(), &limit, "acme", units(2), 30).await;
    let started = tokio::time::Instant::now();
    assert_eq!(three(&layer, "acme").await, [200, 200, 429]);
    assert_eq!(standing(&layer, "acme").await["limit"], 2);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn limiter_overrides_unlimited_and_refused_keys() {
    let database = Database::default();
    database.set("unlimited", ClientQuota::unlimited());
    let lookup = database.builder().on_unknown(OnUnknownClient::Refuse).build();
    let store = on_tokio_time();
    let jobs = Policy::token_bucket("jobs", Quota::per_minute(5)).unwrap();
    let limiter = Limiter::builder(store.clone()).policy_from(jobs, &lookup).build().unwrap();
    let overrides = store.overrides().unwrap();
    for name in ["unlimited", "unknown"] {
        let key = Key::from(name);
        for change in [units(1), OverrideChange::Block] {
            let until = overrides.now() + seconds(30);
            let (policy, subject) = ("jobs".to_owned(), name.to_owned());
            overrides.set(&key, Override { policy, subject, change, until }).await.unwrap();
            let verdicts = limiter.peek(&key).await.unwrap();
            let is_blocked = change == OverrideChange::Block;
            assert_eq!(verdicts.iter().next().unwrap().decision().denies(), is_blocked, "{name}");
            if !is_blocked {
                drop(limiter.acquire(&key, 1).await.unwrap());
            }
            let denied = limiter.acquire(&key, 1).await;
            assert!(matches!(denied, Err(AcquireError::Denied(_))), "{name} {change:?}");
        }
    }
}

/// An override states what it does not change in terms of the configured policy, as its check does.
#[tokio::test]
async fn override_starts_from_the_configured_policy() {
    let database = Database::default();
    database.set("acme", Quota::per_hour(7));
    let limit = looked_up(database.builder());
    let in_tier = by_tenant(log("tenant", 5)).in_tier("pro", Quota::per_hour(7)).unwrap();
    for limit in [limit, in_tier] {
        let (_, store) = memory();
        let layer = builder(&store, [limit.clone()]).tiers(tier::in_extensions()).build().unwrap();
        let mut request = of("acme");
        request.extensions_mut().insert(tier::Tier::from("pro"));
        assert_eq!(ask(&layer.layer(hello()), request.clone()).await.status(), 200);
        set(&store.overrides().unwrap(), &limit, "acme", units(3), 30).await;
        let answer = ask(&layer.layer(hello()), request).await;
        let policy = field(answer.headers(), "ratelimit-policy").unwrap();
        assert!(policy.starts_with("\"tenant\";q=3;w=60"), "{policy}");
        let shown = layer.handle().policy_of(&limit, Some(&"pro".into()), &key(&limit, "acme"));
        assert_eq!(shown.quota(), per_minute(3));
    }
}

/// Also if its own quota is lower than the policy's.
#[tokio::test]
async fn blocked_client_that_waits_as_told_is_allowed() {
    let database = Database::default();
    database.set("acme", per_minute(1));
    let limit = looked_up(database.builder());
    let (clock, store) = memory();
    let layer = layer(&store, [limit.clone()]);
    assert_eq!(three(&layer, "acme").await, [200, 429, 429]);
    set(&store.overrides().unwrap(), &limit, "acme", OverrideChange::Block, 10).await;
    let answer = ask(&layer.layer(hello()), of("acme")).await;
    assert_eq!(field(answer.headers(), "retry-after").as_deref(), Some("60"));
    clock.advance(seconds(60));
    assert_eq!(three(&layer, "acme").await, [200, 429, 429]);
}
