//! `PoliteLayer`: a client that waits for a limiter, learns from responses, and is ready with a permit.

use std::convert::Infallible;
use std::future::ready;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, advance};
use tollgate::denial::OwnDenial;
use tollgate::key::Key;
use tollgate::layer::RateLimit;
use tollgate::limiter::{AcquireError, LimiterBuilder, Permit, Polite, PoliteLayer};
use tollgate::policy::OnStoreError;
use tollgate::{Limit, Limiter, Policy, Quota, RateLimitLayer, Store};
use tower::balance::p2c::Balance;
use tower::discover::ServiceList;
use tower::limit::ConcurrencyLimit;
use tower::load::Constant;
use tower::load_shed::LoadShed;
use tower::load_shed::error::Overloaded;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::stage::{Fault, Staged};
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Allows 2 requests a minute.
fn queueing<St: Store>(store: &St) -> LimiterBuilder<St> {
    Limiter::builder(store.clone()).policy(log("partner", 2)).queue(2 * MINUTE).pausable(MINUTE)
}

fn by_host(head: &tollgate::key::RequestHead<'_>) -> Key {
    Key::from(head.uri.host().unwrap_or_default())
}

fn to(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).unwrap()
}

async fn left<St: Store>(limiter: &Limiter<St>) -> u64 {
    let verdicts = limiter.peek(&Key::from("a")).await.unwrap();
    verdicts.get("partner").unwrap().decision().remaining
}

/// A service that is ready with a permit for the key `a`.
fn when_ready<St: Store>(limiter: &Limiter<St>) -> Polite<Hello, St> {
    PoliteLayer::ready_with(limiter.clone(), Key::from("a")).layer(hello())
}

fn is_sync<T: Send + Sync + Clone>(_: &T) {}

#[tokio::test(start_paused = true)]
async fn requests_queue_by_key() {
    let limiter = queueing(&on_tokio_time()).build().unwrap();
    let client = PoliteLayer::new(limiter.clone(), by_host).layer(hello());
    is_sync(&client);
    let start = Instant::now();
    let mut left_at = Vec::new();
    for uri in ["http://a/", "http://a/", "http://b/", "http://a/"] {
        let response = client.clone().oneshot(to(uri)).await.unwrap();
        assert!(response.extensions().get::<Arc<Permit<_>>>().is_some_and(is_of(&limiter)));
        left_at.push(start.elapsed().as_secs());
    }
    assert_eq!(left_at, [0, 0, 0, 60]);
}

/// Names the permit's type.
fn is_of<St: Store>(_: &Limiter<St>) -> impl Fn(&Arc<Permit<St>>) -> bool {
    |permit| permit.receipts().len() == 1
}

#[tokio::test(start_paused = true)]
async fn refusal_is_a_typed_error() {
    let limiter = Limiter::builder(on_tokio_time()).policy(log("partner", 2)).build().unwrap();
    let client = PoliteLayer::new(limiter, by_host).layer(hello());
    for _ in 0..2 {
        client.clone().oneshot(get()).await.unwrap();
    }
    let error = client.oneshot(get()).await.unwrap_err();
    let error = error.downcast_ref::<AcquireError>().unwrap();
    assert_eq!(error.retry_after(), Some(MINUTE));
}

