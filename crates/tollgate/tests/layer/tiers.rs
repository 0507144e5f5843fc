//! Quotas by tier, and fractions of tiered quotas.

use std::time::Duration;

use http::Method;
use tollgate::key::Header;
use tollgate::layer::{LayerError, RateLimit};
use tollgate::limit::Paths;
use tollgate::policy::Cost;
use tollgate::policy::Lease;
use tollgate::tier::{self, Tier};
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer, Store};
use tower::Layer;

use crate::stage::Staged;
use crate::support::*;

const NAME: http::HeaderName = http::HeaderName::from_static("name");

/// Five units per minute for each name, 20 in tier `pro`.
fn account() -> Limit {
    Limit::new(log("account", 5), Header::trust_unverified(NAME))
        .in_tier("pro", Quota::per_minute(20))
        .unwrap()
}

/// A service that reads the tier from the request's extensions.
fn tiered<St: Store>(store: &St, limits: impl IntoIterator<Item = Limit>) -> RateLimit<Hello, St> {
    builder(store, limits)
        .on_missing_key(tollgate::limit::OnMissingKey::Share)
        .costs(Costs::flat(Cost::ONE))
        .tiers(tier::in_extensions())
        .build()
        .unwrap()
        .layer(hello())
}

/// The status of the response to `name`, and the remaining units.
async fn left<St: Store>(
    service: &RateLimit<Hello, St>,
    name: &'static str,
    tier: Option<&'static str>,
    path: &str,
) -> (u16, String) {
    let mut request = request(Method::GET, path);
    request.headers_mut().insert(NAME, name.parse().unwrap());
    if let Some(tier) = tier {
        request.extensions_mut().insert(Tier::from(tier));
    }
    let answer = ask(service, request).await;
    let left = field(answer.headers(), "x-ratelimit-remaining").unwrap_or_default();
    (answer.status().as_u16(), left)
}

fn answer(status: u16, left: &str) -> (u16, String) {
    (status, left.to_owned())
}

#[tokio::test]
async fn each_tier_has_its_own_quota() {
    let (_, store) = memory();
    let service = tiered(&store, [account()]);
    for (name, tier, expected) in [
        ("ann", None, "4"),
        ("bob", Some("pro"), "19"),
        // An unknown tier gets the default quota.
        ("cid", Some("platinum"), "4"),
        ("ann", None, "3"),
        ("bob", Some("pro"), "18"),
    ] {
        assert_eq!(left(&service, name, tier, "/").await, answer(200, expected), "{name}");
    }
    let mut request = get();
    request.extensions_mut().insert(Tier::from("pro"));
    let fields = rate_fields(ask(&service, request).await.headers());
    assert!(fields.contains(&r#"ratelimit-policy: "account";q=20;w=60"#.to_owned()), "{fields:?}");
    assert!(fields.contains(&"x-ratelimit-limit: 20".to_owned()), "{fields:?}");
}

#[tokio::test]
async fn fraction_follows_the_tier() {
    let (_, store) = memory();
    let ai = account().fraction("ai", 1, 5).unwrap().on_paths(Paths::new(["/ai/*"]).unwrap());
    let service = tiered(&store, [account(), ai]);
    for (name, tier, path, expected) in [
        ("ann", None, "/ai/chat", answer(200, "0")),
        ("ann", None, "/ai/chat", answer(429, "0")),
        ("ann", None, "/", answer(200, "3")),
        ("bob", Some("pro"), "/ai/chat", answer(200, "3")),
        ("bob", Some("pro"), "/ai/chat", answer(200, "2")),
        ("bob", Some("pro"), "/", answer(200, "17")),
    ] {
        assert_eq!(left(&service, name, tier, path).await, expected, "{name} {path}");
    }
}

#[test]
fn zero_denominator_is_an_error() {
    let error = account().fraction("ai", 1, 0).unwrap_err().to_string();
    assert!(error.contains("choose a denominator of at least 1"), "{error}");
}

#[test]
fn fractions_of_published_tiers_build() {
    let free = Policy::token_bucket("client", Quota::per_hour(60).burst(10)).unwrap();
    let client = Limit::global(free)
        .in_tier("pro", Quota::per_hour(10_000).burst(500))
        .unwrap()
        .in_tier("enterprise", Quota::per_hour(1_000_000).burst(10_000))
        .unwrap();
    for (name, part, expected) in [
        ("ai", 10, [(6, 1), (1_000, 50), (100_000, 1_000)]),
        ("export", 20, [(3, 1), (500, 25), (50_000, 500)]),
    ] {
        let part = client.fraction(name, 1, part).unwrap();
        let policies = std::iter::once(part.policy()).chain(part.tiers().map(|(_, policy)| policy));
        let quotas: Vec<_> = policies
            .map(|policy| {
                assert_eq!(policy.name(), name);
                (policy.quota().limit(), policy.capacity())
            })
            .collect();
        assert_eq!(quotas, expected);
    }
}

#[tokio::test]
async fn tier_is_resolved_once_per_request() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let store = Staged::new(memory().1);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let service = builder(&store, [account(), account().fraction("ai", 1, 5).unwrap()])
        .on_missing_key(tollgate::limit::OnMissingKey::Share)
        .tiers(tier::from_fn(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            Some("pro")
        }))
        .build()
        .unwrap()
        .layer(hello());
    assert_eq!(status(&service).await, 200);
    assert_eq!((asked.load(Ordering::SeqCst), store.calls()), (1, 1));
}

