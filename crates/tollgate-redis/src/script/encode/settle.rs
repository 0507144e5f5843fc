//! Operations without a decision: correct a charge, renew a permit, reset or block a key.

use tollgate_core::{Cost, PenaltyBlock, Policy, Receipt};

use super::{Asked, BLOCK, Batch, EncodeError, GIVE_BACK, OWE, RENEW, RESET};
use crate::script::bytes::{exact, put};

impl Batch {
    /// Adds a request to settle a receipt, which is then marked as settled under `receipt_key`.
    pub fn settle(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
    ) -> Result<(), EncodeError> {
        let (cost, actual) = (receipt.charged.cost.get(), actual.get());
        let kind = if actual > cost { OWE } else { GIVE_BACK };
        let units = actual.abs_diff(cost);
        self.correct(kind, key, receipt_key, receipt, units, Asked::Settle)
    }

    /// Adds a request to renew a permit. `receipt_key` marks whether it was settled.
    pub fn renew(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
    ) -> Result<(), EncodeError> {
        self.correct(RENEW, key, receipt_key, receipt, 0, Asked::Renew)
    }

    /// Adds a request about a receipt.
    fn correct(
        &mut self,
        kind: u8,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        units: u64,
        asked: Asked,
    ) -> Result<(), EncodeError> {
        self.make_room(2)?;
        let charged = receipt.charged;
        let (state, settled) = (self.number(key), self.number(receipt_key));
        let (_, form) = self.form(&receipt.policy);
        self.begin(kind, &[state, form, settled]);
        put::<7>(&mut self.scratch, exact(units));
        put::<7>(&mut self.scratch, exact(charged.cost.get()));
        put::<7>(&mut self.scratch, charged.charged_at.as_micros());
        put::<7>(&mut self.scratch, charged.leaves_at.as_micros());
        put::<7>(&mut self.scratch, charged.resets_at.as_micros());
        put::<7>(&mut self.scratch, charged.refunded);
        put::<7>(&mut self.scratch, charged.lifetime.get());
        self.request(asked, &[state, settled]);
        Ok(())
    }

    /// Adds a request to block a key under a penalty.
    pub fn block(
        &mut self,
        key: &[u8],
        policy: &Policy,
        block: PenaltyBlock,
    ) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let (key, (_, form)) = (self.number(key), self.form(policy));
        self.begin(BLOCK, &[key, form]);
        put::<7>(&mut self.scratch, block.length.map_or(1 << 53, |length| exact(length.get())));
        put::<7>(&mut self.scratch, block.known_at.as_micros());
        self.request(Asked::Block, &[key]);
        Ok(())
    }

    /// Adds a request to reset a key.
    pub fn reset(&mut self, key: &[u8]) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let key = self.number(key);
        self.begin(RESET, &[key]);
        self.request(Asked::Reset, &[key]);
        Ok(())
    }
}
