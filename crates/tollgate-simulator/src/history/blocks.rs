//! Leased blocks.

use tollgate_core::Timestamp;

use super::{History, PolicyKey};
use crate::reached::LEASES;

/// A leased block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) server: usize,
    pub(super) id: u64,
    pub(super) units: u64,
    pub(crate) granted_at: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) spent: u64,
    /// The spent units that were reported to the server.
    pub(crate) returned: Option<u64>,
    pub(super) breaks: usize,
    pub(super) lags: usize,
}

impl History {
    /// Returns the unspent units of a key's blocks that were not reported.
    pub(crate) fn lost_units(&self, policy_key: &PolicyKey) -> u64 {
        let blocks = self.blocks.iter().filter(|((other, _), _)| other == policy_key);
        let lost = blocks.filter(|(_, block)| block.returned.is_none());
        lost.map(|(_, block)| block.units - block.spent).sum()
    }

    /// Returns the blocks whose server had all its data and the right time since.
    pub(crate) fn whole_blocks(&self) -> impl Iterator<Item = (&PolicyKey, &Block)> {
        let is_whole =
            |policy_key: &PolicyKey, block: &Block| block.breaks == self.breaks(policy_key).count();
        let blocks = self.blocks.iter().map(|((policy_key, _), block)| (policy_key, block));
        blocks.filter(move |(policy_key, block)| is_whole(policy_key, block))
    }

    /// Whether the replica must have reported the block, because it has not expired for the replica
    /// or the server. On a server with a slower clock, it expires later.
    pub(crate) fn lives(&self, block: &Block, quiet: &[Timestamp]) -> bool {
        block.until > quiet[block.server] && block.lags == self.lags(block.server)
    }

    /// Returns the server that granted a block at this time.
    pub(crate) fn granter(&self, policy_key: &PolicyKey, granted_at: Timestamp) -> Option<usize> {
        let block = self.blocks.get(&(policy_key.clone(), granted_at.as_micros()))?;
        Some(block.server)
    }

    /// A replica spent units of the block that was granted at `granted_at`. "Units count at the
    /// latest instant at which they may be spent", also while clocks are slewed.
    pub(crate) fn spent(
        &mut self,
        policy_key: PolicyKey,
        granted_at: Timestamp,
        units: u64,
        server: Timestamp,
    ) {
        let breaks = self.breaks(&policy_key).count();
        let block = self.blocks.get_mut(&(policy_key.clone(), granted_at.as_micros()));
        let Some(block) = block else {
            return self
                .fail(policy_key, format!("{units} units were spent, and no block has them"));
        };
        block.spent += units;
        let (is_over, until) = (server >= block.until && block.breaks == breaks, block.until);
        let (spent, all) = (block.spent, block.units);
        let (lasts, age) = (until.since(block.granted_at), server.since(block.granted_at));
        if age.get() > lasts.get() / 5 * 4 {
            self.reached.enter(LEASES, "spends in a block's last fifth");
        }
        self.account_mut(None, &policy_key).known += units;
        if is_over {
            let violation =
                format!("{units} leased units were spent at {server:?}, after {until:?}");
            self.fail(policy_key, violation);
        } else if spent > all {
            self.fail(policy_key, format!("{spent} units were spent of a block of {all}"));
        }
    }
}
