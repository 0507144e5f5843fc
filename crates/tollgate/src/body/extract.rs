//! The layer that extracts a value from request bodies.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Request;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::head::RequestHead;
use crate::key::KeySource;

/// Extracts a value from request bodies, for the keys and costs of the layers inside.
///
/// The layer reads a body of up to `max_bytes` and passes it to a closure. It adds the closure's
/// result to the request's extensions, where [`FromExtension`](crate::key::FromExtension) and
/// [`Costs::from_fn`](crate::Costs::from_fn) find it. The inner service gets the same body.
///
/// ```
/// use axum::Router;
/// use axum::routing::post;
/// use tollgate::body::ExtractLayer;
/// use tollgate::key::{ApiKey, ApiKeys};
/// use tollgate::{Costs, Limit, Policy, Quota, RateLimitLayer, Store};
///
/// #[derive(Clone)]
/// struct Rows(u64);
///
/// fn app(store: impl Store, keys: ApiKeys) -> Result<Router, Box<dyn std::error::Error>> {
///     let rows = ExtractLayer::new(64 * 1024, |_, body| {
///         let lines = body.iter().filter(|byte| **byte == b'\n').count();
///         Some(Rows(lines as u64))
///     });
///     // A row costs a unit. A body without rows that the layer can see costs as much as possible.
///     let costs = Costs::flat(1_000).with_fn(|head| Some(head.extensions.get::<Rows>()?.0));
///     let policy = Policy::token_bucket("rows", Quota::per_minute(1_000))?;
///     let limit = Limit::per_api_key(policy, keys.clone()).costs(costs);
///     let limit = RateLimitLayer::builder(store).limit(limit).build()?;
///     let import = Router::new().route("/import", post(|body: String| async { body }));
///     // The layer that is added last is the outermost.
///     Ok(import.layer(limit).layer(rows.only_with(ApiKey::in_x_api_key().one_of(keys))))
/// }
/// ```
///
/// # Requests without a value
///
/// The request passes without a value if its body is empty, is longer than `max_bytes` or fails, if
/// the closure returns `None`, or if the request has no [key](Self::only_with). A longer body is
/// not buffered further, and streams on.
///
/// # Attacker
///
/// A client chooses its body. It can exceed `max_bytes` to avoid the extraction, so give requests
/// without a value the highest cost, or reject them. As a key, a value is forgeable: combine it
/// with a verified key in a tuple. Until the body has arrived, the request uses up to `max_bytes`,
/// and the limits have not decided yet: limit that time with an outer timeout.
#[derive(Clone)]
pub struct ExtractLayer {
    extractor: Arc<Extractor>,
}

#[derive(Clone)]
struct Extractor {
    max_bytes: usize,
    key: Option<Arc<dyn KeySource>>,
    extract: Arc<ExtractFn>,
}

/// Adds the value for a body to the extensions.
type ExtractFn = dyn Fn(&mut Parts, &[u8]) + Send + Sync;

impl ExtractLayer {
    /// Makes a layer that passes bodies of up to `max_bytes` to `extract`.
    pub fn new<T: Clone + Send + Sync + 'static>(
        max_bytes: usize,
        extract: impl Fn(&RequestHead<'_>, &[u8]) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        let extract = move |parts: &mut Parts, body: &[u8]| {
            if let Some(value) = extract(&RequestHead::of_parts(parts), body) {
                parts.extensions.insert(value);
            }
        };
        let extractor = Extractor { max_bytes, key: None, extract: Arc::new(extract) };
        Self { extractor: Arc::new(extractor) }
    }

    /// Reads only the bodies of requests in which `key` finds a key. So clients without a valid API
    /// key, for example, cannot make the layer buffer their bodies.
    #[must_use]
    pub fn only_with(mut self, key: impl KeySource) -> Self {
        Arc::make_mut(&mut self.extractor).key = Some(Arc::new(key));
        self
    }
}

impl Extractor {
    fn reads<B: Body>(&self, request: &Request<B>) -> bool {
        let body = request.body();
        let fits = body.size_hint().lower() <= self.max_bytes as u64;
        // A source that fails is reported by the limit that uses it.
        let has_key = |key: &Arc<dyn KeySource>| {
            matches!(key.subject(&RequestHead::of(request)), Ok(Some(_)))
        };
        fits && !body.is_end_stream() && self.key.as_ref().is_none_or(has_key)
    }
}

impl<S> Layer<S> for ExtractLayer {
    type Service = Extract<S>;

    fn layer(&self, inner: S) -> Extract<S> {
        Extract { inner, extractor: Arc::clone(&self.extractor) }
    }
}

