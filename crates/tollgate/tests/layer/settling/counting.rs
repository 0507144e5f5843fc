//! `count_only`: limits that count some responses and refund the rest.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::limit::ResponseHead;
use tollgate::policy::{Cost, Strikes};
use tollgate::{Costs, Limit, Policy};
use tower::{Layer, ServiceExt, service_fn};

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

#[tokio::test]
async fn cancelled_requests_count() {
    let (_, store) = memory();
    let slow = service_fn(|_: Request<()>| std::future::pending::<Result<Answer, Infallible>>());
    let task = tokio::spawn(layer(&store, [failures()]).layer(slow).oneshot(get()));
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

/// The response's headers include the forgiveness, and other limits of the layer keep their charges.
#[tokio::test]
async fn successes_forgive_failures() {
    let (_, store) = memory();
    let strikes = Strikes::of_failures(3, Duration::from_secs(60));
    let locked = failures().penalty("locked", strikes).unwrap();
    let locked = locked.count_only(|response| response.status == 401);
    let succeeds = |response: &ResponseHead<'_>| response.status.is_success();
    let all = Limit::global(log("all", 9)).cost(1);
    let limits = [failures().forgive_on(succeeds), locked.forgive_on(succeeds), all];
    let policies = limits.each_ref().map(|limit| limit.policy().clone());
    let service = layer(&store, limits).layer(service_fn(|request: Request<()>| {
        let mut response = Response::new(Full::<Bytes>::default());
        *response.status_mut() = request.uri().path()[1..].parse().unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let paths = ["/401", "/401", "/500", "/204", "/401", "/401", "/204"];
    let expected = [[4, 2, 8], [3, 1, 7], [3, 1, 6], [5, 3, 5], [4, 2, 4], [3, 1, 3], [5, 3, 2]];
    for (path, expected) in paths.into_iter().zip(expected) {
        let answer = service.clone().oneshot(request(http::Method::GET, path)).await.unwrap();
        assert_eq!(answer.status().as_str(), &path[1..]);
        let remaining = answer.headers()["x-ratelimit-remaining"].to_str().unwrap();
        assert_eq!(remaining, expected[0].min(expected[2]).to_string(), "after {path}");
        for (policy, expected) in policies.iter().zip(expected) {
            assert_eq!(left(&store, policy).await, expected, "{policy} after {path}");
        }
    }
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
