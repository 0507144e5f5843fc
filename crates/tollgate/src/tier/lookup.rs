//! Tiers that have to be looked up, in a database or at another service.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use moka::future::Cache;
use tower_layer::Layer;
use tower_service::Service;

use super::Tier;
use crate::RequestHead;

/// Looks the tier of a request up, outside of the rate limiter, and puts it into the
/// request's extensions, where [`in_extensions`](super::in_extensions) finds it.
///
/// Answers are kept for a minute, those of at most 10 000 subjects, so that a tier that
/// changes holds at most so much later; [`forget`](Self::forget) makes it hold at the next
/// request. Requests of one subject that come while it is looked up share the answer.
/// **Clones share the cache.**
///
/// While the answer is not there the request holds no place of the service inside. If it
/// never comes, the request waits for ever: give the look-up a timeout.
///
/// If a look-up fails, the request goes on without a tier, with the quota of everybody, and
/// the next one tries again.
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
    known: Cache<String, Option<Tier>>,
}

type IdOf = dyn Fn(&RequestHead<'_>) -> Option<String> + Send + Sync;
type LookUp = dyn Fn(String) -> Answer + Send + Sync;
type Answer = Pin<Box<dyn Future<Output = Result<Option<Tier>, Failed>> + Send>>;

/// The cache hands one failure to all who wait, so it must be cloned.
type Failed = Arc<dyn Error + Send + Sync>;

impl TierLookup {
    /// `look_up` finds the tier of the subject that `id` finds in the request. Where that
    /// finds nobody, the request goes on without a tier.
    pub fn new<I, L, A, E>(id: I, look_up: L) -> Self
    where
        I: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
        L: Fn(String) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Tier>, E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        Self::bounded(id, look_up, 10_000, Duration::from_secs(60))
    }

    /// As [`new`](Self::new), keeping the answers of `subjects` for `time`, which is at most
    /// a year.
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
        let look_up = move |id| -> Answer {
            let answer = look_up(id);
            Box::pin(async move { answer.await.map_err(|error| Arc::new(error) as Failed) })
        };
        Self(Arc::new(Inner { id: Box::new(id), look_up: Box::new(look_up), known }))
    }

    /// The tier of this subject is looked up anew.
    pub async fn forget(&self, id: &str) {
        self.0.known.invalidate(id).await;
    }

    async fn tier_of(&self, id: String) -> Option<Tier> {
        // Not even begun where the answer is known.
        let (inner, wanted) = (&*self.0, id.clone());
        let look_up = async move { (inner.look_up)(wanted).await };
        match self.0.known.try_get_with(id, look_up).await {
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

/// A service behind a [`TierLookup`].
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
        // The ready one is let go, and its place with it.
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

impl fmt::Debug for TierLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierLookup").finish_non_exhaustive()
    }
}
