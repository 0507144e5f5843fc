//! Overrides: an operator changes a key's quota until an instant.

use proptest::prelude::*;
use tollgate::key::{ClientIp, Header, Key};
use tollgate::layer::RateLimit;
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::limiter::AcquireError;
use tollgate::store::{ManualClock, Override, OverrideChange, Overrides, Timestamp};
use tollgate::tier::QuotaLookup;
use tollgate::{Limit, Limiter, MemoryStore, Policy, Quota, Store};
use tower::{Layer, ServiceExt};

use crate::quota_lookup::{Database, per_minute};
use crate::stage::{Fault, Staged};
use crate::support::*;

const TENANT: http::HeaderName = http::HeaderName::from_static("tenant");

pub(crate) fn by_tenant(policy: Policy) -> Limit {
    Limit::new(policy, Header::trust_unverified(TENANT)).on_missing_key(OnMissingKey::Pass)
}

pub(crate) fn of(tenant: &str) -> http::Request<()> {
    let mut request = get();
    request.headers_mut().insert(TENANT, tenant.parse().unwrap());
    request
}

/// The key of a tenant's requests.
pub(crate) fn key(limit: &Limit, tenant: &str) -> Key {
    limit.key_of(&format!("header:{tenant}").parse().unwrap()).unwrap()
}

pub(crate) async fn set(
    overrides: &Overrides,
    limit: &Limit,
    tenant: &str,
    change: OverrideChange,
    lasts: u64,
) {
    let (policy, subject) = (limit.policy().name().to_owned(), tenant.to_owned());
    let until = overrides.now() + seconds(lasts);
    let it = Override { policy, subject, change, until };
    overrides.set(&key(limit, tenant), it).await.unwrap();
}

pub(crate) const fn units(limit: u64) -> OverrideChange {
    OverrideChange::Quota { limit, window: None, burst: None }
}

/// The status, the limit and the remaining units in the headers, and the wait.
async fn answer<St: Store>(
    service: &RateLimit<Hello, St>,
    tenant: &str,
) -> (u16, u64, u64, Option<u64>) {
    let answer = ask(service, of(tenant)).await;
    let number = |name| field(answer.headers(), name).map(|it| it.parse().unwrap());
    let [limit, remaining] = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(number);
    (answer.status().as_u16(), limit.unwrap(), remaining.unwrap(), number("retry-after"))
}

#[tokio::test]
async fn override_applies_to_one_key_until_its_end() {
    let (clock, store) = memory();
    let limit = by_tenant(log("tenant", 2));
    let layer = layer(&store, [limit.clone()]);
    let (service, overrides) = (layer.layer(hello()), store.overrides().unwrap());
    for expected in [(200, 2, 1, None), (200, 2, 0, None), (429, 2, 0, Some(60))] {
        assert_eq!(answer(&service, "acme").await, expected);
    }
    set(&overrides, &limit, "acme", units(5), 30).await;
    // The used units remain used.
    assert_eq!(answer(&service, "acme").await, (200, 5, 2, None));
    assert_eq!(answer(&service, "other").await, (200, 2, 1, None));
    let status = layer.status().oneshot(of("acme")).await.unwrap();
    assert_eq!(json(status).await["limits"][0]["remaining"], 2);
    clock.advance(seconds(29));
    assert_eq!(answer(&service, "acme").await, (200, 5, 1, None));
    clock.advance(seconds(1));
    // Four units are used now, until three of them return at 60 s.
    assert_eq!(answer(&service, "acme").await, (429, 2, 0, Some(30)));
    assert!(!overrides.is_any());
    clock.advance(seconds(30));
    assert_eq!(answer(&service, "acme").await, (200, 2, 0, None));
}

#[tokio::test]
async fn lowered_quota_applies_immediately() {
    let (_, store) = memory();
    let limit = by_tenant(log("tenant", 9));
    let (service, overrides) = (limited(&store, [limit.clone()]), store.overrides().unwrap());
    for remaining in (4..9).rev() {
        assert_eq!(answer(&service, "acme").await, (200, 9, remaining, None));
    }
    set(&overrides, &limit, "acme", units(3), 600).await;
    assert_eq!(answer(&service, "acme").await, (429, 3, 0, Some(60)));
    overrides.remove("tenant", &key(&limit, "acme")).await.unwrap();
    assert_eq!(answer(&service, "acme").await, (200, 9, 3, None));
}

