//! Checks a layer before it is built.

use std::fmt;

use tollgate_core::{Cost, OnStoreError, PolicyError, Store};

use super::compiled::{MAX_TIERS, tier_names};
use super::options::Options;
use crate::{Costs, Limit, headers};

/// Checks a layer's limits, and sets each limit's default failure policy.
pub(super) fn check(
    limits: &mut [Limit],
    store: &impl Store,
    options: &Options,
) -> Result<(), LayerError> {
    if limits.is_empty() && options.access.is_none() {
        return Err(LayerError::NoLimit);
    }
    check_limits(limits, store)?;
    if options.headers.by_policy() {
        check_header_names(limits)?;
    }
    check_tiers(limits, options.tiers.is_some())?;
    for limit in limits.iter().filter(|limit| limit.is_enforced()) {
        let costs = limit.costs.as_ref().unwrap_or(&options.costs);
        check_costs(limit, costs)?;
        if !costs.is_flat() {
            let policy = limit.policy.name();
            tracing::info!(target: "tollgate", policy, %costs, "costs of requests");
        }
    }
    Ok(())
}

/// Checks limits with any interface, and sets each limit's default failure policy.
pub(crate) fn check_limits(limits: &mut [Limit], store: &impl Store) -> Result<(), LayerError> {
    if limits.len() > LayerError::MAX_LIMITS {
        return Err(LayerError::TooManyLimits(limits.len()));
    }
    let mut queue = None;
    for (index, limit) in limits.iter().enumerate() {
        let name = || limit.policy.name().to_owned();
        if limits[..index].iter().any(|other| other.policy.name() == limit.policy.name()) {
            return Err(LayerError::SameName(name()));
        }
        match (limit.key.can_be_missing(), limit.on_missing_key) {
            (true, None) => return Err(LayerError::MissingKeyUndecided(name())),
            (false, Some(_)) => return Err(LayerError::KeyNeverMissing(name())),
            _ => {}
        }
        if limit.policy.is_concurrency() && limit.settling.settles() {
            return Err(LayerError::SettlesInFlight(name()));
        }
        if limit.policy.queues() && limit.settling.forgives.is_some() {
            return Err(LayerError::ForgivesQueue(name()));
        }
        if limit.policy.is_penalty() {
            check_penalty(limit, limits)?;
        }
        if limit.is_enforced() && limit.policy.queues() {
            // Only a leaky bucket cannot hold a place until another policy allows the request.
            let is_leaky = limit.policy.is_leaky_queue();
            match queue.replace((name(), is_leaky)) {
                Some((first, was_leaky)) if is_leaky || was_leaky => {
                    return Err(LayerError::TwoQueues(first, name()));
                }
                _ => {}
            }
        }
    }
    check_local(limits, store)
}

/// Two policies with the same header names would overwrite each other's numbers, unless they share
/// the name on purpose.
fn check_header_names(limits: &[Limit]) -> Result<(), LayerError> {
    let mut shown: Vec<&str> = Vec::new();
    for limit in limits.iter().filter(|limit| !limit.is_shadow() && !limit.hides_headers) {
        let name = limit.shown_name();
        let own = headers::names_of(name);
        let clashes = |other: &&&str| **other != name && headers::names_of(other) == own;
        if let Some(other) = shown.iter().find(clashes) {
            return Err(LayerError::SameHeaders((*other).to_owned(), name.to_owned()));
        }
        shown.push(name);
    }
    Ok(())
}

/// A policy with a local fallback needs a local store.
fn check_local(limits: &mut [Limit], store: &impl Store) -> Result<(), LayerError> {
    let has_local = store.has_local_fallback();
    let default = if has_local { OnStoreError::Local } else { OnStoreError::Open };
    limits.iter_mut().for_each(|limit| limit.default_on_store_error(default));
    match limits.iter().find(|limit| limit.policy.may_fall_back()) {
        Some(limit) if !has_local => Err(LayerError::NoLocalStore(limit.policy.name().to_owned())),
        _ => Ok(()),
    }
}

/// A penalty needs strikes. A waiting request must not count as several denials.
fn check_penalty(limit: &Limit, limits: &[Limit]) -> Result<(), LayerError> {
    let name = || limit.policy.name().to_owned();
    let (denials, failures) = (limit.policy.counts_denials(), limit.settling.counts.is_some());
    // A penalty with a queue pauses requests, and only `Store::block` starts its blocks.
    let pauses = limit.policy.max_queue_time().is_some();
    if limit.settling.reserve.is_some() || !(denials || failures || pauses) {
        return Err(LayerError::NoFailures(name()));
    }
    let waiting = limits.iter().find(|limit| limit.mode.max_wait().is_some());
    match waiting.filter(|_| denials) {
        Some(waiting) => {
            Err(LayerError::PenaltyBesideWaiting(name(), waiting.policy.name().to_owned()))
        }
        None => Ok(()),
    }
}

