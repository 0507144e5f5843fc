//! Limits: a policy with its key, costs and conditions, and what happens to denied requests.

use std::any::Any;
use std::sync::Arc;

use tollgate_core::{Cost, Key, OnStoreError, Policy, PolicyError, Quota, Strikes};
pub use tollgate_engine::Mode;
use tollgate_engine::{Corrects, Limit as Rule};

use crate::cost::Costs;
use crate::head::{Condition, RequestHead};
pub use crate::key::missing::OnMissingKey;
use crate::key::{ApiKey, ApiKeys, ClientIp, Global, KeySource, Subject, SubjectKind, SubjectName};
pub use crate::paths::{Paths, PathsError};
use crate::settling::{Forgives, Settling};
pub use crate::settling::{Reserve, ResponseHead};
#[cfg(feature = "metrics")]
use crate::tier::lookup::QuotaOrTier;
use crate::tier::lookup::{LimitQuotas, OwnQuotas};
use crate::tier::{QuotaLookup, Tier, UnlimitedTiers};

/// A policy, together with the key, costs and conditions that a layer applies it with.
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
#[must_use]
pub struct Limit {
    pub(crate) policy: Policy,
    pub(crate) key: Arc<dyn KeySource>,
    pub(crate) mode: Mode,
    pub(crate) hides_headers: bool,
    header_name: Option<Arc<str>>,
    pub(crate) costs: Option<Costs>,
    pub(crate) on_missing_key: Option<OnMissingKey>,
    pub(crate) settling: Settling,
    pub(crate) headroom_percent: u8,
    pub(crate) quotas: Option<LimitQuotas>,
    tiers: Vec<(Tier, Policy)>,
    /// The tiers to which it does not apply.
    pub(crate) unlimited: Vec<Tier>,
    /// Whether it does not apply to clients without a tier.
    pub(crate) is_only_in_tiers: bool,
    conditions: Vec<Arc<Condition>>,
    /// The conditions of the path, apart from the others because a status has its own path.
    path_conditions: Vec<Arc<Condition>>,
}

impl Limit {
    /// Applies `policy`, with a separate quota for each key that the source finds.
    ///
    /// Under a concurrency limit or a penalty, a request costs 1 regardless of the layer's costs.
    pub fn new(policy: Policy, key: impl KeySource) -> Self {
        let one = policy.is_concurrency() || policy.is_penalty();
        let costs = one.then(|| Costs::flat(Cost::ONE));
        Self {
            policy,
            key: Arc::new(key),
            mode: Mode::Reject,
            hides_headers: false,
            header_name: None,
            costs,
            on_missing_key: None,
            settling: Settling::default(),
            headroom_percent: 0,
            quotas: None,
            tiers: Vec::new(),
            unlimited: Vec::new(),
            is_only_in_tiers: false,
            conditions: Vec::new(),
            path_conditions: Vec::new(),
        }
    }

    /// Applies `policy` with a single quota that all clients share.
    pub fn global(policy: Policy) -> Self {
        Self::new(policy, Global)
    }

    /// Applies `policy` to each client address. [`ClientIp::peer`](crate::key::ClientIp::peer)
    /// finds the address.
    pub fn per_ip(policy: Policy) -> Self {
        Self::new(policy, ClientIp::peer())
    }

    /// Applies `policy` to each of these API keys, which clients send in `X-API-Key`. A request
    /// without a valid key gets 403.
    pub fn per_api_key(policy: Policy, keys: ApiKeys) -> Self {
        let key = ApiKey::in_x_api_key().one_of(keys);
        Self::new(policy, key).on_missing_key(OnMissingKey::Deny)
    }

    /// Shorthand for `.costs(Costs::flat(units))`.
    pub fn cost(self, units: impl Into<Cost>) -> Self {
        self.costs(Costs::flat(units))
    }

