//! A policy, and which requests it holds against whose quota.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Charge, Cost, Key, Policy};

use crate::head::Condition;
use crate::key::{Global, KeySource};
use crate::{Costs, Head, Paths};

/// A policy, whose quota it uses, what requests cost there and which it is about.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys, ClientIp};
/// use tollgate::{Cost, Costs, Limit, OnMissingKey, Paths, Policy, Quota};
///
/// let everybody = Limit::global(Policy::sliding_window_log("global", Quota::per_minute(100))?);
/// let logins = Policy::fixed_window_counter("login", Quota::per_minute(5))?;
/// // A login counts once, although it is a POST, which otherwise costs 5.
/// let logins = Limit::new(logins, ClientIp::peer())
///     .costs(Costs::flat(Cost::ONE))
///     .on_paths(Paths::new(["/login"])?);
/// let keys = ApiKeys::from_keys(["k-7f3a"]);
/// let customers = Policy::token_bucket("customer", Quota::per_second(50).burst(200))?;
/// let customers = Limit::new(customers, ApiKey::in_x_api_key().one_of(keys))
///     .on_missing_key(OnMissingKey::Pass);
/// # let _ = (everybody, logins, customers);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Limit {
    pub(crate) policy: Policy,
    pub(crate) key: Arc<dyn KeySource>,
    pub(crate) enforce: bool,
    pub(crate) costs: Option<Costs>,
    pub(crate) on_missing_key: Option<OnMissingKey>,
    conditions: Vec<Arc<Condition>>,
}

/// What becomes of a request that does not say whose quota it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// It is refused with 403, and no policy of the layer is charged: where keys could be
    /// guessed, put a limit by address into a layer outside of this one.
    Deny,
    /// It passes this policy; the others of the layer still hold.
    Pass,
    /// All such requests share one quota of this policy.
    Share,
}

impl Limit {
    /// `policy` over the quota that `key` names.
    pub fn new(policy: Policy, key: impl KeySource) -> Self {
        Self {
            policy,
            key: Arc::new(key),
            enforce: true,
            costs: None,
            on_missing_key: None,
            conditions: Vec::new(),
        }
    }

    /// `policy` over one quota that everybody shares.
    pub fn global(policy: Policy) -> Self {
        Self::new(policy, Global)
    }

    /// What requests cost here, if not what they cost in the rest of the layer.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = Some(costs);
        self
    }

    /// Only watches: the policy never blocks, is charged for the requests that pass,
    /// and stays out of headers and status. See the events of target `tollgate`.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.enforce = false;
        self
    }

    /// What becomes of a request that does not say whose quota it uses.
    #[must_use]
    pub const fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Only requests of which `condition` holds. Several conditions must all hold.
    #[must_use]
    pub fn when(mut self, condition: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Only requests to these paths, and those whose spelling leaves it open. A layer on
    /// the route itself needs no such care.
    #[must_use]
    pub fn on_paths(self, paths: Paths) -> Self {
        self.when(move |head| paths.limit(head))
    }

    /// No requests to these paths.
    #[must_use]
    pub fn except_paths(self, paths: Paths) -> Self {
        self.when(move |head| !paths.exempt(head))
    }

    /// The policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn charge<'a>(&'a self, key: &'a Key, cost: Cost) -> Charge<'a> {
        Charge { policy: &self.policy, key, cost, enforce: self.enforce }
    }

    #[inline]
    pub(crate) fn applies_to(&self, head: &Head<'_>) -> bool {
        self.conditions.iter().all(|condition| condition(head))
    }
}

/// The key under which requests without one share a quota: no source makes it, as
/// theirs begin with a tag above zero.
pub(crate) fn shared_key() -> Key {
    Key::new([0, b'-'])
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("policy", &self.policy)
            .field("enforce", &self.enforce)
            .field("on_missing_key", &self.on_missing_key)
            .finish_non_exhaustive()
    }
}
