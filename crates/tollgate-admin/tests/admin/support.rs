//! Helpers: a service behind a layer, requests to it, and a store that fails on command.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tollgate::key::Key;
use tollgate::layer::{RateLimit, RateLimitLayerBuilder};
use tollgate::observe::{Inspect, StoreReport};
use tollgate::policy::Cost;
use tollgate::store::{
    BoxFuture, Charge, ManualClock, Micros, PenaltyBlock, Receipt, Reply, Settlement, StoreError,
};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer, Store};
use tower::ServiceExt;
use tower::util::ServiceFn;

type Hello = ServiceFn<fn(Request<()>) -> Ready<Result<Response<Full<Bytes>>, Infallible>>>;

pub(crate) fn hello() -> Hello {
    tower::service_fn(|_| ready(Ok(Response::new(Full::from("hello")))))
}

/// A store with a manual clock. The clock starts at [`START`].
pub(crate) fn memory() -> (ManualClock, MemoryStore<ManualClock>) {
    let clock = ManualClock::default();
    (clock.clone(), MemoryStore::builder().clock(clock).build())
}

/// 2024-01-01 00:00:00 UTC, the manual clock's initial time.
pub(crate) const START: u64 = 1_704_067_200;

/// `limit` units in any 60 seconds.
pub(crate) fn log(name: &str, limit: u64) -> Policy {
    Policy::sliding_window_log(name, Quota::per_minute(limit)).unwrap()
}

pub(crate) fn layer<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimitLayer<St> {
    builder(store, limits).build().unwrap()
}

pub(crate) fn builder<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimitLayerBuilder<St> {
    let builder = RateLimitLayer::builder(store.clone());
    limits.into_iter().fold(builder, RateLimitLayerBuilder::limit)
}

pub(crate) fn request(method: Method, path: &str) -> Request<()> {
    from_peer(1, Request::builder().method(method).uri(path).body(()).unwrap())
}

pub(crate) fn get() -> Request<()> {
    request(Method::GET, "/")
}

/// Sets the request's peer address to 192.0.2.`last`.
pub(crate) fn from_peer<B>(last: u8, mut request: Request<B>) -> Request<B> {
    let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, last), 50_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

pub(crate) async fn ask<St: Store>(
    service: &RateLimit<Hello, St>,
    request: Request<()>,
) -> Response<Full<Bytes>> {
    service.clone().oneshot(request).await.unwrap()
}

/// Sends `GET /` and returns the response status.
pub(crate) async fn status<St: Store>(service: &RateLimit<Hello, St>) -> u16 {
    ask(service, get()).await.status().as_u16()
}

pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// A store with a fixed report, which can be made to fail.
#[derive(Clone, Debug)]
pub(crate) struct Reported<S> {
    store: S,
    report: StoreReport,
    is_unplugged: Arc<AtomicBool>,
}

impl<S: Store> Reported<S> {
    pub(crate) fn new(store: S, report: StoreReport) -> Self {
        Self { store, report, is_unplugged: Arc::default() }
    }

    /// Makes all further calls fail.
    pub(crate) fn unplug(&self) {
        self.is_unplugged.store(true, Ordering::Relaxed);
    }

    fn call<T, F>(&self, call: impl FnOnce(&S) -> Reply<F>) -> Reply<F>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        if self.is_unplugged.load(Ordering::Relaxed) {
            return Reply::ready(Err(StoreError::not_charged("stage", "unplugged")));
        }
        call(&self.store)
    }
}

impl<S: Store> Store for Reported<S> {
    type Future = S::Future;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        self.call(|store| store.decide(charges))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.call(|store| store.settle(receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.call(|store| store.renew(receipt))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.call(|store| store.reset(policy, key))
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.call(|store| store.block(policy, key, block))
    }

    fn has_local_fallback(&self) -> bool {
        self.store.has_local_fallback()
    }
}

impl<S: Store> Inspect for Reported<S> {
    fn inspect(&self) -> StoreReport {
        self.report.clone()
    }
}
