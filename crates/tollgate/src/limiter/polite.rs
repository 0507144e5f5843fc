//! Tower: a client whose calls wait for a limiter.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tollgate_core::{Key, Store};
use tower_layer::Layer;
use tower_service::Service;

use super::acquire::Unused;
use super::error::AcquireError;
use super::permit::Permit;
use super::shared::Limiter;
use crate::RequestHead;
use crate::feedback::Feedback;

/// Tower layer around a client for another service: each request waits for a permit, and the limiter
/// [learns](Permit::learn) the service's limits from each response.
///
/// A request that the limiter does not allow is never sent, and fails with an [`AcquireError`] in a
/// `Box<dyn Error>`. So a response with status 429 is always the service's. The permit is in the
/// extensions of the response, as `Arc<Permit<St>>`, for example to
/// [settle](Permit::settle_policy) the actual cost. Under a concurrency limit, the call counts until
/// it is dropped.
///
/// ```
/// use std::time::Duration;
///
/// use http::{Request, Response};
/// use tollgate::key::Key;
/// use tollgate::limiter::{AcquireError, PoliteLayer};
/// use tollgate::{Limiter, MemoryStore, Policy, Quota};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let granted = Policy::sliding_window_log("partner", Quota::per_minute(100))?;
/// let limiter = Limiter::builder(MemoryStore::new())
///     .policy(granted)
///     .queue(Duration::from_secs(120))
///     .pausable(Duration::from_secs(300))
///     .build()?;
/// let polite = PoliteLayer::new(limiter, |head| Key::from(head.uri.host().unwrap_or_default()));
/// let client = polite.layer(service_fn(async |_: Request<()>| Ok::<_, std::io::Error>(Response::new(()))));
///
/// match client.oneshot(Request::new(())).await {
///     Ok(response) => println!("{}", response.status()),
///     Err(error) if error.is::<AcquireError>() => println!("not sent: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Readiness
///
/// | layer | `poll_ready` | waiting requests |
/// |---|---|---|
/// | [`new`](Self::new) | is always ready, because the key depends on the request | are futures, bounded by the limiter |
/// | [`ready_with`](Self::ready_with) | waits for a permit, and then for the client | none: `load_shed` rejects them, and `balance` chooses another client |
#[derive(Clone)]
pub struct PoliteLayer<St: Store> {
    limiter: Limiter<St>,
    key: CallKey,
}

