//! The same axum service under several layers.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tollgate::key::ClientIp;
use tollgate::{HeaderOptions, Limit, MemoryStore, Micros, Policy, Quota, RateLimitLayer};
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::Failure;
use crate::clock::Ticking;

/// What a service is wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wrapping {
    /// Nothing.
    Bare,
    /// A layer that does nothing: what axum itself takes for any layer.
    Identity,
    /// tower_governor by address.
    Governor,
    /// The same with `x-ratelimit-limit`, `-remaining` and `-after`.
    GovernorHeaders,
    /// Tollgate by address, with all fields.
    Headers,
    /// Only `RateLimit-Policy` and `RateLimit`.
    DraftHeaders,
    /// Without fields.
    NoHeaders,
    /// With all fields, and the body of the service kept as it is.
    SameBody,
    /// The same without fields.
    SameBodyNoHeaders,
    /// A policy for all beside that for each address, with all fields.
    TwoPolicies,
}

/// A service that says hello, wrapped. No limit is ever reached.
pub(crate) fn app(wrapping: Wrapping) -> Result<Router, Failure> {
    let router = Router::new().route("/", get(|| async { "hello" }));
    // What both are set to: 100 units, of which those that a request takes are back at the
    // next. Numbers of so few digits are what clients are usually told.
    let quota = Quota::per_minute(100);
    let store = || MemoryStore::builder().clock(Ticking::by(Micros::new(1_000_000))).build();
    let mut governor = GovernorConfigBuilder::default();
    governor.per_nanosecond(1).burst_size(100);
    let limited = |headers: HeaderOptions, limits: Vec<Limit>| {
        let mut layer = RateLimitLayer::builder(store()).headers(headers);
        for limit in limits {
            layer = layer.limit(limit);
        }
        layer.build()
    };
    let by_address =
        || Ok::<_, Failure>(Limit::new(Policy::token_bucket("address", quota)?, ClientIp::peer()));
    let all = HeaderOptions::default();
    let app = match wrapping {
        Wrapping::Bare => router,
        Wrapping::Identity => router.layer(Identity::new()),
        Wrapping::Governor => {
            let config = governor.finish().ok_or("tower_governor refused its quota")?;
            router.layer(GovernorLayer::new(Arc::new(config)))
        }
        Wrapping::GovernorHeaders => {
            let config = governor.use_headers().finish();
            let config = config.ok_or("tower_governor refused its quota")?;
            router.layer(GovernorLayer::new(Arc::new(config)))
        }
        Wrapping::Headers => router.layer(limited(all, vec![by_address()?])?),
        Wrapping::DraftHeaders => {
            router.layer(limited(all.x_ratelimit(false), vec![by_address()?])?)
        }
        Wrapping::NoHeaders => {
            let none = all.x_ratelimit(false).ratelimit(false);
            router.layer(limited(none, vec![by_address()?])?)
        }
        Wrapping::SameBody => router.layer(limited(all, vec![by_address()?])?.same_body()),
        Wrapping::SameBodyNoHeaders => {
            let none = all.x_ratelimit(false).ratelimit(false);
            router.layer(limited(none, vec![by_address()?])?.same_body())
        }
        Wrapping::TwoPolicies => {
            let global = Limit::global(Policy::token_bucket("global", quota)?);
            router.layer(limited(all, vec![global, by_address()?])?)
        }
    };
    // A server does this once; without it the router would build its layers anew for
    // each request.
    Ok(app.with_state(()))
}
