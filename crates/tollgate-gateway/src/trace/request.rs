//! A request's span, from the request head until the response is complete.

use http::{Request, Response};
use tracing::Span;
use tracing::instrument::{Instrument, Instrumented};

#[cfg(feature = "otlp")]
use super::Export;
use super::context::TraceParent;
use super::{REQUEST, Tracing};

/// A request's span, if it is traced. The span is finished when this value is dropped.
#[derive(Debug)]
pub(crate) struct Traced {
    log: Span,
    #[cfg(feature = "otlp")]
    span: Option<opentelemetry::Context>,
}

impl Traced {
    /// Starts a request's span if tracing is on, and adds it to the upstream's headers.
    pub(crate) fn begin<B>(tracing: &Tracing, request: &mut Request<B>, is_tls: bool) -> Self {
        let parent = TraceParent::of(request.headers());
        #[cfg(feature = "otlp")]
        if let Some(export) = tracing.export() {
            return Self::with_span(export, request, parent, is_tls);
        }
        let _ = (tracing, is_tls);
        Self {
            log: log_span(parent),
            #[cfg(feature = "otlp")]
            span: None,
        }
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn within<F: Future>(&self, work: F) -> Instrumented<F> {
        work.instrument(self.log.clone())
    }

    /// A no-op: builds without OTLP have no spans.
    #[cfg(not(feature = "otlp"))]
    #[expect(clippy::unused_self, reason = "there is no span to update")]
    pub(crate) const fn answered<B>(&self, _: &Response<B>) {}
}

/// A no-op: builds without OTLP have no spans.
#[cfg(not(feature = "otlp"))]
pub(crate) const fn note_route(_: &str) {}

#[cfg(feature = "otlp")]
pub(crate) use self::spans::note_route;

/// An error-level span, because every filter allows it and log lines of all levels need it.
fn log_span(trace: Option<TraceParent>) -> Span {
    match trace {
        Some(TraceParent { trace, .. }) => {
            tracing::error_span!(target: REQUEST, "request", trace_id = %trace)
        }
        None => Span::none(),
    }
}

#[cfg(feature = "otlp")]
mod spans {
    use http::header::{HeaderMap, HeaderValue};
    use http::{Method, Version};
    use opentelemetry::context::{FutureExt, WithContext};
    use opentelemetry::trace::{
        SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
        Tracer,
    };
    use opentelemetry::{Context, KeyValue};

    use super::super::context::{self, PARENT, STATE};
    use super::*;

    impl Traced {
        pub(super) fn with_span<B>(
            export: &Export,
            request: &mut Request<B>,
            parent: Option<TraceParent>,
            is_tls: bool,
        ) -> Self {
            let caller = match parent {
                Some(parent) => Context::new().with_remote_span_context(remote(parent, request)),
                None => Context::new(),
            };
            let method = method(request.method());
            let span = export
                .tracer()
                .span_builder(if method == OTHER { "HTTP" } else { method })
                .with_kind(SpanKind::Server)
                .with_attributes([
                    KeyValue::new("http.request.method", method),
                    KeyValue::new("url.scheme", if is_tls { "https" } else { "http" }),
                    KeyValue::new("url.path", path(request.uri().path()).to_owned()),
                    KeyValue::new("network.protocol.version", version(request.version())),
                ])
                .start_with_context(export.tracer(), &caller);
            let span = caller.with_span(span);
            let ours = span.span().span_context().clone();
            let ours = TraceParent {
                trace: context::TraceId(u128::from_be_bytes(ours.trace_id().to_bytes())),
                span: u64::from_be_bytes(ours.span_id().to_bytes()),
                is_sampled: ours.is_sampled(),
            };
            tell(request.headers_mut(), ours, parent.is_some());
            Self { log: log_span(Some(ours)), span: Some(span) }
        }

        pub(crate) fn within<F: Future>(&self, work: F) -> WithContext<Instrumented<F>> {
            let span = self.span.clone().unwrap_or_default();
            work.instrument(self.log.clone()).with_context(span)
        }

        pub(crate) fn answered<B>(&self, response: &Response<B>) {
            let Some(span) = &self.span else { return };
            let (span, status) = (span.span(), response.status());
            let code = i64::from(status.as_u16());
            span.set_attribute(KeyValue::new("http.response.status_code", code));
            if status.is_server_error() {
                span.set_attribute(KeyValue::new("error.type", status.as_str().to_owned()));
                span.set_status(Status::error(""));
            }
        }
    }

    impl Drop for Traced {
        fn drop(&mut self) {
            if let Some(span) = &self.span {
                span.span().end();
            }
        }
    }

    pub(crate) fn note_route(name: &str) {
        Context::map_current(|context| {
            if context.span().is_recording() {
                context.span().set_attribute(KeyValue::new("tollgate.route", name.to_owned()));
            }
        });
    }

    /// Writes the upstream's headers: the gateway's span replaces the caller's span.
    /// Vendor-specific state belongs to the trace, so it is only forwarded with its trace.
    fn tell(headers: &mut HeaderMap, ours: TraceParent, has_parent: bool) {
        if !has_parent {
            headers.remove(STATE);
        }
        // Digits and dashes are a valid header value.
        if let Ok(value) = HeaderValue::try_from(ours.to_string()) {
            headers.insert(PARENT, value);
        }
    }

    fn remote<B>(parent: TraceParent, request: &Request<B>) -> SpanContext {
        let lines = request.headers().get_all(STATE).iter();
        let state = lines.map(|line| line.to_str().unwrap_or_default()).collect::<Vec<_>>();
        let state = state.join(",");
        // An invalid value, or one longer than the specification requires, is dropped.
        let state = Some(state).filter(|state| state.len() <= 512);
        let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let flags = if parent.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        SpanContext::new(
            TraceId::from_bytes(parent.trace.0.to_be_bytes()),
            SpanId::from_bytes(parent.span.to_be_bytes()),
            flags,
            true,
            state,
        )
    }

    /// The method, if it is known. Tools group traces by method, and a client may invent any number
    /// of methods.
    fn method(method: &Method) -> &'static str {
        const KNOWN: [&str; 10] = [
            "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE",
        ];
        let known = KNOWN.into_iter().chain(["SEARCH"]).find(|known| *known == method.as_str());
        known.unwrap_or(OTHER)
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
}