fn check_tiers(limits: &[Limit], has_source: bool) -> Result<(), LayerError> {
    let needs_source = |limit: &&Limit| limit.quotas.is_none() && limit.tiers().next().is_some();
    if let Some(limit) = limits.iter().find(needs_source)
        && !has_source
    {
        return Err(LayerError::TiersUnknown(limit.policy.name().to_owned()));
    }
    let given = tier_names(limits).len();
    if given > MAX_TIERS { Err(LayerError::TooManyTiers(given)) } else { Ok(()) }
}

/// A request that costs more than the capacity would always be denied. A penalty takes no units.
///
/// The layer only warns if a condition or a closure could exclude all such requests.
fn check_costs(limit: &Limit, costs: &Costs) -> Result<(), LayerError> {
    if limit.policy.is_penalty() {
        return Ok(());
    }
    let (request, cost) = costs.highest();
    let is_certain =
        costs.uniform_cost().is_some() || !(limit.has_conditions() || costs.depend_on_closure());
    let in_tiers = limit.tiers().map(|(tier, policy)| (Some(tier), policy));
    for (tier, policy) in std::iter::once((None, &limit.policy)).chain(in_tiers) {
        if cost.get() > policy.capacity() {
            let found = CostAboveCapacity {
                policy: policy.name().to_owned(),
                tier: tier.map(|tier| tier.as_str().to_owned()),
                request: request.clone(),
                cost,
                capacity: policy.capacity(),
            };
            if is_certain {
                return Err(LayerError::CostAboveCapacity(found));
            }
            tracing::warn!(
                target: "tollgate",
                "{found}: if the policy applies to such a request, it always denies it with 403; \
                 raise the limit or the burst, or give the limit its own costs, for example \
                 `.cost(1)` [TG0107]",
            );
        }
    }
    Ok(())
}

