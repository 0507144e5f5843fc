//! The types and algorithms of Tollgate, as pure functions over integers.
//!
//! A [`Quota`] is an amount per window. A [`Policy`] is a named quota with an [`Algorithm`]. Its
//! constructors check every bound, so that no later arithmetic can overflow. A [`Charge`] asks a
//! [`Store`] to take a [`Cost`] from the quota of a [`Key`]. The store answers with a [`Verdict`],
//! which has one [`Decision`] per charge.
//!
//! This crate reads no clock and does no I/O. Time is an argument, a [`Timestamp`], so a test of a
//! minute takes a microsecond.
//!
//! ```
//! use tollgate_core::algorithm::Rule;
//! use tollgate_core::algorithm::token_bucket::TokenBucket;
//! use tollgate_core::{AnyRule, Cost, Micros, Policy, Quota, Timestamp};
//!
//! let policy = Policy::token_bucket("search", Quota::per_minute(60).burst(2))?;
//! let AnyRule::TokenBucket(bucket) = policy.rule() else { unreachable!() };
//!
//! let now = Timestamp::from_micros(1_000_000);
//! let mut state = bucket.fresh();
//! for _ in 0..2 {
//!     let view = bucket.refresh(&state, now);
//!     assert!(bucket.assess(view, now, Cost::ONE).allows());
//!     bucket.charge(&mut state, now, Cost::ONE);
//! }
//!
//! // The burst is spent; one unit is refilled each second.
//! let denied = bucket.assess(bucket.refresh(&state, now), now, Cost::ONE);
//! assert_eq!(denied.retry_after(), Some(Micros::new(1_000_000)));
//! # Ok::<(), tollgate_core::PolicyError>(())
//! ```
//!
//! Without the default feature `std` the crate needs only `alloc`, for WebAssembly and embedded
//! systems. [`Fallback`] and the making of a [`Calendar`] need `std`, because they hold locks.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod algorithm;
mod any_store;
mod calendar;
mod charge;
mod cost;
mod decision;
#[cfg(feature = "std")]
mod fallback;
mod key;
mod lease;
mod math;
mod policy;
mod quota;
mod reply;
mod scale;
mod store;
mod strikes;
mod time;

pub use algorithm::{Algorithm, AnyRule, Form, Kind, LeakyMode, Refill, Resolution};
/// Errors that `main` returns are printed by their `Debug`, which then says the cure, too.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($error:ty) => {
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub use any_store::AnyStore;
pub use calendar::{Calendar, CalendarError, Period};
pub use charge::{Charge, Charged, Receipt, ReceiptId, Settlement};
pub use cost::{Cost, NegativeCost};
pub use decision::{Decision, Outcome, Source, Verdict};
#[cfg(feature = "std")]
pub use fallback::{Fallback, FallbackFuture};
pub use key::Key;
pub use lease::{Granted, Hold, Holds, Lease};
pub use policy::{Policy, PolicyError};
pub use quota::Quota;
pub use reply::{NeverPending, Reply};
pub use store::{OnStoreError, Store, StoreError, StoreExt};
pub use strikes::Strikes;
pub use time::{Micros, Timestamp};
