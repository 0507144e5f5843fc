//! Where state lives: one trait, and the contract of all who implement it.

use std::fmt;

use crate::{Charge, Cost, Fallback, Key, Micros, Policy, Receipt, Settlement, Verdict};

/// Where the state of all keys lives.
///
/// A store takes data and returns a verdict; no closure crosses this boundary, so
/// that a store may be another process and one decision one round trip.
///
/// # Contract
///
/// `tollgate-store-tests` holds this contract as a suite of named checks. A store or
/// a wrapper that passes it can stand anywhere in this project.
///
/// ## Atomicity
///
/// [`decide`](Store::decide) is one indivisible step over all its charges: all are
/// assessed against one state of the store before any is made, and either all that
/// allowed are made or none is. Charges of one request to the same policy and key are
/// summed first. Under any interleaving the admitted requests are those that some
/// sequential order would have admitted. (A store over several machines may hold
/// this per machine only; it then says so.)
///
/// A denial changes nothing: no counter, no expiry, no queue. There is one exception, which
/// somebody has to ask for: where a request has a charge to a
/// [penalty](Policy::penalty) that [counts denials](Policy::counts_denials), and another
/// policy that enforces denies the same key, the penalty is struck once, in the same step,
/// and says what it is then: a block that begins denies this request already. A denial by a
/// penalty alone strikes none. What is struck is not struck where keys without room share
/// an entry, or the flood of one would block others.
///
/// ## Clones
///
/// Clones share all state.
///
/// ## Clock
///
/// The store owns the clock; a caller never passes the time, so that processes with
/// different clocks agree. A clock that steps back gives nothing away as long as the
/// key lives: time stands still for it. After the key expired, a step back may grant
/// up to one quota again. A step forward gives what so much time would have given.
/// Charges are told apart by their dates. So where the clock stepped back behind a charge
/// before its key was reset, the receipt may give back of what was charged since; and what
/// is charged until the clock has caught up may give nothing back.
///
/// ## Errors
///
/// `Err` means that the store could not decide, never that the answer is no. The
/// error says whether the charge was surely not made or may have been made
/// ([`StoreError::may_have_charged`]). Wrong in that direction a store counts too
/// much, never too little: no request is ever admitted that was not charged.
///
/// ## What an attacker gains
///
/// Keys come from requests. A flood of new keys must neither evict a live key (that
/// would give its owner a fresh quota) nor win a fresh quota for each new one once
/// the store is full, and must not slow down others by more than its own decisions.
///
/// ## What bounds memory
///
/// Configuration, not traffic. A key may be forgotten only when its state cannot be
/// told from that of a key never used.
pub trait Store: Clone + Send + Sync + 'static {
    /// The answer on its way. It borrows nothing, so that a middleware can keep it, has
    /// a name, so that it needs no box, and can be moved after it was polled, so that a
    /// middleware that finds it ready need not set up anything to wait.
    type Future<T: Send + 'static>: Future<Output = Result<T, StoreError>> + Send + Unpin + 'static;

    /// Decides one request: all its charges, or none.
    ///
    /// Charges of a request to one policy and key are one charge of their sum; a shadow
    /// beside an enforced one takes nothing.
    ///
    /// A request may not name one policy and key under two quotas: which of them should
    /// the sum be held against? That is an error and charges nothing. (Two that are one
    /// rule, see [`Policy::shares_state_with`], are one quota here and below.)
    ///
    /// Dry charges come after all others and see what those have left; see [`Charge::dry`].
    ///
    /// Dropping the future gives up the answer, not the charge: it may have been made.
    fn decide(&self, charges: &[Charge<'_>]) -> Self::Future<Verdict>;

    /// As [`decide`](Self::decide), for a store that never waits: it returns the answer itself, so
    /// that the caller has no future to poll. `None`, the default, means that the caller has to
    /// call `decide`. The store has then charged nothing.
    #[inline]
    fn decide_at_once(&self, charges: &[Charge<'_>]) -> Option<Result<Verdict, StoreError>> {
        let _ = charges;
        None
    }

    /// Corrects a charge: `actual` units count instead of those of the receipt.
    ///
    /// What was too much is given back as far as it still counts, so that afterwards
    /// no more is admitted than if the charge had been `actual` from the start. What
    /// was too little is charged as of now and may leave a debt of at most one
    /// capacity. A receipt settles once; again is [`Settlement::Repeated`].
    ///
    /// Once a key has been charged under another quota of the policy, what the receipt
    /// stands for cannot be told from other charges, and nothing is given back. (What is in
    /// flight keeps its date, and comes back under any limit.)
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Self::Future<Settlement>;

    /// Lets the lease of a charge that [counts in flight](Policy::is_concurrency) begin
    /// anew, in one step in which nobody else can take its units.
    ///
    /// What comes back is the receipt as it is from now on; the one before gives nothing
    /// back any more. Units that do not count any more, because the lease had ended, the key
    /// was reset or the store lost it, are charged again, whether there is room or not, up to
    /// a debt of one capacity. `None` if the receipt was settled: nothing is in flight.
    ///
    /// After an error that [may have charged](StoreError::may_have_charged) the receipt may
    /// be as it was or not. Renew it again: at worst the units count twice until the lease
    /// that was lost ends. Under any other policy there is no lease, which is an error.
    fn renew(&self, receipt: &Receipt) -> Self::Future<Option<Receipt>>;

    /// Forgets what `key` has used under `policy`. Receipts from before give nothing back.
    ///
    /// Where keys that found no room share an entry, a reset of one of them does not
    /// change what they have used together.
    fn reset(&self, policy: &Policy, key: &Key) -> Self::Future<()>;

    /// One word for what it is, as `memory`: a label of metrics. A wrapper answers with
    /// that of the store inside.
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
pub trait StoreExt: Store {
    /// Decides one charge under one policy.
    fn charge(&self, policy: &Policy, key: &Key, cost: Cost) -> Self::Future<Verdict> {
        self.decide(&[Charge::new(policy, key, cost)])
    }

    /// Reads what is left without using any of it.
    fn peek(&self, policy: &Policy, key: &Key) -> Self::Future<Verdict> {
        self.charge(policy, key, Cost::ZERO)
    }

    /// Says of each cost whether it would pass now, when it would, or that it never can, all
    /// of one snapshot, and charges nothing: one decision per cost.
    fn foresee(&self, policy: &Policy, key: &Key, costs: &[Cost]) -> Self::Future<Verdict> {
        let charges: Vec<_> =
            costs.iter().map(|cost| Charge::new(policy, key, *cost).dry()).collect();
        self.decide(&charges)
    }

    /// This store, or `local` for as long as this store cannot decide: each process then grants
    /// half of each quota by itself. See [`Fallback`] for other shares, and for how much may pass.
    fn or_local<L: Store>(self, local: L) -> Fallback<Self, L> {
        Fallback::new(self, local)
    }
}

impl<S: Store> StoreExt for S {}

/// The store could not decide.
#[derive(thiserror::Error)]
#[error("{store}: {reason}{}", if self.may_have_charged() { " (the charge may have been made)" } else { "" })]
pub struct StoreError {
    store: &'static str,
    reason: String,
    fault: Fault,
    retry_after: Option<Micros>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

crate::debug_as_display!(StoreError);

impl StoreError {
    /// The store is not to be had, and the charge was surely not made.
    pub fn not_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::NotCharged)
    }

    /// The store refused the request before sending it, because no answer could come in time:
    /// too much waits already, or answers come too late. The charge was surely not made.
    pub fn overloaded(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Overloaded)
    }

    /// The answer was lost, and the charge may have been made.
    pub fn maybe_charged(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::MaybeCharged)
    }

    /// The request makes no sense and would fail again; the store itself is well.
    pub fn invalid(store: &'static str, reason: impl fmt::Display) -> Self {
        Self::new(store, &reason, Fault::Invalid)
    }

    /// A receipt was to be renewed of a policy that does not count in flight.
    pub fn no_lease(store: &'static str, policy: &Policy) -> Self {
        let name = policy.name().escape_default();
        let reason = format!("policy `{name}` does not count in flight: nothing is to be renewed");
        Self::invalid(store, reason)
    }

    fn new(store: &'static str, reason: &dyn fmt::Display, fault: Fault) -> Self {
        let reason = reason.to_string();
        Self { store, reason, fault, retry_after: None, source: None }
    }

    /// Keeps the error underneath.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says when it is worth asking again: a store that knows itself down says when it
    /// looks next.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Micros) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// When it is worth asking again, if the store knows.
    pub const fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }

    /// Whether the charge may have been made all the same.
    pub const fn may_have_charged(&self) -> bool {
        matches!(self.fault, Fault::MaybeCharged)
    }

    /// Whether the store refused the request before sending it, because no answer could come in
    /// time. [`Policy::shed`] says what becomes of the request.
    pub const fn is_overload(&self) -> bool {
        matches!(self.fault, Fault::Overloaded)
    }

    /// Whether the store is in trouble, rather than the request.
    pub const fn is_outage(&self) -> bool {
        !matches!(self.fault, Fault::Invalid)
    }
}

/// What a [`StoreError`] leaves behind, and whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotCharged,
    Overloaded,
    MaybeCharged,
    Invalid,
}

/// The fate of a request that the store of a policy cannot decide.
///
/// A policy that does not say it is [`Local`](Self::Local) over a store with a
/// [local fallback](Store::has_local_fallback), and [`Open`](Self::Open) over any other store.
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
    /// One word, as configuration and status write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}
