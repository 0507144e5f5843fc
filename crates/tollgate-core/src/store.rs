//! The store trait and its contract.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;
use core::pin::Pin;

use crate::{
    Charge, Cost, FixedVerdict, Key, Micros, PenaltyBlock, Policy, Receipt, Reply, Settlement,
    Verdict,
};
#[cfg(feature = "std")]
use crate::{Fallback, Overrides};

/// Stores the state of every key and decides requests.
///
/// A store takes data and returns a verdict. No closure crosses this boundary, so a store can be
/// another process, and a decision can be a single round trip.
///
/// # Contract
///
/// The crate `tollgate-store-tests` checks this contract with a suite of named checks, for stores
/// and for wrappers around them.
///
/// ## Atomicity
///
/// [`decide`](Store::decide) is atomic over all its charges: they are all assessed against the same
/// state, and then either every allowed charge is made or no charge is. If a request charges the
/// same policy and key several times, the costs are summed first. Under any interleaving, the store
/// admits the same requests as in some sequential order. (A store that spans several machines may
/// guarantee this only per machine. Its documentation must state so.)
///
/// A denial changes no state, with one exception. If a request has a charge to a
/// [penalty](Policy::penalty) that [counts denials](Policy::counts_denials), and another enforced
/// policy denies the same key, the penalty gets one strike in the same step. The penalty's decision
/// includes this strike, so a block that it triggers already denies this request. A denial by a
/// penalty alone is not a strike. Keys that share an overflow entry get no strikes, because a
/// single flood would then block unrelated clients.
///
/// ## Clones
///
/// Clones share all state.
///
/// ## Clock
///
/// The store owns the clock, so processes with different clocks agree. If the clock steps back,
/// time stops for live keys and no units are refilled. If the clock steps back after a key has
/// expired, up to one quota may be granted again. A step forward refills units just as the passage
/// of time does. Charges are identified by their timestamps. If the clock stepped back before a key
/// was reset, a receipt from before the reset may refund newer charges, and charges made before the
/// clock has caught up may not be refunded at all.
///
/// ## Errors
///
/// `Err` means that the store could not decide. It never means a denial. The error reports whether
/// the charge may have been made ([`StoreError::may_have_charged`]). Errors can only make a store
/// count too much: no request is admitted without being charged.
///
/// ## What an attacker gains
///
/// Clients choose keys. A flood of new keys must not evict a live key, because its client would get
/// a fresh quota. When the store is full, new keys must not each get a fresh quota. And a flood
/// must not delay other clients by more than the time of its own decisions.
///
/// ## What bounds memory
///
/// Configuration, not traffic. A store may drop a key only when the key's state equals an unused
/// key's state.
pub trait Store: Clone + Send + Sync + 'static {
    /// The future inside a pending decision. It borrows no data and may be moved after it was
    /// polled. A store that always decides immediately uses [`NeverPending`](crate::NeverPending).
    ///
    /// Only decisions have their own type, because every request waits for one. Corrections are
    /// rarer, so their futures are boxed.
    type Future: Future<Output = Result<Verdict, StoreError>> + Send + Unpin + 'static;

    /// Decides one request: all charges are made, or none.
    ///
    /// Charges to the same policy and key are summed. A shadow charge to a quota that an enforced
    /// charge also uses takes no units. It is an error to charge the same policy and key under two
    /// different quotas, unless both have the same rule ([`Policy::shares_state_with`]). Such a
    /// request is not charged.
    ///
    /// Dry charges are decided after all other charges, see [`Charge::dry`]. If the reply is
    /// dropped, the charge may still have been made.
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future>;

    /// Decides like [`decide`](Store::decide), if the store always decides immediately, and with
    /// [`Source::Store`](crate::Source::Store). The caller can then write the decisions directly into
    /// its own data. By default, the store returns `None` without deciding, so a wrapper need not
    /// implement this.
    #[inline(always)]
    fn decide_now<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
    ) -> Option<Result<FixedVerdict<N>, StoreError>> {
        let _ = charges;
        None
    }

    /// Corrects a charge to the `actual` cost.
    ///
    /// Surplus units are refunded if they still count, so no more is admitted than if the charge
    /// had been `actual` from the start. Missing units are charged now and may leave a debt of up
    /// to one capacity. A receipt can be settled only once; after that the result is
    /// [`Settlement::Repeated`].
    ///
    /// If the key was also charged under other quotas for the same policy, each of them refunds the
    /// units if it counts this charge. A quota that was first used after the charge only knows how
    /// many units counted then, so it refunds nothing. Permits are the exception, because they
    /// retain their timestamps under every quota.
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>>;

    /// Renews a permit ([`Policy::is_concurrency`]) in one step, during which no other request can
    /// take its units.
    ///
    /// Returns the new receipt. The old receipt can no longer refund units. If the units no longer
    /// count, because the permit has expired, the key was reset or the store lost it, they are
    /// charged again, up to a debt of one capacity. Returns `None` if the receipt was already
    /// settled.
    ///
    /// After an error that [may have charged](StoreError::may_have_charged), renew the same receipt
    /// again. At worst, the units count twice until the lost permit expires. Only concurrency limits
    /// have permits; renewing any other receipt is an error.
    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>>;

    /// Forgets the units that `key` has used under `policy`. Older receipts can no longer refund
    /// units.
    ///
    /// Resetting a key does not change an overflow entry that several keys share.
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>>;

    /// Blocks a key under a [penalty](Policy::penalty) in one step, without strikes: because a server
    /// asked for a pause, or an operator for an hour without this client.
    ///
    /// Returns how long the key is blocked then, which may be longer than asked for if it was blocked
    /// before. Returns `None` if the [block](PenaltyBlock) is old news. Keys that share an overflow entry
    /// are not blocked, for the same reason as they get no strikes. [`reset`](Store::reset) ends a
    /// block. It is an error to block a key under any other policy.
    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>>;

    /// The kind of store, such as `memory`, which is used as a metrics label. A wrapper returns its
    /// inner store's name.
    fn name(&self) -> &'static str {
        "store"
    }

    /// Whether a local store decides for policies with [`OnStoreError::Local`] while this store
    /// cannot. See [`StoreExt::or_local`]. If this is `false`, the default, building a layer that
    /// has such a policy fails. A wrapper returns its inner store's answer.
    fn has_local_fallback(&self) -> bool {
        false
    }

    /// Returns how many processes share this store's quotas, if the store counts them.
    ///
    /// [`StoreExt::or_local`] divides quotas by this number while the store cannot decide. It also
    /// calls this method immediately, because a store may only start to count then. A wrapper
    /// returns its inner store's answer.
    fn replicas(&self) -> Option<NonZeroU32> {
        None
    }

    /// Returns the operators' overrides of single keys' quotas, if the store has them.
    ///
    /// The caller applies them, because a charge contains its policy. A store that several processes
    /// share may only start to read their overrides at the first call. A wrapper returns its inner
    /// store's answer.
    #[cfg(feature = "std")]
    fn overrides(&self) -> Option<Overrides> {
        None
    }
}

