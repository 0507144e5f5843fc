//! Limits: a policy with its key, its costs and its conditions, and what happens at its edges.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Charge, Cost, Key, OnStoreError, Policy, PolicyError, Quota, Strikes};

use crate::cost::Costs;
use crate::head::Condition;
use crate::head::RequestHead;
use crate::key::{ApiKey, ApiKeys, ClientIp, Global, KeySource, SubjectName};
pub use crate::paths::{Paths, PathsError};
use crate::settling::Settling;
pub use crate::settling::{Reserve, ResponseHead};
use crate::tier::Tier;

/// A policy with its key, its costs and its conditions, as a layer applies it.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys, ClientIp};
/// use tollgate::limit::{OnMissingKey, Paths};
/// use tollgate::{Limit, Policy, Quota};
///
/// let everybody = Limit::global(Policy::sliding_window_log("global", Quota::per_minute(100))?);
/// let logins = Policy::fixed_window_counter("login", Quota::per_minute(5))?;
/// let logins = Limit::new(logins, ClientIp::peer())
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
    /// Neither shadow nor soft.
    pub(crate) enforce: bool,
    pub(crate) shadow: bool,
    pub(crate) hides_headers: bool,
    pub(crate) costs: Option<Costs>,
    pub(crate) on_missing_key: Option<OnMissingKey>,
    pub(crate) on_exceeded: OnExceeded,
    pub(crate) settling: Settling,
    tiers: Vec<(Tier, Policy)>,
    conditions: Vec<Arc<Condition>>,
}

/// The treatment of a request that has no key.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
/// use tollgate::limit::OnMissingKey;
/// use tollgate::{Limit, Policy, Quota};
///
/// let keys = ApiKeys::from_keys(["k-7f3a", "k-91bc"]);
/// let policy = Policy::token_bucket("customer", Quota::per_minute(100))?;
/// let limit = Limit::new(policy, ApiKey::in_x_api_key().one_of(keys))
///     .on_missing_key(OnMissingKey::Deny);
/// # let _ = limit;
/// # Ok::<(), tollgate::policy::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The layer rejects the request with 403, or with the status that the response of the layer
    /// chooses ([`Denial::with_status`](crate::denial::Denial::with_status)), and charges no policy. If
    /// keys could be guessed, put a limit by address into a layer outside of this layer.
    Deny,
    /// The request passes this policy. The other policies of the layer still apply.
    Pass,
    /// All requests without a key share one quota of this policy.
    Share,
}

impl OnMissingKey {
    /// Returns the key of all requests without a key, with [`Share`](Self::Share).
    pub fn shared_key() -> Key {
        // Keys of sources begin with a tag above zero.
        Key::new([0, b'-'])
    }
}

/// The treatment of a request that a limit denies: reject it, let it wait, or let it pass with a
/// mark.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::OnExceeded;
/// use tollgate::{Limit, Policy, Quota};
///
/// let policy = Policy::token_bucket("upload", Quota::per_second(2))?;
/// let limit = Limit::global(policy).on_exceeded(OnExceeded::Wait { max: Duration::from_secs(5) });
/// # let _ = limit;
/// # Ok::<(), tollgate::policy::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnExceeded {
    /// The layer rejects the request at once.
    #[default]
    Reject,
    /// The request passes, and clients and service learn that it exceeds the quota. So the service
    /// can use a smaller model, lower its priority or show a banner. This is a soft limit.
    ///
    /// The request has [`Verdicts`](crate::layer::Verdicts) in its extensions, and the response has
    /// the header [`X-RateLimit-Exceeded`](crate::headers::X_RATELIMIT_EXCEEDED). The rate limit
    /// headers show the limit as usual. A request beyond the quota is not charged, so each window
    /// has room for as many requests without a mark as the quota grants. A request without a key
    /// passes, too.
    ///
    /// ```
    /// use tollgate::limit::OnExceeded;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let large = Policy::token_bucket("large-model", Quota::per_hour(50))?;
    /// let large = Limit::per_ip(large).on_exceeded(OnExceeded::Annotate);
    /// # let _ = large;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    Annotate,
    /// The request waits until the limit allows it, for up to `max`. The layer rejects the request
    /// as soon as it is clear that the wait takes longer.
    ///
    /// # Order
    ///
    /// Each key serves waiting requests in the order of arrival. While a request waits for a key,
    /// no later request takes units of that key.
    ///
    /// A request waits for a key while the store denies the request under that key, or while an
    /// earlier request waits for the key, and for no other key. So a client that waits for its own
    /// limit delays no other client at a global limit. Later it takes its place by arrival among
    /// the requests that wait for the global limit.
    ///
    /// The order holds in one process, among limits that share a [`WaitQueue`](crate::layer::WaitQueue). A
    /// request that costs 0 under a key does not wait for the key.
    ///
    /// # Bounds
    ///
    /// The [`WaitQueue`](crate::layer::WaitQueue) bounds the number and the bytes of waiting requests. A
    /// client that closes its connection leaves the queue and takes no units. A request that finds
    /// no place, or whose time is over, gets the time until the quota is full again as
    /// `Retry-After`, because an earlier time is not known. A request that costs more than the
    /// capacity gets 403 at once. Waiting needs a tokio runtime with its timer enabled, and holds no
    /// permit of the inner service.
    Wait {
        /// The longest wait.
        max: Duration,
    },
}

