//! Features of the layer in two services that share only Redis.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::key::Key;
use tollgate::layer::Reservation;
use tollgate::limit::{OnExceeded, Reserve};
use tollgate::policy::{Cost, Strikes};
use tollgate::tier::{self, Tier};
use tollgate::{Costs, Limit, Policy, Quota, RateLimitLayer, RedisStore, Store, StoreExt};
use tollgate_test_servers::{Redis, until_async};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Two stores with separate connections, like two processes.
async fn two_stores(redis: &Redis) -> [RedisStore; 2] {
    let connect = || {
        let builder = RedisStore::builder(&redis.url()).unwrap();
        // Long enough for a machine that is busy with other tests.
        builder.timeout(Duration::from_secs(10)).connect().unwrap()
    };
    let stores = [connect(), connect()];
    for store in &stores {
        tokio::time::timeout(Duration::from_secs(20), store.connected()).await.unwrap();
    }
    stores
}

fn layer<St: Store>(store: &St, limit: Limit) -> RateLimitLayer<St> {
    RateLimitLayer::builder(store.clone())
        .limit(limit.costs(Costs::flat(Cost::ONE)))
        .tiers(tier::in_extensions())
        .build()
        .unwrap()
}

fn daily(name: &str, limit: u64) -> Policy {
    Policy::sliding_window_log(name, Quota::per_day(limit)).unwrap()
}

async fn left(store: &RedisStore, policy: &Policy) -> u64 {
    store.peek(policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining
}

/// Waits until Redis has executed the refunds, because the layer does not wait for these.
async fn wait_for_remaining(store: &RedisStore, policy: &Policy, expected: u64) {
    let is_so = async || (left(store, policy).await == expected).then_some(());
    until_async(&format!("{expected} units remain"), Duration::from_secs(20), is_so).await;
}

async fn status<S, B>(service: &S, request: Request<()>) -> u16
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    service.clone().oneshot(request).await.unwrap().status().as_u16()
}

/// A concurrency limit. `lease` must be long enough for renewals on a busy machine.
fn at_once(limit: u64, lease: Duration) -> Policy {
    Policy::concurrent_requests("at-once", limit, lease).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_a_concurrency_limit() {
    let redis = Redis::start();
    let [one, two] = two_stores(&redis).await;
    let [three, _] = two_stores(&redis).await;
    let policy = at_once(7, Duration::from_secs(600));
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200 {
        let store = [&one, &two, &three][n % 3];
        let (inside, most, gate) = (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&gate));
        let service =
            layer(store, Limit::global(policy.clone())).layer(service_fn(move |_: Request<()>| {
                let (inside, most, gate) =
                    (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&gate));
                async move {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Infallible>(done(200))
                }
            }));
        tasks.spawn(async move { status(&service, Request::new(())).await });
    }
    for _ in 0..193 {
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), 429);
    }
    // After each request, another replica sees the permit return.
    for n in 0..6 {
        gate.add_permits(1);
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), 200);
        wait_for_remaining(&two, &policy, n + 1).await;
    }
    gate.add_permits(1);
    assert_eq!(tasks.join_next().await.unwrap().unwrap(), 200);
    wait_for_remaining(&three, &policy, 7).await;
    assert_eq!(most.load(Ordering::SeqCst), 7);
}

const PERMIT_TTL: Duration = Duration::from_secs(6);

#[tokio::test]
async fn permits_of_killed_process_expire() {
    let redis = Redis::start();
    let [store, _] = two_stores(&redis).await;
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_holder"))
        .args([redis.url(), PERMIT_TTL.as_millis().to_string()])
        .spawn()
        .unwrap();
    let policy = at_once(3, PERMIT_TTL);
    wait_for_remaining(&store, &policy, 0).await;
    // The process is alive and renews its permits, so these outlast their time to live.
    let alive = Instant::now();
    while alive.elapsed() < PERMIT_TTL * 5 / 4 {
        assert_eq!(left(&store, &policy).await, 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let killed = Instant::now();
    let verdict = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    let lease = Duration::from(verdict.decisions()[0].reset_after);
    assert!(!lease.is_zero() && lease <= PERMIT_TTL, "{lease:?}");
    wait_for_remaining(&store, &policy, 3).await;
    assert!(killed.elapsed() >= lease, "{:?} of {lease:?}", killed.elapsed());
}

#[tokio::test]
async fn strikes_are_shared_by_replicas() {
    let redis = Redis::start();
    let stores = two_stores(&redis).await;
    let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
    let limit = || Limit::global(daily("account", 5)).costs(Costs::flat(Cost::ONE));
    let strikes = Strikes::of_denials(4, day).block(10 * minute).growing(2, day);
    let banned = limit().penalty("banned", strikes).unwrap();
    let services = stores.each_ref().map(|store| {
        let layer = RateLimitLayer::builder(store.clone()).limit(limit()).limit(banned.clone());
        layer
            .build()
            .unwrap()
            .layer(service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(done(200)))))
    });
    let mut waits = Vec::new();
    for n in 0..12 {
        let response = services[n % 2].clone().oneshot(Request::new(())).await.unwrap();
        let wait = response.headers().get("retry-after");
        waits.push(wait.map(|wait| wait.to_str().unwrap().parse::<u64>().unwrap()));
    }
    assert!(waits[..5].iter().all(Option::is_none), "{waits:?}");
    // The wait of the daily limit is longer than the block, so the denial reports that wait.
    assert!(waits[5..].iter().all(|wait| wait.is_some_and(|wait| wait > 600)), "{waits:?}");
    for store in &stores {
        let peeked = store.peek(banned.policy(), &Key::GLOBAL).await.unwrap();
        assert_eq!(peeked.decisions()[0].remaining, 0);
        store.reset(&daily("account", 5), &Key::GLOBAL).await.unwrap();
        let service = &services[0];
        assert_eq!(status(service, Request::new(())).await, 429, "still blocked");
    }
    stores[0].reset(banned.policy(), &Key::GLOBAL).await.unwrap();
    assert_eq!(status(&services[0], Request::new(())).await, 200);
}

