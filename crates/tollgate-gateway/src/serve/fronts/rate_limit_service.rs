//! Envoy's Rate Limit Service over gRPC, and its health.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};
use tollgate::observe::Inspect;
use tonic::Status;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower_service::Service;

use super::rate_limits::{RateLimits, json};
use crate::serve::app::App;
use crate::serve::body::Body;
use crate::serve::gateway::Gateway;

/// The service names for health checks. Envoy's examples use `ratelimit`, the name in
/// envoyproxy/ratelimit.
pub(crate) const SERVICES: [&str; 3] =
    ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

pub(crate) async fn answer<St: Inspect>(
    gateway: &Gateway<St>,
    app: &Arc<App<St>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let deadline = deadline(request.headers());
    let is_json = request.uri().path() == "/json";
    let answered = async {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            return gateway.health.clone().call(request).await;
        }
        if is_json {
            return Ok(json(app, request).await);
        }
        RateLimitServiceServer::new(Decider(Arc::clone(app))).call(request).await
    };
    // A client may set no deadline and never finish its request.
    let longest = app.plan.timeouts.response;
    let answered = timeout(deadline.map_or(longest, |it| it.min(longest)), answered).await;
    let answered = answered.map(|answered| answered.unwrap_or_else(|never| match never {}));
    let late = |_| match Status::deadline_exceeded("no decision before the deadline") {
        // A gRPC error has the status 200.
        late if is_json => plain(StatusCode::GATEWAY_TIMEOUT, late.message().into()),
        late => late.into_http(),
    };
    answered.unwrap_or_else(late).map(Body::from)
}

/// The path of envoyproxy/ratelimit for clients without gRPC.
async fn json<St: Inspect>(
    app: &App<St>,
    request: Request<Incoming>,
) -> Response<tonic::body::Body> {
    if request.method() != Method::POST {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, b"Use POST.".to_vec());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let Some(rules) = &app.rate_limits else {
        return plain(StatusCode::NOT_FOUND, b"No `rateLimitService` is configured.".to_vec());
    };
    let asked = match Limited::new(request.into_body(), MOST_BYTES).collect().await {
        Ok(body) => json::read(&body.to_bytes()),
        Err(error) => Err(error.to_string()),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            return plain(StatusCode::BAD_REQUEST, format!("The body: {error}.").into_bytes());
        }
    };
    match rules.answer(&asked).await {
        Ok(decided) => {
            let (status, body) = json::written(&decided);
            let mut response = plain(status, body);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(error) => plain(json::status_of(&error), error.message().as_bytes().to_vec()),
    }
}

fn plain(status: StatusCode, text: Vec<u8>) -> Response<tonic::body::Body> {
    let mut response = Response::new(tonic::body::Body::new(Full::from(text)));
    *response.status_mut() = status;
    response
}

/// More than all descriptors that a request may have.
const MOST_BYTES: usize = 64 << 10;

pub(crate) async fn keep_health<St: Inspect>(gateway: Arc<Gateway<St>>, health: HealthReporter) {
    let mut told = None;
    loop {
        let app = gateway.app_to_keep();
        let serves = app.rate_limits.as_ref().is_none_or(RateLimits::can_answer);
        drop(app);
        let status = if gateway.leaving.initialized() || !serves {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        };
        if told.replace(status) != Some(status) {
            for service in SERVICES {
                health.set_service_status(service, status).await;
            }
        }
        tokio::select! {
            _ = gateway.leaving.wait(), if !gateway.leaving.initialized() => {}
            () = sleep(LOOK) => {}
        }
    }
}

const LOOK: Duration = Duration::from_millis(500);

/// `grpc-timeout`: up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

struct Decider<St: Inspect>(Arc<App<St>>);

#[tonic::async_trait]
impl<St: Inspect> RateLimitService for Decider<St> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let rules = self.0.rate_limits.as_ref();
        let rules =
            rules.ok_or_else(|| Status::unimplemented("no `rateLimitService` is configured"))?;
        rules.answer(&request.into_inner()).await.map(tonic::Response::new)
    }
}
