//! Penalty: blocks a key after a number of strikes within some time.
//!
//! It grants and takes no units: a charge is denied while its key is blocked, and allowed
//! otherwise. **Strikes** are caused elsewhere: by a denial from another policy with the same key
//! in the same request, or by a charge that is settled upwards ([`owe`](Rule::owe)). When `strikes`
//! strikes have occurred within `within`, a block starts and the strikes are reset. Each block is
//! `factor` times as long as the previous block, up to a maximum, until `forget_after` passes
//! without a block.
//!
//! Strikes do not count while a key is blocked, so requests cannot extend a block.

use alloc::collections::VecDeque;

use super::{Form, Rule};
use crate::{Charged, Cost, Decision, Micros, Outcome, PenaltyBlock, Timestamp};

/// The penalty rule, which blocks a key after a number of strikes.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalty {
    strikes: u64,
    within: Micros,
    terms: Terms,
}

/// A penalty's settings: how long its blocks are, and which events are strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The length of the first block.
    pub block: Micros,
    /// The growth factor from each block to the next: 1 to a million.
    pub factor: u64,
    /// The length of the longest block.
    pub max_block: Micros,
    /// How long after a block the next block is a first block again.
    pub forget_after: Micros,
    /// Whether denials are strikes. If not, only settlements are.
    pub counts_denials: bool,
}

/// A penalty's state: the strikes that may still count, and the last block.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Oldest first.
    strikes: VecDeque<Timestamp>,
    /// The end of the last block.
    blocked_until: Timestamp,
    /// How many blocks have followed one another without being forgotten.
    level: u32,
    last_seen: Timestamp,
}

/// The part of a state that counts at some instant.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    state: &'a State,
    /// The later of the clock and the last instant seen.
    seen: Timestamp,
    /// The first strike that still counts.
    head: usize,
    /// Zero when the last block has been forgotten.
    level: u32,
}

impl Penalty {
    /// The largest number of strikes. The state has a timestamp for each.
    pub const MAX_STRIKES: u64 = 1_000;
    /// The largest growth factor from a block to the next.
    pub const MAX_FACTOR: u64 = 1_000_000;
    /// At this level, a block that grows has reached the maximum, however short the first block
    /// was.
    const MAX_LEVEL: u32 = 63;

    pub(super) fn new(form: &Form, terms: Terms) -> Self {
        Self { strikes: form.limit, within: form.window, terms }
    }

    /// Whether denials are strikes.
    pub const fn counts_denials(&self) -> bool {
        self.terms.counts_denials
    }

    /// Returns how long a block lasts after `level` earlier blocks.
    pub fn block_length(&self, level: u32) -> Micros {
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

    /// Turns a view into a state.
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

    /// `limit` is the number of strikes that cause a block, and `remaining` how many more are
    /// needed. Every cost is allowed unless the key is blocked.
    #[inline]
    fn assess(&self, view: View<'_>, now: Timestamp, cost: Cost) -> Decision {
        let View { state, seen, head, level } = view;
        let is_blocked = level > 0 && seen < state.blocked_until;
        let outcome = if is_blocked && cost > Cost::ZERO {
            Outcome::Deny { retry_after: state.blocked_until.since(now) }
        } else {
            Outcome::Allow { delay: Micros::ZERO, charged_at: seen, refunded: 0 }
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

    /// A penalty takes no units.
    #[inline]
    fn charge(&self, _: &mut State, _: Timestamp, _: Cost) {}

    /// No units were taken, so there are none to refund.
    fn give_back(&self, _: &mut State, _: &Charged, _: u64, _: Timestamp) -> u64 {
        0
    }

    /// Adds strikes and returns how many counted. Strikes do not count while the key is blocked,
    /// and the last strike needed starts a block.
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
            state.blocked_until = seen + self.block_length(state.level);
            state.level = (state.level + 1).min(Self::MAX_LEVEL);
        }
        units
    }

    /// A block without a length makes the next one longer, and a block with a length counts as the first
    /// without one. A running block never becomes shorter.
    fn block(&self, state: &mut State, block: PenaltyBlock, now: Timestamp) -> Option<Micros> {
        let is_old_news = state.last_seen >= block.known_at && !self.is_fresh(state, now);
        let settled = Self::settle_down(self.refresh(state, now));
        let length = block.length.unwrap_or_else(|| self.block_length(settled.level));
        let until = settled.last_seen + length.min(self.terms.max_block);
        let blocked_until = until.max(settled.blocked_until);
        if is_old_news || blocked_until <= now {
            return None;
        }
        let grown = settled.level + u32::from(block.length.is_none());
        let (strikes, level) = (VecDeque::new(), grown.clamp(1, Self::MAX_LEVEL));
        *state = State { strikes, blocked_until, level, ..settled };
        Some(blocked_until.since(now))
    }

    /// Strikes are not quota units.
    fn consumed(&self, _: &State, _: Timestamp) -> u64 {
        0
    }

    fn counts_from(&self, state: &State) -> Timestamp {
        state.last_seen
    }

    /// Quota units are not strikes either.
    fn resume(&self, _: u64, at: Timestamp) -> State {
        State { last_seen: at, ..self.fresh() }
    }

    /// The strikes, the block and its level are retained. If there are already more strikes than
    /// the new number allows, a single further strike starts a block.
    fn convert(&self, from: &Self, state: &State) -> State {
        Self::settle_down(from.refresh(state, state.last_seen))
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
