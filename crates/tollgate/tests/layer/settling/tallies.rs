//! Tallies: a streamed response counts its cost, with one cost or with a cost for each policy.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tollgate::layer::{Reservation, Tally};
use tollgate::limit::Reserve;
use tollgate::policy::Cost;
use tollgate::{Limit, Policy};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

type Body = BoxBody<Bytes, Infallible>;

fn policies() -> [Policy; 3] {
    [log("tokens", 1_000), log("cents", 500), log("bytes", 100)]
}

/// Frames that do not say which is the last one.
fn stream<const N: usize>(frames: [Frame<Bytes>; N]) -> Body {
    StreamBody::new(tokio_stream::iter(frames.map(Ok))).boxed()
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from(text))
}

/// The remaining units after a request reserved 90 units of each policy and `polls` frames of the
/// response body were read: before and after the body is dropped.
async fn remaining(polls: usize, respond: impl Fn(Tally) -> Body + Clone) -> [[u64; 3]; 2] {
    let (_, store) = memory();
    let limits =
        policies().map(|policy| Limit::global(policy).cost(90).reserve(Reserve::by_handler()));
    let layer = layer(&store, limits).any_body();
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        ready(Ok::<_, Infallible>(Response::new(respond(reservation.tally()))))
    }));
    let mut body = service.oneshot(get()).await.unwrap().into_body();
    for _ in 0..polls {
        body.frame().await;
    }
    let [tokens, cents, bytes] = &policies();
    let all =
        async || [left(&store, tokens).await, left(&store, cents).await, left(&store, bytes).await];
    let before = all().await;
    drop(body);
    [before, all().await]
}

/// If the client leaves before the first unit, the service has already read the prompt, so the
/// estimate is charged. Otherwise a client could abort each expensive request after a frame without
/// units, for example after a comment that keeps the connection open.
#[tokio::test]
async fn tallies_settle_at_the_end_or_the_drop() {
    let words: fn() -> Body = || stream([data("seven.."), data("five.")]);
    let comments: fn() -> Body = || stream([data("#open"), data("#done")]);
    // Over HTTP/2, the client can read the last frame before the server drops the body.
    let known: fn() -> Body = || Full::from("seven..").boxed();
    let empty: fn() -> Body = || Full::default().boxed();
    // A server does not poll a body after its trailers.
    let trailers: fn() -> Body = || stream([Frame::trailers(HeaderMap::new())]);
    for (name, body, polls, least, before, after) in [
        ("units", words, 0, None, 90, 90),
        ("units", words, 1, None, 90, 7),
        ("units", words, 2, None, 90, 12),
        ("units", words, 3, None, 12, 12),
        ("at least", words, 0, Some(10), 90, 10),
        ("at least", words, 1, Some(10), 90, 10),
        ("at least", words, 2, Some(10), 90, 12),
        ("no units", comments, 1, None, 90, 90),
        ("no units", comments, 3, None, 0, 0),
        ("known end", known, 0, None, 90, 90),
        ("known end", known, 1, None, 7, 7),
        ("empty", empty, 0, None, 0, 0),
        ("empty", empty, 1, None, 0, 0),
        ("trailers", trailers, 1, None, 0, 0),
    ] {
        let respond = |tally: Tally| {
            let tally = least.into_iter().fold(tally, |tally, least: u64| tally.at_least(least));
            let units = |data: &Bytes| if data[0] == b'#' { 0 } else { data.len() as u64 };
            tally.body(body(), units).boxed()
        };
        let left = remaining(polls, respond).await.map(|[tokens, ..]| tokens);
        assert_eq!(left, [1_000 - before, 1_000 - after], "{name}, {polls} polls");
    }
}

#[tokio::test]
async fn each_policy_has_its_cost() {
    let body = || stream([data("two"), data("words")]);
    let respond = |tally: Tally| {
        tally.set_policy("tokens", 10);
        tally.set_policy("cents", Cost::ONE);
        tally.set_policy("other", 7);
        let count = |tally: &Tally, data: &Bytes| {
            tally.add(data.len() as u64);
            // Later costs replace earlier costs, and may be lower.
            tally.set_policy("tokens", if &**data == b"two" { 300 } else { 200 });
        };
        tally.body_with(body(), count).boxed()
    };
    // If the client leaves before the first frame, the estimate for `bytes` remains.
    for (polls, expected) in
        [(0, [990, 499, 10]), (1, [700, 499, 97]), (2, [800, 499, 92]), (3, [800, 499, 92])]
    {
        assert_eq!(remaining(polls, respond).await[1], expected);
    }
    // The minimum applies to policies without a cost.
    let respond = |tally: Tally| {
        tally.set_policy("tokens", 10);
        tally.at_least(20_u64).body_with(body(), |_, _| ()).boxed()
    };
    assert_eq!(remaining(0, respond).await[1], [990, 480, 80]);
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
        ready(Ok::<_, Infallible>(Response::new(Full::from("done"))))
    }));
    service.oneshot(get()).await.unwrap();
    assert_eq!(left(&store, &tokens).await, 970);
}
