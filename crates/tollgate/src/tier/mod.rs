//! Tiers of clients with different quotas, for example free and pro.
//!
//! A [`Limit`](crate::Limit) has a quota for all clients and may have different quotas for tiers
//! ([`in_tier`](crate::Limit::in_tier)). A [`TierSource`] returns the tier, once per request for
//! all the layer's limits. The state belongs to the client: a new tier applies from the next
//! request, and used units still count.
//!
//! | source | the tier is |
//! |---|---|
//! | [`from_fn`] | a closure's result |
//! | [`in_extensions`] | the [`Tier`] in the extensions, from an outer layer |
//! | [`ApiKeyTiers`] | the tier of the list that contains the API key |
//! | `JwtTier` (feature `jwt`) | a verified token's claim |
//!
//! Use only verified data as the tier. Otherwise clients would choose the best tier.
//!
//! A [`QuotaLookup`] reads each client's quota or tier from a database or another source, and caches
//! it.
//!
//! ```
//! use tollgate::key::ClientIp;
//! use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer, tier};
//!
//! #[derive(Clone)]
//! struct Account {
//!     is_paying: bool,
//! }
//!
//! let free = Policy::token_bucket("account", Quota::per_hour(60).burst(10))?;
//! let account = Limit::new(free, ClientIp::peer())
//!     .in_tier("pro", Quota::per_hour(10_000).burst(500))?;
//! let layer = RateLimitLayer::builder(MemoryStore::new())
//!     .tiers(tier::from_fn(|head| {
//!         let account = head.extensions.get::<Account>()?;
//!         account.is_paying.then_some("pro")
//!     }))
//!     .limit(account)
//!     .build()?;
//! # let _ = layer;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api_key;
#[cfg(feature = "jwt")]
mod jwt;
pub(crate) mod lookup;

use std::fmt;
use std::sync::Arc;

use tollgate_engine::TierIndex;

pub use self::api_key::ApiKeyTiers;
#[cfg(feature = "jwt")]
pub use self::jwt::JwtTier;
pub use self::lookup::{
    Client, ClientQuota, OnLookupFailure, OnUnknownClient, QuotaLookup, QuotaLookupBuilder,
};
use crate::head::RequestHead;
use crate::key::SubjectName;

/// A tier's name. Clones are cheap, and a static name needs no allocation.
///
/// A layer can store it in the request extensions for [`in_extensions`].
#[derive(Clone)]
pub struct Tier(Name);

#[derive(Clone)]
enum Name {
    Fixed(&'static str),
    Shared(Arc<str>),
}

impl Tier {
    /// Returns the tier's name.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Fixed(name) => name,
            Name::Shared(name) => name,
        }
    }
}

/// Finds a request's tier, for example by API key or token.
///
/// It runs once for each request that is not exempt, before any limit, so it must not block, and
/// must not panic on any input.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot determine a request's tier",
    label = "not a `TierSource`",
    note = "use a source from `tollgate::tier`, such as `in_extensions()`, or a closure: `tier::from_fn(|head| ..)`"
)]
pub trait TierSource: Send + Sync + 'static {
    /// Returns the request's tier. If it returns `None`, or a tier without its own quota in a
    /// limit, the quota for all clients applies.
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier>;

    /// Returns the tier of a client that an operator names, if it is known without a request.
    fn named(&self, name: &SubjectName) -> Option<Tier> {
        let _ = name;
        None
    }

    /// Calls `other` if this source returns no tier.
    fn or<T: TierSource>(self, other: T) -> Or<Self, T>
    where
        Self: Sized,
    {
        Or { first: self, other }
    }
}

/// Tier source: uses the second source if the first finds no tier. Created by [`TierSource::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    other: B,
}

impl<A: TierSource, B: TierSource> TierSource for Or<A, B> {
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        self.first.tier(head).or_else(|| self.other.tier(head))
    }

    fn named(&self, name: &SubjectName) -> Option<Tier> {
        self.first.named(name).or_else(|| self.other.named(name))
    }
}

/// Makes a tier source that reads the [`Tier`] from the request extensions.
pub fn in_extensions() -> impl TierSource {
    from_fn(|head| head.extensions.get::<Tier>().cloned())
}

/// Tier source: a closure. Created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct TierFromFn<F>(F);

/// Makes a tier source from a closure that returns the tier.
pub const fn from_fn<F, T>(tier: F) -> TierFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<Tier>,
{
    TierFromFn(tier)
}

impl<F, T> TierSource for TierFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<Tier>,
{
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        (self.0)(head).map(Into::into)
    }
}

debug_fields!([F] TierFromFn<F>);

impl From<&'static str> for Tier {
    fn from(name: &'static str) -> Self {
        Self(Name::Fixed(name))
    }
}

impl From<String> for Tier {
    fn from(name: String) -> Self {
        Self(Name::Shared(name.into()))
    }
}

impl From<Arc<str>> for Tier {
    fn from(name: Arc<str>) -> Self {
        Self(Name::Shared(name))
    }
}

/// Compares names, whether static or shared.
impl PartialEq for Tier {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Tier {}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tier({:?})", self.as_str())
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The tiers to which a limit does not apply.
#[derive(Debug)]
pub(crate) struct UnlimitedTiers {
    /// Whether the limit does not apply to clients without a tier either.
    pub(crate) without_tier: bool,
    /// By number; empty if the limit applies to all tiers.
    pub(crate) in_tiers: Box<[bool]>,
}

impl UnlimitedTiers {
    #[inline]
    pub(crate) fn contain(&self, TierIndex(tier): TierIndex) -> bool {
        self.in_tiers.get(usize::from(tier)).copied().unwrap_or(self.without_tier)
    }
}
