//! Operations without a decision: correct a charge, renew a permit, reset or block a key.

use tollgate_core::{Cost, Micros, PenaltyBlock, Policy, Receipt};

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
        self.settle_within(receipt.lifetime(), key, receipt_key, receipt, actual)
    }

    /// Like [`settle`](Self::settle), for a receipt that lapses after `lifetime`, or earlier by
    /// itself.
    pub fn settle_within(
        &mut self,
        lifetime: Micros,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
    ) -> Result<(), EncodeError> {
        let (cost, actual) = (receipt.charged.cost.get(), actual.get());
        let kind = if actual > cost { OWE } else { GIVE_BACK };
        let units = actual.abs_diff(cost);
        self.correct(kind, key, receipt_key, receipt, units, lifetime, Asked::Settle)
    }

    /// Adds a request to renew a permit. `receipt_key` marks whether it was settled.
    pub fn renew(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
    ) -> Result<(), EncodeError> {
        self.correct(RENEW, key, receipt_key, receipt, 0, receipt.lifetime(), Asked::Renew)
    }

    /// Adds a request about a receipt.
    #[expect(clippy::too_many_arguments, reason = "each is one part of the request")]
    fn correct(
        &mut self,
        kind: u8,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        units: u64,
        lifetime: Micros,
        asked: Asked,
    ) -> Result<(), EncodeError> {
        self.make_room(2)?;
        let charged = receipt.charged;
        let (state, settled) = (self.number(key), self.number(receipt_key));
        let (_, form) = self.form(&receipt.policy);
        self.scratch.clear();
        self.scratch.extend([kind, 0, 1]);
        for number in [state, form, settled] {
            put::<2>(&mut self.scratch, number);
        }
        put::<7>(&mut self.scratch, exact(units));
        put::<7>(&mut self.scratch, exact(charged.cost.get()));
        put::<7>(&mut self.scratch, charged.charged_at.as_micros());
        put::<7>(&mut self.scratch, charged.leaves_at.as_micros());
        put::<7>(&mut self.scratch, charged.resets_at.as_micros());
        put::<7>(&mut self.scratch, charged.refunded);
        put::<7>(&mut self.scratch, lifetime.get());
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
        self.scratch.clear();
        self.scratch.extend([BLOCK, 0, 1]);
        put::<2>(&mut self.scratch, key);
        put::<2>(&mut self.scratch, form);
        put::<7>(&mut self.scratch, block.length.map_or(1 << 53, |length| exact(length.get())));
        put::<7>(&mut self.scratch, block.known_at.as_micros());
        self.request(Asked::Block, &[key]);
        Ok(())
    }

    /// Adds a request to reset a key.
    pub fn reset(&mut self, key: &[u8]) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let key = self.number(key);
        self.scratch.clear();
        self.scratch.extend([RESET, 0, 1]);
        put::<2>(&mut self.scratch, key);
        self.request(Asked::Reset, &[key]);
        Ok(())
    }
}