impl Limit {
    /// Applies `policy` with a quota for each key that the source finds.
    ///
    /// Under a concurrency limit or a penalty a request costs 1, whatever the costs of the layer.
    pub fn new(policy: Policy, key: impl KeySource) -> Self {
        let one = policy.is_concurrency() || policy.is_penalty();
        let costs = one.then(|| Costs::flat(Cost::ONE));
        Self {
            policy,
            key: Arc::new(key),
            enforce: true,
            shadow: false,
            hides_headers: false,
            costs,
            on_missing_key: None,
            on_exceeded: OnExceeded::Reject,
            settling: Settling::default(),
            tiers: Vec::new(),
            conditions: Vec::new(),
        }
    }

    /// Applies `policy` with one quota for all clients.
    pub fn global(policy: Policy) -> Self {
        Self::new(policy, Global)
    }

    /// Applies `policy` to each client address, as [`ClientIp::peer`](crate::key::ClientIp::peer)
    /// finds it.
    pub fn per_ip(policy: Policy) -> Self {
        Self::new(policy, ClientIp::peer())
    }

    /// Applies `policy` to each of these API keys in `X-API-Key`. A request without one of them
    /// gets 403.
    pub fn per_api_key(policy: Policy, keys: ApiKeys) -> Self {
        let key = ApiKey::in_x_api_key().one_of(keys);
        Self::new(policy, key).on_missing_key(OnMissingKey::Deny)
    }

    /// Short for `.costs(Costs::flat(units))`.
    #[must_use]
    pub fn cost(self, units: impl Into<Cost>) -> Self {
        self.costs(Costs::flat(units))
    }

