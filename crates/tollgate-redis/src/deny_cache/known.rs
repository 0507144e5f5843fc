//! Redis' last answer about a key, and the decisions that follow from it.

use std::ops::Range;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tollgate_core::{Charge, Cost, Decision, Key, Micros, Outcome, Policy, Timestamp};

use crate::clock::Moment;

/// Redis' last answer about a key.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) key: Key,
    pub(super) policy: Policy,
    /// Redis' time of the call.
    decided_at: Timestamp,
    /// When the answer arrived.
    received: Moment,
    /// When this entry expires.
    pub(super) until: Moment,
    pub(super) room: Room,
}

#[derive(Debug)]
pub(super) enum Room {
    /// The number of units that fitted.
    Units(u64),
    /// No unit fits.
    None(Frozen),
}

/// A frozen key's instants, in Redis' time.
#[derive(Debug)]
pub(super) struct Frozen {
    /// The first instant at which one unit fits.
    until: Timestamp,
    fresh_at: Timestamp,
    /// The first instant at which the key allows each cost.
    passes: SmallVec<[(Cost, Timestamp); COSTS]>,
}

/// The maximum number of costs remembered per key, which covers most services.
const COSTS: usize = 4;

impl Known {
    /// Reads an answer about a charge's key.
    pub(super) fn new(
        charge: &Charge<'_>,
        decision: &Decision,
        frozen: Micros,
        decided_at: Timestamp,
        call: &Range<Moment>,
        bound: Duration,
    ) -> Self {
        let room = if frozen > Micros::ZERO {
            let until = decided_at + frozen;
            let mut passes: SmallVec<_> = smallvec![(Cost::ONE, until)];
            if let (Some(wait), true) = (decision.retry_after(), charge.cost != Cost::ONE) {
                passes.push((charge.cost, decided_at + wait));
            }
            Room::None(Frozen { until, fresh_at: decided_at + decision.reset_after, passes })
        } else if charge.policy.is_penalty() {
            // A penalty may count the next denial, so it never has room.
            Room::Units(0)
        } else {
            Room::Units(decision.remaining)
        };
        let mut stands = Micros::from(bound);
        // Other replicas return or spend their blocks within the lease time.
        let lease = charge.policy.lease().map(|lease| lease.time_to_live());
        let frozen = Some(frozen).filter(|frozen| *frozen > Micros::ZERO);
        for bound in [lease, frozen].into_iter().flatten() {
            stands = stands.min(bound);
        }
        Self {
            key: charge.key.clone(),
            policy: charge.policy.clone(),
            decided_at,
            received: call.end,
            until: call.start.saturating_add(stands.get()),
            room,
        }
    }

    pub(super) fn is_about(&self, charge: &Charge<'_>) -> bool {
        self.key == *charge.key && self.policy.shares_state_with(charge.policy)
    }

    /// Returns Redis' current time, or slightly less, if the key is frozen.
    pub(super) fn frozen_at(&self, now: Moment) -> Option<Timestamp> {
        let passed = Micros::new(now.saturating_sub(self.received));
        matches!(self.room, Room::None(_)).then(|| self.decided_at + passed)
    }

    /// Returns the decision on a charge at an instant, if it is known.
    pub(super) fn say(&self, charge: &Charge<'_>, at: Timestamp) -> Option<Decision> {
        let (cost, limit) = (charge.cost, charge.policy.capacity());
        let frozen = match &self.room {
            Room::Units(units) => {
                return (cost.get() <= *units).then(|| Decision::undecided(limit));
            }
            Room::None(frozen) => frozen,
        };
        let outcome = if cost == Cost::ZERO {
            Outcome::WouldAllow
        } else if cost.get() > limit && !charge.policy.is_penalty() {
            Outcome::ExceedsCapacity
        } else {
            let (_, passes_at) = frozen.passes.iter().find(|(known, _)| *known == cost)?;
            Outcome::Deny { retry_after: passes_at.since(at) }
        };
        let reset_after = frozen.fresh_at.since(at);
        Some(Decision { outcome, limit, remaining: 0, reset_after })
    }

    /// Replaces this entry with a later answer.
    pub(super) fn renew(&mut self, mut later: Self) {
        if later.decided_at < self.decided_at {
            // If two calls were in flight, the first may be answered last.
            return;
        }
        if let (Room::None(now), Room::None(before)) = (&mut later.room, &self.room)
            && now.until == before.until
            && later.received < self.until
        {
            // The key was not charged in between, so the instants for other costs remain valid. They
            // are not remembered for longer, because another process may have settled a charge.
            for pass in &before.passes {
                if now.passes.len() < COSTS && now.passes.iter().all(|(cost, _)| *cost != pass.0) {
                    now.passes.push(*pass);
                    later.until = later.until.min(self.until);
                }
            }
        }
        *self = later;
    }
}
