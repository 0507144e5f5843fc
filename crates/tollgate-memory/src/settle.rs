//! Correcting a charge, once.

use std::sync::atomic::Ordering;

use tollgate_core::{Cost, Receipt, Settlement, StoreError, Timestamp, with_rule};

use crate::any_table::Kind;
use crate::shard::{Place, Shard, Spot};
use crate::{Clock, Inner, NAME};

impl<C: Clock> Inner<C> {
    /// Settles a receipt under the lock of its key, which remembers it too.
    pub(crate) fn settle(
        &self,
        receipt: &Receipt,
        actual: Cost,
        now: Timestamp,
    ) -> Result<Settlement, StoreError> {
        let hash = self.hash(&receipt.key);
        let mut shard = self.shards[self.shard_number(hash)].lock();
        if receipt.has_lapsed(now) {
            return Ok(Settlement::Lapsed);
        }
        if shard.settled.contains(receipt.id) {
            return Ok(Settlement::Repeated);
        }
        if !shard.settled.has_room(now) {
            let reason = "as many receipts were settled within their lifetime as can be \
                          remembered; raise `max_receipts`";
            return Err(StoreError::not_charged(NAME, reason));
        }
        shard.settled.insert(receipt.id, now);
        let table = shard.table(&receipt.policy, &[]);
        let spot = Spot {
            policy: &receipt.policy,
            key: &receipt.key,
            hash,
            table,
        };
        Ok(with_rule!(receipt.policy.rule(), rule => {
            self.settle_as(rule, &mut shard, spot, receipt, actual, now)
        }))
    }

    fn settle_as<R: Kind>(
        &self,
        rule: &R,
        shard: &mut Shard,
        spot: Spot<'_>,
        receipt: &Receipt,
        actual: Cost,
        now: Timestamp,
    ) -> Settlement {
        let charged = receipt.charged.cost;
        let settle = |state: &mut R::State| {
            if actual > charged {
                let units = rule.owe(state, actual.get() - charged.get(), now);
                Settlement::Charged { units }
            } else {
                let units = charged.get() - actual.get();
                Settlement::Returned {
                    units: rule.give_back(state, &receipt.charged, units, now),
                }
            }
        };
        let place = shard.place(spot, now);
        shard.finish();
        match place {
            Place::Here => {
                if let Some(state) = shard.state_mut::<R>(spot) {
                    return settle(state);
                }
                Settlement::Returned { units: 0 }
            }
            Place::Moved { from } => {
                let Some(mut state) = shard.moved(rule, from, spot, now) else {
                    return Settlement::Returned { units: 0 };
                };
                let settlement = settle(&mut state);
                shard.put::<R>(spot, place, state, now);
                settlement
            }
            // The charge has aged out, or was made to the overflow entry, in which it
            // cannot be told from those of others: there is nothing to give back.
            _ if actual <= charged => Settlement::Returned { units: 0 },
            Place::New => {
                let mut state = rule.fresh();
                let settlement = settle(&mut state);
                shard.put::<R>(spot, place, state, now);
                settlement
            }
            Place::Full => {
                let mut overflow = self.overflow.lock();
                self.overflow_live.store(true, Ordering::Release);
                let shared = &tollgate_core::Key::GLOBAL;
                let table = overflow.table(&receipt.policy, &[]);
                let spot = Spot {
                    key: shared,
                    hash: self.hash(shared),
                    table,
                    ..spot
                };
                let place = overflow.place(spot, now);
                overflow.finish();
                let mut state = overflow
                    .shared(rule, spot.policy, now)
                    .unwrap_or_else(|| rule.fresh());
                let settlement = settle(&mut state);
                overflow.forget(spot.policy, spot.hash, shared);
                overflow.put::<R>(
                    spot,
                    if place == Place::Here {
                        Place::New
                    } else {
                        place
                    },
                    state,
                    now,
                );
                settlement
            }
        }
    }
}
