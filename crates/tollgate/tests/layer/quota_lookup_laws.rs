//! Laws of quotas that change while requests are in flight, in two processes on one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate::key::{Global, Header};
use tollgate::limit::OnMissingKey;
use tollgate::store::ManualClock;
use tollgate::tier::QuotaLookup;
use tollgate::{Limit, MemoryStore};
use tower::{Layer, ServiceExt};

use crate::quota_lookup::{Database, Fault, per_minute};
use crate::support::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The database's number changes.
    Change(u64),
    /// A process learns that the number has changed.
    Forget(usize),
    /// The database fails, or works again.
    Fail(bool),
    /// A process receives a request. Its response counts, or the request is refunded.
    Ask { process: usize, counts: bool },
    /// The oldest request in flight finishes.
    Finish,
    /// Time passes, in seconds.
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        // A key has at most four versions.
        2 => (1_u64..5).prop_map(Event::Change),
        1 => (0_usize..2).prop_map(Event::Forget),
        1 => any::<bool>().prop_map(Event::Fail),
        8 => (0_usize..2, any::<bool>()).prop_map(|(process, counts)| Event::Ask { process, counts }),
        4 => Just(Event::Finish),
        2 => (1_u64..40).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..60)
}

/// Holds a request until the test finishes it. A 401 counts.
#[derive(Clone)]
struct Held {
    finish: Arc<Notify>,
    counts: bool,
}

struct InFlight {
    held: Held,
    task: JoinHandle<Response<Full<Bytes>>>,
    since: u64,
}

struct Processes {
    clock: ManualClock,
    database: Database,
    lookups: [QuotaLookup; 2],
    layers: [tollgate::RateLimitLayer<MemoryStore<ManualClock>>; 2],
}

impl Processes {
    fn new(first: u64) -> Self {
        let (clock, store) = memory();
        let database = Database::default();
        database.set("global", per_minute(first));
        let lookups = [0, 1].map(|_| database.builder().build());
        let layers = lookups.clone().map(|lookup| {
            let limit = Limit::new(log("tenant", first), Global).quota_from(&lookup);
            let limit = limit.count_only(|response| response.status == 401);
            // It sees each request, and must not deny any.
            let shadow = limit.fraction("watched", 1, 4).unwrap().shadow();
            layer(&store, [limit, shadow])
        });
        Self { clock, database, lookups, layers }
    }

