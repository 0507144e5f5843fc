//! A span collector.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

use super::until;

/// A received span and its service name.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) service: String,
    pub(crate) span: Span,
}

/// Receives spans over OTLP (protobuf over HTTP).
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    sent: Arc<Mutex<Vec<Sent>>>,
    headers: Arc<Mutex<HeaderMap>>,
}

impl Collector {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<Mutex<Vec<Sent>>>::default();
        let headers = Arc::<Mutex<HeaderMap>>::default();
        let (written, seen) = (Arc::clone(&sent), Arc::clone(&headers));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
                    async move {
                        assert_eq!((request.method().as_str(), request.uri().path()), TRACES);
                        seen.lock().unwrap().clone_from(request.headers());
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        written.lock().unwrap().extend(read(&body));
                        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                    }
                });
                // The gateway may disconnect at any time.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, sent, headers }
    }

    /// The spans received so far.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    /// Waits until this many spans have arrived.
    pub(crate) async fn until_sent(&self, spans: usize) -> Vec<Sent> {
        until("the spans have arrived", async || self.sent().len() >= spans).await;
        self.sent()
    }

    /// A header of the last batch, or an empty string.
    pub(crate) fn header(&self, name: &str) -> String {
        let headers = self.headers.lock().unwrap();
        headers.get(name).map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    }
}

impl Sent {
    /// An attribute as text, or an empty string.
    pub(crate) fn attribute(&self, name: &str) -> String {
        attribute(&self.span.attributes, name)
    }

    pub(crate) fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    pub(crate) fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub(crate) fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }
}

fn read(body: &[u8]) -> Vec<Sent> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let mut sent = Vec::new();
    for resource in request.resource_spans {
        let attributes = resource.resource.unwrap_or_default().attributes;
        let service = attribute(&attributes, "service.name");
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        sent.extend(spans.map(|span| Sent { service: service.clone(), span }));
    }
    sent
}

fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|found| found.value.clone()) {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        None => String::new(),
        other => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACES: (&str, &str) = ("POST", "/v1/traces");