/// The future inside a pending correction: a settlement, a renewal, a reset or a block.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Convenience methods for every [`Store`].
///
/// ```
/// use tollgate_core::{Cost, Key, Policy, Store, StoreError, StoreExt};
///
/// async fn may_pass(store: &impl Store, policy: &Policy, user: &str) -> Result<bool, StoreError> {
///     let verdict = store.charge(policy, &Key::new(user), Cost::ONE).await?;
///     Ok(verdict.is_admitted())
/// }
/// ```
pub trait StoreExt: Store {
    /// Charges a single policy.
    fn charge(&self, policy: &Policy, key: &Key, cost: Cost) -> Reply<Self::Future> {
        self.decide(&[Charge::new(policy, key, cost)])
    }

    /// Returns a key's current state without charging it.
    fn peek(&self, policy: &Policy, key: &Key) -> Reply<Self::Future> {
        self.charge(policy, key, Cost::ZERO)
    }

    /// Returns the decisions for several costs, in one snapshot and without charging the key.
    fn foresee(&self, policy: &Policy, key: &Key, costs: &[Cost]) -> Reply<Self::Future> {
        let charges: Vec<_> =
            costs.iter().map(|cost| Charge::new(policy, key, *cost).dry()).collect();
        self.decide(&charges)
    }

