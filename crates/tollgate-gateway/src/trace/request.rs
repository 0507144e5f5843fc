//! A request's span, from the request head until the response is complete.

use http::{Method, Request, Response, Version};
use tracing::Span;
use tracing::field::Empty;
use tracing::instrument::{Instrument, Instrumented};

use super::context::{REQUEST, TraceParent};

/// A request's spans, which are finished when this value is dropped.
#[derive(Debug)]
pub(crate) struct Traced {
    /// For log lines, so it has only the trace.
    log: Span,
    /// For the collector. At the lowest level, so log lines do not show its fields.
    span: Span,
}

impl Traced {
    /// Starts a request's span if tracing is on, and adds it to the upstream's headers.
    pub(crate) fn begin<B>(request: &mut Request<B>, is_tls: bool) -> Self {
        let method = method(request.method());
        let span = tracing::trace_span!(
            target: REQUEST,
            parent: None,
            "request",
            otel.name = if method == OTHER { "HTTP" } else { method },
            otel.kind = "server",
            otel.status_code = Empty,
            "error.type" = Empty,
            http.request.method = method,
            http.response.status_code = Empty,
            network.protocol.version = version(request.version()),
            tollgate.route = Empty,
            url.path = path(request.uri().path()),
            url.scheme = if is_tls { "https" } else { "http" },
        );
        let trace = TraceParent::of(request.headers());
        #[cfg(feature = "otlp")]
        let trace = super::export::join(&span, request.headers_mut(), trace).or(trace);
        let log = match trace {
            // At the error level, because every filter allows it and log lines of all levels need it.
            Some(TraceParent { trace, .. }) => {
                tracing::error_span!(target: REQUEST, "request", trace_id = %trace)
            }
            None => Span::none(),
        };
        Self { log, span }
    }

    pub(crate) fn within<F: Future>(&self, work: F) -> Instrumented<Instrumented<F>> {
        work.instrument(self.span.clone()).instrument(self.log.clone())
    }

    pub(crate) fn answered<B>(&self, response: &Response<B>) {
        let status = response.status();
        self.span.record("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() {
            self.span.record("error.type", status.as_str());
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// Adds the route to the current request's span.
pub(crate) fn note_route(name: &str) {
    Span::current().record("tollgate.route", name);
}

/// The method, if it is known. Tools group traces by method, and a client may invent any number of
/// methods.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 11] = [
        "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "SEARCH",
        "TRACE",
    ];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or(OTHER)
}

const OTHER: &str = "_OTHER";

/// Truncates a path, because thousands of spans may wait and paths may be long.
fn path(path: &str) -> &str {
    // A received path is ASCII, so every byte is a character.
    path.get(..PATH).unwrap_or(path)
}

const PATH: usize = 256;

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
