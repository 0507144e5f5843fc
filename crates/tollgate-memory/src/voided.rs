//! Charges that can no longer be distinguished from others.

use std::collections::{HashMap, VecDeque};

use tollgate_core::{Receipt, Timestamp};

/// Remembers, per key, when the key was reset or its state moved to another quota. Receipts of
/// charges up to that instant are void: a refund would add units that the key no longer lacks.
///
/// An instant is kept while an earlier receipt can still be settled. If there are too many
/// instants, the oldest are replaced by one instant for all keys, which voids more receipts than
/// necessary.
#[derive(Debug, Default)]
pub(crate) struct Voided {
    /// By the hash of policy and key. If two keys have the same hash, the receipts of both are
    /// void.
    instants: HashMap<u64, Timestamp>,
    queue: VecDeque<(Timestamp, u64)>,
    all: Option<Timestamp>,
}

/// The number of keys remembered in each shard, about 40 bytes each.
const CAPACITY: usize = 4_096;

impl Voided {
    /// Voids the receipts of charges made to `slot` up to `now`.
    pub(crate) fn insert(&mut self, slot: u64, now: Timestamp) {
        while let Some(&(instant, oldest)) = self.queue.front() {
            let lapsed = now >= instant + Receipt::LIFETIME;
            if !lapsed && self.queue.len() < CAPACITY {
                break;
            }
            if !lapsed {
                self.all = self.all.max(Some(instant));
            }
            self.queue.pop_front();
            if self.instants.get(&oldest) == Some(&instant) {
                self.instants.remove(&oldest);
            }
        }
        self.instants.insert(slot, now);
        self.queue.push_back((now, slot));
    }

    /// Whether the receipt of a charge made to `slot` at `charged_at` is void.
    pub(crate) fn contains(&self, slot: u64, charged_at: Timestamp) -> bool {
        let until = self.instants.get(&slot).copied().max(self.all);
        until.is_some_and(|until| charged_at <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_up_to_a_forgotten_instant_are_void_for_all_keys() {
        let mut voided = Voided::default();
        let at = Timestamp::from_micros;
        for slot in 0..=CAPACITY as u64 {
            voided.insert(slot, at(slot));
        }
        // The first instant was forgotten, so receipts of all keys up to that instant are void.
        assert!(voided.contains(99_999, at(0)) && !voided.contains(99_999, at(1)));
        assert!(voided.contains(7, at(7)) && !voided.contains(7, at(8)));
        let later = at(1) + Receipt::LIFETIME;
        voided.insert(1, later);
        assert!(voided.contains(1, later) && voided.instants.len() <= CAPACITY);
    }
}
