//! Tests of the layer's public API: around services, in routers and over sockets.

#![expect(
    clippy::unwrap_used,
    reason = "the lint exempts only functions with a test attribute, not their helpers"
)]

mod answers;
mod charges;
#[cfg(all(feature = "redis", feature = "calendar", feature = "jwt-rust-crypto"))]
mod codes;
mod conformance;
mod events;
mod extract;
mod feedback;
mod fit;
mod fleet;
mod fleet_simulation;
mod grpc;
mod in_flight;
mod keys;
mod limiter;
mod lists;
mod metrics;
mod nesting;
mod obeying;
mod outages;
mod overrides;
mod overrides_terms;
mod penalties;
mod polite;
mod quota_lookup;
mod quota_lookup_laws;
mod quota_lookup_several;
mod readiness;
mod retries;
#[cfg(feature = "jwt-rust-crypto")]
mod settling;
mod shadow;
mod sharing;
mod short;
mod soft;
mod spans;
mod stage;
mod standing;
mod support;
mod surface;
mod tiers;
mod uploads;
mod waiting;
