//! Policy decisions, and the verdict on a request.

use smallvec::SmallVec;

use crate::{Charge, Charged, Cost, Micros, Receipt, ReceiptId, Timestamp};

/// A policy's decision on a request, with the numbers for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed, and if not, when to retry.
    pub outcome: Outcome,
    /// The policy's capacity: the limit, or a bucket's burst.
    pub limit: u64,
    /// The remaining units: a request with this cost would be allowed now, and a request that costs
    /// one unit more would not.
    pub remaining: u64,
    /// The time until the entire quota is available again.
    pub reset_after: Micros,
}

/// A policy's answer to a request: allow it, deny it, or delay it.
///
/// The enum is exhaustive because every store, wrapper and layer must handle each outcome. A new
/// outcome is therefore a breaking change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The policy allowed the request and was charged.
    Allow {
        /// How long to delay the request before it continues. Zero unless the policy queues.
        delay: Micros,
        /// The timestamp with which the charge was recorded: the store's time, or the last instant
        /// seen for this key if that is later. It is later if requests queue for the key, or if the
        /// clock has stepped back.
        charged_at: Timestamp,
        /// How much a bucket that drains continuously has refunded so far, on its own scale. A
        /// receipt needs it to determine what can still be refunded. Zero for other algorithms.
        refunded: u64,
    },
    /// The policy would allow the request, but another policy denied it, so no charge was made.
    WouldAllow,
    /// The policy denies the request for now.
    Deny {
        /// How long to wait until the request would be allowed, if no other request is charged in
        /// the meantime. Waiting one microsecond less is not enough.
        retry_after: Micros,
    },
    /// The request costs more than the policy's capacity, so it can never be allowed.
    ExceedsCapacity,
    /// The policy did not decide. Either the store failed and the policy fails open, or the store
    /// remembers that another policy denies the request and did not evaluate this policy.
    Undecided,
}

impl Decision {
    /// Returns the decision for a policy that did not decide. Its numbers are placeholders, so do
    /// not show them. A remembered denial has such a decision for each policy that was not
    /// evaluated.
    pub const fn undecided(limit: u64) -> Self {
        Self { outcome: Outcome::Undecided, limit, remaining: 0, reset_after: Micros::ZERO }
    }

    /// Returns the decision while an operator blocks the key for another `left`. A client that waits
    /// until the block ends must then be allowed, so a longer wait remains.
    #[must_use]
    pub fn blocked_for(self, left: Micros) -> Self {
        let outcome = match self.outcome {
            Outcome::ExceedsCapacity => Outcome::ExceedsCapacity,
            Outcome::Deny { retry_after } => Outcome::Deny { retry_after: retry_after.max(left) },
            _ => Outcome::Deny { retry_after: left },
        };
        Self { outcome, remaining: 0, reset_after: self.reset_after.max(left), ..self }
    }

    /// Returns whether this policy allows the request.
    pub const fn allows(&self) -> bool {
        !self.denies()
    }