    /// Sets the request costs under this limit, which override the layer's costs.
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = Some(costs);
        self
    }

    /// Shorthand for `.mode(Mode::Shadow)`, which makes this a shadow policy: it never denies a
    /// request, and is charged for requests that pass. It affects neither the headers nor the
    /// response status and is visible only in `tollgate` events. For a limit that clients and the
    /// service see, use [`Mode::Annotate`].
    ///
    /// A shadow policy still uses the store: a request waits for the store's reply even if only
    /// shadow policies apply, and their keys count toward the store's memory bounds.
    pub const fn shadow(self) -> Self {
        self.mode(Mode::Shadow)
    }

    /// Omits the policy from the rate limit headers, for example because the limit protects the
    /// service and is no promise to clients. If the policy denies a request, the response still has
    /// `Retry-After`, and its body names the policy.
    ///
    /// ```
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let all = Limit::global(Policy::token_bucket("all", Quota::per_second(5_000))?).hide_headers();
    /// # let _ = all;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    pub const fn hide_headers(mut self) -> Self {
        self.hides_headers = true;
        self
    }

    /// Uses this name instead of the policy's in the headers of
    /// [`x_ratelimit_by_policy`](crate::headers::HeaderOptions::x_ratelimit_by_policy). If limits have the
    /// same name, for example the token budgets of a key and of its team, the headers describe the
    /// tightest of them: the denying policy with the longest wait, otherwise the policy with the
    /// fewest remaining units.
    pub fn header_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.header_name = Some(name.into());
        self
    }

    /// Sets how the limit treats a request without a key.
    ///
    /// The layer does not build if the key [cannot be missing](KeySource::can_be_missing). For
    /// example, [`ClientIp::peer`](crate::key::ClientIp::peer) always finds a key: a server without
    /// peer addresses is misconfigured, so the layer responds with 500. Code that works with any
    /// source sets this on the [layer's
    /// builder](crate::layer::RateLimitLayerBuilder::on_missing_key) instead.
    pub const fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = Some(on_missing_key);
        self
    }

    /// Limits only requests for which `condition` returns `true`. If there are several conditions,
    /// all must hold.
    pub fn when(
        mut self,
        condition: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Limits only requests to these paths, including ambiguous spellings that may mean one of
    /// these paths. Not needed if the layer is on the route itself.
    pub fn on_paths(mut self, paths: Paths) -> Self {
        self.path_conditions.push(Arc::new(move |head| paths.may_contain(head.uri.path())));
        self
    }

    /// Exempts requests to these paths.
    pub fn except_paths(mut self, paths: Paths) -> Self {
        self.path_conditions.push(Arc::new(move |head| !paths.surely_contains(head.uri.path())));
        self
    }

    /// Sets how the layer treats a request that this limit denies. By default it rejects the
    /// request. If a limit with [`Mode::Reject`] also denies the request, the layer rejects it
    /// immediately.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::limit::Mode;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let uploads = Policy::token_bucket("upload", Quota::per_second(2))?;
    /// let uploads = Limit::global(uploads).mode(Mode::Wait(Duration::from_secs(5)));
    /// let large = Policy::token_bucket("large-model", Quota::per_hour(50))?;
    /// let large = Limit::per_ip(large).mode(Mode::Annotate);
    /// # let _ = (uploads, large);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    ///
    /// # Soft limits
    ///
    /// With [`Mode::Annotate`], both the client and the service learn that the request exceeds the
    /// quota. The service can then use a smaller model, lower the request's priority or show a
    /// banner.
    ///
    /// The request has [`Verdicts`](crate::layer::Verdicts) in its extensions, and the response has
    /// the header [`X-RateLimit-Exceeded`](crate::headers::X_RATELIMIT_EXCEEDED). The rate limit
    /// headers show the limit as usual. A request beyond the quota is not charged, so each window
    /// allows the full quota of unmarked requests. Requests without a key are allowed, too.
    ///
    /// # Order of waiting requests
    ///
    /// With [`Mode::Wait`], the layer rejects a request as soon as it is clear that its wait would
    /// be longer. If several limits that apply let requests wait, the shortest time counts.
    ///
    /// Each key serves its waiting requests in the order of arrival. While a request waits for a
    /// key, no later request takes units from that key.
    ///
    /// A request waits for a key only while the store denies it under that key, or while an earlier
    /// request waits for the same key. So a client that waits for its own limit does not delay
    /// other clients at a global limit. If it must then wait for the global limit as well, its
    /// position there depends on when it arrived.
    ///
    /// The order holds within one process, among limits that share a
    /// [`WaitQueue`](crate::layer::WaitQueue). A request that costs 0 under a key does not wait for
    /// that key.
    ///
    /// # Bounds of waiting requests
    ///
    /// The [`WaitQueue`](crate::layer::WaitQueue) bounds the number and the bytes of waiting
    /// requests. If a client closes its connection, its request leaves the queue and takes no
    /// units. If a request is rejected after it waited, or while other requests wait for its key,
    /// `Retry-After` is an estimate: when those will have their units, or when the quota is full
    /// again. A request that costs more than the capacity gets 403 immediately. Waiting needs a
    /// tokio runtime with its timer enabled. A waiting request holds no permit of the inner service.
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Treats the cost as an estimate that is corrected when the response is known. See
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
    pub fn reserve(mut self, reserve: Reserve) -> Self {
        self.settling.reserve = Some(reserve);
        self
    }

    /// Counts only the responses for which `counts` returns `true`. The layer charges each request
    /// before it forwards it, and refunds it if the response does not count. For a
    /// [penalty](Self::penalty), these responses are the strikes, and requests are not charged in
    /// advance.
    ///
    /// Concurrent requests cannot exceed the limit either, because each request holds its units
    /// until its response is known. A request without a response counts, because the service failed
    /// or the client disconnected. The headers include the refund.
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
    pub fn count_only(
        mut self,
        counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settling.counts = Some(Arc::new(counts));
        self
    }

    /// Forgives what a key has used when `forgives` returns `true` for a response: its tries, or its
    /// strikes under a [penalty](Self::penalty). For logins, whose owner has proved to be no guesser.
    ///
    /// The key should contain what the response proves. If the key is an address alone, a guesser who
    /// logs in to an account of its own forgives its guesses at others. Requests that still run are
    /// forgiven, too, so each success admits at most one more quota of them. A policy whose requests
    /// queue cannot forgive, because later requests would overtake them.
    ///
    /// ```
    /// use tollgate::key::{ClientIp, FromExtension};
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// #[derive(Clone)]
    /// struct Account(String);
    ///
    /// let account = FromExtension::<Account>::borrowed(|account| Some(&account.0));
    /// let tries = Policy::sliding_window_log("login", Quota::per_hour(5))?;
    /// let tries = Limit::new(tries, (account, ClientIp::peer()))
    ///     .count_only(|response| response.status == 401)
    ///     .forgive_on(|response| response.status.is_success());
    /// # let _ = tries;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    pub fn forgive_on(
        mut self,
        forgives: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settling.forgives = Some(Forgives { head: Arc::new(forgives), body: None });
        self
    }

    /// Like [`forgive_on`](Self::forgive_on), for services that show a success in the response's
    /// body. The response forgives if both `head` and `body` return `true`.
    ///
    /// The layer calls `body` with the complete body if `head` returns `true`. This delays no bytes,
    /// because the layer copies the body while the client receives it, and forgives with the last
    /// byte if the body's length is known (`Content-Length` or an exact size hint), otherwise with
    /// the last frame. A response does not forgive if its body is empty, is longer than 16 KiB, has a
    /// `Content-Encoding`, fails earlier, or is dropped earlier. Bodies of type `Full<Bytes>` and
    /// `Bytes` are complete when the service returns them, so they forgive even if the response is
    /// dropped. The response's headers do not include the forgiveness.
    ///
    /// A [body type of your own](crate::body::HoldPermits) must show its frames to
    /// [`InFlight::sends`](crate::body::InFlight::sends).
    ///
    /// ```
    /// use serde_json::Value;
    /// use tollgate::key::{ClientIp, FromExtension};
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// #[derive(Clone)]
    /// struct Account(String);
    ///
    /// // The service answers wrong passwords with 200, too: {"ok": false}
    /// let account = FromExtension::<Account>::borrowed(|account| Some(&account.0));
    /// let tries = Policy::sliding_window_log("login", Quota::per_hour(5))?;
    /// let tries = Limit::new(tries, (account, ClientIp::peer())).forgive_on_body(
    ///     |response| response.status == 200,
    ///     |body| serde_json::from_slice(body).is_ok_and(|json: Value| json["ok"] == true),
    /// );
    /// # let _ = tries;
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    pub fn forgive_on_body(
        mut self,
        head: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
        body: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (head, body) = (Arc::new(head), Arc::new(body));
        self.settling.forgives = Some(Forgives { head, body: Some(body) });
        self
    }

    /// Sets a different quota, with the same algorithm, for clients in a tier. The layer finds a
    /// request's tier with its [`tiers`](crate::layer::RateLimitLayerBuilder::tiers).
    ///
    /// Used units still count when a client changes tiers, because all tiers share one policy.
    ///
    /// # Errors
    /// The quota does not fit the algorithm or the policy's lease.
    pub fn in_tier(mut self, tier: impl Into<Tier>, quota: Quota) -> Result<Self, PolicyError> {
        let tier = tier.into();
        let policy = self.policy.with_quota(quota)?;
        self.tiers.retain(|(other, _)| *other != tier);
        self.unlimited.retain(|other| *other != tier);
        self.tiers.push((tier, policy));
        Ok(self)
    }

    /// Does not apply the limit to clients in this tier, unless their own quota is
    /// [looked up](Self::quota_from).
    pub fn unlimited_in_tier(mut self, tier: impl Into<Tier>) -> Self {
        let tier = tier.into();
        self.tiers.retain(|(other, _)| *other != tier);
        self.unlimited.push(tier);
        self
    }

    /// Applies the limit only to clients in a tier with [its own quota](Self::in_tier), and to clients
    /// with a [looked-up quota](Self::quota_from).
    pub const fn only_in_tiers(mut self) -> Self {
        self.is_only_in_tiers = true;
        self
    }

    /// Looks up each client's quota, for example in a database. The policy's own quota applies to
    /// clients that the look-up does not know. [`QuotaLookup`] has an example, and describes what
    /// happens if a look-up fails.
    ///
    /// The looked-up quota has the policy's algorithm and other settings. Under a concurrency limit,
    /// only its number of units applies. A quota overrides the client's [tier](Self::in_tier). The
    /// look-up may also return the name of such a tier.
    pub fn quota_from(mut self, lookup: &QuotaLookup) -> Self {
        self.quotas = Some(LimitQuotas::new(lookup, None));
        self
    }

    /// Like [`quota_from`](Self::quota_from), but looks up the client that `owner` finds. For
    /// example, every user can have the tenant's quota:
    ///
    /// ```
    /// use tollgate::key::Header;
    /// use tollgate::tier::QuotaLookup;
    /// use tollgate::{Limit, Policy};
    ///
    /// fn per_user(policy: Policy, quotas: &QuotaLookup) -> Limit {
    ///     let header = |name| Header::trust_unverified(http::HeaderName::from_static(name));
    ///     let limit = Limit::new(policy, (header("x-tenant"), header("x-user")));
    ///     limit.quota_from_owner(quotas, header("x-tenant"))
    /// }
    /// # let _ = per_user;
    /// ```
    ///
    /// A request without an owner has the policy's own quota.
    pub fn quota_from_owner(mut self, lookup: &QuotaLookup, owner: impl KeySource) -> Self {
        self.quotas = Some(LimitQuotas::new(lookup, Some(Arc::new(owner))));
        self
    }

    /// Grants one of the looked-up client's [further quotas](crate::tier::ClientQuota::also), from
    /// number 1 on, instead of its first quota. If the client has a quota, but none with this number,
    /// the limit does not apply to it. Call it after [`quota_from`](Self::quota_from) or
    /// [`quota_from_owner`](Self::quota_from_owner). Limits with the same look-up share its results.
    ///
    /// ```
    /// use tollgate::key::Header;
    /// use tollgate::tier::{ClientQuota, QuotaLookup};
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let quotas = QuotaLookup::new(|_| async {
    ///     let quota = ClientQuota::from(Quota::per_minute(600)).also(Quota::per_day(100_000));
    ///     Ok::<_, std::io::Error>(Some(quota))
    /// });
    /// let tenant = || Header::trust_unverified(http::HeaderName::from_static("x-tenant"));
    /// let minute = Policy::fixed_window_counter("minute", Quota::per_minute(60))?;
    /// let minute = Limit::new(minute, tenant()).quota_from(&quotas);
    /// let day = Policy::fixed_window_counter("day", Quota::per_day(1_000))?;
    /// let day = Limit::new(day, tenant()).quota_from(&quotas).further_quota(1);
    /// # let _ = (minute, day);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    pub fn further_quota(mut self, number: usize) -> Self {
        self.quotas = self.quotas.map(|quotas| quotas.further(number));
        self
    }

    /// Grants `numerator / denominator` of each looked-up quota, for a limit that has its own policy and
    /// algorithm. A burst is left out if the algorithm has none. No quota fits a `denominator` of zero. Call
    /// it after [`quota_from`](Self::quota_from) or [`quota_from_owner`](Self::quota_from_owner).
    pub fn fraction_of_quota(mut self, numerator: u32, denominator: u32) -> Self {
        let fraction =
            |quotas: LimitQuotas| quotas.fraction(numerator, denominator).omitting_burst();
        self.quotas = self.quotas.map(fraction);
        self
    }

    /// Makes a limit named `name` with `numerator / denominator` of this limit's quota in each
    /// tier, and of each looked-up quota, for example for endpoints that may use only a tenth. All other settings are the same as
    /// this limit's.
    ///
    /// Quotas are rounded as in [`Policy::share`]. If a layer has both limits, a request needs
    /// units in both.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::limit::Paths;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let free = Policy::token_bucket("client", Quota::per_hour(60).burst(10))?;
    /// let client = Limit::new(free, ClientIp::peer())
    ///     .in_tier("pro", Quota::per_hour(10_000).burst(500))?;
    /// // 6 per hour with a burst of 1; in the tier `pro` 1000 per hour with a burst of 50.
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
        let part = |whole: &Policy| whole.renamed(name)?.share(numerator, denominator);
        let in_tier = |(tier, whole): &(Tier, Policy)| Ok((tier.clone(), part(whole)?));
        Ok(Self {
            policy: part(&self.policy)?,
            tiers: self.tiers.iter().map(in_tier).collect::<Result<_, _>>()?,
            quotas: self.quotas.clone().map(|quotas| quotas.fraction(numerator, denominator)),
            ..self.clone()
        })
    }

    /// Lets a request pass only if it leaves this percentage of the quota, up to 99. It is for
    /// requests with a low priority: other limits with the same policy can use what is left.
    ///
    /// ```
    /// use tollgate::key::Global;
    /// use tollgate::{Limit, Policy, Quota};
    ///
    /// let policy = Policy::sliding_window_log("partner", Quota::per_minute(100))?;
    /// let interactive = Limit::new(policy.clone(), Global);
    /// // At least 30 calls a minute are left for interactive work.
    /// let batch = Limit::new(policy, Global).leaving_percent(30);
    /// # let _ = (interactive, batch);
    /// # Ok::<(), tollgate::policy::PolicyError>(())
    /// ```
    pub const fn leaving_percent(mut self, percent: u8) -> Self {
        self.headroom_percent = if percent > 99 { 99 } else { percent };
        self
    }

    /// Makes a limit named `name` that blocks this limit's clients after a number of strikes. It
    /// has the same key and conditions as this limit. Add both to the layer.
    ///
    /// A strike is a denial by any of the layer's limits that has the same key. With
    /// [`Strikes::of_failures`], a strike is a response that counts
    /// ([`count_only`](Self::count_only)). A blocked client gets the problem type `#blocked` until
    /// the block expires, and more requests do not extend the block. Headers name the penalty only
    /// while it blocks.
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
            headroom_percent: 0,
            quotas: None,
            tiers: Vec::new(),
            unlimited: Vec::new(),
            is_only_in_tiers: false,
            ..self.clone().mode(self.mode.of_penalty())
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

    /// Returns this limit's policy, with the quota that applies outside of tiers.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the tiers that have their own quota, with their policies.
    pub fn tiers(&self) -> impl Iterator<Item = (&Tier, &Policy)> {
        self.tiers.iter().map(|(tier, policy)| (tier, policy))
    }

    /// Returns all tiers that it names.
    pub(crate) fn all_tiers(&self) -> impl Iterator<Item = &Tier> {
        self.tiers.iter().map(|(tier, _)| tier).chain(&self.unlimited)
    }

    pub(crate) fn is_unlimited_in(&self, tier: Option<&Tier>) -> bool {
        match tier {
            Some(tier) if self.unlimited.contains(tier) => true,
            tier => self.is_only_in_tiers && !self.tiers().any(|(it, _)| Some(it) == tier),
        }
    }

    /// Returns the tiers to which the limit does not apply. `tiers` contains the tiers' names, ordered
    /// by number.
    pub(crate) fn unlimited_tiers(&self, tiers: &[Tier]) -> UnlimitedTiers {
        let has_all = !self.is_only_in_tiers && self.unlimited.is_empty();
        let tiers = if has_all { &[] } else { tiers };
        let in_tiers = tiers.iter().map(|tier| self.is_unlimited_in(Some(tier))).collect();
        UnlimitedTiers { without_tier: self.is_only_in_tiers, in_tiers }
    }

    /// Returns the builder for the policies of clients with their own quotas, if the limit has a
    /// look-up. `tiers` contains the tiers' names, ordered by number. `prepare` makes the values that responses
    /// to a client need.
    pub(crate) fn own_quotas(
        &self,
        tiers: &[Tier],
        prepare: impl Fn(&Policy) -> Box<dyn Any + Send + Sync> + Send + Sync + 'static,
    ) -> Option<OwnQuotas> {
        let in_tier = |tier: &Tier| (tier.clone(), self.policy_in(Some(tier)).clone());
        let (policy, in_tiers) = (self.policy.clone(), tiers.iter().map(in_tier).collect());
        let quotas = self.quotas.clone()?;
        Some(OwnQuotas::new(quotas, policy, in_tiers, self.unlimited_tiers(tiers), prepare))
    }

    /// Returns this limit's policy in a tier. A tier without its own quota uses the policy outside
    /// of tiers.
    pub fn policy_in(&self, tier: Option<&Tier>) -> &Policy {
        let own = tier.and_then(|tier| self.tiers().find(|(name, _)| *name == tier));
        own.map_or(&self.policy, |(_, policy)| policy)
    }

    /// Returns the key's policy if its quota was looked up recently, and otherwise the tier's policy.
    #[cfg(feature = "metrics")]
    pub fn policy_of(&self, tier: Option<&Tier>, key: &Key) -> Policy {
        let quotas = self.quotas.as_ref();
        let own = match quotas.and_then(|quotas| quotas.last(key)) {
            Some(QuotaOrTier::Quota(own)) => {
                quotas.and_then(|it| it.policy(&self.policy, own).ok())
            }
            Some(QuotaOrTier::Tier(tier)) => Some(self.policy_in(Some(&tier)).clone()),
            Some(QuotaOrTier::Unlimited) | None => None,
        };
        own.unwrap_or_else(|| self.policy_in(tier).clone())
    }

    /// Returns whether the limit does not apply to the key: its quota was looked up recently and is
    /// unlimited, or it has no quota in this tier.
    #[cfg(feature = "metrics")]
    pub fn is_unlimited(&self, tier: Option<&Tier>, key: &Key) -> bool {
        match self.quotas.as_ref().and_then(|quotas| quotas.last(key)) {
            Some(QuotaOrTier::Quota(_)) => false,
            Some(QuotaOrTier::Tier(tier)) => self.is_unlimited_in(Some(&tier)),
            Some(QuotaOrTier::Unlimited) => true,
            None => tier.is_some() && self.is_unlimited_in(tier),
        }
    }

    pub(crate) fn shown_name(&self) -> &str {
        self.header_name.as_deref().unwrap_or_else(|| self.policy.name())
    }

    /// Whether this is a [shadow policy](Self::shadow).
    pub const fn is_shadow(&self) -> bool {
        matches!(self.mode, Mode::Shadow)
    }

    /// Whether this is a soft limit, with [`Mode::Annotate`].
    pub const fn is_soft(&self) -> bool {
        matches!(self.mode, Mode::Annotate)
    }

    /// Whether the limit can deny requests: it is neither shadow nor soft.
    pub const fn is_enforced(&self) -> bool {
        self.mode.enforces()
    }

    /// Whether all clients share one quota.
    pub fn is_global(&self) -> bool {
        self.key_of(&SubjectName::Global).is_some_and(|key| key == Key::GLOBAL)
    }

    /// Returns the key under which this subject's requests are counted, if the key source can
    /// derive it without a request.
    pub fn key_of(&self, name: &SubjectName) -> Option<Key> {
        self.subject_of(name).map(|subject| subject.key)
    }

    /// Returns the subject with this name, if the key source can derive it without a request.
    pub fn subject_of(&self, name: &SubjectName) -> Option<Subject> {
        let other = |key| Subject { kind: SubjectKind::Other, key };
        match name {
            SubjectName::Key(key) => Some(other(key.clone())),
            SubjectName::Missing => (self.on_missing_key == Some(OnMissingKey::Share))
                .then(|| other(OnMissingKey::shared_key())),
            name => self.key.named(name),
        }
    }

    /// Returns what the engine needs of this limit, with the quotas of these tiers.
    pub(crate) fn rule(&self, tiers: &[Tier]) -> Rule {
        let Settling { reserve, counts, forgives } = &self.settling;
        let reserve = reserve.as_ref().map(Reserve::lapses_after);
        Rule {
            policy: self.policy.clone(),
            in_tiers: tiers.iter().map(|tier| self.policy_in(Some(tier)).clone()).collect(),
            mode: self.mode,
            corrects: Corrects { counts: counts.is_some(), forgives: forgives.is_some(), reserve },
            headroom_percent: self.headroom_percent,
        }
    }

    pub(crate) const fn has_conditions(&self) -> bool {
        !(self.conditions.is_empty() && self.path_conditions.is_empty())
    }

    #[inline]
    pub(crate) fn applies_to(&self, head: &RequestHead<'_>) -> bool {
        self.path_conditions.iter().chain(&self.conditions).all(|condition| condition(head))
    }

    /// Whether the limit applies to the client's requests on some paths.
    pub(crate) fn applies_to_client(&self, head: &RequestHead<'_>) -> bool {
        self.conditions.iter().all(|condition| condition(head))
    }
}

debug_fields!(Limit, policy, tiers, quotas, mode, settling, on_missing_key);
