//! Blocks of units that are spent without asking: settled, and asked for.

use tollgate_core::{Micros, Policy, Timestamp};

use super::{Asked, Batch, EncodeError, LEASE};
use crate::bytes::{exact, put};

/// A block that is done with, and what was spent of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Its name.
    pub id: u64,
    /// The number of units.
    pub units: u64,
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The end of the block's name.
    pub tag: u32,
    /// The most units; `None` if blocks are only settled.
    pub units: u64,
    /// The longest time.
    pub ttl: Micros,
}

impl Ask {
    /// The name of the block that a call at this time of Redis grants. Copies of a virtual machine
    /// may use equal tags, but each makes its own call, and no two calls have one time.
    pub const fn id(&self, now: Timestamp) -> u64 {
        now.as_micros() << 32 | self.tag as u64
    }
}

impl Batch {
    /// Adds a request to settle up to 255 blocks and to grant another.
    pub fn lease(
        &mut self,
        key: &[u8],
        policy: &Policy,
        spent: &[Spent],
        ask: Ask,
    ) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let count = u8::try_from(spent.len()).map_err(|_| EncodeError::TooManyCharges)?;
        let (key, (_, form)) = (self.keys.number(key), self.form(policy));
        self.scratch.clear();
        self.scratch.extend([LEASE, 0, 1]);
        put::<2>(&mut self.scratch, key);
        put::<2>(&mut self.scratch, form);
        put::<5>(&mut self.scratch, ask.units.min(Policy::MAX_LIMIT));
        put::<7>(&mut self.scratch, exact(ask.ttl.get()));
        put::<4>(&mut self.scratch, ask.tag.into());
        self.scratch.push(count);
        for block in spent {
            put::<8>(&mut self.scratch, block.id);
            put::<5>(&mut self.scratch, block.units.min(Policy::MAX_LIMIT));
        }
        self.request(Asked::Lease, &[key]);
        Ok(())
    }
}