/// A block does not hide the quota: after it, a client that waited as told is allowed.
#[tokio::test]
async fn blocked_client_is_told_when_it_may_return() {
    let (clock, store) = memory();
    let limit = by_tenant(log("tenant", 1));
    let others = Limit::new(log("ip", 2), ClientIp::peer());
    let layer = layer(&store, [limit.clone(), others]);
    let (service, overrides) = (layer.layer(hello()), store.overrides().unwrap());
    let wait = async |expected| {
        for _ in 0..3 {
            let answer = ask(&service, of("acme")).await;
            assert_eq!(answer.status(), 429);
            assert_eq!(field(answer.headers(), "retry-after").as_deref(), Some(expected));
            let quota = field(answer.headers(), "ratelimit-policy").unwrap();
            assert!(quota.starts_with("\"tenant\";q=0"), "{quota}");
            assert_eq!(json(answer).await["code"], "blocked");
        }
    };
    set(&overrides, &limit, "acme", OverrideChange::Block, 90).await;
    wait("90").await;
    clock.advance(seconds(45));
    // A denied request charges no policy.
    let status = layer.status().oneshot(of("acme")).await.unwrap();
    let limits = json(status).await["limits"].take();
    assert_eq!((&limits[0]["retry_after"], &limits[1]["remaining"]), (&45.into(), &2.into()));
    assert_eq!(limits[0]["blocked"], true);
    assert_eq!(ask(&service, of("other")).await.status(), 200);
    clock.advance(seconds(45));
    assert_eq!(ask(&service, of("acme")).await.status(), 200);
    // Longer than the block, because the quota is used up.
    set(&overrides, &limit, "acme", OverrideChange::Block, 10).await;
    wait("60").await;
    clock.advance(seconds(60));
    assert_eq!(ask(&service, of("acme")).await.status(), 200);
}

#[tokio::test]
async fn block_holds_while_the_store_fails() {
    let (_, store) = memory();
    let staged = Staged::new(store.clone());
    let limit = by_tenant(log("tenant", 9));
    let overrides = store.overrides().unwrap();
    set(&overrides, &limit, "acme", OverrideChange::Block, 90).await;
    let service = limited(&staged, [limit]);
    staged.fail(Fault::NotCharged);
    assert_eq!(ask(&service, of("acme")).await.status(), 429);
    assert_eq!(ask(&service, of("other")).await.status(), 200);
}

#[tokio::test]
async fn shadow_and_soft_limits_still_deny_nobody() {
    for mode in [Mode::Shadow, Mode::Annotate] {
        let (_, store) = memory();
        let limit = by_tenant(log("tenant", 9)).mode(mode);
        let (service, overrides) = (limited(&store, [limit.clone()]), store.overrides().unwrap());
        for change in [units(1), OverrideChange::Block] {
            set(&overrides, &limit, "acme", change, 90).await;
            for _ in 0..3 {
                assert_eq!(ask(&service, of("acme")).await.status(), 200, "{mode:?} {change:?}");
            }
        }
    }
}

/// An override also replaces a quota that was looked up.
#[tokio::test]
async fn override_replaces_looked_up_quota() {
    let (_, store) = memory();
    let database = Database::default();
    database.set("acme", per_minute(7));
    let lookup: QuotaLookup = database.builder().build();
    let limit = by_tenant(log("tenant", 2)).quota_from(&lookup);
    let (service, overrides) = (limited(&store, [limit.clone()]), store.overrides().unwrap());
    assert_eq!(answer(&service, "acme").await, (200, 7, 6, None));
    set(&overrides, &limit, "acme", units(3), 600).await;
    assert_eq!(answer(&service, "acme").await, (200, 3, 1, None));
    overrides.remove("tenant", &key(&limit, "acme")).await.unwrap();
    assert_eq!(answer(&service, "acme").await, (200, 7, 4, None));
}

#[tokio::test(start_paused = true)]
async fn limiter_applies_overrides() {
    let store = on_tokio_time();
    let jobs = Policy::token_bucket("jobs", Quota::per_minute(1)).unwrap();
    let limiter = Limiter::builder(store.clone()).policy(jobs).build().unwrap();
    let (overrides, key) = (store.overrides().unwrap(), Key::from("ann"));
    let change = async |change| {
        let until = overrides.now() + seconds(30);
        let (policy, subject) = ("jobs".to_owned(), "ann".to_owned());
        overrides.set(&key, Override { policy, subject, change, until }).await.unwrap();
    };
    drop(limiter.acquire(&key, 1).await.unwrap());
    assert!(limiter.try_acquire(&key, 1).await.unwrap().is_none());
    change(units(3)).await;
    let verdicts = limiter.peek(&key).await.unwrap();
    assert_eq!(verdicts.iter().next().unwrap().decision().limit, 3);
    drop(limiter.acquire(&key, 2).await.unwrap());
    change(OverrideChange::Block).await;
    let Err(AcquireError::Denied(refusal)) = limiter.acquire(&key, 1).await else {
        panic!("it is blocked")
    };
    assert!(refusal.retry_after() >= Some(std::time::Duration::from_secs(30)));
    let other = Key::from("bob");
    drop(limiter.acquire(&other, 1).await.unwrap());
}

