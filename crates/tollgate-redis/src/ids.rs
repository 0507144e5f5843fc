//! Names that no other process gives, even if its memory is a copy of this one's.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{ReceiptId, Timestamp};

use crate::clock::Moment;

/// Random bits of this process, and counts.
///
/// Machines that are restored from one snapshot have them in common. So each name has a part that
/// they do not share: the time of Redis, which no two calls have in common, since each takes
/// longer than a microsecond, or the time of this process.
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

    /// The name of a receipt, for a charge that Redis made at `decided_at`.
    pub(crate) fn receipt(&self, decided_at: Timestamp) -> ReceiptId {
        ReceiptId::new(self.process, decided_at, next(&self.receipts))
    }

    /// This process' part of the name of a block. Redis adds its time of the call.
    pub(crate) fn tag(&self) -> u32 {
        // The low bits: 2^32 blocks later no one knows of this one.
        self.process.wrapping_add(next(&self.blocks)) as u32
    }

    /// The number of a call, which its reply repeats. It differs from the numbers of all other
    /// calls over the same connection, also if two copies of a virtual machine have a copy of the
    /// connection.
    pub(crate) fn nonce(&self, sent: Moment) -> u64 {
        self.process ^ (sent << COUNT_BITS | next(&self.calls) & ((1 << COUNT_BITS) - 1))
    }
}

fn next(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed)
}

/// More calls than these bits count are never sent within a microsecond. The other bits hold half
/// a year of them.
const COUNT_BITS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gives_no_name_twice() {
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
    fn a_copy_of_a_process_gives_other_names() {
        let (one, copy) = (Ids::new(7), Ids::new(7));
        let [at, later] = [5, 6].map(Timestamp::from_micros);
        assert_ne!(one.receipt(at), copy.receipt(later));
        assert_ne!(one.nonce(5), copy.nonce(6));
    }
}
