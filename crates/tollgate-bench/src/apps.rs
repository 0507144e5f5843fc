//! The same axum service under several layers.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use clap::ValueEnum;
use governor::middleware::NoOpMiddleware;
use http::{HeaderValue, StatusCode};
use tollgate::denial::Denial;
use tollgate::headers::{
    HeaderOptions, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
};
use tollgate::key::ClientIp;
use tollgate::layer::RateLimitLayerBuilder;
use tollgate::store::Micros;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
use tower::layer::util::Identity;
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

use crate::Failure;
use crate::clock::Ticking;

/// The layer around the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wrapping {
    /// No layer.
    Bare,
    /// The identity layer, which shows the cost that axum adds for any layer.
    Identity,
    /// A layer that sets Tollgate's five headers to constants. It measures the cost of the headers
    /// without a decision.
    Fields,
    /// tower_governor by address.
    Governor,
    /// tower_governor by address, with `x-ratelimit-limit` and `x-ratelimit-remaining`.
    GovernorHeaders,
    /// Tollgate by address, with all headers.
    Headers,
    /// Tollgate with the default headers, `RateLimit-Policy` and `RateLimit`.
    DraftHeaders,
    /// Tollgate without headers.
    NoHeaders,
    /// Tollgate with all headers, and with a body type that wraps the service's body.
    AnyBody,
    /// Tollgate with a global policy and a policy per address, with all headers.
    TwoPolicies,
    /// tower_governor by address, which denies every request after the first.
    GovernorDenied,
    /// Tollgate with the default headers, which denies every request after the first.
    Denied,
    /// The same with a short text and `Retry-After` alone, like tower_governor.
    DeniedText,
}

impl Wrapping {
    /// The name on the command line. It is never freed, because there are few.
    pub(crate) fn name(self) -> &'static str {
        self.to_possible_value().map_or("", |value| String::from(value.get_name()).leak())
    }

    /// The status of all responses after the first.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::GovernorDenied | Self::Denied | Self::DeniedText => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::OK,
        }
    }
}

/// Wraps a service that returns a short text.
pub(crate) fn app(wrapping: Wrapping) -> Result<Router, Failure> {
    let router = Router::new().route("/", get(|| async { "hello" }));
    let all = HeaderOptions::all();
    let none = all.x_ratelimit(false).ratelimit(false);
    let app = match wrapping {
        Wrapping::Bare => router,
        Wrapping::Identity => router.layer(Identity::new()),
        Wrapping::Fields => router.layer(MapResponseLayer::new(with_fields)),
        Wrapping::Governor => router.layer(GovernorLayer::new(governor().finish().ok_or(BAD)?)),
        Wrapping::GovernorHeaders => {
            router.layer(GovernorLayer::new(governor().use_headers().finish().ok_or(BAD)?))
        }
        Wrapping::GovernorDenied => {
            let config = governor().per_second(86_400).burst_size(1).finish();
            router.layer(GovernorLayer::new(config.ok_or(BAD)?))
        }
        Wrapping::Headers => router.layer(allowing(all)?.build()?),
        Wrapping::DraftHeaders => router.layer(allowing(HeaderOptions::default())?.build()?),
        Wrapping::NoHeaders => router.layer(allowing(none)?.build()?),
        Wrapping::AnyBody => router.layer(allowing(all)?.build()?.any_body()),
        Wrapping::TwoPolicies => {
            let global = Limit::global(Policy::token_bucket("global", QUOTA)?);
            let layer = RateLimitLayer::builder(store()).headers(all).limit(global);
            router.layer(layer.limit(by_address(QUOTA)?).build()?)
        }
        Wrapping::Denied => router.layer(denying()?.build()?),
        Wrapping::DeniedText => {
            let text = |denial: &Denial<'_>| {
                format!("Too Many Requests! Wait for {}s", denial.retry_after_secs().unwrap_or(0))
            };
            router.layer(denying()?.headers(none).on_denied(text).build()?)
        }
    };
    // Otherwise the router would build its layers again for each request. A server does this at its
    // start.
    Ok(app.with_state(()))
}

const BAD: &str = "tower_governor refused its quota";

/// With two threads, governor denies a request if its clock reading is older than another's by more
/// than the burst. So the burst lasts a second.
fn governor() -> GovernorConfigBuilder<PeerIpKeyExtractor, NoOpMiddleware> {
    let mut governor = GovernorConfigBuilder::default();
    governor.per_nanosecond(1).burst_size(1_000_000_000);
    governor
}

const QUOTA: Quota = Quota::per_second(1_000);

/// The clock advances by a second after every 512 requests. In between, `remaining` decreases with
/// each request.
fn store() -> MemoryStore<Ticking> {
    MemoryStore::builder().clock(Ticking::each(512, Micros::new(1_000_000))).build()
}

fn by_address(quota: Quota) -> Result<Limit, Failure> {
    Ok(Limit::new(Policy::token_bucket("address", quota)?, ClientIp::peer()))
}

fn allowing(
    headers: HeaderOptions,
) -> Result<RateLimitLayerBuilder<MemoryStore<Ticking>>, Failure> {
    Ok(RateLimitLayer::builder(store()).headers(headers).limit(by_address(QUOTA)?))
}

fn denying() -> Result<RateLimitLayerBuilder<MemoryStore<Ticking>>, Failure> {
    let store = MemoryStore::builder().clock(Ticking::each(1, Micros::new(1))).build();
    Ok(RateLimitLayer::builder(store).limit(by_address(Quota::per_day(1))?))
}

fn with_fields(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.append(RATELIMIT_POLICY, HeaderValue::from_static("\"address\";q=1000;w=1"));
    headers.append(RATELIMIT, HeaderValue::from_static("\"address\";r=742;t=1"));
    headers.insert(X_RATELIMIT_LIMIT, HeaderValue::from_static("1000"));
    headers.insert(X_RATELIMIT_REMAINING, HeaderValue::from_static("742"));
    headers.insert(X_RATELIMIT_RESET, HeaderValue::from_static("1795290616"));
    response
}
