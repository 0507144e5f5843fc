//! Charges, and receipts for correcting them.

use crate::{Cost, Key, Micros, Policy, Source, Timestamp};

/// A request to take `cost` units from `key`'s quota under `policy`. A store decides several
/// charges together.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The key to charge.
    pub key: &'a Key,
    /// The number of units to take.
    pub cost: Cost,
    /// Whether a denial by this policy denies the request. If `false` (a shadow), the policy is
    /// charged only if it allows the request and the request is admitted.
    pub enforce: bool,
    /// Whether this charge only queries the decision. See [`dry`](Charge::dry).
    pub dry: bool,
    /// How long the request may queue for this charge. By default the policy's
    /// [`max_queue_time`](Policy::max_queue_time); `None` decides the charge now.
    pub queue: Option<Micros>,
    /// The number of units that must remain after the charge. See
    /// [`leaving`](Charge::leaving).
    pub headroom: Cost,
}

impl<'a> Charge<'a> {
    /// Creates an enforced charge: if its policy denies, the request is denied.
    #[inline(always)]
    pub fn new(policy: &'a Policy, key: &'a Key, cost: Cost) -> Self {
        let (queue, headroom) = (policy.max_queue_time(), Cost::ZERO);
        Self { policy, key, cost, enforce: true, dry: false, queue, headroom }
    }

    /// Returns whether both charges take from the same quota.
    pub fn shares_quota_with(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.name() == other.policy.name()
    }

    /// Turns this into a shadow charge, which never denies the request.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.enforce = false;
        self
    }

    /// Turns this into a dry charge, which only queries the decision that the policy would make
    /// after all other charges of the request. It takes no units and is not added to other charges,
    /// so one request can query several costs for the same key. If it would be allowed, its outcome
    /// is [`Outcome::WouldAllow`](crate::Outcome::WouldAllow).
    #[must_use]
    pub const fn dry(mut self) -> Self {
        self.enforce = false;
        self.dry = true;
        self
    }

    /// Allows the charge only if at least `headroom` units remain after it, for requests with a
    /// higher priority. The charge itself takes its cost only.
    #[must_use]
    pub const fn leaving(mut self, headroom: Cost) -> Self {
        self.headroom = headroom;
        self
    }

    /// The units that must be available for this charge to be allowed.
    #[inline(always)]
    pub const fn required(&self) -> Cost {
        if self.cost.get() == 0 { Cost::ZERO } else { self.cost.plus(self.headroom) }
    }

    /// Returns whether the charge is decided now and by its cost alone: it is not dry, does not
    /// queue and leaves no headroom.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        !self.dry && self.queue.is_none() && self.headroom == Cost::ZERO
    }

    /// Adds another charge to the same quota. A shadow charge adds no cost to an enforced charge,
    /// because a shadow policy must not cause a denial.
    pub fn add(&mut self, other: &Self) {
        match (self.enforce, other.enforce) {
            (true, false) => {}
            (false, true) => *self = *other,
            _ => {
                self.cost = self.cost.plus(other.cost);
                self.headroom = self.headroom.max(other.headroom);
                self.queue = self.queue.zip(other.queue).map(|(one, two)| one.min(two));
            }
        }
    }
}

/// A [`Charge`] that outlives its request.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields of a charge")]
pub struct OwnedCharge {
    pub policy: Policy,
    pub key: Key,
    pub cost: Cost,
    pub enforce: bool,
    pub dry: bool,
    pub queue: Option<Micros>,
    pub headroom: Cost,
}

impl OwnedCharge {
    /// Returns the charge.
    pub const fn as_charge(&self) -> Charge<'_> {
        let Self { policy, key, cost, enforce, dry, queue, headroom } = self;
        let (cost, headroom) = (*cost, *headroom);
        Charge { policy, key, cost, enforce: *enforce, dry: *dry, queue: *queue, headroom }
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        let Charge { policy, key, cost, enforce, dry, queue, headroom } = *charge;
        Self { policy: policy.clone(), key: key.clone(), cost, enforce, dry, queue, headroom }
    }
}

/// A receipt's unique ID, 128 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(pub u128);

impl ReceiptId {
    /// Creates an ID from the process's random bits, the verdict's time, and a per-process counter.
    ///
    /// Machines restored from the same snapshot have the same random bits and counter. If they
    /// share a store, the time keeps their receipts apart, because the store decides for only one
    /// machine at any instant.
    pub const fn new(process: u64, decided_at: Timestamp, count: u64) -> Self {
        let process = process ^ decided_at.as_micros();
        Self((process as u128) << 64 | count as u128)
    }
}

/// Proof of a charge, with which a store can correct it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The receipt's ID. A store settles each ID at most once.
    pub id: ReceiptId,
    /// The store that made the charge and can correct it.
    pub source: Source,
    /// The policy that was charged.
    pub policy: Policy,
    /// The key that was charged.
    pub key: Key,
    /// The units and the time at which they were charged.
    pub charged: Charged,
}

