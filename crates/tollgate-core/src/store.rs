//! The store of states: one trait and its contract.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

#[cfg(feature = "std")]
use crate::Fallback;
use crate::{Charge, Cost, Key, Micros, Policy, Receipt, Reply, Settlement, Verdict};

/// The store of the states of all keys.
///
/// A store takes data and returns a verdict. No closure crosses this boundary, so a store may be
/// another process, and one decision one round trip.
///
/// # Contract
///
/// `tollgate-store-tests` checks this contract with a suite of named checks, for stores and
/// wrappers.
///
/// ## Atomicity
///
/// [`decide`](Store::decide) is one indivisible step over all its charges: all are assessed against
/// one state of the store, and either all allowed charges are made or none. Charges of one request
/// to the same policy and key are summed first. Under any interleaving the admitted requests are
/// those of some sequential order. (A store over several machines may guarantee this per machine
/// only; its documentation then says so.)
///
/// A denial changes no state, with one exception: if a request has a charge to a
/// [penalty](Policy::penalty) that [counts denials](Policy::counts_denials), and another enforced
/// policy denies the same key, the penalty gets one strike in the same step. Its decision includes
/// the strike: a block that begins denies this request already. A denial by a penalty alone is not
/// a strike. Keys that share an overflow entry get no strikes, because one flood would block
/// unrelated clients.
///
/// ## Clones
///
/// Clones share all state.
///
/// ## Clock
///
/// The store owns the clock, so that processes with different clocks agree. If the clock steps
/// back, time stops for live keys, and no units are refilled. After a key expired, a step back may
/// grant up to one quota again. A step forward refills units like the passage of time. Charges are
/// identified by their dates: if the clock stepped back before a key was reset, an older receipt
/// may refund newer charges, and charges before the clock has caught up may refund nothing.
///
/// ## Errors
///
/// `Err` means that the store could not decide, never a denial. The error says whether the charge
/// was not made or may have been made ([`StoreError::may_have_charged`]). An error can only make a
/// store count too much: no request is admitted without its charge.
///
/// ## What an attacker gains
///
/// Clients choose keys. A flood of new keys must neither evict a live key (its client would get a
/// fresh quota) nor get a fresh quota for each new key when the store is full, and must not delay
/// others by more than its own decisions.
///
/// ## What bounds memory
///
/// Configuration, not traffic. A key may be forgotten only when its state equals that of an unused
/// key.
pub trait Store: Clone + Send + Sync + 'static {
    /// The future inside a pending reply. It borrows nothing and can be moved after a poll. A store
    /// that always replies immediately uses [`NeverPending`](crate::NeverPending).
    type Future<T: Send + 'static>: Future<Output = Result<T, StoreError>> + Send + Unpin + 'static;

    /// Decides one request: all its charges, or none.
    ///
    /// Charges to one policy and key are one charge of their sum; a shadow beside an enforced
    /// charge takes nothing. One policy and key under two quotas is an error and charges nothing,
    /// unless both are one rule ([`Policy::shares_state_with`]).
    ///
    /// Dry charges come after all others, see [`Charge::dry`]. If the reply is dropped, the charge
    /// may have been made.
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future<Verdict>>;

    /// Corrects a charge: `actual` units count instead of those of the receipt.
    ///
    /// Units beyond `actual` are refunded if they still count, so that no more is admitted than if
    /// the charge had been `actual` from the start. Missing units are charged now and may leave a
    /// debt of at most one capacity. A receipt settles once; another call is
    /// [`Settlement::Repeated`].
    ///
    /// If the key has been charged under another quota of the policy since, charges cannot be told
    /// apart, and nothing is refunded, except permits, which keep their dates.
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Self::Future<Settlement>>;

    /// Starts the lease of a permit ([`Policy::is_concurrency`]) again, in one step, so that
    /// no other request can take its units.
    ///
    /// Returns the new receipt; the old receipt refunds nothing from then on. Units that do not
    /// count any more, because the lease had ended, the key was reset or the store lost it, are
    /// charged again, up to a debt of one capacity. `None` if the receipt was settled.
    ///
    /// After an error that [may have charged](StoreError::may_have_charged) renew the same receipt
    /// again: at worst the units count twice until the lost lease ends. Other policies have no
    /// leases, which is an error.
    fn renew(&self, receipt: &Receipt) -> Reply<Self::Future<Option<Receipt>>>;

    /// Forgets the used units of `key` under `policy`. Older receipts refund nothing.
    ///
    /// A reset of one key does not change an overflow entry that several keys share.
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Self::Future<()>>;

    /// The name of the kind, such as `memory`: a label of metrics. A wrapper returns the name of its
    /// inner store.
    fn name(&self) -> &'static str {
        "store"
    }

    /// Whether a local store decides for policies with [`OnStoreError::Local`] while this store
    /// cannot: see [`StoreExt::or_local`]. The layer refuses to be built with such a policy if
    /// this is `false`, the default, and without such a policy if this is `true`. A wrapper
    /// returns the answer of the store inside it.
    fn has_local_fallback(&self) -> bool {
        false
    }
}

