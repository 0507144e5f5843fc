//! Names that no other process generates, even if its memory is a copy of this process's.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{ReceiptId, Timestamp};

use crate::clock::Moment;

/// A process's random bits, and counters.
///
/// Machines restored from the same snapshot have both in common. Each name therefore also contains
/// a time that they do not share: Redis' time of the call, which is unique because each call takes
/// longer than a microsecond, or this process's time.
#[derive(Debug)]
pub(crate) struct Ids {
    process: u64,
    receipts: AtomicU64,
    blocks: AtomicU64,
    calls: AtomicU64,
}

impl Ids {
    pub(crate) const fn new(process: u64) -> Self {
        let [receipts, blocks, calls] = [const { AtomicU64::new(0) }; 3];
        Self { process, receipts, blocks, calls }
    }

    /// Returns this process's random bits.
    pub(crate) const fn process(&self) -> u64 {
        self.process
    }

    /// Returns a new receipt id, for a charge that Redis made at `decided_at`.
    pub(crate) fn receipt(&self, decided_at: Timestamp) -> ReceiptId {
        ReceiptId::new(self.process, decided_at, next(&self.receipts))
    }

    /// Returns this process's part in a block's name. Redis adds its time of the call.
    pub(crate) fn tag(&self) -> u32 {
        // The low bits suffice: no block is still in use 2^32 blocks later.
        self.process.wrapping_add(next(&self.blocks)) as u32
    }

    /// Returns a call's number, which its reply repeats. It differs from all other calls' numbers
    /// on the connection, even if two copies of a virtual machine share a copy of the connection.
    pub(crate) fn nonce(&self, sent: Moment) -> u64 {
        self.process ^ (sent << COUNT_BITS | next(&self.calls) & ((1 << COUNT_BITS) - 1))
    }
}

fn next(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed)
}

/// No process sends more calls than this many bits can count within a microsecond. The remaining
/// bits hold half a year of microseconds.
const COUNT_BITS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_per_process() {
        let ids = Ids::new(7);
        let at = Timestamp::from_micros(5);
        let receipts: Vec<_> = (0..100).map(|_| ids.receipt(at)).collect();
        let tags: Vec<_> = (0..100).map(|_| ids.tag()).collect();
        let nonces: Vec<_> = (0..100).map(|n| ids.nonce(n / 10)).collect();
        for n in 1..100 {
            assert!(!receipts[..n].contains(&receipts[n]));
            assert!(!tags[..n].contains(&tags[n]));
            assert!(!nonces[..n].contains(&nonces[n]));
        }
    }

    #[test]
    fn process_copies_generate_distinct_ids() {
        let (one, copy) = (Ids::new(7), Ids::new(7));
        let [at, later] = [5, 6].map(Timestamp::from_micros);
        assert_ne!(one.receipt(at), copy.receipt(later));
        assert_ne!(one.nonce(5), copy.nonce(6));
    }
}
