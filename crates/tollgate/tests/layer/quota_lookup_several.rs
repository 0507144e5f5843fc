//! Clients with several looked-up quotas, and clients without a quota.

use std::time::Duration;

use tokio::time::advance;
use tollgate::key::{Header, Key};
use tollgate::limit::OnMissingKey;
use tollgate::tier::{self, ClientQuota, OnLookupFailure, QuotaLookup, Tier};
use tollgate::{Limit, Limiter, Policy, Quota};
use tower::Layer;

use crate::quota_lookup::{Database, Fault, named, per_minute};
use crate::support::*;

const NAME: http::HeaderName = http::HeaderName::from_static("name");

fn by_name(policy: &str, limit: u64, lookup: &QuotaLookup) -> Limit {
    let limit = Limit::new(log(policy, limit), Header::trust_unverified(NAME)).quota_from(lookup);
    limit.on_missing_key(OnMissingKey::Pass)
}

/// The tier `partner` has no quota, and the tier `pro` has no daily quota.
fn limits(lookup: &QuotaLookup) -> [Limit; 2] {
    let pro = |limit: Limit, quota| limit.in_tier("pro", per_minute(quota)).unwrap();
    let minute = pro(by_name("minute", 5, lookup), 20).unlimited_in_tier("partner");
    let day = by_name("day", 50, lookup).further_quota(1).unlimited_in_tier("partner");
    [minute, day.unlimited_in_tier("pro")]
}

/// Returns the quotas that a response shows.
async fn policies(
    lookup: &QuotaLookup,
    name: &str,
    tier: Option<&'static str>,
) -> (u16, Option<String>) {
    let layer = builder(&memory().1, limits(lookup)).tiers(tier::in_extensions());
    let mut request = named(name);
    if let Some(tier) = tier {
        request.extensions_mut().insert(Tier::from(tier));
    }
    let answer = ask(&layer.build().unwrap().layer(hello()), request).await;
    (answer.status().as_u16(), field(answer.headers(), "ratelimit-policy"))
}