/// Conveniences for every [`Store`].
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
    /// Decides one charge under one policy.
    fn charge(&self, policy: &Policy, key: &Key, cost: Cost) -> Reply<Self::Future<Verdict>> {
        self.decide(&[Charge::new(policy, key, cost)])
    }

    /// The state of a key, without a charge.
    fn peek(&self, policy: &Policy, key: &Key) -> Reply<Self::Future<Verdict>> {
        self.charge(policy, key, Cost::ZERO)
    }

    /// The decisions at several costs in one snapshot, without a charge.
    fn foresee(&self, policy: &Policy, key: &Key, costs: &[Cost]) -> Reply<Self::Future<Verdict>> {
        let charges: Vec<_> =
            costs.iter().map(|cost| Charge::new(policy, key, *cost).dry()).collect();
        self.decide(&charges)
    }

    /// This store, or `local` for as long as this store cannot decide: each process then grants
    /// half of each quota by itself. See [`Fallback`] for other shares, and for how much may pass.
    #[cfg(feature = "std")]
    fn or_local<L: Store>(self, local: L) -> Fallback<Self, L> {
        Fallback::new(self, local)
    }
}

impl<S: Store> StoreExt for S {}

/// The error of a store that could not decide.
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
    /// Makes the error of a store that is not available; the charge was surely not made.
    pub fn not_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::NotCharged)
    }

    /// Makes the error of a store that refused the request before sending it, because no answer
    /// could come in time: too many requests wait, or answers come too late. The charge was surely
    /// not made.
    pub fn overloaded(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Overloaded)
    }

    /// Makes the error of a lost answer; the charge may have been made.
    pub fn maybe_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::MaybeCharged)
    }

    /// Makes the error of a request that is not valid and would fail again; the store works.
    pub fn invalid(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Invalid)
    }

    /// Makes the error of a renewal whose receipt is not of a concurrency limit.
    pub fn no_lease(store: &'static str, policy: &Policy) -> Self {
        let name = policy.name().escape_default();
        let reason = format!("policy `{name}` does not count in flight: nothing is to be renewed");
        Self::invalid(store, reason)
    }

    fn new(store: &'static str, reason: &dyn fmt::Display, fault: Fault) -> Self {
        let reason = reason.to_string();
        Self { store, reason, fault, retry_after: None, source: None }
    }

    /// Sets the cause of the error.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn core::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets when to call the store again, for a store that is down and has set its next probe.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Micros) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Returns when to call the store again, if that is known.
    pub const fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }

    /// Returns whether the charge may have been made in spite of the error.
    pub const fn may_have_charged(&self) -> bool {
        matches!(self.fault, Fault::MaybeCharged)
    }

    /// Returns whether the store refused the request before sending it, because no answer could
    /// come in time. [`Policy::shed`] has the effect on the request.
    pub const fn is_overload(&self) -> bool {
        matches!(self.fault, Fault::Overloaded)
    }

    /// Returns whether the fault is in the store, and not in the request.
    pub const fn is_outage(&self) -> bool {
        !matches!(self.fault, Fault::Invalid)
    }
}

/// The effect of an error, and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotCharged,
    Overloaded,
    MaybeCharged,
    Invalid,
}

/// The failure policy: the effect on a request that the store cannot decide.
///
/// A policy that does not say it is [`Local`](Self::Local) over a store with a
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
/// The set is closed: code that handles an error of a store has to treat each of these policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// The request passes, and no limit holds: a limiter protects a service and should not be
    /// what takes it down.
    #[default]
    Open,
    /// The request is refused with 503: for limits that guard something worth more
    /// than availability, such as logins.
    Closed,
    /// A store in this process decides with a share of the quota. This takes a store with a
    /// [local fallback](StoreExt::or_local): without one the layer cannot be built.
    Local,
}

impl OnStoreError {
    /// Returns the word for this failure policy in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}
