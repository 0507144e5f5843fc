//! Sends spans to a collector.
//!
//! A thread of the SDK sends them on its own runtime, so no request waits for the collector.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::runtime::Runtime;
use tollgate_config::plan::TracingPlan;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::DynFilterFn;
use tracing_subscriber::registry::LookupSpan;

use super::context::{self, PARENT, REQUEST, STATE, TraceParent};
use super::queue::{Queue, Tally};
use super::spans::{Spans, TracingError};

#[derive(Clone, Debug)]
pub struct Export {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    tally: Arc<Tally>,
    timeout: Duration,
}

impl Export {
    pub(super) fn new(plan: &TracingPlan) -> Result<Self, TracingError> {
        let field = |(name, value): &(HeaderName, HeaderValue)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        };
        let headers: HashMap<_, _> = plan.headers.iter().flatten().map(field).collect();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(plan)?)
            .with_endpoint(plan.endpoint.to_string())
            .with_timeout(plan.timeout)
            .with_headers(headers)
            .build()
            .map_err(|error| TracingError(error.to_string()))?;
        let tally = Arc::new(Tally::default());
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(plan.sample)));
        let resource = Resource::builder().with_service_name(plan.service_name.clone()).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Queue::new(exporter, &tally))
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("tollgate");
        Ok(Self { provider, tracer, tally, timeout: plan.timeout })
    }

    pub(super) fn spans(&self) -> Spans {
        self.tally.read()
    }

    /// Sends the remaining spans, with the same time limit as any other batch.
    pub(super) fn finish(&self) {
        let ended = self.provider.shutdown_with_timeout(self.timeout);
        let left = self.tally.waiting();
        if ended.is_err() && left > 0 {
            tracing::warn!(target: "tollgate", spans = left, "stopped before all spans were sent");
        }
    }
}

/// The layer that sends the spans of requests and decisions.
pub fn layer<S>(export: &Export) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    // The log has its own span for a request.
    let is_request =
        |metadata: &Metadata<'_>| metadata.target() == REQUEST && *metadata.level() == Level::TRACE;
    let wanted = DynFilterFn::new(move |metadata, _| {
        is_request(metadata) || Context::map_current(|context| context.span().is_recording())
    });
    let wanted =
        wanted.with_max_level_hint(LevelFilter::TRACE).with_callsite_filter(move |metadata| {
            if metadata.is_span() && (is_request(metadata) || metadata.target() == DECISION) {
                tracing::subscriber::Interest::sometimes()
            } else {
                tracing::subscriber::Interest::never()
            }
        });
    tracing_opentelemetry::layer()
        .with_tracer(export.tracer.clone())
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_filter(wanted)
}

const DECISION: &str = "tollgate::decision";

/// Joins a new span to the caller's trace, and writes the upstream's headers: the gateway's span
/// replaces the caller's span. Returns the gateway's span, if it is traced.
pub(super) fn join(
    span: &Span,
    headers: &mut HeaderMap,
    caller: Option<TraceParent>,
) -> Option<TraceParent> {
    if span.is_disabled() {
        return None;
    }
    if let Some(caller) = caller {
        // The span is new, so it has no other parent.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote(caller, headers)));
    } else {
        // Vendor-specific state belongs to the trace, so it is only forwarded with its trace.
        headers.remove(STATE);
    }
    let ours = span.context().span().span_context().clone();
    let ours = TraceParent {
        trace: context::TraceId(u128::from_be_bytes(ours.trace_id().to_bytes())),
        span: u64::from_be_bytes(ours.span_id().to_bytes()),
        is_sampled: ours.is_sampled(),
    };
    // Digits and dashes are a valid header value.
    if let Ok(value) = HeaderValue::try_from(ours.to_string()) {
        headers.insert(PARENT, value);
    }
    Some(ours)
}

fn remote(parent: TraceParent, headers: &HeaderMap) -> SpanContext {
    let lines = headers.get_all(STATE).iter();
    let state = lines.map(|line| line.to_str().unwrap_or_default()).collect::<Vec<_>>().join(",");
    // The specification requires at most 512 bytes, so a longer or invalid value is dropped.
    let state = Some(state).filter(|state| state.len() <= 512);
    let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    let flags = if parent.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let trace = TraceId::from_bytes(parent.trace.0.to_be_bytes());
    SpanContext::new(trace, SpanId::from_bytes(parent.span.to_be_bytes()), flags, true, state)
}

struct Collector {
    hyper: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Polled only while a batch is sent, and only by the sending thread.
    runtime: Runtime,
    timeout: Duration,
}

impl Collector {
    fn new(plan: &TracingPlan) -> Result<Self, TracingError> {
        let wrong = |error: &dyn fmt::Display| TracingError(error.to_string());
        let is_tls = plan.endpoint.scheme() == Some(&http::uri::Scheme::HTTPS);
        let tls = tollgate_proxy::tls_config(is_tls).map_err(|error| wrong(&error))?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let mut hyper = Client::builder(TokioExecutor::new());
        // The runtime is not polled between two batches, so it would not detect a closed
        // connection.
        let hyper = hyper.pool_max_idle_per_host(0).build(connector.build());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| wrong(&error))?;
        Ok(Self { hyper, runtime, timeout: plan.timeout })
    }

    async fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.hyper.request(request.map(Full::new)).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MOST).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

/// The maximum size of an answer, which contains at most a message about rejected spans.
const MOST: usize = 64 << 10;

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The polling thread has no other work.
        self.runtime
            .block_on(async { tokio::time::timeout(self.timeout, self.post(request)).await? })
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}
