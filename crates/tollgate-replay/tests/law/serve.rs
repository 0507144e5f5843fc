//! Requests through the layer, on a paused clock.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use http::{Extensions, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::key::{Global, RequestHead, from_fn};
use tollgate::layer::{Verdicts, WaitQueue};
use tollgate::limit::OnMissingKey;
use tollgate::store::TokioClock;
use tollgate::{Costs, Limit, MemoryStore, RateLimitLayer, tier};
use tollgate_core::Micros;
use tower::{Layer, ServiceExt, service_fn};

use crate::Decided;
use crate::case::{Case, Limited, Sent};

type Served = RateLimitLayer<MemoryStore<TokioClock>>;

impl Limited {
    fn limit(&self) -> Limit {
        let policy = self.policy();
        let mut limit = match self.is_global {
            true => Limit::new(policy, Global),
            false => Limit::new(policy, from_fn(|head| head.headers.get("client").cloned()))
                .on_missing_key(OnMissingKey::Pass),
        };
        if let Some(quota) = self.in_tier() {
            limit = limit.in_tier("tier", quota).unwrap();
        }
        if self.counts {
            limit = limit.count_only(|response| response.status != StatusCode::OK);
        }
        if self.forgives && self.by_body {
            limit = limit.forgive_on_body(|_| true, |body| body == b"right");
        } else if self.forgives {
            limit = limit.forgive_on(|response| response.status == StatusCode::OK);
        }
        limit.mode(self.mode)
    }
}

impl Case {
    pub(crate) fn serve(&self) -> Vec<Decided> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let layers = self.layers();
            let start = Instant::now();
            let requests = self.requests.iter().zip(self.arrivals()).enumerate();
            let requests = requests.map(|(number, (sent, at))| {
                let layer = layers[usize::from(number >= self.reload.0)].clone();
                let at = start + Duration::from_millis(at);
                Box::pin(answer(layer, sent.clone(), at)) as Pin<Box<dyn Future<Output = _>>>
            });
            unconstrained(earliest_first(requests.collect())).await
        })
    }

    /// The layers before and after the reload.
    fn layers(&self) -> [Served; 2] {
        // A replay has one shard too, so both remove unused keys at the same time.
        let store = MemoryStore::builder().clock(TokioClock::default()).shards(1).build();
        let queue = WaitQueue::new().max_requests(self.places);
        let cost =
            |head: &RequestHead<'_>| head.headers.get("cost")?.to_str().ok()?.parse::<u64>().ok();
        [&self.limits, &self.reload.1].map(|limits| {
            let builder = RateLimitLayer::builder(store.clone())
                .costs(Costs::from_fn(cost))
                .tiers(tier::from_fn(|head| head.headers.get("tier").map(|_| "tier")))
                .expose_verdicts(true)
                .wait_queue(&queue);
            let limits = limits.iter().map(Limited::limit);
            limits.fold(builder, |layer, limit| layer.limit(limit)).build().unwrap()
        })
    }
}

/// Sends a request at this time, and returns what happened to it.
async fn answer(layer: Served, sent: Sent, at: Instant) -> Decided {
    let mut request = Request::builder()
        .header("client", sent.client.to_string())
        .header("cost", sent.cost.to_string());
    if sent.in_tier {
        request = request.header("tier", "");
    }
    let passed = Mutex::new(None);
    let service = layer.layer(service_fn(|request: Request<()>| {
        *passed.lock() = Some(decided(request.extensions(), Some(Micros::from(at.elapsed()))));
        async {
            sleep(Duration::from_millis(sent.duration)).await;
            let status = if sent.fails { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
            let body = if sent.fails { "wrong" } else { "right" };
            let mut response = Response::new(Full::<bytes::Bytes>::from(body));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    }));
    sleep_until(at).await;
    let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
    let passed = passed.lock().take();
    passed.unwrap_or_else(|| decided(response.extensions(), None))
}

fn decided(extensions: &Extensions, waited: Option<Micros>) -> Decided {
    let verdicts = extensions.get::<Verdicts>().unwrap();
    let decisions = verdicts.iter().map(|it| (it.policy().name().to_owned(), *it.decision()));
    let at = verdicts.iter().next().unwrap().decided_at();
    Decided { waited, at, decisions: decisions.collect() }
}

/// Runs all requests. If several can continue, the earliest continues first.
async fn earliest_first(requests: Vec<Pin<Box<dyn Future<Output = Decided>>>>) -> Vec<Decided> {
    let woken = Arc::new(Woken::default());
    woken.requests.lock().extend(0..requests.len());
    let mut results: Vec<_> = requests.iter().map(|_| None).collect();
    let mut requests: Vec<_> = requests.into_iter().map(Some).collect();
    poll_fn(|cx| {
        *woken.all.lock() = Some(cx.waker().clone());
        while let Some(number) = woken.next() {
            let Some(request) = &mut requests[number] else { continue };
            let waker = Waker::from(Arc::new(Numbered { number, woken: Arc::clone(&woken) }));
            if let Poll::Ready(decided) = request.as_mut().poll(&mut Context::from_waker(&waker)) {
                results[number] = Some(decided);
                requests[number] = None;
            }
        }
        if requests.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().map(Option::unwrap).collect()
}

/// The numbers of requests that can continue, and what wakes all of them.
#[derive(Default)]
struct Woken {
    requests: Mutex<BTreeSet<usize>>,
    all: Mutex<Option<Waker>>,
}

impl Woken {
    fn next(&self) -> Option<usize> {
        self.requests.lock().pop_first()
    }
}

struct Numbered {
    number: usize,
    woken: Arc<Woken>,
}

impl Wake for Numbered {
    fn wake(self: Arc<Self>) {
        self.woken.requests.lock().insert(self.number);
        if let Some(all) = &*self.woken.all.lock() {
            all.wake_by_ref();
        }
    }
}
