//! Policies: named quotas with their algorithm, validated when built.

use alloc::string::String;
mod check;

use alloc::sync::Arc;
use core::fmt;
use core::mem;
use core::time::Duration;

pub use self::check::PolicyError;
pub(crate) use self::check::check_share;
use self::check::{check, check_lease, check_queue};
#[cfg(doc)]
use crate::Store;
use crate::math::fnv1a;
use crate::scale::nearest_limit;
use crate::{
    Algorithm, AnyRule, Form, Kind, LeakyMode, Lease, Micros, OnStoreError, Quota, Refill,
    Resolution, StoreError, Strikes, Timestamp,
};

/// A named quota with its algorithm and options.
///
/// Building a policy checks every bound; see [`PolicyError`]. Policies are cheap to clone. State
/// belongs to the *name*: two policies with the same name in one store share their state, and if
/// their quotas differ, units consumed under one quota also count under the other.
///
/// ```
/// use tollgate_core::{Algorithm, LeakyMode, Policy, Quota};
///
/// let global = Policy::sliding_window_log("global", Quota::per_minute(100))?;
/// let search = Policy::token_bucket("search", Quota::per_hour(1_000).burst(50))?;
/// let metered = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
/// let upload = Policy::new("upload", Quota::per_minute(10), metered)?;
/// # let _ = (global, search, upload);
///
/// let error = Policy::token_bucket("odd", Quota::per_day(123_457)).unwrap_err();
/// assert!(error.to_string().contains("the nearest limit that works is 123456"));
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

/// What a decision in memory reads comes first, in two cache lines: with a policy for each tenant,
/// every line may be a miss.
#[derive(Clone)]
#[repr(C)]
struct Inner {
    max_queue_time: Option<Micros>,
    name_hash: u64,
    name: Arc<str>,
    rule: AnyRule,
    form: Form,
    quota: Quota,
    on_store_error: Option<OnStoreError>,
    shed: Option<OnStoreError>,
    lease: Option<Lease>,
}

impl Policy {
    /// The largest limit and burst.
    pub const MAX_LIMIT: u64 = 1_000_000_000_000;
    /// The shortest window.
    pub const MIN_WINDOW: Duration = Duration::from_micros(50);
    /// The longest window: 400 days.
    pub const MAX_WINDOW: Duration = Duration::from_secs(400 * 86_400);
    /// The longest policy name, in bytes.
    pub const MAX_NAME: usize = 128;

