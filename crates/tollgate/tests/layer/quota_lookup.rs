//! Quotas that are looked up for each client.

mod kinds;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep, timeout};
use tollgate::key::{Header, Key, MatchedRoute, RoutePattern};
use tollgate::layer::RateLimit;
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::limiter::AcquireError;
use tollgate::store::ManualClock;
use tollgate::tier::{
    Client, ClientQuota, OnLookupFailure, OnUnknownClient, QuotaLookup, QuotaLookupBuilder, Tier,
};
use tollgate::{Costs, Limit, Limiter, MemoryStore, Policy, Quota};
use tower::{Layer, ServiceExt};

use crate::support::*;

const NAME: http::HeaderName = http::HeaderName::from_static("name");
const TTL: Duration = Duration::from_secs(60);

/// The limit's own quota per minute.
const OWN: u64 = 5;

/// Quotas that a test changes, with the names that were looked up.
#[derive(Clone, Default)]
pub(crate) struct Database(Arc<Mutex<Rows>>);

#[derive(Default)]
struct Rows {
    quotas: HashMap<String, ClientQuota>,
    looked_up: Vec<String>,
    fault: Option<Fault>,
    takes: Duration,
}

#[derive(Clone, Copy)]
pub(crate) enum Fault {
    Fails,
    Panics,
    Hangs,
}

impl Database {
    pub(crate) fn set(&self, name: &str, quota: impl Into<ClientQuota>) {
        self.0.lock().quotas.insert(name.to_owned(), quota.into());
    }

    pub(crate) fn fault(&self, fault: impl Into<Option<Fault>>) {
        self.0.lock().fault = fault.into();
    }

    fn takes(&self, time: Duration) {
        self.0.lock().takes = time;
    }

    fn looked_up(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().looked_up)
    }

    pub(crate) fn builder(&self) -> QuotaLookupBuilder {
        let database = self.clone();
        QuotaLookup::builder(move |client| database.clone().look_up(client))
    }

    async fn look_up(self, client: Client) -> io::Result<Option<ClientQuota>> {
        // Read first, so a change during the look-up does not affect its result.
        let (quota, fault, takes) = {
            let mut rows = self.0.lock();
            rows.looked_up.push(client.name.clone());
            (rows.quotas.get(&client.name).cloned(), rows.fault, rows.takes)
        };
        sleep(takes).await;
        match fault {
            None => Ok(quota),
            Some(Fault::Fails) => Err(io::Error::other("the database is down")),
            Some(Fault::Panics) => panic!("a row is not as expected"),
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }
}

pub(crate) fn per_minute(units: u64) -> Quota {
    Quota::per_minute(units)
}

fn by_name(policy: Policy, lookup: &QuotaLookup) -> Limit {
    let limit = Limit::new(policy, Header::trust_unverified(NAME)).quota_from(lookup);
    limit.on_missing_key(OnMissingKey::Pass)
}

type Service = RateLimit<Hello, MemoryStore<ManualClock>>;

fn service(lookup: &QuotaLookup) -> Service {
    limited(&memory().1, [by_name(log("client", OWN), lookup)])
}

pub(crate) fn named(name: &str) -> http::Request<()> {
    let mut request = get();
    request.headers_mut().insert(NAME, name.parse().unwrap());
    request
}

/// The status, and the limit in the headers.
async fn answer(service: &Service, name: &str) -> (u16, Option<u64>) {
    let answer = ask(service, named(name)).await;
    let limit = field(answer.headers(), "x-ratelimit-limit");
    (answer.status().as_u16(), limit.and_then(|limit| limit.parse().ok()))
}

async fn limit(service: &Service, name: &str) -> u64 {
    answer(service, name).await.1.unwrap()
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_a_look_up() {
    let database = Database::default();
    database.takes(Duration::from_millis(100));
    database.set("ann", per_minute(20));
    let lookup = database.builder().build();
    let service = service(&lookup);
    let (a, b, c) =
        tokio::join!(limit(&service, "ann"), limit(&service, "ann"), limit(&service, "bob"));
    assert_eq!([a, b, c], [20, 20, OWN]);
    assert_eq!(database.looked_up(), ["ann", "bob"]);
    // Cached.
    assert_eq!([limit(&service, "ann").await, limit(&service, "bob").await], [20, OWN]);
    // A request without a key starts no look-up.
    assert_eq!(status(&service).await, 200);
    assert!(database.looked_up().is_empty());
}

#[tokio::test(start_paused = true)]
async fn cached_quotas_do_not_suspend() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let service = service(&database.builder().build());
    limit(&service, "ann").await;
    // Only the background look-up could take time.
    database.takes(Duration::from_secs(1));
    advance(TTL * 3 / 4).await;
    let mut answer = Box::pin(service.oneshot(named("ann")));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(answer.as_mut().poll(context).is_ready());
}