/// A service behind an [`ExtractLayer`].
#[derive(Clone, Debug)]
pub struct Extract<S> {
    inner: S,
    extractor: Arc<Extractor>,
}

impl<S, B> Service<Request<B>> for Extract<S>
where
    S: Service<Request<ReplayedBody<B>>> + Clone,
    B: Body<Data = Bytes> + Unpin,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ExtractFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = self.extractor.reads(&request);
        let request = request.map(ReplayedBody::unread);
        let stage = if reads {
            // Only the original is ready, so it handles the request.
            let clone = self.inner.clone();
            let inner = mem::replace(&mut self.inner, clone);
            let extractor = Arc::clone(&self.extractor);
            Stage::Reading { reading: Some(Reading { inner, extractor, request }) }
        } else {
            Stage::Running { future: self.inner.call(request) }
        };
        ExtractFuture { stage }
    }
}

pin_project! {
    /// The response of a service behind an [`ExtractLayer`].
    pub struct ExtractFuture<S, B>
    where
        S: Service<Request<ReplayedBody<B>>>,
        B: Body,
    {
        #[pin]
        stage: Stage<S, B>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, B>
    where
        S: Service<Request<ReplayedBody<B>>>,
        B: Body,
    {
        Reading { reading: Option<Reading<S, B>> },
        Running { #[pin] future: S::Future },
    }
}

struct Reading<S, B: Body> {
    inner: S,
    extractor: Arc<Extractor>,
    request: Request<ReplayedBody<B>>,
}

impl<S, B> Reading<S, B>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body<Data = Bytes> + Unpin,
{
    /// Reads until the body has ended or is too long. Ready if the request can continue.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let body = self.request.body_mut();
        while let Some(rest) = &mut body.rest {
            let frame = ready!(Pin::new(rest).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => body.rest = None,
                Some(Ok(Ok(data))) => body.append(data),
                Some(Ok(Err(trailers))) => body.end = Some(Ok(trailers)),
                Some(Err(error)) => body.end = Some(Err(error)),
            }
            if body.data.len() > self.extractor.max_bytes || matches!(body.end, Some(Err(_))) {
                break;
            }
        }
        Poll::Ready(())
    }

    fn run(mut self) -> S::Future {
        if self.request.body().rest.is_some() {
            return self.inner.call(self.request);
        }
        let (mut parts, body) = self.request.into_parts();
        (self.extractor.extract)(&mut parts, &body.data);
        self.inner.call(Request::from_parts(parts, body))
    }
}

impl<S, B> Future for ExtractFuture<S, B>
where
    S: Service<Request<ReplayedBody<B>>>,
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let reading = match stage.as_mut().project() {
                StageProjection::Running { future } => return future.poll(cx),
                StageProjection::Reading { reading } => reading,
            };
            ready!(reading.as_mut().expect(POLLED_AGAIN).poll(cx));
            let future = reading.take().expect(POLLED_AGAIN).run();
            stage.set(Stage::Running { future });
        }
    }
}

/// Can only happen after the inner service panicked.
const POLLED_AGAIN: &str = "`ExtractFuture` polled after a panic";

/// A request body behind an [`ExtractLayer`]: first the data that the layer has read, then the
/// rest.
pub struct ReplayedBody<B: Body> {
    data: Bytes,
    /// The trailers or the error after the data.
    end: Option<Result<Frame<Bytes>, B::Error>>,
    /// `None` if the layer has read the entire body.
    rest: Option<B>,
}

impl<B: Body> ReplayedBody<B> {
    const fn unread(body: B) -> Self {
        Self { data: Bytes::new(), end: None, rest: Some(body) }
    }

    /// Adds data. A client could otherwise send small frames, which take more memory than their data.
    fn append(&mut self, data: Bytes) {
        if self.data.is_empty() {
            self.data = data;
        } else {
            let mut joined = BytesMut::from(mem::take(&mut self.data));
            joined.extend_from_slice(&data);
            self.data = joined.freeze();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplayedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.data)))));
        }
        if let Some(end) = self.end.take() {
            return Poll::Ready(Some(end));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_read = self.data.is_empty() && self.end.is_none();
        is_read && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.data.len() as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(read.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(read.saturating_add(upper));
        }
        hint
    }
}

/// No field is structurally pinned.
impl<B: Body> Unpin for ReplayedBody<B> {}

debug_fields!(ExtractLayer, extractor);
debug_fields!(Extractor, max_bytes);
debug_fields!([S: Service<Request<ReplayedBody<B>>>, B: Body] ExtractFuture<S, B>);
debug_fields!([B: Body] ReplayedBody<B>);