    /// Creates a policy from a name, a quota and an algorithm.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn new(
        name: impl Into<String>,
        quota: Quota,
        kind: impl Into<Kind>,
    ) -> Result<Self, PolicyError> {
        Self::build(name.into().into(), quota, kind.into())
    }

    fn build(name: Arc<str>, quota: Quota, kind: Kind) -> Result<Self, PolicyError> {
        let window = check(&name, quota, kind)?;
        let form = Form {
            version: Form::VERSION,
            kind,
            limit: quota.limit(),
            window,
            capacity: quota.capacity(),
            calendar: quota.calendar(),
        };
        Ok(Self(Arc::new(Inner {
            rule: form.rule(),
            form,
            name_hash: fnv1a(&name),
            name,
            quota,
            on_store_error: None,
            shed: None,
            lease: None,
            max_queue_time: None,
        })))
    }

    /// Creates a policy that allows at most `limit` units in each window. Windows follow one
    /// another from the Unix epoch, or are the periods of the quota's calendar.
    pub fn fixed_window_counter(
        name: impl Into<String>,
        quota: Quota,
    ) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::FixedWindowCounter)
    }

    /// Creates a policy that allows at most `limit` units in any window.
    pub fn sliding_window_log(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::SlidingWindowLog { resolution: Resolution::Auto })
    }

    /// Creates a policy that allows at most `limit` units in the current window plus a share of the
    /// previous window.
    pub fn sliding_window_counter(
        name: impl Into<String>,
        quota: Quota,
    ) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::SlidingWindowCounter)
    }

    /// Creates a policy that allows bursts of up to `burst` units, refilled continuously.
    pub fn token_bucket(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::TokenBucket { refill: Refill::Greedy })
    }

    /// Creates a policy that delays up to `burst` requests, so they leave at an even rate.
    pub fn leaky_bucket(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::LeakyBucket { mode: LeakyMode::default() })
    }

    /// Creates a concurrency limit: at most `limit` units in flight. If a process dies, its permits
    /// expire after `ttl`. Requests that take longer renew their permit.
    ///
    /// The limit is at most 10 000, because each request has its own entry, and the time to live at
    /// most one hour. About 30 seconds is typical, because a permit is renewed over the network
    /// after half of this time.
    ///
    /// A denial's `retry_after` is when enough permits will have expired, which is the latest
    /// instant at which the request is allowed. The layer instead guesses that clients can retry
    /// after one second.
    pub fn concurrent_requests(
        name: impl Into<String>,
        limit: u64,
        ttl: Duration,
    ) -> Result<Self, PolicyError> {
        Self::new(name, Quota::new(limit, ttl), Algorithm::ConcurrentRequests)
    }

    /// Creates a policy that blocks a key after a number of strikes. Charge it together with the
    /// policies that deny, with the same key and in the same request.
    pub fn penalty(name: impl Into<String>, strikes: Strikes) -> Result<Self, PolicyError> {
        Self::new(name, strikes.quota, Kind::Penalty(strikes.terms))
    }

    /// Returns the same policy with another quota, for example of a tier or a tenant.
    ///
    /// Charges under both count together, because the state belongs to the name.
    ///
    /// # Errors
    /// The quota does not fit the algorithm, the lease or the queue.
    pub fn with_quota(&self, quota: Quota) -> Result<Self, PolicyError> {
        self.like(Arc::clone(&self.0.name), quota)
    }

    /// Returns a policy with the same quota and settings under another name, which does not share
    /// this policy's state.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn renamed(&self, name: impl Into<String>) -> Result<Self, PolicyError> {
        self.like(name.into().into(), self.quota())
    }

    fn like(&self, name: Arc<str>, quota: Quota) -> Result<Self, PolicyError> {
        let other = Self::build(name, quota, self.kind())?.failing_like(self);
        match (self.lease(), self.max_queue_time()) {
            (Some(lease), _) => other.with_lease(lease),
            (None, Some(max_time)) => other.with_queue(max_time.into()),
            (None, None) => Ok(other),
        }
    }

    /// Sets the failure policy: what happens while the store cannot decide. The default is
    /// [`OnStoreError::Local`] over a store with a [local fallback](Store::has_local_fallback), and
    /// [`OnStoreError::Open`] over any other store.
    #[must_use]
    pub fn with_on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        Arc::make_mut(&mut self.0).on_store_error = Some(on_store_error);
        self
    }

    /// Sets what happens to a request that the store rejected before sending it, because no answer
    /// could arrive before the deadline ([`StoreError::is_overload`]). The default is to follow
    /// [`with_on_store_error`](Self::with_on_store_error).
    #[must_use]
    pub fn with_shed(mut self, shed: OnStoreError) -> Self {
        Arc::make_mut(&mut self.0).shed = Some(shed);
        self
    }

    /// Copies the failure policy from another policy.
    #[must_use]
    pub fn failing_like(mut self, other: &Self) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        (inner.on_store_error, inner.shed) = (other.0.on_store_error, other.0.shed);
        self
    }

    /// Lets replicas take units in blocks and spend them without calling the store.
    ///
    /// The limit still holds: a unit counts at the latest instant at which it may have been spent.
    /// The price is that fewer requests may be admitted, because a replica may leave its share
    /// unused, and units are refilled later, by up to the lease's time to live. Only a store shared
    /// by several processes uses leases.
    ///
    /// Some policies cannot be leased: a queue and a bucket that refills in intervals, because
    /// there the instant of spending affects other requests; the windows of a calendar; and a
    /// concurrency limit.
    ///
    /// # Errors
    /// The policy cannot be leased, or the lease is invalid.
    pub fn with_lease(mut self, lease: Lease) -> Result<Self, PolicyError> {
        check_lease(self.name(), self.quota(), self.form(), lease, self.max_queue_time())?;
        Arc::make_mut(&mut self.0).lease = Some(lease);
        Ok(self)
    }

    /// Lets requests queue in the store for up to `max_time` instead of being denied.
    ///
    /// A request that does not fit now gets the first instant at which the algorithm allows it,
    /// after all requests that came before it. It is charged at this instant, and the decision
    /// returns the wait as [`delay`](crate::Decision::delay). So requests leave in the order in
    /// which they came, over all processes that share the store, each with a single call, and their
    /// departures obey the algorithm. A request that would wait longer is denied.
    ///
    /// If a request charges several policies that queue, it leaves when all of them allow it.
    /// Policies that do not queue count it when it is decided.
    ///
    /// A request that gives up should be settled to zero. Requests behind it keep their instants. If
    /// it was the last, the next request gets its instant. If a process dies, its instants pass
    /// unused. If the clock steps back, requests queue until it has caught up.
    ///
    /// All charges to the same name and key should queue. With a `max_time` of zero, a request never
    /// waits, and is denied while earlier requests queue. A charge under a policy *without* a queue
    /// does not see them: it may leave at once, so both together can exceed the quota, by at most
    /// one quota. This happens while replicas with and without a queue run side by side. Leases
    /// grant no units while requests queue. A [reset](Store::reset) forgets the instants, although
    /// the requests that have them still leave, and if they give up, may refund newer requests.
    ///
    /// In a Redis Cluster, all policies that queue in a request need the same key.
    ///
    /// # Errors
    /// The policy cannot queue: a concurrency limit, whose permits return at unknown times, the
    /// windows of a calendar, and a policy with a [lease](Self::with_lease). A leaky bucket in
    /// queue mode has its own queue.
    pub fn with_queue(mut self, max_time: Duration) -> Result<Self, PolicyError> {
        check_queue(self.name(), self.form(), self.lease())?;
        let max_time = Micros::from(max_time).min(Timestamp::MAX.since(Timestamp::EPOCH));
        Arc::make_mut(&mut self.0).max_queue_time = Some(max_time);
        Ok(self)
    }

    /// Returns the policy's name, which is printable ASCII.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the base of a level's policy name: `client` for `client/team`. Other names may contain
    /// a slash, too, so check whether there is a policy with the returned name.
    pub fn base_of_level(name: &str) -> Option<&str> {
        name.rsplit_once('/').map(|(base, _level)| base)
    }

    /// Returns a hash of the name, computed when the policy is built. It spares a store with many
    /// policies from comparing names.
    pub fn name_hash(&self) -> u64 {
        self.0.name_hash
    }

    /// Returns the quota that the policy was built from.
    pub fn quota(&self) -> Quota {
        self.0.quota
    }

    /// Returns whether the policy limits requests or blocks clients.
    pub fn kind(&self) -> Kind {
        self.0.form.kind
    }

    /// Returns the algorithm and its settings. A penalty has none.
    pub fn algorithm(&self) -> Option<Algorithm> {
        match self.kind() {
            Kind::Limit(algorithm) => Some(algorithm),
            Kind::Penalty(_) => None,
        }
    }

    /// Returns the window. With a calendar, this is its longest period.
    pub fn window(&self) -> Micros {
        self.0.form.window
    }

    /// Returns the capacity: the limit, or a bucket's burst.
    pub fn capacity(&self) -> u64 {
        self.0.form.capacity
    }

    /// Returns the header of states written under this policy.
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// Returns the algorithm with this policy's numbers filled in.
    pub fn rule(&self) -> &AnyRule {
        &self.0.rule
    }

    /// Returns the failure policy. `None` stands for the default described at
    /// [`with_on_store_error`](Self::with_on_store_error), which depends on the store.
    pub fn on_store_error(&self) -> Option<OnStoreError> {
        self.0.on_store_error
    }

    /// Returns what happens to requests that are shed, if it differs from
    /// [`on_store_error`](Self::on_store_error).
    pub fn shed(&self) -> Option<OnStoreError> {
        self.0.shed
    }

    /// Returns what happens after this error: [`shed`](Self::shed) if the store was overloaded,
    /// otherwise [`on_store_error`](Self::on_store_error).
    pub fn on_error(&self, error: &StoreError) -> Option<OnStoreError> {
        self.0.shed.filter(|_| error.is_overload()).or(self.0.on_store_error)
    }

    /// Returns whether the store's local fallback would ever decide for this policy.
    pub fn may_fall_back(&self) -> bool {
        self.0.on_store_error.unwrap_or(OnStoreError::Local) == OnStoreError::Local
            || self.0.shed == Some(OnStoreError::Local)
    }

    /// Returns how replicas may take units in blocks, if allowed.
    pub fn lease(&self) -> Option<Lease> {
        self.0.lease
    }

    /// Returns how long a request may queue in the store, see [`with_queue`](Self::with_queue).
    #[inline(always)]
    pub fn max_queue_time(&self) -> Option<Micros> {
        self.0.max_queue_time
    }

    /// Returns whether the policy may delay requests.
    pub fn queues(&self) -> bool {
        self.max_queue_time().is_some() || self.is_leaky_queue()
    }

    /// Returns whether the policy is a leaky bucket in queue mode.
    pub fn is_leaky_queue(&self) -> bool {
        matches!(self.algorithm(), Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }))
    }

    /// Returns whether the policy is a concurrency limit: charges are permits that count until they
    /// are returned or expire.
    pub fn is_concurrency(&self) -> bool {
        self.algorithm() == Some(Algorithm::ConcurrentRequests)
    }

    /// Returns whether the policy blocks clients for strikes. Such a policy neither grants nor
    /// takes units.
    pub fn is_penalty(&self) -> bool {
        matches!(self.kind(), Kind::Penalty(_))
    }

    /// Returns whether the policy blocks clients for denials by other policies.
    pub fn counts_denials(&self) -> bool {
        matches!(self.kind(), Kind::Penalty(terms) if terms.counts_denials)
    }

    /// Returns whether both are handles to the same policy, by comparing two pointers.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the policy's address. While both exist, two policies have equal addresses only if
    /// they [are the same](Self::is_same).
    #[cfg(feature = "std")]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Returns whether a state written under one policy can be read under the other without
    /// conversion: they have the same name and equivalent quotas.
    #[inline(always)]
    pub fn shares_state_with(&self, other: &Self) -> bool {
        self.is_same(other) || self.is_equivalent(other)
    }

    #[cold]
    #[inline(never)]
    fn is_equivalent(&self, other: &Self) -> bool {
        self.rule() == other.rule() && self.has_name_of(other)
    }

    /// Whether the names are equal. Versions of a policy usually share their name, which then need
    /// not be read.
    #[inline]
    fn has_name_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.name, &other.0.name) || self.name() == other.name()
    }

    /// Returns whether both policies' states have the same type: they have the same name, and the same
    /// algorithm with any numbers.
    #[inline(always)]
    pub fn has_states_like(&self, other: &Self) -> bool {
        let same = || mem::discriminant(self.rule()) == mem::discriminant(other.rule());
        self.is_same(other) || (same() && self.has_name_of(other))
    }

    /// Returns whether a charge under one policy also counts under the other: they have the same
    /// name, and both limit a rate, or requests in flight, or clients.
    pub fn is_version_of(&self, other: &Self) -> bool {
        self.is_same(other)
            || (self.name_hash() == other.name_hash()
                && self.rule().counts_with(other.rule())
                && self.has_name_of(other))
    }

    /// Returns the same policy with `numerator / denominator` of its quota, for a tier's or a
    /// replica's share.
    ///
    /// Rounds down to a valid limit, but never below 1. A penalty has no quota to share, so it is
    /// returned unchanged.
    ///
    /// # Errors
    /// `denominator` is zero.
    pub fn share(&self, numerator: u32, denominator: u32) -> Result<Self, PolicyError> {
        check_share(self.name(), numerator, denominator)?;
        let Some(algorithm) = self.algorithm() else { return Ok(self.clone()) };
        let part = |units: u64| {
            let part = u128::from(units) * u128::from(numerator) / u128::from(denominator);
            u64::try_from(part).unwrap_or(u64::MAX).clamp(1, Self::MAX_LIMIT)
        };
        let burst = self.0.quota.burst_units().map(part);
        let build = |limit| {
            let quota = self.0.quota.with_limit(limit);
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            Self::new(self.name(), quota, algorithm)
        };
        let limit = part(self.0.quota.limit());
        let policy = build(limit).or_else(|error| {
            // Prefer a limit below the share, if any valid limit is.
            let below = nearest_limit(limit, self.window(), burst, limit);
            below.or_else(|| error.nearest_limit()).map_or(Err(error), build)
        });
        // If no share can be built, keep the full policy instead of dropping the limit.
        Ok(policy.map_or_else(
            |_| self.clone(),
            |policy| {
                let mut policy = policy.failing_like(self);
                let inner = Arc::make_mut(&mut policy.0);
                (inner.lease, inner.max_queue_time) = (self.0.lease, self.0.max_queue_time);
                policy
            },
        ))
    }
}

