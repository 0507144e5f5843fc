//! Leased blocks of units: settling them, and requesting new ones.

use tollgate_core::{Micros, Policy, Timestamp};

use super::{Asked, Batch, EncodeError, LEASE};
use crate::script::bytes::{exact, put};

/// A finished block and its spent units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spent {
    /// The block's name.
    pub id: u64,
    /// The number of units.
    pub units: u64,
}

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The low bits of the block's name.
    pub tag: u32,
    /// The maximum number of units; zero only settles blocks.
    pub units: u64,
    /// The maximum lifetime.
    pub ttl: Micros,
}

impl Ask {
    /// Returns the name of the block that a call at this Redis time grants. Copies of a virtual
    /// machine may use equal tags, but they make separate calls, which never have the same time.
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
        let (key, (_, form)) = (self.number(key), self.form(policy));
        self.begin(LEASE, &[key, form]);
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