/// Requests that wait for a turn follow the quota that is in force when they arrive.
#[tokio::test(start_paused = true)]
async fn waiting_requests_follow_the_override() {
    let store = on_tokio_time();
    let policy = Policy::token_bucket("tenant", Quota::per_minute(1)).unwrap();
    let limit = by_tenant(policy).mode(Mode::Wait(std::time::Duration::from_secs(20)));
    let (service, overrides) = (limited(&store, [limit.clone()]), store.overrides().unwrap());
    assert_eq!(ask(&service, of("acme")).await.status(), 200);
    assert_eq!(ask(&service, of("acme")).await.status(), 429, "a minute is too long");
    set(&overrides, &limit, "acme", units(6), 600).await;
    let started = tokio::time::Instant::now();
    for _ in 0..6 {
        assert_eq!(ask(&service, of("acme")).await.status(), 200);
    }
    // Five are left, and the sixth waits for its tenth of a minute.
    assert_eq!(started.elapsed().as_secs(), 10);
    set(&overrides, &limit, "acme", OverrideChange::Block, 5).await;
    assert_eq!(ask(&service, of("acme")).await.status(), 429, "a block is not waited for");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Change(OverrideChange, u64),
    Remove,
    Ask(usize),
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let change = prop_oneof![3 => (1_u64..5).prop_map(units), 1 => Just(OverrideChange::Block)];
    let event = prop_oneof![
        2 => (change, 1_u64..50).prop_map(|(change, lasts)| Event::Change(change, lasts)),
        1 => Just(Event::Remove),
        8 => (0_usize..2).prop_map(Event::Ask),
        2 => (1_u64..40).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..60)
}

/// The override in force, with its end.
type InForce = Option<(OverrideChange, Timestamp)>;

async fn obey(own: u64, events: &[Event]) {
    let (clock, store): (ManualClock, MemoryStore<_>) = memory();
    let limit = by_tenant(log("tenant", own));
    let shadow = limit.fraction("watched", 1, 4).unwrap().shadow();
    let services = [0, 1].map(|_| limited(&store, [limit.clone(), shadow.clone()]));
    let overrides = store.overrides().unwrap();
    let (mut in_force, mut charged): (InForce, Vec<Timestamp>) = (None, Vec::new());
    for event in events {
        match *event {
            Event::Change(change, lasts) => {
                set(&overrides, &limit, "acme", change, lasts).await;
                in_force = Some((change, overrides.now() + seconds(lasts)));
            }
            Event::Remove => {
                overrides.remove("tenant", &key(&limit, "acme")).await.unwrap();
                in_force = None;
            }
            Event::Pass(time) => clock.advance(seconds(time)),
            Event::Ask(process) => {
                let now = overrides.now();
                in_force.take_if(|(_, until)| *until <= now);
                let used = charged.iter().filter(|at| **at + seconds(60) > now).count() as u64;
                let allowed = match in_force {
                    None => used < own,
                    Some((OverrideChange::Block, _)) => false,
                    Some((OverrideChange::Quota { limit, .. }, _)) => used < limit,
                };
                let status = ask(&services[process], of("acme")).await.status();
                assert_eq!(status == 200, allowed, "{used} of {own} under {in_force:?}");
                charged.extend(allowed.then_some(now));
            }
        }
    }
    // A client that waits as told is allowed then, unless the numbers change meanwhile.
    if let Some((change @ OverrideChange::Quota { .. }, _)) = in_force {
        set(&overrides, &limit, "acme", change, 1_000).await;
    }
    let wait = loop {
        let answer = ask(&services[0], of("acme")).await;
        if answer.status() == 429 {
            break field(answer.headers(), "retry-after").unwrap().parse().unwrap();
        }
    };
    clock.advance(seconds(wait));
    assert_eq!(ask(&services[1], of("acme")).await.status(), 200, "denied after {wait} s");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn each_instant_has_the_numbers_in_force(own in 1_u64..5, events in events()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(obey(own, &events));
    }
}
