//! `count_only`: limits that count some responses and refund the rest.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::policy::{Cost, Strikes};
use tollgate::{Costs, Limit, Policy, Store};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::*;

fn logins() -> Policy {
    log("login", 5)
}

/// Five responses with status 401 per minute.
fn failures() -> Limit {
    Limit::global(logins())
        .costs(Costs::flat(Cost::ONE))
        .count_only(|response| response.status == 401)
}

/// Returns a slow login service, which responds with the status in the path, and its call counter.
fn login<St: Store>(
    store: &St,
) -> (
    impl Service<Request<()>, Response = Answer, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static,
    Arc<AtomicUsize>,
) {
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tried);
    let service = service_fn(move |request: Request<()>| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = request.uri().path()[1..].parse().unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    (layer(store, [failures()]).layer(service), tried)
}

async fn at_once<S>(service: &S, count: usize, path: &str) -> Vec<u16>
where
    S: Service<Request<()>, Response = Answer, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let tasks: Vec<_> = (0..count)
        .map(|_| tokio::spawn(service.clone().oneshot(request(http::Method::GET, path))))
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.unwrap().unwrap().status().as_u16());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_failures_never_exceed_quota() {
    let (_, store) = memory();
    let (service, tried) = login(&store);
    let statuses = at_once(&service, 200, "/401").await;
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 195);
    assert_eq!(tried.load(Ordering::SeqCst), 5);
    assert_eq!(left(&store, &logins()).await, 0);
}

#[tokio::test]
async fn uncounted_responses_are_refunded() {
    let (_, store) = memory();
    let (service, tried) = login(&store);
    for _ in 0..50 {
        assert_eq!(at_once(&service, 1, "/200").await, [200]);
    }
    assert_eq!(left(&store, &logins()).await, 5);
    for expected in [401, 401, 401, 401, 401, 429] {
        assert_eq!(at_once(&service, 1, "/401").await, [expected]);
    }
    // The status is not known before the decision, so this request is denied too.
    assert_eq!(at_once(&service, 1, "/200").await, [429]);
    assert_eq!(tried.load(Ordering::SeqCst), 55);
}

#[tokio::test]
async fn cancelled_requests_count() {
    let (_, store) = memory();
    let (service, _) = login(&store);
    let task = tokio::spawn(service.oneshot(request(http::Method::GET, "/200")));
    tokio::task::yield_now().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &logins()).await, 4);
}

#[tokio::test]
async fn service_errors_count() {
    let (_, store) = memory();
    let broken =
        service_fn(|_: Request<()>| std::future::ready(Err::<Response<Bytes>, _>("broken")));
    let service = layer(&store, [failures()]).layer(broken);
    assert_eq!(service.oneshot(get()).await.err(), Some("broken"));
    assert_eq!(left(&store, &logins()).await, 4);
}

#[tokio::test]
async fn only_count_only_limits_refund() {
    let (_, store) = memory();
    let all = log("all", 10);
    let limits = [failures(), Limit::global(all.clone()).costs(Costs::flat(Cost::ONE))];
    let service = limited(&store, limits);
    assert_eq!(status(&service).await, 200);
    assert_eq!((left(&store, &logins()).await, left(&store, &all).await), (5, 9));
}

/// Two limits and a penalty of the same layer, each with its own condition.
#[tokio::test]
async fn each_limit_counts_its_own_responses() {
    let (_, store) = memory();
    let client = Limit::global(log("denied", 5)).cost(1);
    let strikes = Strikes::of_failures(3, Duration::from_secs(60));
    let locked = client.penalty("locked", strikes).unwrap();
    let counted = |limit: Limit, statuses: &'static [u16]| {
        limit.count_only(move |response| statuses.contains(&response.status.as_u16()))
    };
    let limits = [
        counted(client, &[401]),
        counted(Limit::global(log("broken", 7)).cost(2), &[500]),
        counted(locked, &[401, 500]),
    ];
    let policies = limits.each_ref().map(|limit| limit.policy().clone());
    let service = layer(&store, limits).layer(service_fn(|request: Request<()>| {
        let mut response = Response::new(Full::<Bytes>::default());
        *response.status_mut() = request.uri().path()[1..].parse().unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    for (path, expected) in
        [("/200", [5, 7, 3]), ("/401", [4, 7, 2]), ("/500", [4, 5, 1]), ("/200", [4, 5, 1])]
    {
        let answer = service.clone().oneshot(request(http::Method::GET, path)).await.unwrap();
        assert_eq!(answer.status().as_str(), &path[1..]);
        for (policy, expected) in policies.iter().zip(expected) {
            assert_eq!(left(&store, policy).await, expected, "{policy} after {path}");
        }
    }
}