    /// Sends a request. `None` if it is denied.
    async fn ask(&self, process: usize, counts: bool, since: u64) -> Option<InFlight> {
        let held = Held { finish: Arc::default(), counts };
        let service = tower::service_fn(|request: Request<()>| async move {
            let Held { finish, counts } = request.extensions().get().cloned().unwrap();
            finish.notified().await;
            let status = if counts { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
            let mut response = Response::new(Full::default());
            *response.status_mut() = status;
            Ok::<_, std::convert::Infallible>(response)
        });
        let mut request = get();
        request.extensions_mut().insert(held.clone());
        let service = self.layers[process].layer(service);
        let task = tokio::spawn(async move { service.oneshot(request).await.unwrap() });
        settle_down().await;
        if task.is_finished() {
            assert_eq!(task.await.unwrap().status(), 429);
            return None;
        }
        Some(InFlight { held, task, since })
    }
}

/// Returns how many units count at this time.
fn counting(charged: &[u64], in_flight: &[InFlight], now: u64) -> u64 {
    let counts = |since: &u64| *since + 60 > now;
    let in_flight = in_flight.iter().map(|it| it.since).filter(counts).count();
    (charged.iter().copied().filter(counts).count() + in_flight) as u64
}

async fn obey(first: u64, events: &[Event]) {
    let processes = Processes::new(first);
    let (mut least, mut most, mut now) = (first, first, 0);
    // When the finished requests were charged, and whether they were not refunded.
    let (mut charged, mut refunded) = (Vec::new(), Vec::new());
    let mut in_flight = Vec::new();
    for event in events {
        match *event {
            Event::Change(units) => {
                processes.database.set("global", per_minute(units));
                (least, most) = (least.min(units), most.max(units));
            }
            Event::Forget(process) => processes.lookups[process].forget("global"),
            Event::Fail(fails) => processes.database.fault(fails.then_some(Fault::Fails)),
            Event::Ask { process, counts } => {
                let before = counting(&charged, &in_flight, now);
                let admitted = processes.ask(process, counts, now).await;
                assert!(admitted.is_none() || before < most, "{before} of {most} counted");
                // A version that was first used after the charge still counts refunded units.
                let before = before + counting(&refunded, &[], now);
                assert!(admitted.is_some() || before >= least, "only {before} of {least} counted");
                in_flight.extend(admitted);
            }
            Event::Finish if in_flight.is_empty() => {}
            Event::Finish => {
                let InFlight { held, task, since } = in_flight.remove(0);
                held.finish.notify_one();
                task.await.unwrap();
                if held.counts { &mut charged } else { &mut refunded }.push(since);
            }
            Event::Pass(seconds) => {
                now += seconds;
                processes.clock.advance(self::seconds(seconds));
                tokio::time::advance(Duration::from_secs(seconds)).await;
            }
        }
    }
    // After `Retry-After` a client is allowed, even if the number changed before its wait.
    processes.lookups.iter().for_each(|lookup| lookup.forget("global"));
    for process in [0, 1] {
        let response = loop {
            let service = processes.layers[process].layer(hello());
            let response = ask(&service, get()).await;
            // Responses of `hello` do not count, so requests in flight fill the quota.
            match response.status().as_u16() {
                429 => break response,
                _ => in_flight.extend(processes.ask(process, true, now).await),
            }
        };
        let wait = field(response.headers(), "retry-after").unwrap().parse().unwrap();
        now += wait;
        processes.clock.advance(seconds(wait));
        tokio::time::advance(Duration::from_secs(wait)).await;
        assert!(processes.ask(process, true, now).await.is_some(), "denied after {wait} s");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn changing_numbers_admit_no_more_than_the_largest(first in 1_u64..5, events in events()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(obey(first, &events));
    }
}

/// Four hundred clients of ten tenants, in two processes, while their numbers change a thousand
/// times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_changes_apply_within_two_seconds() {
    const SMALL: u64 = 20;
    const LARGE: u64 = 50;
    const TENANT: http::HeaderName = http::HeaderName::from_static("tenant");
    let (store, database) = (MemoryStore::new(), Database::default());
    let tenants: Vec<_> = (0..10).map(|tenant| format!("tenant-{tenant}")).collect();
    for tenant in &tenants {
        database.set(tenant, per_minute(SMALL));
    }
    let processes = [0, 1].map(|_| {
        let lookup = database.builder().ttl(Duration::from_secs(1)).build();
        let tenant = Limit::new(log("tenant", SMALL), Header::trust_unverified(TENANT));
        let tenant = tenant.on_missing_key(OnMissingKey::Deny).quota_from(&lookup);
        (limited(&store, [tenant]), lookup)
    });
    let asking = |tenant: &str| {
        let mut request = get();
        request.headers_mut().insert(TENANT, tenant.parse().unwrap());
        request
    };
    let admitted: Arc<[AtomicU64]> = tenants.iter().map(|_| AtomicU64::default()).collect();
    let stop = Arc::new(tokio::sync::Semaphore::new(0));
    let clients: Vec<_> = (0..400)
        .map(|client| {
            let (service, _) = processes[client % 2].clone();
            let tenant = client / 2 % tenants.len();
            let request = asking(&tenants[tenant]);
            let (admitted, stop) = (Arc::clone(&admitted), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.is_closed() {
                    let response = ask(&service, request.clone()).await;
                    let limit = field(response.headers(), "x-ratelimit-limit").unwrap();
                    assert!([SMALL, LARGE].contains(&limit.parse().unwrap()), "{limit}");
                    if response.status() == 200 {
                        admitted[tenant].fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for change in 0..1_000 {
        let units = if change / 10 % 2 == 0 { LARGE } else { SMALL };
        database.set(&tenants[change % 10], per_minute(units));
        if change % 3 == 0 {
            // Some programs know when a number changes.
            processes.iter().for_each(|(_, lookup)| lookup.forget(&tenants[change % 10]));
        }
        tokio::task::yield_now().await;
    }
    for tenant in &tenants {
        database.set(tenant, per_minute(LARGE));
    }
    let changed = Instant::now();
    for (service, _) in &processes {
        for (tenant, admitted) in tenants.iter().zip(&*admitted) {
            let limit = async || {
                let response = ask(service, asking(tenant)).await;
                if response.status() == 200 {
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
                field(response.headers(), "x-ratelimit-limit").unwrap()
            };
            while limit().await != LARGE.to_string() {
                assert!(changed.elapsed() < Duration::from_secs(2), "{tenant}");
                tokio::task::yield_now().await;
            }
        }
    }
    // The larger number is used up, and never exceeded.
    let full = || admitted.iter().all(|admitted| admitted.load(Ordering::Relaxed) >= LARGE);
    let until = Instant::now() + Duration::from_secs(30);
    while !full() {
        assert!(Instant::now() < until, "{admitted:?}");
        tokio::task::yield_now().await;
    }
    stop.close();
    for client in clients {
        client.await.unwrap();
    }
    assert!(admitted.iter().all(|it| it.load(Ordering::Relaxed) <= LARGE), "{admitted:?}");
}
