//! Charges that are corrected: when a caller leaves before its request runs, and when a request's
//! outcome is known.

use smallvec::SmallVec;
use tollgate_core::{Cost, Micros, Policy, Receipt, ReceiptId};

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

/// Returns a charge's actual cost, if the request's outcome corrects it. `counts` is whether the
/// outcome counts, if the limit distinguishes outcomes. `stated` is the actual cost, if an
/// estimate was charged and the outcome states the cost.
pub fn actual_cost(
    policy: &Policy,
    charged: Cost,
    counts: Option<bool>,
    stated: Option<Cost>,
) -> Option<Cost> {
    match (policy.is_penalty(), counts) {
        // A penalty interprets a settlement above its charge as a strike.
        (true, Some(true)) => Some(charged.plus(Cost::ONE)),
        (false, Some(false)) => Some(Cost::ZERO),
        _ => stated,
    }
}

/// A charge that may be corrected until its request's outcome is known.
#[derive(Debug)]
pub struct OpenCharge {
    receipt: Receipt,
    corrects: Corrects,
    actual: Option<Cost>,
}

impl OpenCharge {
    /// Returns the charge's receipt.
    pub const fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Returns the actual cost, if the charge was settled.
    pub const fn actual(&self) -> Option<Cost> {
        self.actual
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
        self.actual.is_none() && !has_lapsed
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
            corrects.any().then_some(OpenCharge { receipt, corrects, actual: None })
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
        let mut lapsed = self.0.iter().filter(|it| it.actual.is_none() && !it.is_open(age));
        lapsed.any(|charge| actual(charge).is_some())
    }

    /// Marks each open charge for which `actual` returns a cost as settled. Returns what to settle
    /// in the store. `age` is the time since the charges were made.
    pub fn settle(
        &mut self,
        age: Micros,
        actual: impl Fn(&OpenCharge) -> Option<Cost>,
    ) -> SmallVec<[(Receipt, Cost); 1]> {
        let open = self.0.iter_mut().filter(|charge| charge.is_open(age));
        let settled = open.filter_map(|charge| {
            charge.actual = actual(charge);
            charge.actual.map(|actual| (charge.receipt.clone(), actual))
        });
        settled.collect()
    }
}
