//! Reservations: the handler or the response states the actual cost.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::Mutex;
use tokio::time::advance;
use tollgate::key::Key;
use tollgate::layer::Reservation;
use tollgate::limit::Reserve;
use tollgate::policy::{Cost, Strikes};
use tollgate::store::{BoxFuture, Charge, Receipt, Reply, SentReceipt, Settlement};
use tollgate::{Costs, Limit, Policy, Store, headers};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::stage::{Fault, Staged};
use crate::support::*;

/// 1000 tokens per minute.
fn tokens() -> Policy {
    log("tokens", 1_000)
}

/// Each request first reserves 100 tokens.
fn estimated() -> Limit {
    Limit::global(tokens()).costs(Costs::flat(Cost::new(100))).reserve(Reserve::by_handler())
}

/// A service that calls `act` with each request's reservation.
fn with_reservation<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
    act: impl Fn(Reservation) + Clone,
) -> impl Service<Request<()>, Response = Answer, Error = Infallible> + Clone {
    layer(store, limits).layer(service_fn(move |mut request: Request<()>| {
        act(request.extensions_mut().remove().expect("a reservation"));
        std::future::ready(Ok(Response::new(Full::from("done"))))
    }))
}

#[tokio::test]
async fn handler_settles_actual_cost() {
    let (_, store) = memory();
    for (actual, expected) in [(30, 970), (0, 970), (100, 870), (250, 620)] {
        let service = with_reservation(&store, [estimated()], move |reservation| {
            let clone = reservation.clone();
            reservation.settle(Cost::new(actual));
            // The reservation is already settled, so this has no effect.
            clone.settle(Cost::ZERO);
        });
        assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
        assert_eq!(left(&store, &tokens()).await, expected, "{actual}");
    }
}

#[tokio::test]
async fn debt_is_capped_at_one_capacity() {
    let (clock, store) = memory();
    let bucket =
        || Policy::token_bucket("tokens", tollgate::Quota::per_second(10).burst(100)).unwrap();
    let limit =
        Limit::global(bucket()).costs(Costs::flat(Cost::ONE)).reserve(Reserve::by_handler());
    let service = with_reservation(&store, [limit], |reservation| {
        reservation.settle(Cost::new(1_000_000));
    });
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200);
    // A debt of 100 units takes 10 s to refill, and the requested unit another 100 ms.
    let denied = service.clone().oneshot(get()).await.unwrap();
    assert_eq!(denied.status(), 429);
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("11"));
    clock.advance(tollgate::store::Micros::new(10_100_000));
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
}

#[tokio::test]
async fn reservation_covers_only_reserving_limits() {
    let (_, store) = memory();
    let hits = log("hits", 10);
    let daily = log("daily", 5_000);
    let limits = [
        estimated(),
        Limit::global(hits.clone()).costs(Costs::flat(Cost::ONE)),
        Limit::global(daily.clone())
            .costs(Costs::flat(Cost::new(100)))
            .reserve(Reserve::by_handler()),
    ];
    let service = with_reservation(&store, limits, |reservation| {
        assert_eq!(reservation.receipts().len(), 2);
        reservation.settle_policy("hits", Cost::ZERO);
        reservation.settle_policy("daily", Cost::new(1_000));
        assert_eq!(reservation.receipts().len(), 1);
        reservation.settle(Cost::new(7));
        assert_eq!(reservation.receipts().len(), 0);
    });
    service.oneshot(get()).await.unwrap();
    assert_eq!(left(&store, &tokens()).await, 993);
    assert_eq!(left(&store, &hits).await, 9);
    assert_eq!(left(&store, &daily).await, 4_000);
}

#[tokio::test]
async fn reservation_covers_nested_layers() {
    let (_, store) = memory();
    let outer = log("outer", 1_000);
    let reserved =
        Limit::global(outer.clone()).costs(Costs::flat(Cost::ONE)).reserve(Reserve::by_handler());
    let inner = with_reservation(&store, [estimated()], |reservation| {
        reservation.settle(Cost::new(40));
    });
    layer(&store, [reserved]).layer(inner).oneshot(get()).await.unwrap();
    assert_eq!((left(&store, &outer).await, left(&store, &tokens()).await), (960, 960));
}

