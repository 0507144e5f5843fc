//! Rate limiting for Tower, axum, hyper and tonic, exact within one process and, with Redis, across many.
//!
//! A [`RateLimitLayer`] finds each request's [`key`] and cost ([`Costs`]) and calls a [`Store`],
//! which decides all of the layer's policies in one step: it charges either all policies or none.
//! If a policy denies a request, the layer responds itself ([`denial`]).
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # {
//! use axum::{Router, routing::get};
//! use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     let all = Policy::sliding_window_log("global", Quota::per_minute(100))?;
//!     let each = Policy::token_bucket("client", Quota::per_second(5).burst(20))?;
//!     let limit = RateLimitLayer::builder(MemoryStore::new())
//!         .costs(Costs::by_method())
//!         .limit(Limit::global(all))
//!         .limit(Limit::per_ip(each))
//!         .build()?;
//!     Ok(Router::new().route("/", get(|| async { "hello" })).layer(limit))
//! }
//! # app().unwrap();
//! # }
//! ```
//!
//! For jobs, messages and other calls that are not HTTP requests, a [`Limiter`] decides in the same
//! way, and lets calls wait in order.
//!
//! Serve `app()?.into_make_service_with_connect_info::<SocketAddr>()` so the layer can see the
//! client's address. The [README] and [choosing.md] help to choose an algorithm and a store;
//! [examples] has small programs.
//!
//! [README]: https://github.com/tollgate-rs/tollgate#readme
//! [choosing.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/choosing.md
//! [examples]: https://github.com/tollgate-rs/tollgate/tree/main/examples/small
//!
//! | feature | adds |
//! |---|---|
//! | `memory` (default) | `MemoryStore`, an in-process store |
//! | `axum` | `ConnectInfo` as the peer, `MatchedPath` as the route |
//! | `calendar` | [`Quota::per_calendar`] for days, weeks and months in a time zone |
//! | `redis` | `RedisStore`, a store that processes share |
//! | `tonic` | tonic's connection info as the peer |
//! | `jwt` | `JwtUser` and `JwtTier`: users and tiers from a verified JSON Web Token |
//! | `jwt-rust-crypto` | `jwt` with jsonwebtoken's `rust_crypto` provider; with `jwt` alone, your program selects the crypto provider |
//! | `serde` | `Denial::json`, and `store::SentReceipt`: receipts for another process |
//! | `metrics` | counters and durations through the `metrics` crate, and `handle` of layers and limiters, with reports for `tollgate-admin` |
//! | `test-util` | `ManualClock`, a clock that tests advance; `store::TokioClock`, which follows tokio's time |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[macro_use(debug_fields)]
extern crate tollgate_core;

pub mod access;
pub mod body;
mod cost;
pub mod denial;
pub(crate) mod drive;
#[cfg(feature = "axum")]
mod extractors;
pub mod feedback;
mod grpc;
mod head;
pub mod headers;
pub mod key;
pub mod layer;
pub mod limit;
pub mod limiter;
pub mod observe;
mod paths;
pub mod policy;
mod quiet;
mod settling;
pub mod store;
pub mod tier;

// A test limits the crate root to 23 names, including the modules. Everything else is in a module.
pub use cost::Costs;
#[doc(inline)]
pub use layer::RateLimitLayer;
#[doc(inline)]
pub use limit::Limit;
#[doc(inline)]
pub use limiter::Limiter;
#[doc(inline)]
pub use tollgate_core::{Policy, Quota, Store, StoreExt};
#[cfg(feature = "memory")]
#[doc(inline)]
pub use tollgate_memory::MemoryStore;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use tollgate_redis::RedisStore;

// Re-exported here because the layer's files use them together.
pub(crate) use head::RequestHead;
pub(crate) use headers::HeaderOptions;
pub(crate) use limit::{Mode, OnMissingKey};
pub(crate) use paths::Paths;
pub(crate) use settling::ResponseHead;

/// The examples of both READMEs are compiled with the documentation tests.
#[cfg(all(doctest, feature = "axum", feature = "memory", feature = "redis"))]
mod readmes {
    #[doc = include_str!("../README.md")]
    struct CrateReadme;
    #[doc = include_str!("../../../README.md")]
    struct RepositoryReadme;
}

/// The examples of the documents are compiled and run as well.
#[cfg(all(doctest, feature = "calendar", feature = "redis", feature = "test-util"))]
mod documents {
    macro_rules! pages {
        ($($name:ident: $path:literal),+ $(,)?) => {$(
            #[doc = include_str!(concat!("../../../docs/", $path))]
            struct $name;
        )+};
    }

    pages! {
        ApiKeys: "how-to/api-keys.md",
        Calls: "how-to/calls.md",
        Clients: "how-to/clients.md",
        Costs: "how-to/costs.md",
        Denials: "how-to/denials.md",
        Faq: "faq.md",
        Http: "http.md",
        Korean: "ko/README.md",
        Leases: "leases.md",
        Login: "how-to/login.md",
        Migrating: "how-to/migrating.md",
        SoftLimits: "how-to/soft-limits.md",
        Tenants: "how-to/tenants.md",
        Testing: "how-to/testing.md",
        Troubleshooting: "troubleshooting.md",
        Uploads: "how-to/uploads.md",
        Webhooks: "how-to/webhooks.md",
    }
}
