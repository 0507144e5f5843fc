//! The decision of a policy, and the verdict on a request.

use smallvec::SmallVec;

use crate::{Charge, Charged, Cost, Micros, Receipt, ReceiptId, Timestamp};

/// The decision of one policy on one request, with the numbers for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer of the policy: whether the request may pass, and if not, when.
    pub outcome: Outcome,
    /// The most units that the policy grants at once: the limit, or the burst of a bucket.
    pub limit: u64,
    /// The units that are left: a request with this cost would pass now, and a request with one
    /// unit more would not.
    pub remaining: u64,
    /// The time until the key equals an unused key.
    pub reset_after: Micros,
}

/// The answer of one policy to a request: allow it, deny it, or hold it back.
///
/// The set is closed: a store, a wrapper and a layer each treat every outcome, so a new outcome is a
/// breaking change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request passes this policy and was charged to it.
    Allow {
        /// How long to hold the request back before it goes on. Zero for all but a
        /// leaky bucket in queue mode.
        delay: Micros,
        /// The instant under which the charge was written: the store's time, or the
        /// last instant seen for this key if the clock has stepped back since.
        charged_at: Timestamp,
    },
    /// The request would pass this policy, but another one denied it, so that
    /// nothing was charged.
    WouldAllow,
    /// The request does not pass now.
    Deny {
        /// Wait this long and it passes, if nothing else is charged meanwhile. One
        /// microsecond less is too short.
        ///
        /// Where the quota of the policy has changed since the key was last charged, a
        /// denial looks at what is left of the old one anew each time, and the wait may
        /// turn out longer.
        retry_after: Micros,
    },
    /// The request costs more than the policy ever grants at once: it can never pass.
    ExceedsCapacity,
    /// The policy did not decide. Either the store could not, and the policy fails open; or the
    /// store remembers that another policy denies the request, and did not ask this one.
    Undecided,
}

impl Decision {
    /// Returns a decision for a policy that did not decide. Do not show its numbers: they are
    /// placeholders. A remembered denial has such a decision for each policy that it did not check.
    pub const fn undecided(limit: u64) -> Self {
        Self { outcome: Outcome::Undecided, limit, remaining: 0, reset_after: Micros::ZERO }
    }

    /// Returns whether this policy allows the request.
    pub const fn allows(&self) -> bool {
        !self.denies()
    }

    /// Returns whether this policy denies the request.
    pub const fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Deny { .. } | Outcome::ExceedsCapacity)
    }

    /// Returns the time to wait before the same request can pass: for a denial, and only if it can
    /// pass at all.
    pub const fn retry_after(&self) -> Option<Micros> {
        match self.outcome {
            Outcome::Deny { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Returns how long to hold an allowed request back.
    pub const fn delay(&self) -> Micros {
        match self.outcome {
            Outcome::Allow { delay, .. } => delay,
            _ => Micros::ZERO,
        }
    }
}

/// The store that reached a verdict: the first, or its local fallback.
///
/// The set is closed: a wrapper sends each receipt back to its source, so it has to know them all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The store that was asked.
    #[default]
    Store,
    /// The local store of a fallback, with a share of the quota, because the first store could not
    /// decide.
    Local,
    /// The store itself, a moment ago: a key had no unit left, so no replica can have charged it
    /// since. Waits, `remaining` and `reset_after` are what the store would say now. A policy
    /// that may have changed meanwhile was not asked: [`Outcome::Undecided`].
    Cache,
    /// A block of units that this process has leased from the store. `remaining` and `reset_after`
    /// are not exact: they are from the grant of the last block, at most the lease's time ago.
    /// Receipts have the date of the grant, before which the units were not spent: a bucket and a
    /// counter refund units that still count, a log refunds nothing.
    Lease,
}

/// The decisions of all policies of one request, in the order of its charges.
///
/// All or none: either every enforcing policy allowed the request and all that
/// allowed were charged, or none was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    admitted: bool,
    source: Source,
    decided_at: Timestamp,
    decisions: SmallVec<[Decision; 2]>,
}

impl Verdict {
    /// Makes the verdict that a store reached at `decided_at`, by its own clock.
    pub fn new(
        admitted: bool,
        decided_at: Timestamp,
        decisions: impl IntoIterator<Item = Decision>,
    ) -> Self {
        let decisions = decisions.into_iter().collect();
        Self { admitted, source: Source::Store, decided_at, decisions }
    }

    /// Makes the verdict on a request with one charge.
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

    /// Returns whether the request passes.
    pub const fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the time of the decision, by the clock of the store.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns one decision per charge, in the order of the charges.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The receipts of the charges that this verdict has made, each with a name of `next_id`. The
    /// name makes a settlement happen once, so it must be unique.
    ///
    /// `charges` are the charges of the decision in their order.
    pub fn receipts<'a>(
        &'a self,
        charges: &'a [Charge<'_>],
        mut next_id: impl FnMut() -> ReceiptId + 'a,
    ) -> impl Iterator<Item = Receipt> + 'a {
        charges.iter().zip(&self.decisions).filter_map(move |(charge, decision)| {
            let Outcome::Allow { delay, charged_at } = decision.outcome else {
                return None;
            };
            // A shadow beside an enforced charge to the same quota took nothing.
            let took = charge.enforce
                || !charges.iter().any(|other| other.enforce && other.shares_quota_with(charge));
            (took && charge.cost > Cost::ZERO).then(|| Receipt {
                id: next_id(),
                source: self.source,
                policy: charge.policy.clone(),
                key: charge.key.clone(),
                charged: Charged {
                    cost: charge.cost,
                    charged_at,
                    leaves_at: self.decided_at + delay,
                },
            })
        })
    }

    /// Returns how long to hold an admitted request back: the longest delay of its policies.
    pub fn delay(&self) -> Micros {
        self.decisions.iter().map(Decision::delay).max().unwrap_or_default()
    }
}
