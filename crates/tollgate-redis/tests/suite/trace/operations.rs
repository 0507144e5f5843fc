//! A trace's operations, each with the reference's answer.

use tollgate_core::{
    Charge, Cost, Key, Micros, Outcome, OwnedCharge, PenaltyBlock, Policy, Receipt, ReceiptId,
    Settlement, Timestamp,
};
use tollgate_redis::protocol::{Ask, KeyedCharge, ScriptAnswer, Spent};
use tollgate_store_tests::vary;

use super::{Decided, Expected, Family, Trace, policies, redis_key};
use crate::versions::is_leased;

impl Trace {
    pub(super) fn decide(&mut self, expected: &mut Expected) {
        let repeats = self.family != Family::LongLogs && !expected.decided.is_empty();
        let decided = match self.rng.u8(..3) {
            // Equal requests in a call are decided together.
            0 if repeats => expected.decided[self.rng.usize(..expected.decided.len())].clone(),
            _ => self.request(),
        };
        expected.decided.push(decided.clone());
        let charges: Vec<_> = decided.iter().map(OwnedCharge::as_charge).collect();
        let names: Vec<_> =
            charges.iter().map(|charge| redis_key(charge.policy, charge.key)).collect();
        let lines: Vec<_> =
            charges.iter().zip(&names).map(|(&charge, key)| KeyedCharge { key, charge }).collect();
        expected.batch.decide(&lines).expect("room");
        expected.text.push(format!("{charges:?}"));
        if expected.stale || decided.iter().any(|it| expected.is_outside_periods(&it.policy)) {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        let verdict = self.reference.decide(&charges, expected.now);
        for (charge, decision) in charges.iter().zip(verdict.decisions()) {
            self.clock.note(charge.policy, decision);
            // Beside an enforced charge to the same key, a shadow charge takes no units.
            let beside = |other: &Charge<'_>| {
                other.enforce
                    && other.key == charge.key
                    && other.policy.name() == charge.policy.name()
            };
            let takes = charge.cost > Cost::ZERO && (charge.enforce || !charges.iter().any(beside));
            let is_struck = charge.policy.counts_denials() && !verdict.is_admitted();
            if is_struck && self.reference.is_held(charge.policy, charge.key, expected.now) {
                self.written(charge.policy, charge.key);
            }
            let takes = takes && !charge.policy.is_penalty();
            if takes && matches!(decision.outcome, Outcome::Allow { .. }) {
                self.charged += u128::from(charge.cost.get());
                self.written(charge.policy, charge.key);
            }
        }
        let ids = &mut self.ids;
        let next_id = || {
            *ids += 1;
            ReceiptId(*ids)
        };
        let receipts: Vec<_> = verdict.receipts(&charges, next_id).collect();
        for receipt in receipts {
            if self.receipts.len() < 40 {
                self.receipts.push(receipt);
            } else {
                let index = self.rng.usize(..40);
                self.receipts[index] = receipt;
            }
        }
        let frozen = self.reference.frozen(&charges, &verdict, expected.now);
        self.frozen += frozen.iter().filter(|span| **span > Micros::ZERO).count();
        expected.rows.push(ScriptAnswer::Verdict(verdict, frozen.into()));
    }

    /// Returns a random request, see [`Decided`].
    fn request(&mut self) -> Decided {
        let mut policies: Vec<Policy> = Vec::new();
        let charges =
            if self.family == Family::Heavy { 1 } else { [1, 1, 1, 2, 3][self.rng.usize(..5)] };
        for _ in 0..charges {
            let policy = self.policy();
            // One name with two quotas is an error before the script runs.
            let same = policies.iter().find(|other| other.name() == policy.name());
            policies.push(same.unwrap_or(&policy).clone());
        }
        let keys: Vec<Key> = policies.iter().map(|_| self.key()).collect();
        let mut cost = |policy| Cost::new(policies::cost(&mut self.rng, policy, self.family));
        let costs: Vec<_> = policies.iter().map(&mut cost).collect();
        let charges = policies.iter().zip(&keys).zip(costs);
        let charges = charges.map(|((policy, key), cost)| Charge::new(policy, key, cost));
        // A script without calendars does not know the period in which a queued request leaves.
        vary(&mut self.rng, charges, !self.has_calendars).iter().map(OwnedCharge::from).collect()
    }

    /// Settles a receipt, or renews its lease.
    pub(super) fn correct(&mut self, expected: &mut Expected) {
        let index = match self.rng.u8(..3) {
            0 => self.receipts.len() - 1,
            _ => self.rng.usize(..self.receipts.len()),
        };
        let receipt = self.receipts[index].clone();
        if receipt.policy.is_concurrency() && self.rng.bool() {
            self.renew(expected, index, &receipt);
        } else {
            self.settle(expected, index, &receipt);
        }
    }

