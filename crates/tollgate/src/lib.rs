//! Rate limiting for tower, axum, hyper and tonic.
//!
//! A [`RateLimitLayer`] finds out who is asking ([`key`]), what the request costs
//! ([`Costs`]), asks a [`Store`] whether its policies let it pass, and answers for them
//! if they do not ([`denial`]). All policies of a layer are decided in one step of the
//! store, all or none.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # {
//! use axum::{Router, routing::get};
//! use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     let everybody = Policy::sliding_window_log("global", Quota::per_minute(100))?;
//!     let each = Policy::token_bucket("client", Quota::per_second(5).burst(20))?;
//!     let limit = RateLimitLayer::builder(MemoryStore::new())
//!         .costs(Costs::by_method())
//!         .limit(Limit::global(everybody))
//!         .limit(Limit::per_ip(each))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "hello" })).layer(limit))
//! }
//! # app().unwrap();
//! # }
//! ```
//!
//! axum tells the layer who is asking if it serves
//! `app()?.into_make_service_with_connect_info::<SocketAddr>()`. Which algorithm to choose, with
//! recipes, what a store over Redis promises and how to deploy say the [README] and
//! [choosing.md]; small programs for each need are in [examples].
//!
//! [README]: https://github.com/tollgate-rs/tollgate#readme
//! [choosing.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/choosing.md
//! [examples]: https://github.com/tollgate-rs/tollgate/tree/main/examples/small
//!
//! | feature | gives |
//! |---|---|
//! | `memory` (default) | `MemoryStore`, the store in this process |
//! | `axum` | `ConnectInfo` as the peer, `MatchedPath` as the route |
//! | `calendar` | [`Quota::per_calendar`] for days, weeks and months in a time zone |
//! | `redis` | `RedisStore`, the store that processes share |
//! | `tonic` | tonic's connection info as the peer |
//! | `jwt` | `JwtUser` and `JwtTier`: users and tiers named by a verified JSON Web Token |
//! | `jwt-rust-crypto` | `jwt` with the cryptography of jsonwebtoken's `rust_crypto`; with `jwt` alone the program chooses |
//! | `metrics` | counters and times by the facade of the crate `metrics` |
//! | `admin` | a router for those who run it: status, reset, who is denied most |
//! | `tier-lookup` | `TierLookup`: tiers from a database, remembered for a while |
//! | `test-util` | `ManualClock`, a clock for tests that is moved by hand |

pub mod access;
#[cfg(feature = "admin")]
pub mod admin;
pub mod body;
mod cost;
pub mod denial;
pub mod failure;
mod grpc;
mod head;
pub mod headers;
pub mod key;
pub mod layer;
mod limit;
#[cfg(feature = "metrics")]
pub mod metrics;
mod observe;
mod paths;
mod settling;
#[cfg(feature = "metrics")]
pub mod status;
pub mod tier;

pub use body::Body;
pub use cost::Costs;
pub use denial::{Denial, DenialResponse, Reason};
pub use head::RequestHead;
pub use headers::HeaderOptions;
pub use key::{KeySource, RoutePattern, Subject, SubjectKind};
pub use layer::{
    LayerError, RateLimit, RateLimitLayer, RateLimitLayerBuilder, Reservation, TalliedBody, Tally,
    Verdicts, WaitQueue,
};
pub use limit::{Limit, OnExceeded, OnMissingKey};
#[cfg(feature = "admin")]
pub use observe::Denials;
#[cfg(feature = "metrics")]
pub use observe::Observer;
pub use paths::{Paths, PathsError};
pub use settling::{Reserve, ResponseHead};
pub use tier::{Tier, TierSource};
#[cfg(feature = "calendar")]
#[doc(inline)]
pub use tollgate_calendar as calendar;
#[doc(inline)]
pub use tollgate_core::{
    Algorithm, AnyStore, Calendar, CalendarError, Charge, Cost, Decision, Key, Kind, LeakyMode,
    Lease, Micros, OnStoreError, Outcome, Period, Policy, PolicyError, Quota, Receipt, ReceiptId,
    Refill, Resolution, Settlement, Source, Store, StoreError, StoreExt, Strikes, Timestamp,
    Verdict,
};
#[cfg(feature = "test-util")]
#[doc(inline)]
pub use tollgate_memory::ManualClock;
#[cfg(feature = "memory")]
#[doc(inline)]
pub use tollgate_memory::{Clock, MemoryStats, MemoryStore, MemoryStoreBuilder, SystemClock};
#[cfg(feature = "redis")]
#[doc(inline)]
pub use tollgate_redis::{
    ConnectError, RedisFuture, RedisReport, RedisStats, RedisStore, RedisStoreBuilder, RedisWarning,
};

/// The examples of both READMEs are compiled with the documentation tests.
#[cfg(all(doctest, feature = "axum", feature = "memory", feature = "redis"))]
mod readmes {
    #[doc = include_str!("../README.md")]
    struct OfTheCrate;
    #[doc = include_str!("../../../README.md")]
    struct OfTheRepository;
}

/// The examples of the documents are compiled and run as well.
#[cfg(all(doctest, feature = "axum", feature = "calendar", feature = "test-util"))]
mod documents {
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/http.md")]
    struct Http;
    #[doc = include_str!("../../../docs/migrating.md")]
    struct Migrating;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/troubleshooting.md")]
    struct Troubleshooting;
}
