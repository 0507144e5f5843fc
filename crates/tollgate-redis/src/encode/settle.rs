//! What comes after a charge: it is corrected, its lease renewed, or its key forgotten.

use tollgate_core::{Cost, Micros, Receipt, Timestamp};

use super::{Asked, Batch, EncodeError, GIVE_BACK, OWE, RENEW, RESET};
use crate::bytes::{exact, put};

impl Batch {
    /// Adds the settling of a receipt. That it was settled is kept under `receipt_key`.
    pub fn settle(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        self.settle_within(receipt.lifetime(), key, receipt_key, receipt, actual, deadline)
    }

    /// The same for a receipt that lapses after `lifetime`, or sooner by itself.
    pub fn settle_within(
        &mut self,
        lifetime: Micros,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        let (cost, actual) = (receipt.charged.cost.get(), actual.get());
        let kind = if actual > cost { OWE } else { GIVE_BACK };
        self.correct(kind, key, receipt_key, receipt, actual.abs_diff(cost), lifetime)?;
        self.request(deadline, Asked::Settle);
        Ok(())
    }

    /// Adds the renewal of a lease. Whether it was settled stands under `receipt_key`.
    pub fn renew(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        self.correct(RENEW, key, receipt_key, receipt, 0, receipt.lifetime())?;
        self.request(deadline, Asked::Renew);
        Ok(())
    }

    /// Puts an operation on a receipt into `scratch`.
    fn correct(
        &mut self,
        kind: u8,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        units: u64,
        lifetime: Micros,
    ) -> Result<(), EncodeError> {
        self.make_room(2)?;
        let charged = receipt.charged;
        let numbers =
            [self.keys.number(key), self.form(&receipt.policy), self.keys.number(receipt_key)];
        self.scratch.clear();
        self.scratch.push(kind);
        for number in numbers {
            put::<2>(&mut self.scratch, number);
        }
        put::<7>(&mut self.scratch, exact(units));
        put::<7>(&mut self.scratch, exact(charged.cost.get()));
        put::<7>(&mut self.scratch, charged.charged_at.as_micros());
        put::<7>(&mut self.scratch, charged.leaves_at.as_micros());
        put::<7>(&mut self.scratch, lifetime.get());
        Ok(())
    }

    /// Adds a request to forget a key.
    pub fn reset(&mut self, key: &[u8], deadline: Option<Timestamp>) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let key = self.keys.number(key);
        self.scratch.clear();
        self.scratch.push(RESET);
        put::<2>(&mut self.scratch, key);
        self.request(deadline, Asked::Reset);
        Ok(())
    }
}