    fn renew(&mut self, expected: &mut Expected, index: usize, receipt: &Receipt) {
        let key = redis_key(&receipt.policy, &receipt.key);
        let receipt_key = format!("r:{}", receipt.id.0).into_bytes();
        let encoded = expected.batch.renew(&key, &receipt_key, receipt);
        encoded.expect("room");
        expected.text.push(format!("renew {receipt:?}"));
        if expected.stale {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        let renewed = self.reference.renew(receipt, expected.now);
        let begun = renewed.as_ref().map(|renewed| renewed.charged.charged_at);
        expected.rows.push(ScriptAnswer::Renewal(begun));
        if let Some(renewed) = renewed {
            self.written(&receipt.policy, &receipt.key);
            // Sometimes the old receipt is used again.
            if self.rng.u8(..8) > 0 {
                self.receipts[index] = renewed;
            }
        }
    }

    fn settle(&mut self, expected: &mut Expected, index: usize, receipt: &Receipt) {
        // Sometimes the receipt remains, to be settled again.
        if self.rng.u8(..4) > 0 {
            self.receipts.swap_remove(index);
        }
        let cost = receipt.charged.cost.get();
        let actual = Cost::new(match self.rng.u8(..10) {
            // A debt as large as the capacity, after which a single entry fills a log.
            0 if self.family != Family::LongLogs => u64::MAX,
            1..4 => 0,
            4 => cost,
            _ => self.rng.u64(0..=cost.saturating_mul(2)),
        });
        let now = expected.now;
        let stale = expected.stale || expected.is_outside_periods(&receipt.policy);
        let first = !stale && !receipt.has_lapsed(now) && !self.settled.contains(&receipt.id);
        let held = self.reference.is_held(&receipt.policy, &receipt.key, now);
        let key = redis_key(&receipt.policy, &receipt.key);
        let receipt_key = format!("r:{}", receipt.id.0).into_bytes();
        let encoded = expected.batch.settle(&key, &receipt_key, receipt, actual);
        encoded.expect("room");
        expected.text.push(format!("{receipt:?} to {actual:?}"));
        if stale {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        let (policy, key) = (&receipt.policy, &receipt.key);
        let settlement = self.reference.settle(receipt, actual, now);
        if first {
            self.settled.insert(receipt.id);
        }
        match settlement {
            Settlement::Charged { .. } => self.written(policy, key),
            // A refund of zero units returns and writes no state.
            Settlement::Returned { .. } if held => self.written(policy, key),
            _ => {}
        }
        expected.rows.push(ScriptAnswer::Settlement(settlement));
    }

    pub(super) fn lease(&mut self, expected: &mut Expected) {
        let (mut policy, mut key) = (self.policy(), self.key());
        if policy.quota().calendar().is_some() {
            // Calendar policies cannot be leased.
            return;
        }
        let mut spent = Vec::new();
        if !self.blocks.is_empty() && self.rng.u8(..3) > 0 {
            // Blocks are settled as granted, under any version of the policy.
            let index = self.rng.usize(..self.blocks.len());
            let (of, whose, block) = self.blocks[index].clone();
            if self.rng.bool() || of.name() != policy.name() {
                policy = of;
            }
            key = whose;
            let units = self.rng.u64(0..=block.units + block.units / 8);
            spent.push(Spent { units, ..block });
            if self.rng.u8(..4) > 0 {
                self.blocks.swap_remove(index);
            }
        }
        // A policy that cannot be leased may settle blocks from before its quota changed.
        let most = policy.capacity();
        let units = match self.rng.u8(..4) {
            _ if !is_leased(&policy) => 0,
            0 => 0,
            1 => 1,
            2 => self.rng.u64(1..=most),
            _ => (most / 8).max(1),
        };
        let ttl = Micros::new(policy.window().get() * self.rng.u64(1..=10) / 10);
        let name = redis_key(&policy, &key);
        // Machine copies may use equal tags, and requests that share a call share its time.
        let ask = Ask { tag: self.rng.u32(..3), units, ttl };
        expected.batch.lease(&name, &policy, &spent, ask).expect("room");
        expected.text.push(format!("{ask:?} of {policy:?} {key:?}, {spent:?}"));
        if expected.stale || expected.is_outside_periods(&policy) {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        let (now, id) = (expected.now, ask.id(expected.now));
        let is_known =
            spent.iter().any(|block| self.reference.knows_block(&policy, &key, block.id, now));
        let spent: Vec<_> = spent.iter().map(|block| (block.id, block.units)).collect();
        let granted = self.reference.lease((&policy, &key), now, &spent, (id, units, ttl));
        if is_known || granted.units > 0 {
            self.written(&policy, &key);
        }
        if granted.units > 0 {
            self.granted += 1;
            self.clock.retry_at = self.clock.now.saturating_add(granted.lasts.get());
            self.blocks.push((policy, key, Spent { id, units: granted.units }));
        }
        expected.rows.push(ScriptAnswer::Leased(granted));
    }

    pub(super) fn reset(&mut self, expected: &mut Expected) {
        let (policy, key) = (self.policy(), self.key());
        let name = redis_key(&policy, &key);
        expected.batch.reset(&name).expect("room");
        expected.text.push(format!("reset {policy:?} {key:?}"));
        if expected.stale {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        self.reference.reset(&policy, &key, expected.now);
        // Leased units remain.
        if self.expiries.contains_key(&name) {
            self.written(&policy, &key);
        }
        expected.rows.push(ScriptAnswer::Reset);
    }

    pub(super) fn block(&mut self, expected: &mut Expected) {
        let (policy, key) = (self.policy(), self.key());
        if !policy.is_penalty() {
            return;
        }
        let length = Micros::new(self.rng.u64(0..=2 * policy.window().get()));
        let length = (self.rng.u8(..3) > 0).then_some(length);
        let known_at = match self.rng.u8(..3) {
            0 => Timestamp::MAX,
            _ => Timestamp::from_micros(expected.now.as_micros() - self.rng.u64(..1_000)),
        };
        let block = PenaltyBlock { length, known_at };
        expected.batch.block(&redis_key(&policy, &key), &policy, block).expect("room");
        expected.text.push(format!("{block:?} {policy:?} {key:?}"));
        if expected.stale {
            expected.rows.push(ScriptAnswer::Stale);
            return;
        }
        let blocked = self.reference.block(&policy, &key, block, expected.now);
        if blocked.is_some() {
            self.written(&policy, &key);
        }
        expected.rows.push(ScriptAnswer::Blocked(blocked));
    }
}