/// Policies are equal if they are handles to the same policy, or have the same settings.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            || (self.form() == other.form()
                && self.name() == other.name()
                && self.on_store_error() == other.on_store_error()
                && self.shed() == other.shed()
                && self.lease() == other.lease()
                && self.max_queue_time() == other.max_queue_time())
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("quota", &self.0.quota)
            .field("kind", &self.0.form.kind)
            .field("on_store_error", &self.0.on_store_error)
            .field("shed", &self.0.shed)
            .field("lease", &self.0.lease)
            .field("max_queue_time", &self.0.max_queue_time)
            .finish()
    }
}

/// "search: 1000 units per 3600 seconds, burst 50, token_bucket"
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.0.quota;
        if self.is_concurrency() {
            let (name, limit, ttl) = (self.name(), quota.limit(), self.window());
            return write!(f, "{name}: {limit} units in flight, permits expire after {ttl}");
        }
        let algorithm = match self.kind() {
            Kind::Limit(algorithm) => algorithm,
            Kind::Penalty(terms) => {
                let (name, strikes, within) = (self.name(), quota.limit(), self.window());
                let (block, longest) = (terms.block, terms.max_block);
                return write!(
                    f,
                    "{name}: {strikes} strikes in {within} block for {block} to {longest}"
                );
            }
        };
        write!(f, "{}: {} units per {}", self.name(), quota.limit(), quota.span())?;
        if let Some(burst) = quota.burst_units() {
            write!(f, ", burst {burst}")?;
        }
        write!(f, ", {algorithm}")
    }
}

#[cfg(test)]
mod tests;
