//! Tollgate's types and algorithms: pure functions over integers.
//!
//! A [`Quota`] is an amount per window, and a [`Policy`] is a named quota with an [`Algorithm`].
//! The constructors check every bound, so later arithmetic cannot overflow. A [`Charge`] takes a
//! [`Cost`] from a [`Key`]'s quota. A [`Store`] decides all charges for a request together and
//! returns a [`Verdict`], which contains a [`Decision`] for each charge.
//!
//! This crate does no I/O and never reads a clock. Time is an argument, a [`Timestamp`], so a test
//! that covers a minute runs in a microsecond.
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
//! Without the default feature `std`, the crate needs only `alloc`, for WebAssembly and embedded
//! systems. [`Fallback`], [`Overrides`] and [`Calendar::new`] use locks and therefore need `std`.

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
#[cfg(feature = "std")]
mod overrides;
mod policy;
mod quota;
mod reply;
mod scale;
mod store;
mod strikes;
mod time;

pub use algorithm::{Algorithm, AnyRule, Form, Kind, LeakyMode, Refill, Resolution};
/// Rust prints an error returned from `main` with `Debug`. Forwarding to `Display` makes that
/// output readable, including the advice on how to fix it.
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

/// Implements `Debug` with only these fields. The remaining fields are closures, which have no
/// `Debug`, or identify clients, which must not appear in logs.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    ($([$($generics:tt)+])? $name:ident $(<$($argument:ident),+>)? $(, $field:ident)*) => {
        impl $(<$($generics)+>)? ::core::fmt::Debug for $name $(<$($argument),+>)? {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(shown.field(stringify!($field), &self.$field);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}

pub use any_store::AnyStore;
pub use calendar::{Calendar, CalendarError, Period};
pub use charge::{Charge, Charged, OwnedCharge, Receipt, ReceiptId, Settlement};
pub use cost::{Cost, NegativeCost};
pub use decision::{Decision, FixedVerdict, Outcome, Source, Verdict};
#[cfg(feature = "std")]
pub use fallback::{Fallback, FallbackFuture};
pub use key::Key;
pub use lease::{Granted, Lease};
#[cfg(feature = "std")]
pub use overrides::{
    Override, OverrideChange, OverrideEdit, OverrideError, OverrideId, OverrideList, OverridePlace,
    Overrides,
};
pub use policy::{Policy, PolicyError};
pub use quota::Quota;
pub use reply::{NeverPending, Reply};
pub use store::{BoxFuture, OnStoreError, Store, StoreError, StoreExt};
pub use strikes::{PenaltyBlock, Strikes};
pub use time::{Micros, Timestamp};
