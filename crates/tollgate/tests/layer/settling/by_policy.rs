//! Tallies with a cost for each policy.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use tollgate::layer::{Reservation, Tally};
use tollgate::limit::Reserve;
use tollgate::policy::Cost;
use tollgate::{Limit, Policy};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

fn policies() -> [Policy; 3] {
    [log("tokens", 1_000), log("cents", 500), log("bytes", 100)]
}

/// The remaining units after a request reserved 90 units of each policy and `frames` frames of the
/// response body were read.
async fn remaining(
    frames: usize,
    prepare: fn(Tally) -> Tally,
    count: fn(&Tally, &Bytes),
) -> [u64; 3] {
    let (_, store) = memory();
    let limits =
        policies().map(|policy| Limit::global(policy).cost(90).reserve(Reserve::by_handler()));
    let layer = layer(&store, limits).any_body();
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        let frames = ["two", "words"].map(|text| {
            Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(text.as_bytes())))
        });
        let body = StreamBody::new(tokio_stream::iter(frames));
        let body = prepare(reservation.tally()).body_with(body, count);
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let mut body = service.oneshot(get()).await.unwrap().into_body();
    for _ in 0..frames {
        body.frame().await;
    }
    drop(body);
    let [tokens, cents, bytes] = policies();
    [left(&store, &tokens).await, left(&store, &cents).await, left(&store, &bytes).await]
}

#[tokio::test]
async fn each_policy_has_its_cost() {
    fn prepare(tally: Tally) -> Tally {
        tally.set_policy("tokens", 10);
        tally.set_policy("cents", Cost::ONE);
        tally.set_policy("other", 7);
        tally
    }
    fn count(tally: &Tally, data: &Bytes) {
        tally.add(data.len() as u64);
        // Later costs replace earlier costs, and may be lower.
        tally.set_policy("tokens", if &**data == b"two" { 300 } else { 200 });
    }
    // If the client leaves before the first frame, the estimate for `bytes` remains.
    assert_eq!(remaining(0, prepare, count).await, [990, 499, 10]);
    assert_eq!(remaining(1, prepare, count).await, [700, 499, 97]);
    assert_eq!(remaining(2, prepare, count).await, [800, 499, 92]);
    assert_eq!(remaining(3, prepare, count).await, [800, 499, 92]);
}

#[tokio::test]
async fn minimum_applies_to_other_policies() {
    fn prepare(tally: Tally) -> Tally {
        tally.set_policy("tokens", 10);
        tally.at_least(20_u64)
    }
    assert_eq!(remaining(0, prepare, |_, _| ()).await, [990, 480, 80]);
}

#[tokio::test]
async fn earlier_settlement_counts() {
    let (_, store) = memory();
    let tokens = log("tokens", 1_000);
    let limit = Limit::global(tokens.clone()).cost(90).reserve(Reserve::by_handler());
    let service = layer(&store, [limit]).layer(service_fn(|request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        let tally = reservation.clone().tally();
        tally.set_policy("tokens", 10);
        reservation.settle(30);
        std::future::ready(Ok::<_, Infallible>(Response::new(http_body_util::Full::from("done"))))
    }));
    service.oneshot(get()).await.unwrap();
    assert_eq!(left(&store, &tokens).await, 970);
}