/// The error for a layer that cannot be built. Its strings are policy names.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A short form's quota does not fit its policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),

    /// The layer has neither limits nor access lists, or the limiter has no policy.
    #[doc(alias = "TG0601")]
    #[error(
        "there is no limit: add one with `.limit(..)`, or with `.policy(..)` to a `Limiter` [TG0601]"
    )]
    NoLimit,

    /// The layer has this many limits.
    #[doc(alias = "TG0127")]
    #[error("{0} limits exceed the maximum of {max} per layer: nest two layers [TG0127]", max = Self::MAX_LIMITS)]
    TooManyLimits(usize),

    /// Two policies have the same name, so they would share their state.
    #[doc(alias = "TG0108")]
    #[error("two policies are named `{0}`: give each its own name [TG0108]")]
    SameName(String),

    /// Both policies would send the same headers, which contain a policy's name without upper case
    /// and without special characters.
    #[doc(alias = "TG0109")]
    #[error(
        "`{0}` and `{1}` have the same header names with `x_ratelimit_by_policy`: give them names \
         that differ by more than upper case and special characters, or hide one of them with \
         `.hide_headers()` [TG0109]"
    )]
    SameHeaders(String, String),

    /// The key can be missing, but the limit has no [`OnMissingKey`](crate::limit::OnMissingKey).
    #[doc(alias = "TG0212")]
    #[error(
        "policy `{0}`: the key can be missing from a request; choose \
         `.on_missing_key(OnMissingKey::Deny)`, `Pass` or `Share`, or end the chain with a \
         source that always finds a key, such as `ClientIp` [TG0212]"
    )]
    MissingKeyUndecided(String),

    /// The limit has an [`OnMissingKey`](crate::limit::OnMissingKey), but its key cannot be
    /// missing.
    #[doc(alias = "TG0213")]
    #[error(
        "policy `{0}`: `.on_missing_key(..)` has no effect, because the key source finds a key \
         in every request or fails: remove it from the limit, or put it on the layer's builder as \
         a default for limits that need it [TG0213]"
    )]
    KeyNeverMissing(String),

    /// The limit has tiers, but the layer has no source of tiers.
    #[doc(alias = "TG0125")]
    #[error(
        "policy `{0}` has quotas for tiers: add the source of the tier with \
         `.tiers(tier::from_fn(|head| ..))`, or a list of API keys, or a claim of a token, or look \
         the tier up with `.quota_from(..)` [TG0125]"
    )]
    TiersUnknown(String),

    /// The layer has this many tiers.
    #[doc(alias = "TG0127")]
    #[error(
        "{0} tiers exceed the maximum of {MAX_TIERS} per layer: look up the quotas of clients with \
         `.quota_from(..)` instead [TG0127]"
    )]
    TooManyTiers(usize),

    /// A permit is returned when its request finishes, so its cost cannot be corrected.
    #[doc(alias = "TG0119")]
    #[error(
        "policy `{0}` is a concurrency limit, whose permits are returned at the end of each \
         request: put `.reserve(..)` and `.count_only(..)` on a limit of another kind [TG0119]"
    )]
    SettlesInFlight(String),

    /// A limit whose requests queue forgives after some responses.
    #[doc(alias = "TG0111")]
    #[error(
        "requests queue under policy `{0}`, and after a success later requests would overtake them: remove `forgive_on`, or the queue [TG0111]"
    )]
    ForgivesQueue(String),

    /// A penalty for failures does not define which responses are failures.
    #[doc(alias = "TG0114")]
    #[error(
        "penalty `{0}` has no strikes: choose the responses that are failures with \
         `.count_only(|response| ..)`, without `.reserve(..)`, or use `Strikes::of_denials` [TG0114]"
    )]
    NoFailures(String),

    /// The penalty counts denials, but requests that wait for the second policy are denied at
    /// first.
    #[doc(alias = "TG0115")]
    #[error(
        "penalty `{0}` counts denials, and requests that wait for `{1}` are denied at first: put \
         the penalty and its limits into a layer outside of this one [TG0115]"
    )]
    PenaltyBesideWaiting(String, String),

    /// The policy has [`OnStoreError::Local`], but the store has no local store.
    #[doc(alias = "TG0316")]
    #[error(
        "policy `{0}` has `OnStoreError::Local`, but the store has no local fallback: give the \
         layer `store.or_local(MemoryStore::new())`, or choose `OnStoreError::Open` or \
         `OnStoreError::Closed` [TG0316]"
    )]
    NoLocalStore(String),

    /// A cost by method or route is above a policy's capacity, so the policy would always deny
    /// these requests.
    ///
    /// If a closure sets the costs, or if they differ and the limit has conditions, the layer builds
    /// and logs a warning instead, because such a request may never reach the policy.
    #[doc(alias = "TG0107")]
    #[error(
        "{0}, so it would always be denied with 403: raise the limit or the burst to at least \
         {cost}, lower this cost, or give the limit its own costs, for example `.cost(1)` [TG0107]",
        cost = .0.cost.get()
    )]
    CostAboveCapacity(CostAboveCapacity),

    /// Both policies would delay requests.
    #[doc(alias = "TG0110")]
    #[error(
        "`{0}` and `{1}` both queue requests, and a leaky bucket in queue mode cannot keep a place \
         until another policy allows the request: build it by `Policy::new` as an \
         `Algorithm::LeakyBucket` with `LeakyMode::Meter`, and give it a queue by \
         `Policy::with_queue` [TG0110]"
    )]
    TwoQueues(String, String),
    /// Calls would hold permits of a concurrency limit while they queue in the store.
    #[doc(alias = "TG0602")]
    #[error(
        "calls that queue in the store would hold permits of `{0}` meanwhile: acquire them after the \
         other permit, from a limiter of their own [TG0602]"
    )]
    QueueBesidePermits(String),
}

tollgate_core::debug_as_display!(LayerError);

/// A cost above a policy's capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CostAboveCapacity {
    /// The policy's name.
    pub policy: String,
    /// The tier with this capacity, or `None` outside of tiers.
    pub tier: Option<String>,
    /// A description of the requests, for example `a DELETE request`.
    pub request: String,
    /// The cost of these requests.
    pub cost: Cost,
    /// The policy's capacity in units.
    pub capacity: u64,
}

impl fmt::Display for CostAboveCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, tier, request, cost, capacity } = self;
        let cost = cost.get();
        write!(f, "policy `{policy}`")?;
        if let Some(tier) = tier {
            write!(f, " in tier `{tier}`")?;
        }
        write!(f, " grants at most {capacity} units at the same time, but {request} costs {cost}")
    }
}

impl LayerError {
    /// The maximum number of limits in a layer.
    pub const MAX_LIMITS: usize = tollgate_engine::Limits::MAX;
}