#[tokio::test]
async fn sent_receipt_settles_once() {
    let (_, store) = memory();
    let kept = Arc::<Mutex<Option<Reservation>>>::default();
    let keep = Arc::clone(&kept);
    let service = with_reservation(&store, [estimated()], move |reservation| {
        *keep.lock() = Some(reservation);
    });
    service.oneshot(get()).await.unwrap();
    let reservation = kept.lock().take().unwrap();
    let receipt = &reservation.receipts()[0];
    let message = serde_json::to_string(&SentReceipt::from(receipt)).unwrap();
    let sent: SentReceipt = serde_json::from_str(&message).unwrap();
    assert_eq!(sent.policy(), "tokens");
    assert_eq!(sent.receipt(&log("other", 1_000)), None);
    let receipt = sent.receipt(&tokens()).unwrap();
    let settled = store.settle(&receipt, Cost::new(10)).await.unwrap();
    assert_eq!(settled, Settlement::Returned { units: 90 });
    let repeated = store.settle(&receipt, Cost::new(10)).await.unwrap();
    assert_eq!(repeated, Settlement::Repeated);
    reservation.settle(Cost::ZERO);
    assert_eq!(left(&store, &tokens()).await, 990);
}

#[tokio::test(start_paused = true)]
async fn unsettled_reservation_lapses_to_estimate() {
    let store = on_tokio_time();
    for (after, expected) in [(4_999, 1_000), (5_000, 900)] {
        let kept = Arc::<Mutex<Option<Reservation>>>::default();
        let keep = Arc::clone(&kept);
        let lapsing = Reserve::by_handler().lapse_after(Duration::from_secs(5));
        let service =
            with_reservation(&store, [estimated().reserve(lapsing)], move |reservation| {
                *keep.lock() = Some(reservation);
            });
        service.oneshot(get()).await.unwrap();
        let reservation = kept.lock().take().unwrap();
        advance(Duration::from_millis(after)).await;
        reservation.settle(Cost::ZERO);
        assert_eq!(left(&store, &tokens()).await, expected, "after {after} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_own_deadline() {
    let daily = log("daily", 1_000);
    let limits = || {
        let short = Reserve::by_handler().lapse_after(Duration::from_secs(5));
        let long = Reserve::by_handler().lapse_after(Duration::from_secs(10));
        [estimated().reserve(short), Limit::global(daily.clone()).cost(200).reserve(long)]
    };
    for (after, expected) in [(4, [1_000, 1_000]), (7, [900, 1_000]), (11, [900, 800])] {
        let store = on_tokio_time();
        let kept = Arc::<Mutex<Option<Reservation>>>::default();
        let keep = Arc::clone(&kept);
        let service = with_reservation(&store, limits(), move |reservation| {
            *keep.lock() = Some(reservation);
        });
        service.oneshot(get()).await.unwrap();
        let reservation = kept.lock().take().unwrap();
        advance(Duration::from_secs(after)).await;
        reservation.settle(Cost::ZERO);
        let left = [left(&store, &tokens()).await, left(&store, &daily).await];
        assert_eq!(left, expected, "after {after} s");
    }
}

#[tokio::test]
async fn response_header_settles_actual_cost() {
    for (values, expected) in [
        (&["30"][..], 970),
        (&[" 250 "], 750),
        (&["0"], 1_000),
        (&[], 900),
        (&[""], 900),
        (&["-1"], 900),
        (&["3.5"], 900),
        (&["99999999999999999999"], 900),
        (&["30", "30"], 900),
        (&["\u{e9}"], 900),
    ] {
        let (_, store) = memory();
        let limit = estimated().reserve(Reserve::by_handler().or_by_header(headers::COST));
        let service = layer(&store, [limit]).layer(service_fn(move |_: Request<()>| {
            let mut response = Response::new(Full::<Bytes>::default());
            for value in values {
                let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
                response.headers_mut().append(headers::COST, value);
            }
            std::future::ready(Ok::<_, Infallible>(response))
        }));
        let answer = service.oneshot(get()).await.unwrap();
        assert_eq!(answer.headers().get(headers::COST), None);
        assert_eq!(left(&store, &tokens()).await, expected, "{values:?}");
    }
}

#[tokio::test]
async fn streamed_body_settles_at_end_or_drop() {
    // If the client leaves before the first frame, the service has already read the prompt, so the
    // estimate is charged.
    for (read, least, expected) in [
        (0, None, 900),
        (1, None, 993),
        (2, None, 988),
        (3, None, 988),
        (0, Some(10_u64), 990),
        (1, Some(10), 990),
        (2, Some(10), 988),
    ] {
        let (_, store) = memory();
        let layer = layer(&store, [estimated()]).any_body();
        let service = layer.layer(service_fn(move |request: Request<()>| {
            let reservation = request.extensions().get::<Reservation>().unwrap().clone();
            let frames = ["seven..", "five."].map(|text| {
                Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(text.as_bytes())))
            });
            let body = StreamBody::new(tokio_stream::iter(frames));
            let tally = reservation.tally();
            let tally = match least {
                Some(units) => tally.at_least(units),
                None => tally,
            };
            let body = tally.body(body, |data| data.len() as u64);
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        }));
        let mut body = service.oneshot(get()).await.unwrap().into_body();
        assert_eq!(left(&store, &tokens()).await, 900, "the response has only started");
        for _ in 0..read {
            body.frame().await;
        }
        if read == 3 {
            // The end of the body settles the charge, even before the body is dropped.
            assert_eq!(left(&store, &tokens()).await, expected);
        }
        drop(body);
        assert_eq!(left(&store, &tokens()).await, expected, "{read} frames read");
    }
}

