//! Penalty: a key with a number of strikes within a time is blocked for a time.
//!
//! It grants and takes no units: a charge is denied while its key is blocked, and passes otherwise.
//! **Strikes** come from elsewhere: a denial of another policy with the same key in the same
//! request, or a charge that is settled upwards ([`owe`](Rule::owe)). With the last of `strikes`
//! within `within` a block begins, and the strikes are spent. Each block is `factor` times as long
//! as the block before, up to a longest block, until there was no block for `forget_after`.
//!
//! Strikes while a key is blocked do not count, so requests do not extend a block.

use alloc::collections::VecDeque;

use super::{Form, Rule};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The rule of a penalty, which blocks a key after a number of strikes.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalty {
    strikes: u64,
    within: Micros,
    terms: Terms,
}

/// The settings of a penalty: the length of its blocks, and which events are strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The length of the first block.
    pub block: Micros,
    /// The ratio of a block to the block before: 1 to a million.
    pub factor: u64,
    /// The length of the longest block.
    pub max_block: Micros,
    /// The time after a block until the next block is a first block again.
    pub forget_after: Micros,
    /// Whether denials are strikes; otherwise only settlements are.
    pub counts_denials: bool,
}

/// The state of a penalty: the strikes that may still count, and the last block.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Oldest first.
    strikes: VecDeque<Timestamp>,
    /// The end of the last block.
    blocked_until: Timestamp,
    /// How many blocks there were, one after the other.
    level: u32,
    last_seen: Timestamp,
}

/// The part of a state that counts at an instant.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    state: &'a State,
    /// The later of the clock and the last instant seen.
    seen: Timestamp,
    /// The first strike that still counts.
    head: usize,
    /// Zero once the last block is forgotten.
    level: u32,
}

impl Penalty {
    /// The largest number of strikes: the state has the instant of each.
    pub const MAX_STRIKES: u64 = 1_000;
    /// The largest ratio of a block to the block before.
    pub const MAX_FACTOR: u64 = 1_000_000;
    /// By then the shortest block has grown past the longest, if it grows.
    const MAX_LEVEL: u32 = 63;

    pub(super) fn new(form: &Form, terms: Terms) -> Self {
        Self { strikes: form.limit, within: form.window, terms }
    }

    /// Whether denials are strikes.
    pub const fn counts_denials(&self) -> bool {
        self.terms.counts_denials
    }

    /// The length of a block after `level` blocks.
    pub fn block(&self, level: u32) -> Micros {
        let Terms { block, factor, max_block, .. } = self.terms;
        let mut length = block;
        for _ in 0..level {
            if factor == 1 || length >= max_block {
                break;
            }
            length = Micros::new(length.get().saturating_mul(factor));
        }
        length.min(max_block)
    }

    /// A view as a state.
    fn settle_down(view: View<'_>) -> State {
        let View { state, seen, head, level } = view;
        State {
            strikes: state.strikes.range(head..).copied().collect(),
            blocked_until: if level > 0 { state.blocked_until } else { Timestamp::EPOCH },
            level,
            last_seen: seen,
        }
    }
}

impl Rule for Penalty {
    type State = State;
    type View<'a> = View<'a>;

    fn fresh(&self) -> State {
        let never = Timestamp::EPOCH;
        State { strikes: VecDeque::new(), blocked_until: never, level: 0, last_seen: never }
    }

    #[inline]
    fn refresh<'a>(&self, state: &'a State, now: Timestamp) -> View<'a> {
        let is_empty = state.strikes.is_empty() && state.level == 0;
        let seen = if is_empty { now } else { now.max(state.last_seen) };
        let head = state.strikes.partition_point(|at| *at + self.within <= seen);
        let is_forgotten = state.blocked_until + self.terms.forget_after <= seen;
        View { state, seen, head, level: if is_forgotten { 0 } else { state.level } }
    }

    /// `remaining` is how many strikes are left before a block, and `limit` how many there
    /// are. Whatever is asked for passes unless there is a block.
    #[inline]
    fn assess(&self, view: View<'_>, now: Timestamp, cost: Cost) -> Decision {
        let View { state, seen, head, level } = view;
        let is_blocked = level > 0 && seen < state.blocked_until;
        let outcome = if is_blocked && cost > Cost::ZERO {
            Outcome::Deny { retry_after: state.blocked_until.since(now) }
        } else {
            Outcome::Allow { delay: Micros::ZERO, charged_at: seen }
        };
        let live = state.strikes.len() - head;
        let last = state.strikes.back().filter(|_| live > 0).map(|last| *last + self.within);
        let forgotten = (level > 0).then(|| state.blocked_until + self.terms.forget_after);
        Decision {
            outcome,
            limit: self.strikes,
            remaining: if is_blocked { 0 } else { self.strikes.saturating_sub(live as u64) },
            reset_after: last.max(forgotten).map_or(Micros::ZERO, |fresh_at| fresh_at.since(now)),
        }
    }

    /// Takes nothing.
    #[inline]
    fn charge(&self, _: &mut State, _: Timestamp, _: Cost) {}

    /// Nothing was taken.
    fn give_back(&self, _: &mut State, _: &Charged, _: u64, _: Timestamp) -> u64 {
        0
    }

    /// Strikes, and says how many counted: none while there is a block, and with the last
    /// that it takes one begins.
    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        *state = Self::settle_down(self.refresh(state, now));
        let seen = state.last_seen;
        if state.level > 0 && seen < state.blocked_until {
            return 0;
        }
        let units = units.min(self.strikes.saturating_sub(state.strikes.len() as u64).max(1));
        for _ in 0..units {
            state.strikes.push_back(seen);
        }
        if state.strikes.len() as u64 >= self.strikes {
            state.strikes.clear();
            state.blocked_until = seen + self.block(state.level);
            state.level = (state.level + 1).min(Self::MAX_LEVEL);
        }
        units
    }

    /// Strikes are no units of a quota.
    fn consumed(&self, _: &State, _: Timestamp) -> u64 {
        0
    }

    /// Nor are units of a quota strikes.
    fn resume(&self, _: u64, now: Timestamp) -> State {
        State { last_seen: now, ..self.fresh() }
    }

    /// Strikes, the block and its level stay. One more strike than is allowed now is one.
    fn convert(&self, from: &Self, state: &State, now: Timestamp) -> State {
        Self::settle_down(from.refresh(state, now))
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        let View { state, head, level, .. } = self.refresh(state, now);
        head == state.strikes.len() && level == 0
    }

    fn max_heap_bytes(&self) -> usize {
        let most = usize::try_from(self.strikes).unwrap_or(usize::MAX / 64);
        most.max(4).next_power_of_two() * size_of::<Timestamp>()
    }
}