#[derive(Clone)]
enum CallKey {
    OfRequest(Arc<dyn Fn(&RequestHead<'_>) -> Key + Send + Sync>),
    Fixed(Key),
}

impl<St: Store> PoliteLayer<St> {
    /// Makes a layer in which a request costs 1 under the key that the closure returns.
    pub fn new(
        limiter: Limiter<St>,
        key: impl Fn(&RequestHead<'_>) -> Key + Send + Sync + 'static,
    ) -> Self {
        Self { limiter, key: CallKey::OfRequest(Arc::new(key)) }
    }

    /// Makes a layer in which a request costs 1 under this key, and a service is ready when it has a
    /// permit.
    ///
    /// Each service has at most one place in the queue or one permit. A permit that is unused for a
    /// second is refunded, and the service queues again when it is polled. Until it is polled, or
    /// dropped, the permit counts. While the limiter denies it, the service is not ready. If the store
    /// fails, or the limiter is closed, the service is ready and the request fails.
    pub const fn ready_with(limiter: Limiter<St>, key: Key) -> Self {
        Self { limiter, key: CallKey::Fixed(key) }
    }
}

impl<S, St: Store> Layer<S> for PoliteLayer<St> {
    type Service = Polite<S, St>;

    fn layer(&self, inner: S) -> Polite<S, St> {
        let waiting = Mutex::new(None);
        Polite {
            inner,
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            waiting,
            reserved: None,
        }
    }
}

/// Tower service behind a [`PoliteLayer`]. Clones share the limiter, but no permits.
pub struct Polite<S, St: Store> {
    inner: S,
    limiter: Limiter<St>,
    key: CallKey,
    /// In a lock that is never taken, because the future is not `Sync`.
    waiting: Mutex<Option<BoxFuture<Acquired<Permit<St>>>>>,
    /// A permit or an error for the next request, and since when.
    reserved: Option<(Acquired<Unused<St>>, Instant)>,
}

/// A permit is refunded if the client is not ready for this long, because its turn has passed.
const UNUSED: Duration = Duration::from_secs(1);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Acquired<P> = Result<P, AcquireError>;
type BoxError = Box<dyn Error + Send + Sync>;

impl<S, St: Store> Polite<S, St> {
    /// Waits until there is a permit, or an error for the next request.
    fn poll_permit(&mut self, key: &Key, cx: &mut Context<'_>) -> Poll<()> {
        while self.reserved.as_ref().is_none_or(|(_, at)| at.elapsed() >= UNUSED) {
            self.reserved = None;
            let waiting = self.waiting.get_mut();
            let future = waiting.get_or_insert_with(|| {
                let (limiter, key) = (self.limiter.clone(), key.clone());
                Box::pin(async move { until_acquired(&limiter, &key).await })
            });
            let result = ready!(future.as_mut().poll(cx));
            *waiting = None;
            self.reserved = Some((result.map(Unused::new), Instant::now()));
        }
        Poll::Ready(())
    }
}

impl<S, St, B, R> Service<Request<B>> for Polite<S, St>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>, Future: Send>,
    S: Clone + Send + 'static,
    St: Store,
    B: Send + 'static,
    R: Send,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Response<R>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let CallKey::Fixed(key) = &self.key else { return Poll::Ready(Ok(())) };
        let key = key.clone();
        ready!(self.poll_permit(&key, cx));
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reserved = self.reserved.take();
        let (limiter, mut inner) = (self.limiter.clone(), self.inner.clone());
        let key = match &self.key {
            CallKey::OfRequest(key) => key(&RequestHead::of(&request)),
            CallKey::Fixed(key) => key.clone(),
        };
        if reserved.is_some() {
            // This instance is ready.
            mem::swap(&mut inner, &mut self.inner);
        }
        Box::pin(async move {
            let permit = match reserved {
                Some((permit, _)) => permit?,
                None => loop {
                    let (permit, at) =
                        (Unused::new(limiter.acquire(&key, 1).await?), Instant::now());
                    poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
                    if at.elapsed() < UNUSED {
                        break permit;
                    }
                },
            };
            let permit = permit.used();
            let mut response = inner.call(request).await.map_err(Into::into)?;
            if let Some(feedback) = Feedback::of(&response, SystemTime::now()) {
                // The event that reports a failure is enough.
                let _ = permit.learn(&feedback).await;
            }
            response.extensions_mut().insert(Arc::new(permit));
            Ok(response)
        })
    }
}

/// Waits for as long as the limiter denies the call, but not for a store that fails.
async fn until_acquired<St: Store>(limiter: &Limiter<St>, key: &Key) -> Acquired<Permit<St>> {
    loop {
        match limiter.acquire(key, 1).await {
            Err(AcquireError::Store(error)) => return Err(AcquireError::Store(error)),
            Err(error) => match error.retry_after() {
                Some(wait) => sleep(wait).await,
                None => return Err(error),
            },
            permit => return permit,
        }
    }
}

/// The clone has no permit, so it must be polled until it is ready.
impl<S: Clone, St: Store> Clone for Polite<S, St> {
    fn clone(&self) -> Self {
        PoliteLayer { limiter: self.limiter.clone(), key: self.key.clone() }
            .layer(self.inner.clone())
    }
}

debug_fields!([St: Store] PoliteLayer<St>, limiter);
debug_fields!([S: fmt::Debug, St: Store] Polite<S, St>, inner, limiter);