impl Receipt {
    /// The longest lifetime of any receipt. After it, the charge is final.
    pub const LIFETIME: Micros = Micros::new(3_600_000_000);

    /// The shortest lifetime of a rate limit's receipt, because a response may take longer than a
    /// short window.
    pub const MIN_LIFETIME: Micros = Micros::new(300_000_000);

    /// Returns the receipt for a permit that was renewed at `charged_at`.
    #[must_use]
    pub fn begun_at(&self, charged_at: Timestamp) -> Self {
        let resets_at = charged_at + self.policy.window();
        let charged = Charged { charged_at, leaves_at: charged_at, resets_at, ..self.charged };
        Self { charged, ..self.clone() }
    }

    /// Returns how long the receipt can be settled. A store must remember for this long that it was
    /// settled. The lifetime equals the charged policy's window, but for a rate limit it is at least
    /// [`MIN_LIFETIME`](Self::MIN_LIFETIME) and at most [`LIFETIME`](Self::LIFETIME).
    ///
    /// It does not depend on [`policy`](Self::policy), which may have another window by now.
    pub const fn lifetime(&self) -> Micros {
        self.charged.lifetime
    }

    /// Returns the lifetime of receipts for charges to this policy.
    pub fn lifetime_under(policy: &Policy) -> Micros {
        let window = policy.window();
        if policy.is_concurrency() {
            return window;
        }
        window.max(Self::MIN_LIFETIME).min(Self::LIFETIME)
    }

    /// Returns whether the receipt's lifetime is over.
    pub fn has_lapsed(&self, now: Timestamp) -> bool {
        now >= self.charged.charged_at + self.lifetime()
    }
}

/// The data that an algorithm needs to correct a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The units taken.
    pub cost: Cost,
    /// The timestamp with which the charge was recorded.
    pub charged_at: Timestamp,
    /// When the request may continue: immediately, or later if it queues.
    pub leaves_at: Timestamp,
    /// When the key would have had its entire quota again after this charge. For a permit, when it
    /// expires. Equals `charged_at` if unknown, and then a bucket may refund fewer units.
    pub resets_at: Timestamp,
    /// A bucket's count of refunded units at the charge, see [`Outcome::Allow`].
    ///
    /// [`Outcome::Allow`]: crate::Outcome::Allow
    pub refunded: u64,
    /// How long the charge can be corrected, see [`Receipt::lifetime`].
    pub lifetime: Micros,
}

impl Charged {
    /// A charge to `policy` about which no more is known than its units and its time.
    pub fn new(policy: &Policy, cost: Cost, charged_at: Timestamp) -> Self {
        let counts_for = if policy.is_concurrency() { policy.window() } else { Micros::ZERO };
        let resets_at = charged_at + counts_for;
        let lifetime = Receipt::lifetime_under(policy);
        Self { cost, charged_at, leaves_at: charged_at, resets_at, refunded: 0, lifetime }
    }

    /// The same charge as counted by another version of the policy, whose level then is unknown.
    #[must_use]
    pub const fn elsewhere(&self) -> Self {
        Self { leaves_at: self.charged_at, resets_at: self.charged_at, refunded: 0, ..*self }
    }
}

/// The result of settling a receipt.
///
/// The enum is exhaustive because a caller that corrects its numbers must handle every result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Units were refunded: at most the difference, and only units that still count.
    Returned {
        /// The refunded units.
        units: u64,
    },
    /// The actual cost was higher, so the difference was charged now.
    Charged {
        /// The charged units, up to a debt of one capacity.
        units: u64,
    },
    /// The receipt was settled before, so no state changed.
    Repeated,
    /// The receipt's lifetime is over, so no state changed.
    Lapsed,
}

impl Settlement {
    /// Returns the name in logs and interfaces, such as `returned`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Returned { .. } => "returned",
            Self::Charged { .. } => "charged",
            Self::Repeated => "repeated",
            Self::Lapsed => "lapsed",
        }
    }

    /// Returns the units that were refunded or charged.
    pub const fn units(self) -> u64 {
        match self {
            Self::Returned { units } | Self::Charged { units } => units,
            Self::Repeated | Self::Lapsed => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Quota;

    #[test]
    fn receipt_lifetime_is_clamped_window() {
        for (window, lifetime) in [(1, 300), (300, 300), (600, 600), (86_400, 3_600)] {
            let quota = Quota::new(1, Duration::from_secs(window));
            let policy = Policy::token_bucket("p", quota).unwrap();
            let receipt = Receipt {
                id: ReceiptId(1),
                source: Source::Store,
                charged: Charged::new(&policy, Cost::ONE, Timestamp::EPOCH),
                policy,
                key: Key::GLOBAL,
            };
            assert_eq!(receipt.lifetime(), Micros::new(lifetime * 1_000_000));
        }
    }
}
