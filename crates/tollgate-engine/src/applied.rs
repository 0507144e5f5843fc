//! A limit that applies to a request.

use std::any::Any;
use std::sync::Arc;

use tollgate_core::{Cost, Decision, Key, Micros, Policy, Timestamp};

/// The number of a client's tier. The default means no tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierIndex(pub u16);

impl TierIndex {
    /// No tier.
    pub const NONE: Self = Self(u16::MAX);
}

impl Default for TierIndex {
    fn default() -> Self {
        Self::NONE
    }
}

/// A policy that replaces a limit's policy for a client with its own quota.
#[derive(Debug)]
pub struct OwnPolicy {
    /// When an operator's block ends, in the store's time.
    pub blocked_until: Option<Timestamp>,
    /// The policy, with the name and the algorithm of the limit's policy.
    pub policy: Policy,
    /// The caller's data for responses to this client, such as header values.
    pub prepared: Box<dyn Any + Send + Sync>,
}

/// The kind of identity behind a key. It has few values, so metrics can use it as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubjectKind {
    /// All clients together.
    Global,
    /// A client address, or the network around it.
    Ip,
    /// An API key.
    ApiKey,
    /// A verified user.
    User,
    /// Any other kind: a header, a route, a closure's result.
    Other,
}

impl SubjectKind {
    /// Returns this kind's name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Ip => "ip",
            Self::ApiKey => "api_key",
            Self::User => "user",
            Self::Other => "other",
        }
    }
}

/// A limit that applies to a request: the charge, and its decision after the store's reply.
#[derive(Clone, Debug)]
pub struct AppliedLimit {
    /// The limit's number.
    pub limit: u8,
    /// The client's tier.
    pub tier: TierIndex,
    /// The client's own policy, which overrides its tier.
    pub own: Option<Arc<OwnPolicy>>,
    /// What the key identifies.
    pub kind: SubjectKind,
    /// The key to charge.
    pub key: Key,
    /// The units to charge.
    pub cost: Cost,
    /// The longest time in the store's queue, if it is shorter than the policy's.
    pub patience: Micros,
    /// Undecided until the store replies.
    pub decision: Decision,
}

impl AppliedLimit {
    /// Applies a limit under a key, to a client without a tier.
    #[inline]
    pub fn new(limit: u8, kind: SubjectKind, key: Key, cost: Cost) -> Self {
        let (tier, decision) = (TierIndex::default(), Decision::undecided(0));
        Self { limit, tier, own: None, kind, key, cost, patience: Micros::MAX, decision }
    }
}
