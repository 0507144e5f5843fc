//! Settles charges, renews permits and blocks keys.

use tollgate_core::algorithm::Rule;
use tollgate_core::{
    AnyRule, Charge, Cost, Key, Micros, PenaltyBlock, Policy, Receipt, Settlement, StoreError,
};

use crate::clock::Clock;
use crate::inner::{Inner, NAME};
use crate::settled::Entered;
use crate::versions::Change;

impl<C: Clock> Inner<C> {
    /// Settles a receipt while holding the locks for its key and its ID.
    pub(crate) fn settle(&self, receipt: &Receipt, actual: Cost) -> Result<Settlement, StoreError> {
        let Receipt { id, policy, key, charged, .. } = receipt;
        let (hash, shard) = self.locate(policy, key);
        let mut shard = self.shards[shard].lock();
        let mut settled = self.settled_of(*id).lock();
        let now = self.clock.now();
        shard.enter(now);
        if receipt.has_lapsed(now) {
            return Ok(Settlement::Lapsed);
        }
        if settled.contains(receipt) {
            return Ok(Settlement::Repeated);
        }
        match settled.enter(receipt, now) {
            Entered::New => {}
            Entered::Lapsed => return Ok(Settlement::Lapsed),
            Entered::NoRoom => {
                let reason = "no receipts are remembered; raise `max_receipts`";
                return Err(StoreError::not_charged(NAME, reason));
            }
        }
        let seat = shard.seat(&Charge::new(policy, key, Cost::ZERO), hash, &[], now);
        shard.finish();
        let (cost, actual) = (charged.cost.get(), actual.get());
        if actual > cost {
            // Additional units are charged under the current quota, if the receipt's quota is not
            // used any more.
            let held = shard.debtor(&seat, now).unwrap_or(policy).clone();
            let seat = shard.seat(&Charge::new(&held, key, Cost::ZERO), hash, &[], now);
            shard.finish();
            if held.is_penalty() && !seat.is_own() {
                // A strike on an overflow entry would block other keys.
                return Ok(Settlement::Charged { units: 0 });
            }
            let units = shard.change(&seat, Change::Owe(actual - cost), now);
            return Ok(Settlement::Charged { units });
        }
        // If the key is not found, its charges have expired. In an overflow entry or after a reset,
        // the charge cannot be told apart from other charges, so no units are refunded. Permits are
        // identified by their expiry.
        if !shard.identifies(&seat, receipt) {
            return Ok(Settlement::Returned { units: 0 });
        }
        // Permits return under the version that holds them, which an old receipt must not replace.
        let held = shard.debtor(&seat, now).filter(|_| policy.is_concurrency()).cloned();
        let seat = match &held {
            Some(held) => shard.seat(&Charge::new(held, key, Cost::ZERO), hash, &[], now),
            None => seat,
        };
        shard.finish();
        let units = shard.change(&seat, Change::GiveBack(*charged, cost - actual), now);
        Ok(Settlement::Returned { units })
    }

    /// Blocks a key under a penalty.
    pub(crate) fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Result<Option<Micros>, StoreError> {
        if !policy.is_penalty() {
            return Err(StoreError::not_blockable(NAME, policy));
        }
        let (hash, shard) = self.locate(policy, key);
        let mut shard = self.shards[shard].lock();
        let now = self.clock.now();
        shard.enter(now);
        let seat = shard.seat(&Charge::new(policy, key, Cost::ZERO), hash, &[], now);
        shard.finish();
        let mut block = || shard.change(&seat, Change::Block(block), now);
        let blocked = if seat.is_own() { block() } else { 0 };
        Ok((blocked > 0).then(|| Micros::new(blocked)))
    }

    /// Extends a permit by its time to live, while holding the same locks.
    pub(crate) fn renew(&self, receipt: &Receipt) -> Result<Option<Receipt>, StoreError> {
        let Receipt { id, policy, key, charged, .. } = receipt;
        let AnyRule::ConcurrentRequests(rule) = policy.rule() else {
            return Err(StoreError::not_renewable(NAME, policy));
        };
        let (hash, shard) = self.locate(policy, key);
        let mut shard = self.shards[shard].lock();
        let settled = self.settled_of(*id).lock();
        let now = self.clock.now();
        shard.enter(now);
        if settled.contains(receipt) {
            return Ok(None);
        }
        let seat = shard.seat(&Charge::new(policy, key, Cost::ZERO), hash, &[], now);
        shard.finish();
        let is_known = shard.identifies(&seat, receipt);
        let charged_at = shard.change_with(rule, &seat, now, |state| {
            if is_known {
                rule.give_back(state, charged, charged.cost.get(), now);
            }
            rule.renew(state, charged.cost.get(), now)
        });
        Ok(Some(receipt.begun_at(charged_at)))
    }
}