    /// Falls back to `local` while this store cannot decide. The processes then divide each quota
    /// and together stay within it. See [`Fallback`] for exceptions and fixed shares.
    #[cfg(feature = "std")]
    fn or_local<L: Store>(self, local: L) -> Fallback<Self, L> {
        Fallback::new(self, local)
    }
}

impl<S: Store> StoreExt for S {}

/// Error returned when a store cannot decide.
#[derive(thiserror::Error)]
#[error("{store}: {reason}{}", if self.may_have_charged() { " (the charge may have been made)" } else { "" })]
pub struct StoreError {
    store: &'static str,
    reason: String,
    fault: Fault,
    retry_after: Option<Micros>,
    source: Option<Box<dyn core::error::Error + Send + Sync>>,
}

crate::debug_as_display!(StoreError);

impl StoreError {
    /// Creates an error for a store that is unavailable. The charge was definitely not made.
    pub fn not_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::NotCharged)
    }

    /// Creates an error for a request that the store rejected before sending it, because no answer
    /// could arrive before the deadline: too many requests are waiting, or answers take too long.
    /// The charge was definitely not made.
    pub fn overloaded(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Overloaded)
    }

    /// Creates an error for a lost answer. The charge may have been made.
    pub fn maybe_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::MaybeCharged)
    }

    /// Creates an error for an invalid request, which would fail again. The store works.
    pub fn invalid(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Invalid)
    }

    /// Creates an error for renewing a receipt that does not belong to a concurrency limit.
    pub fn not_renewable(store: &'static str, policy: &Policy) -> Self {
        let name = policy.name().escape_default();
        let reason =
            format!("policy `{name}` is not a concurrency limit, so there is nothing to renew");
        Self::invalid(store, reason)
    }

    /// Creates an error for blocking a key under a policy that is not a penalty.
    pub fn not_blockable(store: &'static str, policy: &Policy) -> Self {
        let name = policy.name().escape_default();
        let reason = format!("policy `{name}` is not a penalty, so it cannot block a key");
        Self::invalid(store, reason)
    }

    fn new(store: &'static str, reason: &dyn fmt::Display, fault: Fault) -> Self {
        let reason = reason.to_string();
        Self { store, reason, fault, retry_after: None, source: None }
    }

    /// Sets the underlying cause.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn core::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets how long to wait before calling the store again, for a store that is down and has
    /// scheduled its next probe.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Micros) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Returns how long to wait before calling the store again, if known.
    pub const fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }

    /// Returns whether the charge may have been made despite the error.
    pub const fn may_have_charged(&self) -> bool {
        matches!(self.fault, Fault::MaybeCharged)
    }

    /// Returns whether the store rejected the request before sending it, because no answer could
    /// arrive before the deadline. [`Policy::shed`] decides what happens to the request.
    pub const fn is_overload(&self) -> bool {
        matches!(self.fault, Fault::Overloaded)
    }

    /// Returns whether the store is at fault, not the request.
    pub const fn is_outage(&self) -> bool {
        !matches!(self.fault, Fault::Invalid)
    }
}

/// What went wrong, and with which effect on the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotCharged,
    Overloaded,
    MaybeCharged,
    Invalid,
}

/// The failure policy: what happens to a request that the store cannot decide.
///
/// By default, a policy is [`Local`](Self::Local) over a store with a
/// [local fallback](Store::has_local_fallback), and [`Open`](Self::Open) over any other store.
///
/// ```
/// use tollgate_core::{OnStoreError, Policy, Quota};
///
/// let login = Policy::fixed_window_counter("login", Quota::per_minute(5))?
///     .with_on_store_error(OnStoreError::Closed);
/// # let _ = login;
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
///
/// The enum is exhaustive because code that handles a store error must handle every failure policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// Fail open: allow the request. A limiter protects a service and should not be the reason that
    /// it goes down.
    #[default]
    Open,
    /// Fail closed: reject the request with 503. Use this where a limit matters more than
    /// availability, such as for logins.
    Closed,
    /// A store in this process decides with a share of the quota. This requires a store with a
    /// [local fallback](StoreExt::or_local). Without a fallback, building the layer fails.
    Local,
}

impl OnStoreError {
    /// Returns this failure policy's name in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}
