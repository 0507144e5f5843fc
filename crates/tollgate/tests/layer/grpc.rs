//! gRPC: denials as a tonic client sees them.

use std::net::SocketAddr;

use http::{HeaderValue, Method, Request};
use tollgate::key::ClientIp;
use tollgate::limit::OnMissingKey;
use tollgate::policy::OnStoreError;
use tollgate::{Costs, Limit, RateLimitLayer, Store};
use tonic::service::LayerExt as _;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tower::Layer;

use crate::stage::{Fault, Staged};
use crate::support::*;

fn bind() -> (SocketAddr, TcpIncoming) {
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    (incoming.local_addr().unwrap(), incoming)
}

async fn connect(address: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

/// A layer for gRPC services.
fn layer<St: Store>(store: &St, limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer<St> {
    builder(store, limits).grpc(true).build().unwrap()
}

/// A client of the health service behind `limit`.
async fn client<St: Store>(limit: RateLimitLayer<St>) -> HealthClient<Channel> {
    let (address, incoming) = bind();
    let (_, health) = health_reporter();
    let server = Server::builder().layer(limit).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    connect(address).await
}

fn check() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

fn metadata(status: &Status, name: &str) -> Option<String> {
    field(&status.metadata().clone().into_headers(), name)
}

#[tokio::test]
async fn allowed_call_carries_rate_metadata() {
    let (_, store) = memory();
    let limit = Limit::new(log("ip", 10), ClientIp::peer());
    let mut client = client(layer(&store, [limit])).await;
    let answer = client.check(check()).await.unwrap();
    let fields = rate_fields(&answer.metadata().clone().into_headers());
    assert_eq!(fields[0], r#"ratelimit: "ip";r=9;t=54"#);
    assert_eq!(fields.len(), 5);
}

#[tokio::test]
async fn denied_call_is_resource_exhausted() {
    let (_, store) = memory();
    let limit = Limit::new(log("ip", 2), ClientIp::peer());
    let mut client = client(layer(&store, [limit])).await;
    for _ in 0..2 {
        client.check(check()).await.unwrap();
    }
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.message(),
        "The quota is 2 units per 60 seconds. This request costs 1; 0 remain. Retry in 60 seconds."
    );
    assert_eq!(
        rate_fields(&status.metadata().clone().into_headers()),
        [
            r#"ratelimit: "ip";r=0;t=60"#,
            r#"ratelimit-policy: "ip";q=2;w=60"#,
            "retry-after: 60",
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START + 60),
        ]
    );
    // A streaming call is denied before its first message.
    let status = client.watch(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn failed_closed_call_is_unavailable() {
    let (_, store) = memory();
    let store = Staged::new(store);
    store.fail(Fault::NotCharged);
    let policy = log("closed", 2).with_on_store_error(OnStoreError::Closed);
    let mut client = client(layer(&store, [Limit::global(policy)])).await;
    let status = client.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(metadata(&status, "retry-after").as_deref(), Some("1"));
    assert_eq!(metadata(&status, "ratelimit"), None);
    store.recover();
    client.check(check()).await.unwrap();
}

#[tokio::test]
async fn hopeless_call_is_permission_denied() {
    let (_, store) = memory();
    let costs = Costs::from_fn(|_| Some(11));
    let limits = [Limit::global(log("small", 10)).costs(costs)];
    let status = client(layer(&store, limits)).await.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(metadata(&status, "retry-after"), None);

    let tenant = tollgate::key::Header::trust_unverified(http::HeaderName::from_static("x-tenant"));
    let by_tenant = Limit::new(log("tenant", 9), tenant).on_missing_key(OnMissingKey::Deny);
    let status = client(layer(&store, [by_tenant])).await.check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn single_service_can_be_limited() {
    let (_, store) = memory();
    let (address, incoming) = bind();
    let limit = layer(&store, [Limit::new(log("ip", 1), ClientIp::peer())]);
    let (_, health) = health_reporter();
    let limited = tower::ServiceBuilder::new().layer(limit).named_layer(health);
    tokio::spawn(Server::builder().add_service(limited).serve_with_incoming(incoming));
    let mut client = connect(address).await;
    client.check(check()).await.unwrap();
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// A POST with the content type of gRPC.
fn call(path: &str) -> Request<()> {
    let mut request = request(Method::POST, path);
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    request
}

/// POST costs 5, and a gRPC call 1.
fn five_for_post() -> Costs {
    Costs::by_method().method(Method::DELETE, 5)
}

#[tokio::test]
async fn grpc_is_opt_in() {
    let (_, store) = memory();
    for (index, (is_grpc, status)) in
        [(None, 429), (Some(false), 429), (Some(true), 200)].into_iter().enumerate()
    {
        let limit = Limit::global(log(&format!("p{index}"), 5)).costs(five_for_post());
        let layer = builder(&store, [limit]);
        let layer = match is_grpc {
            Some(is_grpc) => layer.grpc(is_grpc),
            None => layer,
        };
        let service = layer.build().unwrap().layer(hello());
        for _ in 0..if status == 200 { 5 } else { 1 } {
            assert_eq!(ask(&service, call("/Greeter/SayHello")).await.status(), 200);
        }
        let denied = ask(&service, call("/Greeter/SayHello")).await;
        assert_eq!(denied.status(), status, "{is_grpc:?}");
        assert_eq!(ask(&service, request(Method::POST, "/")).await.status(), 429);
    }
}
