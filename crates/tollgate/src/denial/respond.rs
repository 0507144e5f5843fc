//! How a denial becomes a response.

use std::marker::PhantomData;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};

use super::{Denial, Members};
use crate::grpc::{self, GrpcServices};
use crate::head::RequestHead;

/// The response format: HTTP or gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Status, headers and a body.
    Http,
    /// Like `Http`, but without the body, because the request is a HEAD request.
    Head,
    /// A gRPC call: status 200, and the outcome in the headers.
    Grpc,
}

impl ResponseFormat {
    /// Returns the format for a denial of this request. `is_grpc` declares that its service is
    /// gRPC.
    pub fn of(head: &RequestHead<'_>, is_grpc: bool) -> Self {
        Self::among(head, &GrpcServices::all(is_grpc))
    }

    /// Like [`of`](Self::of), for a layer with [`grpc`](crate::layer::RateLimitLayerBuilder::grpc).
    pub(crate) fn among(head: &RequestHead<'_>, services: &GrpcServices) -> Self {
        if *head.method == Method::HEAD {
            Self::Head
        } else if services.is_call(head) {
            Self::Grpc
        } else {
            Self::Http
        }
    }
}

/// Makes the response for a denial. [`Problem`] and closures implement it.
///
/// The layer adds `Retry-After`, `Cache-Control` and the rate limit headers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot make the response to a denial",
    label = "not a `DenialResponse`",
    note = "use a closure `|denial: &Denial<'_>| -> http::Response<bytes::Bytes>`, or a `denial::Problem`"
)]
pub trait DenialResponse: Send + Sync + 'static {
    /// Makes the response to an HTTP request. For HEAD requests, the body is dropped afterwards.
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes>;

    /// Makes the response to a gRPC call. Closures use the default, because gRPC clients cannot
    /// read a page.
    fn respond_grpc(&self, denial: &Denial<'_>) -> Response<Bytes> {
        denial.to_grpc()
    }
}

impl<F> DenialResponse for F
where
    F: Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
{
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        self(denial)
    }
}

/// The return type of a closure in [`on_denied`](crate::layer::RateLimitLayerBuilder::on_denied):
/// text, a `Response<Bytes>`, or with the feature `axum` any `IntoResponse` with an in-memory body.
/// `Via` is inferred. The trait is sealed, because other implementations could make the inference
/// ambiguous.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    note = "return a `String` or an `http::Response<bytes::Bytes>`; with the feature `axum` of tollgate anything that is `IntoResponse`"
)]
pub trait IntoDenialResponse<Via>: sealed::Sealed<Via> {
    /// Converts the closure's return value into a response.
    fn into_denial_response(self) -> Response<Bytes>;
}

mod sealed {
    use bytes::Bytes;
    use http::Response;

    pub trait Sealed<Via> {}

    impl Sealed<super::ViaBytes> for Response<Bytes> {}

    #[cfg(not(feature = "axum"))]
    impl<T: super::Text> Sealed<super::ViaText> for T {}

    #[cfg(feature = "axum")]
    impl<R: axum::response::IntoResponse> Sealed<super::ViaAxum> for R {}
}

/// Marks closures in `on_denied` that return a `Response<Bytes>`.
#[derive(Debug)]
pub struct ViaBytes;

impl IntoDenialResponse<ViaBytes> for Response<Bytes> {
    fn into_denial_response(self) -> Self {
        self
    }
}

/// Marks closures in `on_denied` that return text. With the feature `axum`, axum converts it.
#[cfg(not(feature = "axum"))]
#[derive(Debug)]
pub struct ViaText;

#[cfg(not(feature = "axum"))]
impl<T: Text> IntoDenialResponse<ViaText> for T {
    fn into_denial_response(self) -> Response<Bytes> {
        let mut response = Response::new(self.into());
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }
}

#[cfg(not(feature = "axum"))]
trait Text: Into<Bytes> {}
#[cfg(not(feature = "axum"))]
impl Text for String {}
#[cfg(not(feature = "axum"))]
impl Text for &'static str {}

/// Marks closures in `on_denied` that return an axum response.
#[cfg(feature = "axum")]
#[derive(Debug)]
pub struct ViaAxum;

#[cfg(feature = "axum")]
impl<R: axum::response::IntoResponse> IntoDenialResponse<ViaAxum> for R {
    fn into_denial_response(self) -> Response<Bytes> {
        self.into_response().map(in_memory)
    }
}

/// Reads a body of a few chunks, usually one. `to_bytes` would first buffer them in a queue.
#[cfg(feature = "axum")]
fn in_memory(mut body: axum::body::Body) -> Bytes {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use http_body::Body as _;

    let mut read = Bytes::new();
    loop {
        match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(None) => return read,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if read.is_empty() => read = data,
                Ok(data) => read = [read, data].concat().into(),
                Err(_trailers) => {}
            },
            Poll::Ready(Some(Err(_))) | Poll::Pending => {
                tracing::error!(target: "tollgate", "the body of a denial is not in memory");
                return Bytes::new();
            }
        }
    }
}

pub(crate) struct ResponseFromFn<F, Via>(pub(crate) F, pub(crate) PhantomData<fn() -> Via>);

impl<F, R, Via> DenialResponse for ResponseFromFn<F, Via>
where
    F: Fn(&Denial<'_>) -> R + Send + Sync + 'static,
    R: IntoDenialResponse<Via>,
    Via: 'static,
{
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        let mut response = (self.0)(denial).into_denial_response();
        // Text and JSON values do not set a status, and a denial with 200 would look like success.
        if response.status() == StatusCode::OK {
            *response.status_mut() = denial.status();
        }
        response
    }
}

/// The default response to a denial: a problem body (RFC 9457).
///
/// ```
/// use tollgate::denial::{Members, Problem};
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let members = Members::new().with("support", "help@example.com")?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .limit(Limit::global(Policy::token_bucket("all", Quota::per_second(100))?))
///     .denial_response(Problem::with_members(members))
///     .build()?;
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Problem {
    members: Members,
}

impl Problem {
    /// Adds these members to every problem body.
    pub const fn with_members(members: Members) -> Self {
        Self { members }
    }
}

impl DenialResponse for Problem {
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes> {
        denial.to_problem(&self.members)
    }
}

impl Denial<'_> {
    /// Makes the entire response, except for the verdict's rate limit headers.
    pub fn respond(
        &self,
        format: ResponseFormat,
        response: &(impl DenialResponse + ?Sized),
    ) -> Response<Bytes> {
        let mut response = match format {
            ResponseFormat::Http => response.respond(self),
            ResponseFormat::Head => response.respond(self).map(|_| Bytes::new()),
            ResponseFormat::Grpc => response.respond_grpc(self),
        };
        self.write_headers(response.headers_mut());
        response
    }

    /// Makes a response with this body as JSON and the denial's status. If the body cannot be
    /// serialised, it returns the default [problem](Self::to_problem).
    #[cfg(feature = "serde")]
    pub fn json<T: serde::Serialize + ?Sized>(&self, body: &T) -> Response<Bytes> {
        let Ok(json) = serde_json::to_vec(body) else { return self.to_problem(&Members::new()) };
        let mut response = Response::new(json.into());
        *response.status_mut() = self.status();
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    /// Makes the default response to a gRPC call: headers without a body ("trailers only").
    pub fn to_grpc(&self) -> Response<Bytes> {
        let status = match self.status() {
            // gRPC clients expect this status for 401.
            StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
            _ => self.reason().grpc_status(),
        };
        grpc::trailers_only(status, &self.detail())
    }
}

const UNAUTHENTICATED: &str = "16";
