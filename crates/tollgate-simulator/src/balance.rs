//! Checks that no unit is lost: "after a quiet time, and after leases were returned, a store has the
//! limit minus the spent units".
//!
//! Other checks bound how many units are admitted. This check also finds lost units, for example if a
//! replica does not report a block's unspent units.

use std::ops::RangeInclusive;
use std::time::Duration;

use tollgate_core::{Cost, Key, Settlement, StoreExt, Timestamp};

use crate::history::{History, PolicyKey};
use crate::limit::{Config, Limit};
use crate::replica::{KEYS, Replica};
use crate::world::World;

/// The units that a key's charges have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// Charged or spent according to the replicas, and possibly charged.
    pub(crate) known: u64,
    pub(crate) maybe: u64,
    /// Refunded and charged by settlements, and their number.
    pub(crate) returned: u64,
    pub(crate) owed: u64,
    pub(crate) settled: u64,
}

/// Blocks with a longer time to live are reported in time, unless a call fails.
const LEAST_TTL: Duration = Duration::from_millis(300);

impl Account {
    pub(crate) fn settle(&mut self, settlement: Settlement) {
        self.settled += 1;
        match settlement {
            Settlement::Returned { units } => self.returned += units,
            Settlement::Charged { units } => self.owed += units,
            Settlement::Repeated | Settlement::Lapsed => {}
        }
    }

    /// The units that may remain of `limit`. `lost` units belong to blocks that no replica knows.
    fn remaining(&self, limit: &Limit, capacity: u64, lost: u64) -> RangeInclusive<u64> {
        // Buckets refill fractions of a unit, and their refunds are rounded.
        let slack = if limit.refunds_exactly() { 0 } else { 1 + self.settled };
        let least = (self.known + self.owed).saturating_sub(self.returned);
        let most = least + self.maybe + lost;
        let left = |units: u64| capacity.saturating_sub(units);
        left(most + slack)..=(left(least) + slack).min(capacity)
    }
}

/// Checks all keys after the run. `quiet` is since when no request was made, by each server's clock.
pub(crate) async fn check(
    world: &World,
    config: &Config,
    replicas: &[Replica],
    quiet: &[Timestamp],
) {
    let kept = config.limits.iter().filter(|limit| limit.is_kept() && limit.shows_units());
    for (limit, label) in kept.flat_map(|limit| KEYS.map(|label| (limit, label))) {
        let policy_key = (limit.name().to_owned(), label.to_owned());
        for replica in replicas {
            replica.check_local_balance(limit, &policy_key).await;
        }
        let mut state = world.lock();
        if !state.history.is_whole() {
            continue;
        }
        let policy = &limit.versions[0];
        let (name, key) = replicas[0].stored_key(policy, &Key::new(label));
        let left = state.owner(&name).ask(policy, &key, Cost::ZERO).remaining;
        let account = state.history.account(None, &policy_key);
        let range =
            account.remaining(limit, policy.capacity(), state.history.lost_units(&policy_key));
        if !range.contains(&left) {
            let violation =
                format!("the server has {left} units instead of {range:?}: {account:?}");
            state.history.fail(policy_key, violation);
        }
    }
    let mut state = world.lock();
    let is_calm = !state.has_faults && !state.has_moves;
    state.history.check_blocks(quiet, is_calm);
}

impl Replica {
    /// A local store loses no state, so its units are known exactly.
    async fn check_local_balance(&self, limit: &Limit, policy_key: &PolicyKey) {
        let account = self.world().lock().history.account(Some(self.number()), policy_key);
        let policy = self.local_share(&limit.versions[0]);
        let is_reshared = self.world().lock().history.reshared.contains(policy_key);
        if account.known == 0 || is_reshared || self.shares_overflow() {
            return;
        }
        let verdict = self.local().peek(&policy, &Key::new(&*policy_key.1)).await;
        let left = verdict.expect("a memory store decides").decisions()[0].remaining;
        let range = account.remaining(limit, policy.capacity(), 0);
        if !range.contains(&left) {
            let number = self.number();
            let violation = format!(
                "the local store of replica {number} has {left} units instead of {range:?}: {account:?}"
            );
            self.world().lock().history.fail(policy_key.clone(), violation);
        }
    }
}

impl History {
    /// Whether a refund that a window algorithm made is complete.
    pub(crate) fn check_refund(&mut self, policy_key: &PolicyKey, expected: u64, units: u64) {
        if units != expected {
            let violation = format!("{units} units were refunded instead of {expected}");
            self.fail(policy_key.clone(), violation);
        }
    }

    /// "Units that replicas do not spend return to the quota": each block is reported with the units
    /// that were spent, unless the call failed until the block had expired.
    fn check_blocks(&mut self, quiet: &[Timestamp], is_calm: bool) {
        let mut violation = None;
        for (policy_key, block) in self.whole_blocks() {
            let is_reported = block.returned == Some(block.spent);
            let is_unknown = block.returned.is_none() && block.spent == 0 && !is_calm;
            let lives = self.lives(block, quiet);
            let is_long = block.until.since(block.granted_at) > LEAST_TTL.into();
            let must_report = block.returned.is_some() || lives || is_calm && is_long;
            let is_before = block.granted_at < quiet[block.server];
            if must_report && !is_reported && !(is_unknown && is_before) {
                violation =
                    Some((policy_key.clone(), format!("a block is not reported: {block:?}")));
            }
        }
        if let Some((policy_key, violation)) = violation {
            self.fail(policy_key, violation);
        }
    }
}
