use std::error::Error;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use moka::future::Cache;
use tower_layer::Layer;
use tower_service::Service;

use super::Tier;
use crate::head::RequestHead;

/// Tower layer that looks up a client's tier, for example in a database, and stores it in the
/// request extensions for [`in_extensions`](super::in_extensions).
///
/// Results are cached for a minute, for up to 10 000 clients. [`forget`](Self::forget) removes a
/// result, even if its lookup has not finished yet. Concurrent requests from the same client share
/// a lookup. **Clones share the cache.**
///
/// A waiting request does not occupy the inner service. Give the lookup a timeout, because the
/// request waits for it. If a lookup fails, the request has no tier, and the next request tries
/// again.
///
/// ```
/// use tollgate::tier::{self, Tier, TierLookup};
///
/// #[derive(Clone)]
/// struct Account(String);
///
/// async fn plan_of(account: String) -> Result<Option<Tier>, std::io::Error> {
///     # let _ = account;
///     Ok(Some("pro".into())) // from a database
/// }
///
/// let lookup = TierLookup::new(
///     |head| head.extensions.get::<Account>().map(|account| account.0.clone()),
///     plan_of,
/// );
/// // tower::ServiceBuilder::new().layer(lookup).layer(limiter), with
/// let source = tier::in_extensions();
/// # let _ = (lookup, source);
/// ```
#[derive(Clone)]
pub struct TierLookup(Arc<Inner>);

struct Inner {
    id: Box<IdOf>,
    look_up: Box<LookUp>,
    /// A number for each client, under which its tier is cached.
    numbers: Cache<String, u64>,
    next_number: AtomicU64,
    known: Cache<u64, Option<Tier>>,
}

type IdOf = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;
type LookUp = dyn Fn(String) -> TierFuture + Send + Sync;
type TierFuture = Pin<Box<dyn Future<Output = Result<Option<Tier>, Failed>> + Send>>;

/// The cache clones a failure for all waiting requests.
type Failed = Arc<dyn Error + Send + Sync>;

impl TierLookup {
    /// Makes a layer that looks up tiers with `look_up`, for the client that `id` finds in the
    /// request. If `id` returns `None`, the request has no tier.
    pub fn new<I, L, A, E>(id: I, look_up: L) -> Self
    where
        I: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
        L: Fn(String) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Tier>, E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        Self::bounded(id, look_up, 10_000, Duration::from_secs(60))
    }

    /// Like [`new`](Self::new), but sets how many clients are cached and for how long, up to a
    /// year.
    pub fn bounded<I, L, A, E>(id: I, look_up: L, subjects: u64, time: Duration) -> Self
    where
        I: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
        L: Fn(String) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Tier>, E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        // The cache panics at more than a thousand years.
        let time = time.min(Duration::from_secs(365 * 86_400));
        let known = Cache::builder().max_capacity(subjects).time_to_live(time).build();
        let numbers = Cache::builder().max_capacity(subjects).time_to_idle(time).build();
        let look_up = move |id| -> TierFuture {
            let answer = look_up(id);
            Box::pin(async move { answer.await.map_err(|error| Arc::new(error) as Failed) })
        };
        Self(Arc::new(Inner {
            id: Box::new(id),
            look_up: Box::new(look_up),
            numbers,
            next_number: AtomicU64::new(0),
            known,
        }))
    }

    /// Removes a client's tier from the cache. Requests that arrive afterwards do not use the
    /// result of a lookup that has already started.
    pub async fn forget(&self, id: &str) {
        // The cache stores the result of a lookup in flight even if its key has been removed
        // meanwhile. With a new number, no later request finds this result.
        if let Some(number) = self.0.numbers.remove(id).await {
            self.0.known.invalidate(&number).await;
        }
    }

    async fn tier_of(&self, id: String) -> Option<Tier> {
        let inner = &*self.0;
        let number = async { inner.next_number.fetch_add(1, Ordering::Relaxed) };
        let number = inner.numbers.get_with_by_ref(&id, number).await;
        // Starts only if the tier is not cached.
        let look_up = async move { (inner.look_up)(id).await };
        match inner.known.try_get_with(number, look_up).await {
            Ok(tier) => tier,
            Err(error) => {
                tracing::warn!(target: "tollgate", %error, "a tier could not be looked up");
                None
            }
        }
    }
}

impl<S> Layer<S> for TierLookup {
    type Service = LookedUp<S>;

    fn layer(&self, inner: S) -> LookedUp<S> {
        LookedUp { inner, lookup: self.clone() }
    }
}

/// Tower service behind a [`TierLookup`].
#[derive(Clone, Debug)]
pub struct LookedUp<S> {
    inner: S,
    lookup: TierLookup,
}

impl<S, B> Service<Request<B>> for LookedUp<S>
where
    S: Service<Request<B>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(id) = (self.lookup.0.id)(&RequestHead::of(&request)) else {
            return Box::pin(self.inner.call(request));
        };
        // Releases the ready service and its reserved capacity.
        let clone = self.inner.clone();
        drop(mem::replace(&mut self.inner, clone));
        let (lookup, mut inner) = (self.lookup.clone(), self.inner.clone());
        Box::pin(async move {
            if let Some(tier) = lookup.tier_of(id).await {
                request.extensions_mut().insert(tier);
            }
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            inner.call(request).await
        })
    }
}

debug_fields!(TierLookup);
