//! Receipts that are void because their charge can no longer be identified.

use std::collections::{HashMap, VecDeque};

use tollgate_core::{Receipt, Timestamp};

/// Remembers, per key, when the key was reset or its state moved to another quota. Receipts for
/// charges up to that instant are void: a refund would return units that the key no longer lacks.
///
/// An instant is stored while an earlier receipt can still be settled. If there are too many, the
/// oldest are merged into a single instant for all keys, which voids more receipts than necessary.
#[derive(Debug, Default)]
pub(crate) struct Voided {
    /// By the hash over policy and key. If two keys have the same hash, the receipts for both are
    /// void.
    instants: HashMap<u64, Timestamp>,
    /// Each key once, with its instant when it was queued.
    queue: VecDeque<(Timestamp, u64)>,
    all: Option<Timestamp>,
}

/// The maximum number of keys per shard, at about 40 bytes each.
const CAPACITY: usize = 4_096;

impl Voided {
    /// Voids receipts for charges to `slot` up to `now`.
    pub(crate) fn insert(&mut self, slot: u64, now: Timestamp) {
        if let Some(until) = self.instants.get_mut(&slot) {
            // The clock may step back.
            *until = now.max(*until);
            return;
        }
        while let Some(&(queued, oldest)) = self.queue.front() {
            let lapsed = now >= queued + Receipt::LIFETIME;
            if !lapsed && self.queue.len() < CAPACITY {
                break;
            }
            self.queue.pop_front();
            let until = self.instants[&oldest];
            if until > queued {
                // The key was voided again since it was queued.
                self.queue.push_back((until, oldest));
                continue;
            }
            if !lapsed {
                self.all = self.all.max(Some(until));
            }
            self.instants.remove(&oldest);
        }
        self.instants.insert(slot, now);
        self.queue.push_back((now, slot));
    }

    /// Whether the receipt for a charge made to `slot` at `charged_at` is void.
    pub(crate) fn contains(&self, slot: u64, charged_at: Timestamp) -> bool {
        let until = self.instants.get(&slot).copied().max(self.all);
        until.is_some_and(|until| charged_at <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_instant_voids_receipts_of_all_keys() {
        let mut voided = Voided::default();
        let at = Timestamp::from_micros;
        for slot in 0..=CAPACITY as u64 {
            voided.insert(slot, at(slot));
        }
        // The first instant was forgotten, so receipts up to that instant are void for all keys.
        assert!(voided.contains(99_999, at(0)) && !voided.contains(99_999, at(1)));
        assert!(voided.contains(7, at(7)) && !voided.contains(7, at(8)));
        let later = at(1) + Receipt::LIFETIME;
        voided.insert(1, later);
        assert!(voided.contains(1, later) && voided.instants.len() <= CAPACITY);
    }

    /// For example an address that sends requests in two tiers.
    #[test]
    fn key_voided_often_affects_no_other_key() {
        let mut voided = Voided::default();
        let at = Timestamp::from_micros;
        for now in 0..=CAPACITY as u64 {
            voided.insert(7, at(now));
        }
        assert!(voided.contains(7, at(CAPACITY as u64)) && !voided.contains(8, at(0)));
    }

    #[test]
    fn step_back_voids_no_fewer_receipts() {
        let mut voided = Voided::default();
        let at = Timestamp::from_micros;
        voided.insert(7, at(100));
        voided.insert(7, at(50));
        assert!(voided.contains(7, at(80)));
    }
}