#[tokio::test(start_paused = true)]
async fn denial_by_the_service_pauses_all_clients() {
    let store = on_tokio_time();
    let denials = Arc::new(Mutex::new(1));
    let service = service_fn(move |_: Request<()>| {
        let mut response = Response::new(());
        let is_first = mem::take(&mut *denials.lock()) > 0;
        if is_first {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response.headers_mut().insert("retry-after", HeaderValue::from(30));
        }
        ready(Ok::<_, Infallible>(response))
    });
    let client = || {
        let limiter = queueing(&store).build().unwrap();
        PoliteLayer::new(limiter, by_host).layer(service.clone())
    };
    let start = Instant::now();
    assert_eq!(client().oneshot(get()).await.unwrap().status(), 429);
    assert_eq!(client().oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn denial_by_an_own_layer_pauses_nobody() {
    let store = on_tokio_time();
    let hourly = Policy::sliding_window_log("own", Quota::per_hour(1)).unwrap();
    let own =
        RateLimitLayer::builder(store.clone()).limit(Limit::global(hourly)).mark_denials(true);
    let own = own.build().unwrap().layer(hello());
    let limiter = queueing(&store).build().unwrap();
    let client = PoliteLayer::new(limiter, by_host).layer(own);
    let start = Instant::now();
    assert_eq!(client.clone().oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(client.clone().oneshot(get()).await.unwrap().status(), 429);
    assert_eq!(client.oneshot(get()).await.unwrap().status(), 429);
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn load_shed_rejects_without_a_permit() {
    let limiter = queueing(&on_tokio_time()).build().unwrap();
    let mut client = LoadShed::new(when_ready(&limiter));
    let mut shed = Vec::new();
    for _ in 0..7 {
        let response = client.ready().await.unwrap().call(get()).await;
        shed.push(response.is_err_and(|error| error.is::<Overloaded>()));
        advance(MINUTE / 6).await;
    }
    assert_eq!(shed, [false, false, true, true, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn balance_chooses_the_client_with_units() {
    let limiter = queueing(&on_tokio_time()).build().unwrap();
    let clients = ["a", "b"].map(|key| {
        let client = PoliteLayer::ready_with(limiter.clone(), Key::from(key)).layer(hello());
        Constant::new(client, 1)
    });
    let mut client = Balance::new(ServiceList::new::<Request<()>>(Vec::from(clients)));
    let start = Instant::now();
    for _ in 0..4 {
        client.ready().await.unwrap().call(get()).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    client.ready().await.unwrap();
    assert_eq!(start.elapsed(), MINUTE);
}

#[tokio::test(start_paused = true)]
async fn unused_permits_are_refunded() {
    let limiter = queueing(&on_tokio_time()).build().unwrap();
    let mut client = when_ready(&limiter);
    client.ready().await.unwrap();
    assert_eq!(left(&limiter).await, 1);
    // A clone has no permit.
    let mut clone = client.clone();
    clone.ready().await.unwrap();
    assert_eq!(left(&limiter).await, 0);
    drop(clone);
    settle_down().await;
    assert_eq!(left(&limiter).await, 1);
    // A pause has started since.
    advance(Duration::from_secs(1)).await;
    limiter.pause(&Key::from("a"), MINUTE).await.unwrap();
    let start = Instant::now();
    client.ready().await.unwrap().call(get()).await.unwrap();
    assert_eq!(start.elapsed(), MINUTE);
    advance(MINUTE / 2).await;
    assert_eq!(left(&limiter).await, 1);
    // A service that queues and is dropped leaves no charge.
    let mut waiting = [when_ready(&limiter), when_ready(&limiter)];
    waiting[0].ready().await.unwrap();
    assert!(tokio::time::timeout(MINUTE / 60, waiting[1].ready()).await.is_err());
    drop(waiting);
    // A place that is left is free from its instant on.
    advance(MINUTE / 2).await;
    assert_eq!(left(&limiter).await, 2);
}

/// A client that becomes ready late would use all its permits at the same time, so they lapse.
#[tokio::test(start_paused = true)]
async fn late_client_needs_new_permits() {
    let limiter = queueing(&on_tokio_time()).build().unwrap();
    let client = ConcurrencyLimit::new(
        service_fn(async |_: Request<()>| {
            tokio::time::sleep(3 * MINUTE).await;
            Ok::<_, Infallible>(Response::new(()))
        }),
        1,
    );
    let client = PoliteLayer::new(limiter.clone(), by_host).layer(client);
    let calls: Vec<_> =
        (0..2).map(|_| tokio::spawn(client.clone().oneshot(to("http://a/")))).collect();
    tokio::time::sleep(2 * MINUTE).await;
    // The second call still waits for the client.
    assert_eq!(left(&limiter).await, 2);
    tokio::time::sleep(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(left(&limiter).await, 1, "it has left with a new permit");
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn too_long_a_wait_is_not_ready() {
    let limiter = Limiter::builder(on_tokio_time()).policy(log("partner", 2)).build().unwrap();
    let mut client = when_ready(&limiter);
    let start = Instant::now();
    for _ in 0..3 {
        client.ready().await.unwrap().call(get()).await.unwrap();
    }
    assert_eq!(start.elapsed(), MINUTE);
}

#[tokio::test(start_paused = true)]
async fn failing_store_fails_the_request() {
    let store = Staged::new(on_tokio_time());
    let policy: Policy = log("partner", 2).with_on_store_error(OnStoreError::Closed);
    let limiter = Limiter::builder(store.clone()).policy(policy).build().unwrap();
    let mut client = when_ready(&limiter);
    store.fail(Fault::RetryAfter(seconds(9)));
    let error = client.ready().await.unwrap().call(get()).await.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(AcquireError::Store(_))), "{error}");
    store.recover();
    client.ready().await.unwrap().call(get()).await.unwrap();
    limiter.close();
    let error = client.ready().await.unwrap().call(get()).await.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(AcquireError::Closed)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn client_layers_share_a_queue_in_the_store() {
    let store = Staged::new(on_tokio_time());
    let policy = log("partner", 1).with_queue(10 * MINUTE).unwrap();
    let client = || {
        let layer = RateLimitLayer::for_client(store.clone(), policy.clone(), 2 * MINUTE);
        layer.unwrap().layer(hello())
    };
    let start = Instant::now();
    let mut calls = Vec::new();
    for _ in 0..4 {
        let client = client();
        calls.push(tokio::spawn(async move {
            let response = ask(&client, get()).await;
            (response.status().as_u16(), start.elapsed().as_secs(), response)
        }));
        settle_down().await;
    }
    // The last would leave after 3 minutes, so it is rejected immediately, and marked.
    let (status, at, response) = calls.pop().unwrap().await.unwrap();
    assert_eq!((status, at), (429, 0));
    assert!(response.extensions().get::<OwnDenial>().is_some());
    assert_eq!(field(response.headers(), "retry-after").as_deref(), Some("60"));
    // A request that is dropped leaves its place to the next.
    calls.pop().unwrap().abort();
    settle_down().await;
    assert_eq!(status_and_time(&client(), start).await, (200, 120));
    for (call, expected) in calls.into_iter().zip([(200, 0), (200, 60)]) {
        let (status, at, _) = call.await.unwrap();
        assert_eq!((status, at), expected);
    }
    // One call each, also for the request that was rejected.
    assert_eq!(store.calls(), 5);
}

async fn status_and_time<St: Store>(client: &RateLimit<Hello, St>, start: Instant) -> (u16, u64) {
    (status(client).await, start.elapsed().as_secs())
}
