//! Features of the layer in two services that share only Redis.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::key::Key;
use tollgate::layer::Reservation;
use tollgate::limit::Reserve;
use tollgate::policy::Cost;
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

fn done(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
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
