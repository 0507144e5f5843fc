//! A client that waits as long as `RateLimit` or `X-RateLimit-Reset` states is allowed.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::advance;
use tollgate::key::Key;
use tollgate::layer::Reservation;
use tollgate::limit::Reserve;
use tollgate::policy::{Algorithm, LeakyMode, Refill, Resolution};
use tollgate::store::{Micros, Timestamp};
use tollgate::{Costs, Limit, Policy, Quota, StoreExt};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

const COST: HeaderName = HeaderName::from_static("cost");
const ACTUAL: HeaderName = HeaderName::from_static("actual");

/// A request after a pause. The service settles its cost, if it is not the estimate.
#[derive(Clone, Debug)]
struct Sent {
    pause: Duration,
    cost: u64,
    actual: Option<u64>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let pause = prop_oneof![Just(0), 0..40_000_u64].prop_map(Duration::from_millis);
    (pause, 0..30_u64, prop::option::of(0..60_u64)).prop_map(|(pause, cost, actual)| Sent {
        pause,
        cost,
        actual,
    })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let max_wait = prop::option::of((0..60_000_000_u64).prop_map(Micros::new));
    let queue = max_wait.prop_map(|max_wait| LeakyMode::Queue { max_wait });
    prop_oneof![
        Just(Algorithm::FixedWindowCounter),
        Just(Algorithm::SlidingWindowLog { resolution: Resolution::Auto }),
        Just(Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth }),
        Just(Algorithm::SlidingWindowCounter),
        Just(Algorithm::TokenBucket { refill: Refill::Greedy }),
        Just(Algorithm::TokenBucket { refill: Refill::Interval }),
        Just(Algorithm::LeakyBucket { mode: LeakyMode::Meter }),
        queue.prop_map(|mode| Algorithm::LeakyBucket { mode }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    (algorithm(), 1..20_u64, 1..90_u64, 1..30_u64).prop_map(|(algorithm, limit, window, burst)| {
        let quota = Quota::new(limit, Duration::from_secs(window));
        let is_bucket = algorithm.name().ends_with("bucket");
        let quota = if is_bucket { quota.burst(burst) } else { quota };
        Policy::new("p", quota, algorithm).unwrap()
    })
}

fn number(response: &Response<Full<Bytes>>, name: &str) -> u64 {
    field(response.headers(), name).unwrap().parse().unwrap()
}

/// `r` and `t` in `RateLimit`.
fn stated(response: &Response<Full<Bytes>>) -> (u64, u64) {
    let member = field(response.headers(), "ratelimit").unwrap();
    let (remaining, window) = member.strip_prefix(r#""p";r="#).unwrap().split_once(";t=").unwrap();
    (remaining.parse().unwrap(), window.parse().unwrap())
}

async fn obey(policy: Policy, requests: Vec<Sent>) {
    let store = on_tokio_time();
    let number_in = |request: &Request<()>, name| -> Option<u64> {
        request.headers().get(name)?.to_str().ok()?.parse().ok()
    };
    let costs = Costs::flat(0).with_fn(|head| {
        let cost = head.headers.get(COST)?.to_str().ok()?;
        cost.parse::<u64>().ok()
    });
    let limit = Limit::global(policy.clone()).costs(costs).reserve(Reserve::by_handler());
    let service = layer(&store, [limit]).layer(service_fn(move |request: Request<()>| {
        if let (Some(actual), Some(reservation)) =
            (number_in(&request, ACTUAL), request.extensions().get::<Reservation>())
        {
            reservation.settle(actual);
        }
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    }));
    let ask = async |cost: u64, actual: Option<u64>| {
        let mut request = get();
        request.headers_mut().insert(COST, HeaderValue::from(cost));
        if let Some(actual) = actual {
            request.headers_mut().insert(ACTUAL, HeaderValue::from(actual));
        }
        service.clone().oneshot(request).await.unwrap()
    };
    let capacity = policy.capacity();
    for Sent { pause, cost, actual } in requests {
        advance(pause).await;
        let cost = cost.min(capacity);
        let answer = ask(cost, actual).await;
        let (remaining, wait) = stated(&answer);
        // A settled request may be in debt, so it does not promise that its cost fits.
        let another = if actual.is_some_and(|actual| actual > cost) { 1 } else { cost.max(1) };
        if answer.status() == 429 || remaining < another {
            advance(Duration::from_secs(wait)).await;
            let again = ask(another, None).await;
            assert_eq!(again.status(), 200, "after {wait} s: {:?}", rate_fields(again.headers()));
        }
    }
    let reset = number(&ask(1, Some(capacity)).await, "x-ratelimit-reset");
    let now = store.peek(&policy, &Key::GLOBAL).await.unwrap().decided_at();
    advance(Timestamp::from_micros(reset * 1_000_000).since(now).into()).await;
    let full = ask(capacity, None).await;
    assert_eq!(full.status(), 200, "at {reset}: {:?}", rate_fields(full.headers()));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn obeyed_headers_allow_requests(
        policy in policy(),
        requests in prop::collection::vec(sent(), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(obey(policy, requests));
    }
}
