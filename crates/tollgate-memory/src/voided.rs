//! Charges that can no longer be told from others.

use std::collections::{HashMap, VecDeque};

use tollgate_core::{Receipt, Timestamp};

/// Remembers the instants up to which the charges of a key count no more as they were
/// made: it was reset, or its state was carried over to another quota. What a receipt
/// from before then gave back would be taken from others.
///
/// An instant is kept as long as a receipt from before it can be settled. When there
/// are too many, the oldest give way to one for all keys, which refuses more than need be.
#[derive(Debug, Default)]
pub(crate) struct Voided {
    /// By the hash of policy and key: where two share one, both are refused.
    instants: HashMap<u64, Timestamp>,
    queue: VecDeque<(Timestamp, u64)>,
    all: Option<Timestamp>,
}

/// Keys remembered in each shard, some 40 bytes each.
const CAPACITY: usize = 4_096;

impl Voided {
    /// The charges made to `slot` up to `now` count no more as they were made.
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

    /// Whether a charge made to `slot` at `charged_at` counts no more as it was made.
    pub(crate) fn contains(&self, slot: u64, charged_at: Timestamp) -> bool {
        let until = self.instants.get(&slot).copied().max(self.all);
        until.is_some_and(|until| charged_at <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gives_way_is_refused_with_all_others() {
        let mut voided = Voided::default();
        let at = Timestamp::from_micros;
        for slot in 0..=CAPACITY as u64 {
            voided.insert(slot, at(slot));
        }
        // The first has given way, and so everything up to its instant is refused.
        assert!(voided.contains(99_999, at(0)) && !voided.contains(99_999, at(1)));
        assert!(voided.contains(7, at(7)) && !voided.contains(7, at(8)));
        let later = at(1) + Receipt::LIFETIME;
        voided.insert(1, later);
        assert!(voided.contains(1, later) && voided.instants.len() <= CAPACITY);
    }
}
