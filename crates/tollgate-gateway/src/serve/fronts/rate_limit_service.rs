//! Envoy's Rate Limit Service over gRPC, and its health.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use tokio::time::{sleep, timeout};
use tollgate::observe::Inspect;
use tonic::Status;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower_service::Service;

use super::rate_limits::RateLimits;
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
    let answered = async {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            return gateway.health.clone().call(request).await;
        }
        RateLimitServiceServer::new(Decider(Arc::clone(app))).call(request).await
    };
    // A client may set no deadline and never finish its request.
    let longest = app.plan.timeouts.response;
    let answered = timeout(deadline.map_or(longest, |it| it.min(longest)), answered).await;
    let answered = answered.map(|answered| answered.unwrap_or_else(|never| match never {}));
    let late = |_| Status::deadline_exceeded("no decision before the deadline").into_http();
    answered.unwrap_or_else(late).map(Body::from)
}

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
