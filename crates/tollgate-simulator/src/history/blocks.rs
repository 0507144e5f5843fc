//! Leased blocks.

use tollgate_core::Timestamp;

use super::{History, Place};

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
}

impl History {
    /// Returns the unspent units of a key's blocks that were not reported.
    pub(crate) fn lost_units(&self, place: &Place) -> u64 {
        let blocks = self.blocks.iter().filter(|((other, _), _)| other == place);
        let lost = blocks.filter(|(_, block)| block.returned.is_none());
        lost.map(|(_, block)| block.units - block.spent).sum()
    }

    /// Returns the blocks whose server had all its data and the right time since.
    pub(crate) fn whole_blocks(&self) -> impl Iterator<Item = (&Place, &Block)> {
        let is_whole = |place: &Place, block: &Block| block.breaks == self.breaks(place).count();
        let blocks = self.blocks.iter().map(|((place, _), block)| (place, block));
        blocks.filter(move |(place, block)| is_whole(place, block))
    }

    /// Returns the server that granted a block at this time.
    pub(crate) fn granter(&self, place: &Place, granted_at: Timestamp) -> Option<usize> {
        let block = self.blocks.get(&(place.clone(), granted_at.as_micros()))?;
        Some(block.server)
    }

    /// A replica spent units of the block that was granted at `granted_at`. "Units count at the
    /// latest instant at which they may be spent", also while clocks are slewed.
    pub(crate) fn spent(
        &mut self,
        place: Place,
        granted_at: Timestamp,
        units: u64,
        server: Timestamp,
    ) {
        let breaks = self.breaks(&place).count();
        let block = self.blocks.get_mut(&(place.clone(), granted_at.as_micros()));
        let Some(block) = block else {
            return self.fail(place, format!("{units} units were spent, and no block has them"));
        };
        block.spent += units;
        let (is_over, until) = (server >= block.until && block.breaks == breaks, block.until);
        let (spent, all) = (block.spent, block.units);
        self.account_mut(None, &place).known += units;
        if is_over {
            let violation =
                format!("{units} leased units were spent at {server:?}, after {until:?}");
            self.fail(place, violation);
        } else if spent > all {
            self.fail(place, format!("{spent} units were spent of a block of {all}"));
        }
    }
}
