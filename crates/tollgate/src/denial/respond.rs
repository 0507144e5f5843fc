//! From a denial to a response.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response};

use super::{Denial, Members};
use crate::{RequestHead, grpc};

/// In which form a request wants its denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Status, headers and a body.
    Http,
    /// The same without the body: the request is a HEAD.
    Head,
    /// A gRPC call: status 200, and the outcome in the headers.
    Grpc,
}

impl ResponseFormat {
    /// The format of a request. gRPC is that of a POST with the content type of gRPC to a route
    /// or path of the form `/package.Service/Method`: with the content type alone any client
    /// could turn its denial into a 200. gRPC-Web speaks HTTP here: its clients read the status
    /// of the response.
    pub fn of(head: &RequestHead<'_>) -> Self {
        Self::among(head, None)
    }

    /// The same, where a layer may say whether its services are gRPC.
    pub(crate) fn among(head: &RequestHead<'_>, is_grpc: Option<bool>) -> Self {
        if *head.method == Method::HEAD {
            Self::Head
        } else if grpc::is_call(head, is_grpc) {
            Self::Grpc
        } else {
            Self::Http
        }
    }
}

/// Makes the response of a denial. [`Problem`] does by default; a closure may instead.
///
/// `Retry-After`, `Cache-Control` and the rate limit fields are added to whatever
/// response this makes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make the response of a denial",
    label = "not a `DenialResponse`",
    note = "take a closure `|denial: &Denial<'_>| -> http::Response<bytes::Bytes>`, or a `denial::Problem`"
)]
pub trait DenialResponse: Send + Sync + 'static {
    /// The response to an HTTP request. For a HEAD, the body is dropped afterwards.
    fn respond(&self, denial: &Denial<'_>) -> Response<Bytes>;

    /// The response to a gRPC call. A closure leaves it as it is, because a client that
    /// waits for a gRPC status can do nothing with a page.
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

/// The default response: a problem body (RFC 9457).
#[derive(Clone, Debug, Default)]
pub struct Problem {
    members: Members,
}

impl Problem {
    /// With these members besides its own.
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
    /// The whole response but for the rate limit fields, which come from the verdict.
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

    /// The default response to an HTTP request.
    pub fn to_problem(&self, members: &Members) -> Response<Bytes> {
        let mut response = Response::new(self.to_json(members).into());
        *response.status_mut() = self.status();
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }

    /// The default response to a gRPC call: "trailers only", that is headers and no body.
    pub fn to_grpc(&self) -> Response<Bytes> {
        let status = match self.status() {
            // Whose mapping to gRPC is the one that clients know best.
            http::StatusCode::UNAUTHORIZED => UNAUTHENTICATED,
            _ => self.reason().grpc_status(),
        };
        grpc::trailers_only(status, &self.detail())
    }
}

const UNAUTHENTICATED: &str = "16";