    /// Sets the costs of requests under this limit, instead of those of the layer.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = Some(costs);
        self
    }

    /// Makes a shadow policy: it never denies a request, and is charged for requests that pass.
    /// It appears in neither the headers nor the status, only in `tollgate` events. For a limit that
    /// clients and service see, use [`OnExceeded::Annotate`].
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        (self.shadow, self.enforce) = (true, false);
        self
    }

    /// Leaves the policy out of the rate limit headers, for example a limit that protects the service
    /// and is no promise to clients. If it denies a request, the response has `Retry-After`, and its
    /// body names the policy.
    ///
    /// ```
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let all = Limit::global(Policy::token_bucket("all", Quota::per_second(5_000))?).hide_headers();
    /// # let _ = all;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub const fn hide_headers(mut self) -> Self {
        self.hides_headers = true;
        self
    }

    /// Sets the treatment of a request without a key.
    ///
    /// A layer does not build if the key [cannot be missing](KeySource::can_be_missing), as that of
    /// [`ClientIp::peer`](crate::key::ClientIp::peer): a server without peer addresses is set up
    /// wrongly and responds with 500. Code for any source sets this on the [layer's
    /// builder](crate::layer::RateLimitLayerBuilder::on_missing_key).
    #[must_use]
    pub const fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Limits only requests for which `condition` returns `true`. Several conditions must all hold.
    #[must_use]
    pub fn when(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Limits only requests to these paths, and requests whose ambiguous spelling may mean one of
    /// these paths. A layer on the route itself needs no paths.
    #[must_use]
    pub fn on_paths(self, paths: Paths) -> Self {
        self.when(move |head| paths.may_contain(head.uri.path()))
    }

    /// Excludes requests to these paths.
    #[must_use]
    pub fn except_paths(self, paths: Paths) -> Self {
        self.when(move |head| !paths.surely_contains(head.uri.path()))
    }

    /// Sets the treatment of a request that this limit denies. If a limit with
    /// [`OnExceeded::Reject`] also denies the request, the layer rejects it at once.
    #[must_use]
    pub const fn on_exceeded(mut self, on_exceeded: OnExceeded) -> Self {
        self.on_exceeded = on_exceeded;
        self.enforce = !(self.shadow || matches!(on_exceeded, OnExceeded::Annotate));
        self
    }

    pub(crate) const fn max_wait(&self) -> Option<Duration> {
        match self.on_exceeded {
            OnExceeded::Wait { max } if self.enforce => Some(max),
            _ => None,
        }
    }

    /// Treats the cost as an estimate, which is corrected when the response is known: see
    /// [`Reserve`].
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::limit::Reserve;
    /// use tollgate::{Limit, Policy, Quota, headers};
    ///
    /// let tokens = Policy::token_bucket("tokens", Quota::per_minute(10_000))?;
    /// let tokens = Limit::new(tokens, ClientIp::peer())
    ///     .cost(500)
    ///     .reserve(Reserve::by_handler().or_by_header(headers::COST));
    /// # let _ = tokens;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn reserve(mut self, reserve: Reserve) -> Self {
        self.settling.reserve = Some(reserve);
        self
    }

    /// Counts only the responses for which `counts` returns `true`. The layer charges each request
    /// before it forwards it, and refunds responses that do not count. For a
    /// [penalty](Self::penalty) these responses are the strikes, and nothing is charged before.
    ///
    /// Requests at the same time cannot exceed the limit either: each request holds its units until its
    /// response is known. A request without a response counts, because the service failed or the
    /// client left. The headers include the refund.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// // Five wrong passwords a minute, and any number of right ones.
    /// let logins = Policy::sliding_window_log("login", Quota::per_minute(5))?;
    /// let logins = Limit::new(logins, ClientIp::peer())
    ///     .count_only(|response| response.status == 401);
    /// # let _ = logins;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    #[must_use]
    pub fn count_only(
        mut self,
        counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settling.counts = Some(Arc::new(counts));
        self
    }

    /// Sets another quota for the clients in a tier, with the same algorithm. The layer finds the
    /// tier of a request with its [`tiers`](crate::layer::RateLimitLayerBuilder::tiers).
    ///
    /// It is one policy: a client whose tier changes keeps the units that it has used.
    ///
    /// # Errors
    /// The quota does not fit the algorithm, or the lease of the policy.
    pub fn in_tier(mut self, tier: impl Into<Tier>, quota: Quota) -> Result<Self, PolicyError> {
        let tier = tier.into();
        let policy = like(&self.policy, self.policy.name(), quota)?;
        self.tiers.retain(|(other, _)| *other != tier);
        self.tiers.push((tier, policy));
        Ok(self)
    }

    /// Makes a limit named `name` with `numerator / denominator` of this quota in each tier, for
    /// example for endpoints that may take only a tenth. The rest is the same as in this limit.
    ///
    /// Quotas are rounded as in [`Policy::share`]. A request needs units in both limits if a layer
    /// has both.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::limit::Paths;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let free = Policy::token_bucket("client", Quota::per_hour(60).burst(10))?;
    /// let client = Limit::new(free, ClientIp::peer())
    ///     .in_tier("pro", Quota::per_hour(10_000).burst(500))?;
    /// // 6 an hour, 1 at once; in the tier `pro` 1000 an hour, 50 at once.
    /// let ai = client.fraction("ai", 1, 10)?.on_paths(Paths::new(["/ai/*"])?);
    /// # let _ = ai;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The name is not valid for a policy, or `denominator` is zero.
    pub fn fraction(
        &self,
        name: &str,
        numerator: u32,
        denominator: u32,
    ) -> Result<Self, PolicyError> {
        let part = |whole: &Policy| {
            let part = whole.share(numerator, denominator)?;
            like(&part, name, part.quota())
        };
        let in_tier = |(tier, whole): &(Tier, Policy)| Ok((tier.clone(), part(whole)?));
        Ok(Self {
            policy: part(&self.policy)?,
            tiers: self.tiers.iter().map(in_tier).collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }

    /// Makes a limit named `name` that blocks clients of this limit after a number of strikes. It
    /// has the key and the conditions of this limit. Put both into a layer.
    ///
    /// A strike is a denial by a limit of the layer with the same key. With `strikes` of failures,
    /// a strike is a response that counts ([`count_only`](Self::count_only)). A blocked client gets
    /// a problem of its own until the block ends; more requests do not extend the block. Headers
    /// name the penalty only while it blocks.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::key::ClientIp;
    /// use tollgate::policy::Strikes;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
    /// let client = Limit::new(Policy::token_bucket("client", Quota::per_second(10))?, ClientIp::peer());
    /// let denials = Strikes::of_denials(100, minute).block(10 * minute).growing(2, day);
    /// let banned = client.penalty("banned", denials)?;
    /// let failures = Strikes::of_failures(5, minute).block(minute).growing(4, day);
    /// let locked = client.penalty("locked", failures)?.count_only(|response| response.status == 401);
    /// # let _ = (banned, locked);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    ///
    /// # Errors
    /// The name is not valid for a policy, or the strikes are not valid.
    pub fn penalty(&self, name: &str, strikes: Strikes) -> Result<Self, PolicyError> {
        let policy = Policy::penalty(name, strikes)?;
        let policy = policy.failing_like(&self.policy);
        Ok(Self {
            policy,
            costs: Some(Costs::flat(Cost::ONE)),
            settling: Settling::default(),
            tiers: Vec::new(),
            ..self.clone().on_exceeded(OnExceeded::Reject)
        })
    }

    pub(crate) fn default_on_store_error(&mut self, on_store_error: OnStoreError) {
        let tiers = self.tiers.iter_mut().map(|(_, policy)| policy);
        for policy in tiers.chain([&mut self.policy]) {
            if policy.on_store_error().is_none() {
                *policy = policy.clone().with_on_store_error(on_store_error);
            }
        }
    }

    /// Returns the policy of this limit, with the quota outside of tiers.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the tiers that have a quota of their own, and the policy in each.
    pub fn tiers(&self) -> impl Iterator<Item = (&Tier, &Policy)> {
        self.tiers.iter().map(|(tier, policy)| (tier, policy))
    }

    /// Returns the policy of this limit in a tier. A tier without a quota has the policy outside of
    /// tiers.
    pub fn policy_in(&self, tier: Option<&Tier>) -> &Policy {
        let own = tier.and_then(|tier| self.tiers().find(|(name, _)| *name == tier));
        own.map_or(&self.policy, |(_, policy)| policy)
    }

    /// Whether this is a [shadow policy](Self::shadow).
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether this is a soft limit, with [`OnExceeded::Annotate`].
    pub const fn is_soft(&self) -> bool {
        !self.shadow && matches!(self.on_exceeded, OnExceeded::Annotate)
    }

    /// Whether the limit can deny requests: it is neither shadow nor soft.
    pub const fn is_enforced(&self) -> bool {
        self.enforce
    }

    /// Whether all clients share one quota.
    pub fn is_global(&self) -> bool {
        self.key_of(&SubjectName::Global).is_some_and(|key| key == Key::GLOBAL)
    }

    /// Returns the key under which requests of this subject are counted, if the key source knows
    /// the subject without a request.
    pub fn key_of(&self, name: &SubjectName) -> Option<Key> {
        match name {
            SubjectName::Key(key) => Some(key.clone()),
            SubjectName::Missing => {
                (self.on_missing_key == Some(OnMissingKey::Share)).then(OnMissingKey::shared_key)
            }
            name => self.key.named(name).map(|subject| subject.key),
        }
    }

    pub(crate) fn charge<'a>(&'a self, key: &'a Key, cost: Cost) -> Charge<'a> {
        Charge { policy: &self.policy, key, cost, enforce: self.enforce, dry: false }
    }

    pub(crate) const fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    #[inline]
    pub(crate) fn applies_to(&self, head: &RequestHead<'_>) -> bool {
        self.conditions.iter().all(|condition| condition(head))
    }
}

fn like(policy: &Policy, name: &str, quota: Quota) -> Result<Policy, PolicyError> {
    let other = Policy::new(name, quota, policy.kind())?.failing_like(policy);
    match policy.lease() {
        Some(lease) => other.with_lease(lease),
        None => Ok(other),
    }
}

debug_fields!(Limit, policy, tiers, enforce, on_exceeded, settling, on_missing_key);
