//! Sliding window log: at most `limit` units in *any* window.
//!
//! Every charge is stored with its timestamp and counts while `instant + window > now`. There is no
//! boundary to attack. The price is memory: 16 bytes per charge, bounded by the limit or by the
//! resolution. With a resolution of a thousandth of the window, timestamps are rounded *up* to a
//! grid, and charges at the same grid point share an entry. They count longer, never shorter: the
//! limit holds, and units are refilled at most a thousandth of the window late.
//!
//! Entries contain running totals. The sum over a window is therefore a single subtraction, and a
//! binary search finds the instant at which enough units have aged.

use alloc::collections::VecDeque;

use super::{Form, Resolution, Rule};
use crate::{Charged, Cost, Decision, Micros, Outcome, Timestamp};

/// The sliding window log rule: at most `limit` units in any span of `window`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindowLog {
    limit: u64,
    window: Micros,
    grid: u64,
}

/// The sliding window log's state: the charges that may still count, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    entries: VecDeque<LogEntry>,
    /// The running total before the first entry.
    base: u64,
    /// The last instant seen, not rounded.
    last_seen: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LogEntry {
    at: Timestamp,
    /// The running total after this entry.
    total: u64,
}

/// The part of a state that counts at some instant.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    state: &'a State,
    /// The later of the clock and the last instant seen.
    seen: Timestamp,
    /// The first entry that still counts.
    head: usize,
    /// The running total before the `head` entry.
    base: u64,
}

impl SlidingWindowLog {
    /// The largest limit for a log at full resolution: 1.6 MB per key, and up to 4 MB with its
    /// list's spare capacity and a debt of one capacity.
    pub const MAX_EXACT_LIMIT: u64 = 100_000;

    /// The largest limit that gets full resolution by default.
    const AUTO_EXACT_LIMIT: u64 = 1_000;

    pub(super) fn new(form: &Form, resolution: Resolution) -> Self {
        let exact = match resolution {
            Resolution::Auto => form.limit <= Self::AUTO_EXACT_LIMIT,
            Resolution::Exact => true,
            Resolution::Thousandth => false,
        };
        let grid = if exact { 1 } else { form.window.get().div_ceil(1_000) };
        Self { limit: form.limit, window: form.window, grid }
    }

    /// Returns the grid spacing between timestamps: one microsecond at full resolution.
    pub const fn grid(&self) -> Micros {
        Micros::new(self.grid)
    }

    /// `instant` rounded up to the grid.
    fn round_up(&self, instant: Timestamp) -> Timestamp {
        if self.grid == 1 {
            return instant;
        }
        Timestamp::from_micros(instant.as_micros().next_multiple_of(self.grid))
    }

    /// One entry per grid point in a window, or per unit if there are fewer units, doubled to allow
    /// for a debt.
    fn max_entries(&self) -> usize {
        let grid_points = self.window.get() / self.grid + 1;
        usize::try_from(grid_points.min(2 * self.limit)).unwrap_or(usize::MAX / 64)
    }

    /// Advances to `now`, drops entries that no longer count, and returns the instant reached.
    pub(super) fn prune(&self, state: &mut State, now: Timestamp) -> Timestamp {
        let View { seen, head, base, .. } = self.refresh(state, now);
        // In a steady stream, each charge expires about one other charge, so the loop is short.
        for _ in 0..head {
            state.entries.pop_front();
        }
        state.base = base;
        state.last_seen = seen;
        seen
    }

    /// The units that can be charged until the debt reaches the limit, in a pruned state.
    pub(super) fn room_for_debt(&self, state: &State) -> u64 {
        (2 * self.limit).saturating_sub(state.total() - state.base)
    }

    /// Forgets the oldest units beyond twice the limit, which cannot change a decision while the
    /// newer units count. Returns whether there were such units.
    fn trim(&self, state: &mut State) -> bool {
        let over = (state.total() - state.base).saturating_sub(2 * self.limit);
        state.base += over;
        while state.entries.front().is_some_and(|oldest| oldest.total <= state.base) {
            state.entries.pop_front();
        }
        over > 0
    }

    /// Adds an entry, or adds to the last entry if both share a grid point.
    fn push(&self, state: &mut State, seen: Timestamp, units: u64) {
        let at = self.round_up(seen);
        let total = state.total() + units;
        match state.entries.back_mut() {
            Some(last) if last.at >= at => last.total = total,
            _ => state.entries.push_back(LogEntry { at, total }),
        }
        if total > REBASE {
            state.rebase();
        }
    }