/// Otherwise a client could abort each expensive request after a frame without units, for example
/// after a comment that keeps the connection open.
#[tokio::test]
async fn frames_without_units_do_not_settle() {
    for (polls, expected) in [(1, 900), (3, 1_000)] {
        let (_, store) = memory();
        let layer = layer(&store, [estimated()]).any_body();
        let service = layer.layer(service_fn(|request: Request<()>| {
            let reservation = request.extensions().get::<Reservation>().unwrap().clone();
            let frames = [": open", ": done"]
                .map(|text| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(text))));
            let body = StreamBody::new(tokio_stream::iter(frames));
            let body = reservation.tally().body(body, |_| 0);
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        }));
        let mut body = service.oneshot(get()).await.unwrap().into_body();
        for _ in 0..polls {
            body.frame().await;
        }
        drop(body);
        assert_eq!(left(&store, &tokens()).await, expected, "{polls} polls");
    }
}

/// Over HTTP/2, the client can read the end of a response before the server drops its body.
#[tokio::test]
async fn tally_settles_before_last_frame() {
    let (_, store) = memory();
    let service = layer(&store, [estimated()]).any_body();
    let service = service.layer(service_fn(|request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        let body = reservation.tally().body(Full::from("seven.."), |data| data.len() as u64);
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let mut body = service.oneshot(get()).await.unwrap().into_body();
    assert_eq!(left(&store, &tokens()).await, 900);
    assert!(body.frame().await.is_some());
    assert_eq!(left(&store, &tokens()).await, 993);
}

#[tokio::test]
async fn aborted_requests_are_not_refunded() {
    let (_, store) = memory();
    let limit = Limit::global(tokens()).cost(500).reserve(Reserve::by_handler());
    let service = with_reservation(&store, [limit], |reservation| drop(reservation.tally()));
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(service.clone().oneshot(get()).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    assert_eq!(left(&store, &tokens()).await, 0);
}

#[tokio::test]
async fn empty_body_is_free() {
    for polled in [true, false] {
        let (_, store) = memory();
        let service = layer(&store, [estimated()]).any_body();
        let service = service.layer(service_fn(|request: Request<()>| {
            let reservation = request.extensions().get::<Reservation>().unwrap().clone();
            let body = reservation.tally().body(Full::<Bytes>::default(), |_| 1);
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        }));
        let mut body = service.oneshot(get()).await.unwrap().into_body();
        if polled {
            assert!(body.frame().await.is_none());
        }
        drop(body);
        assert_eq!(left(&store, &tokens()).await, 1_000, "{polled}");
    }
}

/// A server does not poll a body after its trailers.
#[tokio::test]
async fn trailers_only_body_is_free() {
    let (_, store) = memory();
    let service = layer(&store, [estimated()]).any_body();
    let service = service.layer(service_fn(|request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        let trailers = Ok::<_, Infallible>(http_body::Frame::trailers(HeaderMap::new()));
        let body = StreamBody::new(tokio_stream::iter([trailers]));
        let body = reservation.tally().body(body, |data: &Bytes| data.len() as u64);
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let mut body = service.oneshot(get()).await.unwrap().into_body();
    assert!(body.frame().await.is_some());
    drop(body);
    assert_eq!(left(&store, &tokens()).await, 1_000);
}

#[tokio::test]
async fn pending_settlement_does_not_delay_response() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let holds = store.clone();
    let service = with_reservation(&store, [estimated()], move |reservation| {
        holds.hold();
        reservation.settle(Cost::ONE);
    });
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    store.release();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.settled(), 1);
    assert_eq!(left(&memory, &tokens()).await, 999);
}

#[tokio::test]
async fn failed_settlement_leaves_the_estimate() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let fails = store.clone();
    let service = with_reservation(&store, [estimated()], move |reservation| {
        fails.fail(Fault::NotCharged);
        reservation.settle(Cost::ZERO);
    });
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(left(&memory, &tokens()).await, 900);
}

#[tokio::test]
async fn uncharged_request_has_no_reservation() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    store.fail(Fault::NotCharged);
    let free = |limits: [Limit; 1]| {
        layer(&store, limits).layer(service_fn(|request: Request<()>| {
            assert!(request.extensions().get::<Reservation>().is_none());
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        }))
    };
    // The limit fails open.
    assert_eq!(free([estimated()]).oneshot(get()).await.unwrap().status(), 200);
    store.recover();
    let shared = [Limit::global(tokens())];
    assert_eq!(free(shared).oneshot(get()).await.unwrap().status(), 200);
}

/// Otherwise a client with a full quota would see the estimate subtracted from it.
#[tokio::test]
async fn headers_show_the_settled_charge() {
    let (_, store) = memory();
    let failures = Limit::global(log("login", 5))
        .costs(Costs::flat(Cost::ONE))
        .count_only(|response| response.status == 401);
    let tokens = estimated().reserve(Reserve::by_handler().or_by_header(headers::COST));
    let service = layer(&store, [failures, tokens]).layer(service_fn(|request: Request<()>| {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let (status, cost) = path.split_once('/').unwrap();
        let response = Response::builder().status(status).header(headers::COST, cost);
        let response = response.body(Full::new(Bytes::from("done"))).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    for (path, login, tokens) in [
        ("/200/0", 5, 1_000),
        ("/401/30", 4, 970),
        ("/200/300", 4, 670),
        // The cost exceeds the remaining units. The headers do not show the debt.
        ("/200/9999", 4, 0),
    ] {
        let request = request(http::Method::GET, path);
        let answer = service.clone().oneshot(request).await.unwrap();
        let told = field(answer.headers(), "ratelimit").unwrap();
        assert!(told.starts_with(&format!("\"login\";r={login};")), "{path}: {told}");
        assert!(told.contains(&format!("\"tokens\";r={tokens};")), "{path}: {told}");
        assert_eq!(left(&store, &log("login", 5)).await, login, "{path}");
        assert_eq!(left(&store, &log("tokens", 1_000)).await, tokens, "{path}");
    }
}

/// A store that reads the request's open receipts while it settles a receipt.
#[derive(Clone)]
struct Reading<S> {
    store: S,
    reservation: Arc<Mutex<Option<Reservation>>>,
    /// The number of open receipts at each call to `settle`.
    open: Arc<Mutex<Vec<Option<usize>>>>,
}

impl<S: Store> Store for Reading<S> {
    type Future = S::Future;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        self.store.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        let reservation = self.reservation.lock().clone().expect("the handler has left it");
        let (found, finds) = std::sync::mpsc::channel();
        // In another thread: if the lock is held, the test fails instead of hanging.
        std::thread::spawn(move || found.send(reservation.receipts().len()));
        self.open.lock().push(finds.recv_timeout(Duration::from_secs(30)).ok());
        self.store.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.store.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.store.reset(policy, key)
    }
}

#[tokio::test]
async fn no_lock_is_held_while_the_store_settles() {
    let reservation = Arc::<Mutex<Option<Reservation>>>::default();
    let (_, memory) = memory();
    let store =
        Reading { store: memory, reservation: Arc::clone(&reservation), open: Arc::default() };
    let strikes = Strikes::of_failures(5, Duration::from_secs(60));
    let locked = Limit::global(tokens()).penalty("locked", strikes).unwrap();
    let locked = locked.count_only(|_| true);
    let counted = Limit::global(log("counted", 9)).count_only(|_| false);
    let service = with_reservation(&store, [locked, counted, estimated()], move |it| {
        *reservation.lock() = Some(it.clone());
        it.settle_policy("tokens", Cost::ONE);
    });
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    // The handler settles, the penalty adds a strike, and an uncounted response is refunded.
    assert_eq!(*store.open.lock(), [Some(0); 3]);
}
