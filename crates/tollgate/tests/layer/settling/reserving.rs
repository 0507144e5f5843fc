//! Reservations: the handler or the response states the actual cost.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::time::advance;
use tollgate::key::Key;
use tollgate::layer::Reservation;
use tollgate::limit::Reserve;
use tollgate::policy::{Cost, Strikes};
use tollgate::store::{
    BoxFuture, Charge, Micros, PenaltyBlock, Receipt, Reply, SentReceipt, Settlement,
};
use tollgate::{Costs, Limit, Policy, Quota, Store, headers};
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
        let clone = reservation.clone();
        reservation.settle(Cost::new(7));
        assert_eq!(reservation.receipts().len(), 0);
        clone.settle(Cost::ZERO);
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
    // Another window since the charge does not change the lifetime.
    let other = Policy::sliding_window_log("tokens", Quota::per_second(1_000)).unwrap();
    assert_eq!(sent.receipt(&other).unwrap().charged, receipt.charged);
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

/// The second settlement fails, so its estimate remains.
#[tokio::test]
async fn responses_do_not_wait_for_settlements() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let stage = store.clone();
    let service = with_reservation(&store, [estimated()], move |reservation| {
        stage.hold();
        reservation.settle(Cost::ONE);
    });
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200);
    store.release();
    settle_down().await;
    assert_eq!((store.settled(), left(&memory, &tokens()).await), (1, 999));
    let stage = store.clone();
    let service = with_reservation(&store, [estimated()], move |reservation| {
        stage.fail(Fault::NotCharged);
        reservation.settle(Cost::ZERO);
    });
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(left(&memory, &tokens()).await, 899);
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

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.store.block(policy, key, block)
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
