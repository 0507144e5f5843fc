//! Charges, and receipts to correct them.

use crate::{Cost, Key, Micros, Policy, Source, Timestamp};

/// A request to take `cost` units from the quota of `key` under `policy`: one of the charges that a
/// store decides together.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The key of the quota.
    pub key: &'a Key,
    /// The units.
    pub cost: Cost,
    /// Whether a denial by this policy denies the request. A policy without this (a shadow) is
    /// charged only if it allows and the others admit the request.
    pub enforce: bool,
    /// Only asks. See [`dry`](Charge::dry).
    pub dry: bool,
}

impl<'a> Charge<'a> {
    /// Makes a charge whose denial denies the request.
    pub const fn new(policy: &'a Policy, key: &'a Key, cost: Cost) -> Self {
        Self { policy, key, cost, enforce: true, dry: false }
    }

    /// Returns whether both charges take from one quota.
    pub fn shares_quota_with(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.name() == other.policy.name()
    }

    /// Makes a shadow charge: it never denies the request.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.enforce = false;
        self
    }

    /// Makes a dry charge, which only asks for the decision after the other charges of the request.
    /// It takes no units and is not added to other charges, so one request can ask about several
    /// costs of one key. If it would pass, its outcome is
    /// [`Outcome::WouldAllow`](crate::Outcome::WouldAllow).
    #[must_use]
    pub const fn dry(mut self) -> Self {
        self.enforce = false;
        self.dry = true;
        self
    }
}

/// The unique name of a receipt, of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(pub u128);

impl ReceiptId {
    /// Makes a name of the random bits of a process, the time of the verdict, and a count in the
    /// process.
    ///
    /// Machines that are restored from one snapshot have the same bits and count. The time tells
    /// their receipts apart if they share a store, which never decides for both at one instant.
    pub const fn new(process: u64, decided_at: Timestamp, count: u64) -> Self {
        let process = process ^ decided_at.as_micros();
        Self((process as u128) << 64 | count as u128)
    }
}

/// The proof of one charge, so that a store can correct the charge once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The name of the receipt. A store settles each name once.
    pub id: ReceiptId,
    /// The store that made the charge and can correct it.
    pub source: Source,
    /// The policy that was charged.
    pub policy: Policy,
    /// The key that was charged.
    pub key: Key,
    /// The units and the time of the charge.
    pub charged: Charged,
}

impl Receipt {
    /// The longest lifetime of a receipt. After it, the charge stands.
    pub const LIFETIME: Micros = Micros::new(3_600_000_000);

    /// The shortest lifetime of a receipt of a rate: a response may take longer than a window of a
    /// second.
    pub const MIN_LIFETIME: Micros = Micros::new(300_000_000);

    /// Returns the receipt of a permit that was renewed at `charged_at`.
    #[must_use]
    pub fn begun_at(&self, charged_at: Timestamp) -> Self {
        let charged = Charged { charged_at, leaves_at: charged_at, ..self.charged };
        Self { charged, ..self.clone() }
    }

    /// Returns how long the receipt can be settled, which is how long a store must remember that it
    /// was: the window of its policy. For a rate that is at least
    /// [`MIN_LIFETIME`](Self::MIN_LIFETIME) and at most [`LIFETIME`](Self::LIFETIME).
    pub fn lifetime(&self) -> Micros {
        let window = self.policy.window();
        if self.policy.is_concurrency() {
            return window;
        }
        window.max(Self::MIN_LIFETIME).min(Self::LIFETIME)
    }

    /// Returns whether the time to settle the receipt is over.
    pub fn has_lapsed(&self, now: Timestamp) -> bool {
        now >= self.charged.charged_at + self.lifetime()
    }
}

/// The facts about a charge that an algorithm needs to correct it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Units taken.
    pub cost: Cost,
    /// The instant under which the charge was written.
    pub charged_at: Timestamp,
    /// The instant at which the request may continue: that of the decision, or later for a leaky
    /// bucket in queue mode.
    pub leaves_at: Timestamp,
}

/// The effect of settling a receipt.
///
/// The set is closed: a caller that corrects its numbers has to treat every effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Units were refunded: at most the difference, and only units that still counted.
    Returned {
        /// Refunded units.
        units: u64,
    },
    /// The actual cost was higher, and the difference was charged now.
    Charged {
        /// Charged units, at most up to a debt of one capacity.
        units: u64,
    },
    /// This receipt was settled before; nothing changed.
    Repeated,
    /// It is too late to settle this receipt; nothing changed.
    Lapsed,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Quota;

    #[test]
    fn a_receipt_can_be_settled_within_its_window_between_five_minutes_and_an_hour() {
        for (window, lifetime) in [(1, 300), (300, 300), (600, 600), (86_400, 3_600)] {
            let quota = Quota::new(1, Duration::from_secs(window));
            let receipt = Receipt {
                id: ReceiptId(1),
                source: Source::Store,
                policy: Policy::token_bucket("p", quota).unwrap(),
                key: Key::GLOBAL,
                charged: Charged {
                    cost: Cost::ONE,
                    charged_at: Timestamp::EPOCH,
                    leaves_at: Timestamp::EPOCH,
                },
            };
            assert_eq!(receipt.lifetime(), Micros::new(lifetime * 1_000_000));
        }
    }
}