    /// Removes up to `units` from the entry at an instant, and returns the number removed.
    pub(super) fn take(&self, state: &mut State, at: Timestamp, units: u64) -> u64 {
        let Ok(index) = state.entries.binary_search_by_key(&at, |entry| entry.at) else {
            return 0;
        };
        let before = if index == 0 { state.base } else { state.entries[index - 1].total };
        let units = units.min(state.entries[index].total - before);
        if index == 0 && state.entries[0].total == before + units {
            // Drop the oldest charge as if it had aged out, so the other entries need no change.
            state.base += units;
            state.entries.pop_front();
            return units;
        }
        for entry in state.entries.range_mut(index..) {
            entry.total -= units;
        }
        if state.entries[index].total == before {
            state.entries.remove(index);
        }
        units
    }

    /// Adds an entry among newer entries, which only permits need.
    pub(super) fn insert(&self, state: &mut State, at: Timestamp, units: u64) {
        let index = state.entries.partition_point(|entry| entry.at < at);
        if index == state.entries.len() {
            return self.push(state, at, units);
        }
        let before = if index == 0 { state.base } else { state.entries[index - 1].total };
        if state.entries[index].at > at {
            state.entries.insert(index, LogEntry { at, total: before });
        }
        for entry in state.entries.range_mut(index..) {
            entry.total += units;
        }
    }
}

impl Rule for SlidingWindowLog {
    type State = State;
    type View<'a> = View<'a>;

    fn fresh(&self) -> State {
        State { entries: VecDeque::new(), base: 0, last_seen: Timestamp::EPOCH }
    }

    #[inline(always)]
    fn refresh<'a>(&self, state: &'a State, now: Timestamp) -> View<'a> {
        let seen = now.max(state.last_seen);
        let expired = |entry: &LogEntry| seen.since(entry.at) >= self.window;
        let head = state.skip_while(0, expired);
        let base = if head == 0 { state.base } else { state.entries[head - 1].total };
        View { state, seen, head, base }
    }

    #[inline(always)]
    fn assess(&self, view: View<'_>, now: Timestamp, cost: Cost) -> Decision {
        let cost = cost.get();
        let used = view.state.total() - view.base;
        let (outcome, used_after, newest) = if cost > self.limit {
            (Outcome::ExceedsCapacity, used, view.newest())
        } else if cost == 0 || used + cost <= self.limit {
            let (delay, charged_at) = (Micros::ZERO, view.seen);
            let outcome = Outcome::Allow { delay, charged_at, refunded: 0 };
            let newest = if cost == 0 {
                view.newest()
            } else {
                // A coarser grid, before the quota changed, may have rounded the last entry up even
                // further.
                self.round_up(view.seen).max(view.newest())
            };
            (outcome, used + cost, newest)
        } else {
            let fits_at = view.freed(used + cost - self.limit) + self.window;
            (Outcome::Deny { retry_after: fits_at.since(now) }, used, view.newest())
        };
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.limit.saturating_sub(used_after),
            reset_after: if used_after == 0 {
                view.seen.since(now)
            } else {
                (newest + self.window).since(now)
            },
        }
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: Cost) {
        let seen = self.prune(state, now);
        self.push(state, seen, cost.get());
    }

    /// A refund does not move time, so it drops no other entry: if the clock has stepped back since,
    /// an entry that had expired counts again, as it would without the refund.
    fn give_back(&self, state: &mut State, charged: &Charged, units: u64, now: Timestamp) -> u64 {
        let at = self.round_up(charged.charged_at);
        if self.refresh(state, now).seen.since(at) >= self.window {
            return 0;
        }
        self.take(state, at, units)
    }

    fn owe(&self, state: &mut State, units: u64, now: Timestamp) -> u64 {
        let seen = self.prune(state, now);
        let units = units.min(self.room_for_debt(state));
        if units > 0 {
            self.push(state, seen, units);
        }
        units
    }

    /// The newest units count, because they count for longest.
    fn count(&self, state: &mut State, units: u64, now: Timestamp) -> bool {
        let seen = self.prune(state, now);
        let counted = units.min(2 * self.limit);
        self.push(state, seen, counted);
        !self.trim(state) && counted == units
    }

    fn consumed(&self, state: &State, now: Timestamp) -> u64 {
        state.total() - self.refresh(state, now).base
    }

    /// The newest entry may be rounded up to later than the last charge, and a refund may have been
    /// seen since.
    fn counts_from(&self, state: &State) -> Timestamp {
        state.entries.back().map_or(state.last_seen, |newest| newest.at.min(state.last_seen))
    }

    fn resume(&self, units: u64, at: Timestamp) -> State {
        let mut state = State { last_seen: at, ..self.fresh() };
        let units = units.min(2 * self.limit);
        if units > 0 {
            self.push(&mut state, at, units);
        }
        state
    }

    /// Charges move to the new grid and age by the new window. Charges that had expired in the old
    /// window at the last charge remain expired, because the state may have dropped them.
    fn convert(&self, from: &Self, state: &State) -> State {
        let view = from.refresh(state, state.last_seen);
        let mut converted =
            State { entries: VecDeque::new(), base: view.base, last_seen: view.seen };
        for entry in state.entries.range(view.head..) {
            let at = self.round_up(entry.at);
            match converted.entries.back_mut() {
                Some(last) if last.at == at => last.total = entry.total,
                _ => converted.entries.push_back(LogEntry { at, ..*entry }),
            }
        }
        self.prune(&mut converted, view.seen);
        self.trim(&mut converted);
        converted
    }

    fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        state.last_seen <= now && self.refresh(state, now).head == state.entries.len()
    }

    /// A queue doubles when it grows, starting at four entries.
    fn max_heap_bytes(&self) -> usize {
        self.max_entries().max(4).next_power_of_two() * size_of::<LogEntry>()
    }
}

