//! Charges that are corrected: when a caller leaves before its request runs, and when a request's
//! outcome is known.

use std::future::poll_fn;

use smallvec::SmallVec;
use tollgate_core::{
    BoxFuture, Cost, Micros, Policy, Receipt, ReceiptId, Reply, Settlement, Store,
};

use crate::charges::Charges;
use crate::limit::{Corrects, Limits};

/// Which charges to refund if a caller leaves before its request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refunds {
    /// None, because the request was not charged.
    None,
    /// Only the permits of concurrency limits.
    Permits,
    /// Only the units of other limits, because the permits are returned anyway.
    Units,
    /// Everything.
    All,
}

impl Refunds {
    /// Returns whether charges to this policy are refunded.
    pub fn include(self, policy: &Policy) -> bool {
        let is_permit = policy.is_concurrency();
        match self {
            // A penalty did not charge any units.
            _ if policy.is_penalty() => false,
            Self::None => false,
            Self::Permits => is_permit,
            Self::Units => !is_permit,
            Self::All => true,
        }
    }

    /// Returns whether any of these charges may be refunded.
    pub fn any(self, limits: &Limits, charges: &Charges) -> bool {
        charges.iter().any(|applied| self.include(limits.policy(applied)))
    }

    /// Returns the receipts to settle to [`Cost::ZERO`].
    pub fn of<'a>(
        self,
        limits: &'a Limits,
        charges: &'a Charges,
        next_id: impl FnMut() -> ReceiptId + 'a,
    ) -> impl Iterator<Item = Receipt> + 'a {
        charges.receipts(limits, next_id).filter(move |receipt| self.include(&receipt.policy))
    }
}

/// How a request ended, as far as it matters to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Whether the outcome counts, if the limit distinguishes outcomes.
    pub counts: Option<bool>,
    /// Whether the outcome forgives what the key has used.
    pub forgives: bool,
    /// The actual cost, if an estimate was charged and the outcome states the cost.
    pub stated: Option<Cost>,
}

/// What a request's outcome changes about a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// The charge had this actual cost.
    Actual(Cost),
    /// Everything that its key has used under the policy is forgotten, this charge included.
    Forgive,
}

impl Ending {
    /// Returns what the outcome changes about a charge to a policy, if anything.
    pub fn correction(self, policy: &Policy, charged: Cost) -> Option<Correction> {
        let actual = match (policy.is_penalty(), self.counts) {
            _ if self.forgives => return Some(Correction::Forgive),
            // A penalty interprets a settlement above its charge as a strike.
            (true, Some(true)) => Some(charged.plus(Cost::ONE)),
            (false, Some(false)) => Some(Cost::ZERO),
            _ => self.stated,
        };
        actual.map(Correction::Actual)
    }
}

impl From<Cost> for Correction {
    fn from(actual: Cost) -> Self {
        Self::Actual(actual)
    }
}

impl Correction {
    /// Makes the correction in the store, in one step.
    pub fn apply<St: Store>(self, store: &St, receipt: &Receipt) -> Reply<BoxFuture<Settlement>> {
        let reply = match self {
            Self::Actual(actual) => return store.settle(receipt, actual),
            Self::Forgive => store.reset(&receipt.policy, &receipt.key),
        };
        let settled = Settlement::Returned { units: receipt.charged.cost.get() };
        match reply.now() {
            Ok(done) => Reply::ready(done.map(|()| settled)),
            Err(mut future) => Reply::pending(Box::pin(poll_fn(move |context| {
                future.as_mut().poll(context).map_ok(|()| settled)
            }))),
        }
    }
}

/// A charge that may be corrected until its request's outcome is known.
#[derive(Debug)]
pub struct OpenCharge {
    receipt: Receipt,
    corrects: Corrects,
    correction: Option<Correction>,
}

impl OpenCharge {
    /// Returns the charge's receipt.
    pub const fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Returns how the charge was corrected, if it was.
    pub const fn correction(&self) -> Option<Correction> {
        self.correction
    }

    /// Returns whether the charge is an estimate, which a request can correct itself.
    pub const fn is_estimate(&self) -> bool {
        self.corrects.reserve.is_some()
    }

    /// Returns whether it charges the policy with this name.
    pub fn is_of(&self, policy: &str) -> bool {
        self.receipt.policy.name() == policy
    }

    fn is_open(&self, age: Micros) -> bool {
        let has_lapsed = self.corrects.reserve.is_some_and(|lapse| age >= lapse);
        self.correction.is_none() && !has_lapsed
    }

    /// A forgiveness also follows a settlement, because it is about all charges of the key.
    fn accepts(&self, correction: Correction, age: Micros) -> bool {
        let is_forgiven = self.correction == Some(Correction::Forgive);
        self.is_open(age) || (correction == Correction::Forgive && !is_forgiven)
    }
}

/// A request's charges that are corrected later. The first settlement of each counts.
#[derive(Debug)]
pub struct OpenCharges(SmallVec<[OpenCharge; 1]>);

impl OpenCharges {
    /// Collects the receipts of limits that correct charges. Returns `None` if there are none.
    pub fn new(limits: &Limits, receipts: impl IntoIterator<Item = Receipt>) -> Option<Self> {
        let open = receipts.into_iter().filter_map(|receipt| {
            let is_meant = |name: &str| name == receipt.policy.name();
            let corrects = limits.iter().find(|it| is_meant(it.policy.name()))?.corrects;
            corrects.any().then_some(OpenCharge { receipt, corrects, correction: None })
        });
        let open: SmallVec<_> = open.collect();
        (!open.is_empty()).then_some(Self(open))
    }

    /// Returns the charges, settled or not.
    pub fn iter(&self) -> impl Iterator<Item = &OpenCharge> {
        self.0.iter()
    }

    /// Returns whether `actual` returns a cost for a charge that is too old to be settled.
    pub fn has_lapsed(&self, age: Micros, actual: impl Fn(&OpenCharge) -> Option<Cost>) -> bool {
        let mut lapsed = self.0.iter().filter(|it| it.correction.is_none() && !it.is_open(age));
        lapsed.any(|charge| actual(charge).is_some())
    }

    /// Marks each open charge for which `correct` returns an actual cost or a correction as corrected.
    /// Returns what to correct in the store. `age` is the time since the charges were made.
    pub fn settle<C: Into<Correction>>(
        &mut self,
        age: Micros,
        correct: impl Fn(&OpenCharge) -> Option<C>,
    ) -> SmallVec<[(Receipt, Correction); 1]> {
        let corrected = self.0.iter_mut().filter_map(|charge| {
            let correction = correct(charge)?.into();
            charge.accepts(correction, age).then(|| {
                charge.correction = Some(correction);
                (charge.receipt.clone(), correction)
            })
        });
        corrected.collect()
    }
}
