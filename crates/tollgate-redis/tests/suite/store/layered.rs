//! The responses that a layer sends for remembered denials.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use tollgate::{Costs, Limit, RateLimitLayer};
use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;
use tower::{Layer, ServiceExt};

use super::denials::cached;

/// A response, and the number of deny cache hits so far.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
    remembered: u64,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    fn retry_after(&self) -> u64 {
        let seconds = self.header("retry-after").parse().unwrap();
        let body = format!(r#""retry_after":{seconds},"#);
        assert!(self.body.contains(&body), "{self:?}");
        seconds
    }
}

/// Sends a request through a layer with Redis. Its cost is the default by method, but from a
/// closure, so a method may cost more than a policy's capacity.
pub(crate) async fn ask(store: &RedisStore, policies: &[&Policy], method: &str) -> Answer {
    let layer = RateLimitLayer::builder(store.clone())
        .costs(Costs::from_fn(|head| Some(Costs::by_method().of(head))));
    let limits = policies.iter().map(|policy| Limit::global((*policy).clone()));
    let layer = limits.fold(layer, |layer, limit| layer.limit(limit)).build().unwrap();
    let service = layer.any_body().layer(tower::service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
    }));
    let request = Request::builder().method(method).body(()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    let remembered = store.stats().deny_cache_hits;
    Answer { status: head.status.as_u16(), headers: head.headers, body, remembered }
}

/// One unit per minute, with a burst of three.
fn bucket() -> Policy {
    Policy::token_bucket("bucket", Quota::per_hour(60).burst(3)).unwrap()
}

/// Whether `seconds` are `minutes`, less the time that the test took.
fn is_about(seconds: u64, minutes: u64) -> bool {
    (minutes * 60 - 30..=minutes * 60).contains(&seconds)
}

#[tokio::test]
async fn each_cost_gets_its_own_wait() {
    let server = Redis::start();
    let store = cached(&server).await;
    let bucket = bucket();
    assert_eq!(ask(&store, &[&bucket], "SEARCH").await.status, 200);
    for round in 0..3 {
        for (method, minutes) in [("GET", 1), ("SEARCH", 3)] {
            let answer = ask(&store, &[&bucket], method).await;
            assert_eq!(answer.status, 429, "{answer:?}");
            assert!(is_about(answer.retry_after(), minutes), "{method} in {round}: {answer:?}");
            assert!(answer.body.contains(r#""limit":3,"remaining":0,"#), "{answer:?}");
            assert_eq!(answer.header("x-ratelimit-remaining"), "0");
            assert!(answer.header("ratelimit").starts_with(r#""bucket";r=0;t="#), "{answer:?}");
        }
    }
    // Each cost was queried once.
    assert_eq!(ask(&store, &[&bucket], "GET").await.remembered, 5);
    // A request that can never pass gets no wait.
    let delete = ask(&store, &[&bucket], "DELETE").await;
    assert_eq!((delete.status, delete.headers.get("retry-after")), (403, None), "{delete:?}");
}

#[tokio::test]
async fn undecided_policy_is_omitted() {
    let server = Redis::start();
    let store = cached(&server).await;
    let bucket = bucket();
    let daily = Policy::sliding_window_log("daily", Quota::per_day(9)).unwrap();
    assert_eq!(ask(&store, &[&bucket, &daily], "SEARCH").await.status, 200);
    let asked = ask(&store, &[&bucket, &daily], "GET").await;
    assert!(asked.header("ratelimit").contains(r#""daily";r=6"#), "{asked:?}");
    // Another process takes the remaining units.
    let other = cached(&server).await;
    other.charge(&daily, &Key::GLOBAL, Cost::new(6)).await.unwrap();
    let answer = ask(&store, &[&bucket, &daily], "GET").await;
    assert_eq!((answer.status, answer.remembered), (429, 1), "{answer:?}");
    assert!(is_about(answer.retry_after(), 1), "{answer:?}");
    for name in ["ratelimit", "ratelimit-policy"] {
        assert!(!answer.header(name).contains("daily"), "{answer:?}");
    }
    assert_eq!(answer.header("x-ratelimit-limit"), "3");
    assert!(answer.body.contains(r#""violated-policies":["bucket"]"#), "{answer:?}");
    assert!(answer.body.contains(r#""limit":3,"remaining":0,"#), "{answer:?}");
}