impl State {
    /// The running total after the last entry.
    fn total(&self) -> u64 {
        self.entries.back().map_or(self.base, |last| last.total)
    }

    /// Returns the first entry from `start` on for which `skip` is false; `skip` must be true for
    /// all entries before it. That entry is usually close by, so the search doubles its steps from
    /// `start` and then bisects the last step.
    fn skip_while(&self, start: usize, skip: impl Fn(&LogEntry) -> bool) -> usize {
        let (mut low, mut step) = (start, 1);
        while self.entries.get(low + step - 1).is_some_and(&skip) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step - 1).min(self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            if skip(&self.entries[middle]) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Moves all entries in time: `later` by a span, then `earlier` by another.
    pub(super) fn shift(&mut self, later: Micros, earlier: Micros) {
        for entry in &mut self.entries {
            entry.at = entry.at + later - earlier;
        }
    }

    /// Restarts the running totals from zero.
    fn rebase(&mut self) {
        for entry in &mut self.entries {
            entry.total -= self.base;
        }
        self.base = 0;
    }
}

impl View<'_> {
    /// The newest entry's timestamp.
    fn newest(&self) -> Timestamp {
        self.state.entries.back().map_or(Timestamp::EPOCH, |last| last.at)
    }

    /// The timestamp of the first entry at which this and all older entries add up to `units`. Such
    /// an entry exists, because a cost that fits an empty window needs no more units than are in
    /// this window.
    fn freed(&self, units: u64) -> Timestamp {
        let enough = self.base + units;
        let index = self.state.skip_while(self.head, |entry| entry.total < enough);
        self.state.entries.get(index).map_or_else(|| self.newest(), |entry| entry.at)
    }
}

/// Running totals restart before they exceed this, far below 2^53, where Lua's numbers start to
/// have gaps.
const REBASE: u64 = 1 << 52;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnyRule, Policy, Quota};

    #[test]
    fn galloping_search_matches_linear_search() {
        for len in 0..40_u64 {
            let entry = |n| LogEntry { at: Timestamp::from_micros(n), total: n };
            let entries = (0..len).map(entry).collect();
            let state = State { entries, base: 0, last_seen: Timestamp::EPOCH };
            for start in 0..=len {
                for first in start..=len {
                    let found = state.skip_while(start as usize, |entry| entry.total < first);
                    assert_eq!(found as u64, first, "of {len} from {start}");
                }
            }
        }
    }

    #[test]
    fn heap_stays_bounded_in_debt() {
        for limit in 1..=40 {
            let policy = Policy::sliding_window_log("p", Quota::per_second(limit)).unwrap();
            let AnyRule::SlidingWindowLog(log) = policy.rule() else { unreachable!() };
            let mut state = log.fresh();
            for now in 1..=3 * limit {
                log.owe(&mut state, 1, Timestamp::from_micros(now));
                let bytes = state.entries.capacity() * size_of::<LogEntry>();
                assert!(bytes <= log.max_heap_bytes(), "limit {limit}");
            }
        }
    }
}