#[tokio::test(start_paused = true)]
async fn change_applies_within_time_to_live() {
    let database = Database::default();
    database.set("ann", per_minute(20));
    let service = service(&database.builder().ttl(TTL).build());
    assert_eq!(limit(&service, "ann").await, 20);
    database.set("ann", per_minute(30));
    advance(TTL / 2 - Duration::from_millis(1)).await;
    assert_eq!(limit(&service, "ann").await, 20);
    assert_eq!(database.looked_up(), ["ann"]);
    advance(Duration::from_millis(1)).await;
    // This request starts the look-up.
    assert_eq!(limit(&service, "ann").await, 20);
    settle_down().await;
    assert_eq!(limit(&service, "ann").await, 30);
    assert_eq!(database.looked_up(), ["ann"]);
    // A client that was idle waits for its look-up.
    database.set("ann", per_minute(40));
    advance(TTL).await;
    assert_eq!(limit(&service, "ann").await, 40);
}

#[tokio::test(start_paused = true)]
async fn forgotten_look_up_in_flight_is_not_used() {
    let database = Database::default();
    database.takes(Duration::from_secs(1));
    database.set("ann", per_minute(20));
    let lookup = database.builder().build();
    let service = service(&lookup);
    for forget in [|lookup: &QuotaLookup| lookup.forget("ann"), QuotaLookup::forget_all] {
        database.set("ann", per_minute(20));
        forget(&lookup);
        let (early, late) = tokio::join!(limit(&service, "ann"), async {
            sleep(Duration::from_millis(1)).await;
            // The quota changes after the database has read it.
            database.set("ann", per_minute(30));
            forget(&lookup);
            limit(&service, "ann").await
        });
        assert_eq!((early, late), (20, 30));
        assert_eq!(limit(&service, "ann").await, 30);
        assert_eq!(database.looked_up().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_look_up_never_widens_a_limit() {
    use OnLookupFailure::*;
    for (on_failure, known, expected) in [
        (LastKnown, None, (200, Some(OWN))),
        (LastKnown, Some(3), (200, Some(3))),
        (LastKnown, Some(20), (200, Some(20))),
        (LimitQuota, None, (200, Some(OWN))),
        (LimitQuota, Some(3), (200, Some(3))),
        (LimitQuota, Some(20), (200, Some(OWN))),
        (Refuse, None, (503, None)),
        (Refuse, Some(3), (503, None)),
        (Refuse, Some(20), (503, None)),
    ] {
        for fault in [Fault::Fails, Fault::Panics, Fault::Hangs] {
            for forgets in [false, true] {
                let database = Database::default();
                let lookup = database.builder().ttl(TTL).on_failure(on_failure).build();
                // Without cost, because only the limit matters.
                let client = by_name(log("client", OWN), &lookup).cost(0);
                let service = limited(&memory().1, [client]);
                if let Some(known) = known {
                    database.set("ann", per_minute(known));
                    assert_eq!(answer(&service, "ann").await, (200, Some(known)));
                }
                database.fault(fault);
                // A background look-up fails, and the result is still valid.
                advance(TTL * 3 / 4).await;
                if let Some(known) = known {
                    assert_eq!(answer(&service, "ann").await, (200, Some(known)));
                    sleep(Duration::from_secs(3)).await;
                    assert_eq!(answer(&service, "ann").await, (200, Some(known)));
                }
                if forgets {
                    lookup.forget("ann");
                } else {
                    advance(TTL / 4).await;
                }
                let found = timeout(Duration::from_secs(3), answer(&service, "ann")).await;
                assert_eq!(found.unwrap(), expected, "{on_failure:?} {known:?}");
                // While it is tried again, requests do not wait.
                advance(TTL / 2).await;
                let found = timeout(Duration::from_millis(1), answer(&service, "ann")).await;
                assert_eq!(found.unwrap(), expected, "{on_failure:?} {known:?}");
                // When the source is back, it applies from the next look-up on.
                database.fault(None);
                database.set("ann", per_minute(30));
                sleep(Duration::from_secs(3)).await;
                answer(&service, "ann").await;
                settle_down().await;
                assert_eq!(answer(&service, "ann").await, (200, Some(30)));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failing_source_is_asked_once_a_second() {
    let database = Database::default();
    database.fault(Fault::Fails);
    let service = service(&database.builder().build());
    limit(&service, "ann").await;
    for _ in 0..100 {
        advance(Duration::from_millis(100)).await;
        limit(&service, "ann").await;
        settle_down().await;
    }
    let asked = database.looked_up().len();
    assert!((9..=11).contains(&asked), "{asked}");
}

#[tokio::test]
async fn unknown_client_has_stated_quota() {
    let database = Database::default();
    let lookup = database.builder().on_unknown(OnUnknownClient::Refuse).build();
    assert_eq!(answer(&service(&lookup), "ann").await, (403, None));
    let lookup = database.builder().on_unknown(OnUnknownClient::LimitQuota).build();
    assert_eq!(answer(&service(&lookup), "ann").await, (200, Some(OWN)));
    // A limit that does not reject requests does not refuse clients.
    let lookup = database.builder().on_unknown(OnUnknownClient::Refuse).build();
    for mode in [Mode::Shadow, Mode::Annotate] {
        let limit = by_name(log("client", OWN), &lookup).mode(mode);
        assert_eq!(answer(&limited(&memory().1, [limit]), "ann").await.0, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn unfit_quota_is_a_failed_look_up() {
    let database = Database::default();
    let lookup = database.builder().ttl(TTL).build();
    let service = service(&lookup);
    // A sliding window has no burst.
    let unfit = per_minute(1_000).burst(2_000);
    database.set("ann", unfit);
    assert_eq!(limit(&service, "ann").await, OWN, "none is known");
    for quota in [per_minute(3), unfit, per_minute(0), per_minute(u64::MAX)] {
        database.set("ann", quota);
        lookup.forget("ann");
        assert_eq!(limit(&service, "ann").await, 3, "{quota:?}");
    }
    let lookup = database.builder().on_failure(OnLookupFailure::Refuse).build();
    assert_eq!(answer(&self::service(&lookup), "ann").await, (503, None));
}

/// No request sees the first of two results that do not fit.
#[tokio::test(start_paused = true)]
async fn last_fitting_quota_survives_several_unfit_results() {
    let database = Database::default();
    let lookup = database.builder().ttl(TTL).build();
    let service = service(&lookup);
    database.set("ann", per_minute(3));
    assert_eq!(limit(&service, "ann").await, 3);
    database.set("ann", per_minute(1_000).burst(2_000));
    advance(TTL * 2 / 3).await;
    assert_eq!(limit(&service, "ann").await, 3, "looks up in the background");
    sleep(TTL * 2).await;
    database.set("ann", per_minute(1_000).burst(3_000));
    assert_eq!(limit(&service, "ann").await, 3);
}

#[tokio::test(start_paused = true)]
async fn costs_of_an_unfit_quota_do_not_apply() {
    let database = Database::default();
    let unfit = ClientQuota::from(per_minute(1_000).burst(2_000));
    database.set("ann", unfit.costs(Costs::flat(0)));
    let service = service(&database.builder().build());
    let answer = ask(&service, named("ann")).await;
    assert_eq!(field(answer.headers(), "x-ratelimit-remaining").as_deref(), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn shadow_limit_never_waits_for_a_look_up() {
    let database = Database::default();
    database.set("ann", per_minute(2));
    database.takes(Duration::from_secs(1));
    let shadow = by_name(log("client", OWN), &database.builder().build()).shadow();
    let service = limited(&memory().1, [shadow]);
    let started = Instant::now();
    assert_eq!(answer(&service, "ann").await.0, 200);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn full_cache_still_serves_new_clients() {
    let database = Database::default();
    let lookup = database.builder().capacity(1).build();
    let service = service(&lookup);
    for client in 0..20 {
        let name = format!("client-{client}");
        database.set(&name, per_minute(100 + client));
        assert_eq!(limit(&service, &name).await, 100 + client);
    }
}

#[tokio::test(start_paused = true)]
async fn look_up_outlives_its_first_request() {
    let database = Database::default();
    database.takes(Duration::from_secs(1));
    database.set("ann", per_minute(20));
    let service = service(&database.builder().build());
    let first = timeout(Duration::from_millis(500), limit(&service, "ann")).await;
    assert!(first.is_err());
    assert_eq!(limit(&service, "ann").await, 20);
    assert_eq!(database.looked_up(), ["ann"]);
}

#[tokio::test(start_paused = true)]
async fn look_ups_in_progress_are_bounded() {
    let database = Database::default();
    database.takes(Duration::from_secs(1));
    let lookup = database.builder().max_in_progress(2).timeout(Duration::from_secs(5)).build();
    let service = service(&lookup);
    let clients = (0..6).map(|client| {
        let service = service.clone();
        tokio::spawn(async move { limit(&service, &format!("client-{client}")).await })
    });
    let clients: Vec<_> = clients.collect();
    for expected in [2, 4, 6] {
        settle_down().await;
        assert_eq!(database.0.lock().looked_up.len(), expected);
        advance(Duration::from_secs(1)).await;
    }
    for client in clients {
        assert_eq!(client.await.unwrap(), OWN);
    }
}