    /// Returns whether this policy denies the request.
    pub const fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Deny { .. } | Outcome::ExceedsCapacity)
    }

    /// Returns how long to wait before retrying a denied request. Returns `None` if the request is
    /// allowed, or can never be.
    pub const fn retry_after(&self) -> Option<Micros> {
        match self.outcome {
            Outcome::Deny { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Returns how long to delay an allowed request.
    pub const fn delay(&self) -> Micros {
        match self.outcome {
            Outcome::Allow { delay, .. } => delay,
            _ => Micros::ZERO,
        }
    }

    /// Returns the first instant at which a request with this decision may leave if it queues: not
    /// before the requests that were charged before it. `None` if it can never be allowed.
    pub fn leaves_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.outcome {
            Outcome::Allow { charged_at, .. } => Some(charged_at.max(now)),
            Outcome::Deny { retry_after } => Some(now + retry_after),
            Outcome::ExceedsCapacity => None,
            Outcome::WouldAllow | Outcome::Undecided => Some(now),
        }
    }

    /// Returns the decision for a charge that queues for `delay`, given the decision at the end of
    /// this time. `queue` is the longest time.
    #[must_use]
    pub fn queued(self, delay: Micros, queue: Micros) -> Self {
        let after = |span: Micros| Micros::new(span.get().saturating_add(delay.get()));
        let reset_after = match self.reset_after {
            Micros::ZERO => Micros::ZERO,
            reset_after => after(reset_after),
        };
        let (outcome, remaining) = match self.outcome {
            Outcome::Allow { charged_at, refunded, .. } if delay <= queue => {
                (Outcome::Allow { delay, charged_at, refunded }, self.remaining)
            }
            Outcome::Allow { .. } => {
                let retry_after = Micros::new(delay.get() - queue.get());
                (Outcome::Deny { retry_after }, 0)
            }
            Outcome::Deny { retry_after } => {
                (Outcome::Deny { retry_after: after(retry_after) }, self.remaining)
            }
            outcome => (outcome, self.remaining),
        };
        Self { outcome, remaining, reset_after, ..self }
    }

    /// Returns the receipt if this decision charged `charge`, which is one of a request's `charges`.
    /// See [`Verdict::receipts`].
    pub fn receipt(
        &self,
        charge: &Charge<'_>,
        charges: &[Charge<'_>],
        decided_at: Timestamp,
        source: Source,
        next_id: impl FnOnce() -> ReceiptId,
    ) -> Option<Receipt> {
        let Outcome::Allow { delay, charged_at, refunded } = self.outcome else { return None };
        let resets_at = match source {
            _ if charge.policy.is_concurrency() => charged_at + charge.policy.window(),
            // The numbers date from the grant of the lease.
            Source::Lease => charged_at,
            _ => decided_at + self.reset_after,
        };
        // A shadow charge takes no units from a quota that an enforced charge also uses.
        let took = charge.enforce
            || !charges.iter().any(|other| other.enforce && other.shares_quota_with(charge));
        (took && charge.cost > Cost::ZERO).then(|| Receipt {
            id: next_id(),
            source,
            policy: charge.policy.clone(),
            key: charge.key.clone(),
            charged: Charged {
                cost: charge.cost,
                charged_at,
                leaves_at: decided_at + delay,
                resets_at,
                refunded,
                lifetime: Receipt::lifetime_under(charge.policy),
            },
        })
    }
}

/// The store that reached a verdict: the primary store, or its local fallback.
///
/// The enum is exhaustive because a wrapper sends each receipt back to its source and must
/// therefore know every source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The primary store.
    #[default]
    Store,
    /// A fallback's local store, with a share of the quota, because the primary store could not
    /// decide.
    Local,
    /// The store's earlier answer, which this process remembers: the key had no units remaining, so
    /// no replica can have charged it since. The waits, `remaining` and `reset_after` are the
    /// values that the store would return now. A policy that may have changed in the meantime is
    /// [`Outcome::Undecided`].
    Cache,
    /// A block of units that this process has leased from the store. `remaining` and `reset_after`
    /// are not exact: they date from the last block's grant, which is at most one lease time ago.
    /// Receipts have the grant's timestamp, which is never later than the time of spending. A
    /// bucket and a counter refund units that still count, while a log refunds none.
    Lease,
}

impl Source {
    /// Returns the name in metrics and interfaces, such as `local`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Local => "local",
            Self::Cache => "cache",
            Self::Lease => "lease",
        }
    }
}

/// The decisions of all policies, in the order of the request's charges.
///
/// All or none: either every enforced policy allowed the request and all policies that allowed it
/// were charged, or no policy was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    admitted: bool,
    source: Source,
    decided_at: Timestamp,
    decisions: SmallVec<[Decision; 2]>,
}

/// The decisions on a fixed number of charges. The store itself has decided, so the verdict's source
/// is [`Source::Store`]. Unlike a [`Verdict`], it needs no list, so a caller can write each decision
/// directly into its own data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedVerdict<const N: usize> {
    /// Whether the request is admitted.
    pub admitted: bool,
    /// When the store decided, on the store's clock.
    pub decided_at: Timestamp,
    /// One decision per charge, in the order of the charges.
    pub decisions: [Decision; N],
}

impl<const N: usize> From<FixedVerdict<N>> for Verdict {
    #[inline(always)]
    fn from(fixed: FixedVerdict<N>) -> Self {
        let FixedVerdict { admitted, decided_at, decisions } = fixed;
        let mut list = SmallVec::new_const();
        for decision in decisions {
            list.push(decision);
        }
        Self { admitted, source: Source::Store, decided_at, decisions: list }
    }
}

impl Verdict {
    /// Creates a verdict that a store reached at `decided_at` on its own clock.
    pub fn new(
        admitted: bool,
        decided_at: Timestamp,
        decisions: impl IntoIterator<Item = Decision>,
    ) -> Self {
        let decisions = decisions.into_iter().collect();
        Self { admitted, source: Source::Store, decided_at, decisions }
    }

    /// Creates the verdict for a request with a single charge.
    #[inline]
    pub fn single(admitted: bool, decided_at: Timestamp, decision: Decision) -> Self {
        let mut decisions = SmallVec::new_const();
        decisions.push(decision);
        Self { admitted, source: Source::Store, decided_at, decisions }
    }

    /// Sets the store that reached the verdict.
    #[must_use]
    pub const fn with_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Returns the store that reached the verdict.
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Returns whether the request is admitted.
    pub const fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns when the store decided, on the store's clock.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns one decision per charge, in the order of the charges.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the receipts for the charges that this verdict made, each with an ID from `next_id`.
    /// IDs must be unique, because a store settles each ID only once.
    ///
    /// `charges` must be the decided charges in their original order.
    pub fn receipts<'a>(
        &'a self,
        charges: &'a [Charge<'_>],
        mut next_id: impl FnMut() -> ReceiptId + 'a,
    ) -> impl Iterator<Item = Receipt> + 'a {
        charges.iter().zip(&self.decisions).filter_map(move |(charge, decision)| {
            decision.receipt(charge, charges, self.decided_at, self.source, &mut next_id)
        })
    }

    /// Returns how long to delay an admitted request: the longest delay of all its policies.
    pub fn delay(&self) -> Micros {
        self.decisions.iter().map(Decision::delay).max().unwrap_or_default()
    }
}