fn done(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_failures_never_exceed_shared_quota() {
    let redis = Redis::start();
    let stores = two_stores(&redis).await;
    let tried = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for store in &stores {
        let failures =
            Limit::global(daily("login", 5)).count_only(|response| response.status == 401);
        let tried = Arc::clone(&tried);
        let service = layer(store, failures).layer(service_fn(move |_: Request<()>| {
            tried.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(done(401))
            }
        }));
        for _ in 0..100 {
            let service = service.clone();
            tasks.push(tokio::spawn(async move { status(&service, Request::new(())).await }));
        }
    }
    let mut failed = 0;
    for task in tasks {
        failed += u32::from(task.await.unwrap() == 401);
    }
    assert_eq!((tried.load(Ordering::SeqCst), failed), (5, 5));
}

#[tokio::test]
async fn refunds_are_shared_by_replicas() {
    let redis = Redis::start();
    let [one, other] = two_stores(&redis).await;
    let policy = daily("login", 5);
    let failures = Limit::global(policy.clone()).count_only(|response| response.status == 401);
    let service = layer(&one, failures)
        .layer(service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(done(200)))));
    for _ in 0..20 {
        assert_eq!(status(&service, Request::new(())).await, 200);
        wait_for_remaining(&other, &policy, 5).await;
    }
}

#[tokio::test]
async fn another_process_settles_once() {
    let redis = Redis::start();
    let [one, other] = two_stores(&redis).await;
    let policy = daily("tokens", 1_000);
    let (hand_over, receipts) = std::sync::mpsc::channel();
    let limit = Limit::global(policy.clone()).reserve(Reserve::by_handler());
    let estimate = RateLimitLayer::builder(one.clone())
        .limit(limit.costs(Costs::flat(Cost::new(300))))
        .build()
        .unwrap();
    let service = estimate.layer(service_fn(move |request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap();
        hand_over.send(reservation.clone()).unwrap();
        std::future::ready(Ok::<_, Infallible>(done(200)))
    }));
    assert_eq!(status(&service, Request::new(())).await, 200);
    let reservation = receipts.recv().unwrap();
    for receipt in reservation.receipts() {
        other.settle(&receipt, Cost::new(40)).await.unwrap();
    }
    assert_eq!(left(&one, &policy).await, 960);
    reservation.settle(Cost::new(900));
    // Redis executes commands in order, so a second settlement would be visible here.
    assert_eq!(left(&one, &policy).await, 960);
    assert_eq!(left(&other, &policy).await, 960);
}

#[tokio::test]
async fn tier_change_keeps_consumed_units() {
    let redis = Redis::start();
    let stores = two_stores(&redis).await;
    let services = stores.each_ref().map(|store| {
        let limit = Limit::global(daily("account", 5)).in_tier("pro", Quota::per_day(20)).unwrap();
        layer(store, limit)
            .layer(service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(done(200)))))
    });
    let pro = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(Tier::from("pro"));
        request
    };
    let mut passed = [0, 0];
    for n in 0..20 {
        passed[0] += u32::from(status(&services[n % 2], Request::new(())).await == 200);
    }
    for n in 0..40 {
        passed[1] += u32::from(status(&services[n % 2], pro()).await == 200);
    }
    assert_eq!(passed, [5, 15]);
    assert_eq!(status(&services[0], Request::new(())).await, 429);
}

#[tokio::test]
async fn waiting_requests_respect_the_limit() {
    let redis = Redis::start();
    let [store, _] = two_stores(&redis).await;
    let window = Duration::from_millis(200);
    let policy = Policy::sliding_window_log("upload", Quota::every(window)).unwrap();
    let limit =
        Limit::global(policy).on_exceeded(OnExceeded::Wait { max: Duration::from_secs(60) });
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&order);
    let service = layer(&store, limit).layer(service_fn(move |request: Request<()>| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        std::future::ready(Ok::<_, Infallible>(done(200)))
    }));
    let start = Instant::now();
    assert_eq!(status(&service, Request::get("/0").body(()).unwrap()).await, 200);
    let waiting: Vec<_> = (1..5)
        .map(|n| {
            let service = service.clone();
            let request = Request::get(format!("/{n}")).body(()).unwrap();
            tokio::spawn(async move { status(&service, request).await })
        })
        .collect();
    for task in waiting {
        assert_eq!(task.await.unwrap(), 200);
    }
    assert!(start.elapsed() >= 4 * window);
    let mut order = std::mem::take(&mut *order.lock().unwrap());
    assert_eq!(order[0], "/0");
    // The order of the four concurrent requests depends on the store.
    order.sort_unstable();
    assert_eq!(order, ["/0", "/1", "/2", "/3", "/4"]);
}
