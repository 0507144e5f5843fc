//! What happens to the blocks of a replica that has returned its leases.

use tollgate_core::{Key, Timestamp};

use super::{Call, Replica, Search, Step, TTL, World};

impl Search {
    /// Checks that a replica that has returned its leases reports its blocks if no further call is
    /// lost.
    pub(super) fn check_returned(&mut self, world: &World) {
        for (number, replica) in world.replicas.iter().enumerate() {
            assert_eq!(replica.blocks.awaits_answer, replica.call.is_some(), "{:?}", self.path);
            if !replica.has_returned {
                continue;
            }
            let mut world = world.clone();
            // The present call, the report of its block, and their repetitions.
            for _ in 0..3 {
                if world.replicas[number].call.is_none() {
                    self.take(&mut world, Step::Send(number));
                }
                if matches!(world.replicas[number].call, Some(Call { answer: None, .. })) {
                    self.take(&mut world, Step::Execute(number));
                }
                self.take(&mut world, Step::Receive(number));
                // After a failed call, the replica waits for a sixteenth of the lease time.
                if self.here(world.now) < world.replicas[number].blocks.call_at {
                    self.take(&mut world, Step::Pass(TTL / 8));
                }
            }
            let (here, at) = (self.here(world.now), Timestamp::from_micros(world.now));
            let Replica { blocks, received, .. } = &world.replicas[number];
            for (id, lapses) in received {
                let is_held = world.redis.knows_block(&self.policy, &Key::GLOBAL, *id, at);
                // A block without unspent units may be reported later.
                let mut closed = blocks.spent.iter().filter(|closed| closed.spent.id == *id);
                let is_spent = closed.any(|closed| closed.spent.units == closed.units);
                let is_returned = !is_held || is_spent || *lapses <= here;
                assert!(is_returned, "a block is not returned: {:?}", self.path);
            }
        }
    }
}