#[tokio::test]
async fn quotas_by_number_apply_together() {
    let database = Database::default();
    let quota = |units| ClientQuota::from(per_minute(units));
    database.set("one", quota(7));
    database.set("two", quota(7).also(per_minute(70)));
    database.set("pro", Tier::from("pro"));
    database.set("partner", Tier::from("partner"));
    database.set("unlimited", ClientQuota::unlimited());
    database.set("odd", Tier::from("odd"));
    let lookup = database.builder().build();
    let both = Some(r#""minute";q=5;w=60, "day";q=50;w=60"#);
    for (name, tier, expected) in [
        ("unknown", None, both),
        ("unknown", Some("pro"), Some(r#""minute";q=20;w=60"#)),
        ("unknown", Some("partner"), None),
        ("one", None, Some(r#""minute";q=7;w=60"#)),
        ("two", None, Some(r#""minute";q=7;w=60, "day";q=70;w=60"#)),
        // A looked-up quota overrides a tier, also a tier without a quota.
        ("two", Some("partner"), Some(r#""minute";q=7;w=60, "day";q=70;w=60"#)),
        ("pro", None, Some(r#""minute";q=20;w=60"#)),
        ("pro", Some("partner"), Some(r#""minute";q=20;w=60"#)),
        ("partner", None, None),
        ("unlimited", Some("pro"), None),
        ("odd", None, both),
    ] {
        let found = policies(&lookup, name, tier).await;
        assert_eq!(found, (200, expected.map(str::to_owned)), "{name} {tier:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_lifts_no_limit() {
    let ttl = Duration::from_secs(60);
    let own = r#""minute";q=5;w=60, "day";q=50;w=60"#;
    let known = r#""minute";q=3;w=60"#;
    let known_and_own = r#""minute";q=3;w=60, "day";q=50;w=60"#;
    for (result, tier, expected) in [
        (ClientQuota::from(per_minute(3)), Some("partner"), Some(known)),
        (ClientQuota::from(per_minute(3)), None, Some(known_and_own)),
        (ClientQuota::from(per_minute(9)), None, Some(own)),
        // The limit's own quota is smaller than none.
        (ClientQuota::unlimited(), None, Some(own)),
        (ClientQuota::unlimited(), Some("partner"), None),
    ] {
        let database = Database::default();
        database.set("ann", result.clone());
        let lookup = database.builder().ttl(ttl).on_failure(OnLookupFailure::LimitQuota).build();
        policies(&lookup, "ann", tier).await;
        database.fault(Fault::Fails);
        advance(ttl).await;
        policies(&lookup, "ann", tier).await;
        let (status, found) = policies(&lookup, "ann", tier).await;
        assert_eq!((status, found.as_deref()), (200, expected), "{result:?} {tier:?}");
    }
}

#[tokio::test]
async fn tier_can_be_unlimited() {
    let layer = |limit: Limit| {
        let layer = builder(&memory().1, [limit.on_missing_key(OnMissingKey::Pass)]);
        layer.tiers(tier::in_extensions()).build().unwrap().layer(hello())
    };
    let account = || Limit::new(log("account", 5), Header::trust_unverified(NAME));
    let pro = || account().in_tier("pro", Quota::per_minute(20)).unwrap();
    for (limit, without, pro, partner) in [
        (pro().unlimited_in_tier("partner"), Some("4"), Some("19"), None),
        (pro().only_in_tiers(), None, Some("19"), None),
        (pro().unlimited_in_tier("pro"), Some("4"), None, Some("4")),
        // The last call counts.
        (
            account().unlimited_in_tier("pro").in_tier("pro", per_minute(9)).unwrap(),
            Some("4"),
            Some("8"),
            Some("4"),
        ),
    ] {
        let service = layer(limit);
        for (tier, expected) in [(None, without), (Some("pro"), pro), (Some("partner"), partner)] {
            let mut request = named(tier.unwrap_or("none"));
            if let Some(tier) = tier {
                request.extensions_mut().insert(Tier::from(tier));
            }
            let answer = ask(&service, request).await;
            let left = field(answer.headers(), "x-ratelimit-remaining");
            assert_eq!(left.as_deref(), expected, "{tier:?}");
        }
    }
}

#[tokio::test]
async fn limiter_does_not_limit_unlimited_keys() {
    let database = Database::default();
    database.set("ann", ClientQuota::unlimited());
    let jobs = Limiter::builder(memory().1);
    let jobs = jobs.policy_from(log("jobs", 1), &database.builder().build()).build().unwrap();
    let (ann, bob) = (Key::from("ann"), Key::from("bob"));
    for _ in 0..3 {
        assert!(jobs.try_acquire(&ann, 1).await.unwrap().is_some());
    }
    assert!(jobs.peek(&ann).await.unwrap().get("jobs").is_none());
    assert!(jobs.try_acquire(&bob, 1).await.unwrap().is_some());
    assert!(jobs.try_acquire(&bob, 1).await.unwrap().is_none());
}

#[tokio::test]
async fn limit_with_another_algorithm_grants_a_fraction() {
    let database = Database::default();
    database.set("ann", per_minute(100).burst(20));
    let lookup = database.builder().build();
    let name = || Header::trust_unverified(NAME);
    let account = Policy::token_bucket("account", per_minute(5)).unwrap();
    let account = Limit::new(account, name()).quota_from(&lookup);
    let export = Limit::new(log("export", 1), name()).quota_from(&lookup).fraction_of_quota(1, 10);
    let limits = [account, export].map(|limit| limit.on_missing_key(OnMissingKey::Pass));
    let answer = ask(&limited(&memory().1, limits), named("ann")).await;
    let policies = field(answer.headers(), "ratelimit-policy");
    assert_eq!(policies.as_deref(), Some(r#""account";q=20;w=12, "export";q=10;w=60"#));
}

/// The page finds a key's quota although its owner is looked up.
#[cfg(feature = "metrics")]
#[tokio::test]
async fn operators_see_the_quota_of_a_key_that_is_its_owner() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let lookup = database.builder().build();
    let name = || Header::trust_unverified(NAME);
    let limit = |owner| {
        let limit = Limit::new(log("client", 5), name()).quota_from_owner(&lookup, owner);
        layer(&memory().1, [limit.on_missing_key(OnMissingKey::Pass)])
    };
    for (owner, expected) in [(name(), 20), (Header::trust_unverified(http::header::HOST), 5)] {
        let layer = limit(owner);
        let mut request = named("ann");
        request.headers_mut().insert("host", "ann".parse().unwrap());
        ask(&layer.layer(hello()), request).await;
        let handle = layer.handle();
        let limit = handle.limits()[0];
        let key = limit.key_of(&"header:ann".parse().unwrap()).unwrap();
        let peek = handle.peek(limit, None, &key).await.unwrap();
        assert_eq!(peek.decisions()[0].limit, expected);
    }
}