#[test]
fn tiers_need_a_source() {
    let limit = Limit::global(log("account", 5)).in_tier("pro", Quota::per_minute(20)).unwrap();
    let error = RateLimitLayer::builder(MemoryStore::new()).limit(limit).build().unwrap_err();
    assert_eq!(error, LayerError::TiersUnknown("account".into()));
    assert!(error.to_string().contains(".tiers("), "{error}");

    let many = |count: usize| {
        let limit = (0..count).fold(Limit::global(log("account", 5)), |limit, n| {
            limit.in_tier(format!("tier-{n}"), Quota::per_minute(20)).unwrap()
        });
        let builder = RateLimitLayer::builder(MemoryStore::new()).limit(limit);
        builder.tiers(tier::from_fn(|_| Some("tier-254"))).build()
    };
    assert!(many(1_024).is_ok());
    assert_eq!(many(1_025).unwrap_err(), LayerError::TooManyTiers(1_025));
}

#[tokio::test]
async fn last_of_255_tiers_is_found() {
    let limit = (0..255).fold(Limit::global(log("account", 5)), |limit, n| {
        limit.in_tier(format!("tier-{n}"), Quota::per_minute(100 + n)).unwrap()
    });
    let service = builder(&memory().1, [limit])
        .tiers(tier::from_fn(|_| Some("tier-254")))
        .build()
        .unwrap()
        .layer(hello());
    let answer = ask(&service, get()).await;
    assert_eq!(field(answer.headers(), "x-ratelimit-limit").as_deref(), Some("354"));
}

#[test]
fn tiers_and_fractions_inherit_the_lease() {
    let lease = Lease::of(1, 10).ttl(Duration::from_secs(5));
    let leased = log("account", 500).with_lease(lease).unwrap();
    let account = Limit::global(leased).in_tier("pro", Quota::per_hour(2_000)).unwrap();
    let exports = account.fraction("exports", 1, 5).unwrap();
    for limit in [&account, &exports] {
        let pro = limit.policy_in(Some(&Tier::from("pro")));
        assert_eq!((limit.policy().lease(), pro.lease()), (Some(lease), Some(lease)));
    }
    // The lease would outlast this window.
    let error = account.in_tier("short", Quota::per_second(5)).unwrap_err();
    assert!(error.to_string().contains("lease"), "{error}");
}
