//! Which tier a request is in: the quotas of free, pro and enterprise subjects.
//!
//! A [`Limit`](crate::Limit) has a quota for everybody and, by
//! [`in_tier`](crate::Limit::in_tier), others for tiers. Once per request a [`TierSource`]
//! names the tier, and every limit of the layer takes its quota for that. The state
//! belongs to the subject: a tier that changes holds from the next request on, and what was
//! consumed before stays consumed.
//!
//! | source | the tier is |
//! |---|---|
//! | [`from_fn`] | what the closure says |
//! | [`in_extensions`] | the [`Tier`] that a layer before has put down, such as `TierLookup` (feature `tier-lookup`), which asks a database and remembers |
//! | [`ApiKeyTiers`] | that of the list which the API key is in |
//! | `JwtTier` (feature `jwt`) | a claim of a verified token |
//!
//! A tier that a client can choose is the best one for everybody: take it only from what
//! somebody has verified.
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
#[cfg(feature = "tier-lookup")]
mod lookup;

use std::fmt;
use std::sync::Arc;

pub use self::api_key::ApiKeyTiers;
#[cfg(feature = "jwt")]
pub use self::jwt::JwtTier;
#[cfg(feature = "tier-lookup")]
pub use self::lookup::{LookedUp, TierLookup};
use crate::RequestHead;
use crate::key::SubjectName;

/// The name of a tier. Cheap to clone, and a fixed one costs nothing to make.
///
/// It can be put into the extensions of a request, by whoever has looked it up; then
/// [`in_extensions`] is the source.
#[derive(Clone)]
pub struct Tier(Name);

#[derive(Clone)]
enum Name {
    Fixed(&'static str),
    Shared(Arc<str>),
}

impl Tier {
    /// The name.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Fixed(name) => name,
            Name::Shared(name) => name,
        }
    }
}

/// Names the tier of a request.
///
/// It runs once for each request that the layer does not exempt, before any limit: it must
/// not block, and it must not panic on what a stranger sent.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which tier a request is in",
    label = "not a `TierSource`",
    note = "take a source of `tollgate::tier`, as `in_extensions()`, or a closure by `tier::from_fn(|head| ..)`"
)]
pub trait TierSource: Send + Sync + 'static {
    /// The tier. `None`, or one that a limit has no quota for, means the quota for
    /// everybody.
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier>;

    /// The tier of a subject that an operator names, where that is known without a request of
    /// his. A source of your own knows none unless it says so.
    fn named(&self, name: &SubjectName) -> Option<Tier> {
        let _ = name;
        None
    }

    /// Asks `other` about requests and subjects for which this source finds no tier.
    fn or<T: TierSource>(self, other: T) -> Or<Self, T>
    where
        Self: Sized,
    {
        Or { first: self, other }
    }
}

/// Two sources, the second for whatever the first has no tier for. Made by [`TierSource::or`].
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

/// The tier that a layer before has put into the request's extensions.
pub fn in_extensions() -> impl TierSource {
    from_fn(|head| head.extensions.get::<Tier>().cloned())
}

/// A closure as a source. Made by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

/// The tier that `tier` names; `None` for the quota of everybody.
pub const fn from_fn<F, T>(tier: F) -> FromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<Tier>,
{
    FromFn(tier)
}

impl<F, T> TierSource for FromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<Tier>,
{
    fn tier(&self, head: &RequestHead<'_>) -> Option<Tier> {
        (self.0)(head).map(Into::into)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

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

/// By the name, wherever it is kept.
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
