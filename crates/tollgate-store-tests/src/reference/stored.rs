//! A key's states: a state for each version of its policy's quota.

use tollgate_core::algorithm::Rule;
use tollgate_core::{AnyRule, Charged, Cost, Micros, Timestamp, with_rule};

use super::lease::Holds;

/// A key: a state for each version of its policy, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) versions: Vec<Version>,
    /// The replicas' leases. Replicas may spend these units without a further decision.
    pub(super) holds: Holds,
}

/// A state, and the rule under which it is stored.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) rule: AnyRule,
    pub(super) state: AnyState,
    /// Charges before this instant cannot be identified: the key had not been charged under this
    /// rule yet, was reset since, or the state was too full to count all of them. If this version
    /// started from another one's state, that state may contain other versions' charges at this
    /// instant.
    pub(super) since: Timestamp,
}

/// The largest number of versions that count together. Another version replaces the oldest.
const MAX_VERSIONS: usize = 4;

/// A charge to a state.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// A charge, and the instant at which its request leaves.
    Charge(Cost, Timestamp),
    Owe(u64),
}

/// Evaluates `$body` with a version's rule and state, and stores the state.
macro_rules! with_state {
    ($version:expr, $rule:ident, $state:ident => $body:expr) => {
        with_rule!($version.rule.clone(), $rule => {
            let mut $state = $rule.read($version);
            let result = $body;
            $version.state = $rule.wrap($state);
            result
        })
    };
}
pub(super) use with_state;

impl Stored {
    pub(super) fn version(&self, rule: &AnyRule) -> Option<usize> {
        let same = |version: &Version| version.rule == *rule || both_in_flight(&version.rule, rule);
        self.versions.iter().position(same)
    }

    /// Returns the version from which a new version starts: of those that count the same charges,
    /// the one that counts units for longest, and of several the one with room for most.
    pub(super) fn source(&self, rule: &AnyRule, now: Timestamp) -> Option<&Version> {
        let counts = |version: &&Version| version.rule.counts_with(rule) && !version.is_fresh(now);
        let rank = |version: &&Version| (version.reset_after(now), version.room());
        self.versions.iter().filter(counts).rev().max_by_key(rank)
    }

    /// Returns the state under `rule`: its own, a converted state, or a fresh state.
    pub(super) fn read<R: StoredRule>(&self, rule: &R, any: &AnyRule, now: Timestamp) -> R::State {
        match self.version(any).map(|index| &self.versions[index]) {
            Some(version) => rule.read(version),
            None => self.source(any, now).map_or_else(|| rule.fresh(), |from| rule.read(from)),
        }
    }

    /// Returns the version for `rule`, added if necessary. A charge made in the same microsecond as
    /// an earlier charge or a reset cannot be identified, so its receipt is not valid.
    pub(super) fn version_mut(&mut self, any: &AnyRule, now: Timestamp, was_reset: bool) -> usize {
        let next = Micros::new(1);
        let state = with_rule!(any, rule => rule.wrap(self.read(rule, any, now)));
        if self.source(any, now).is_none() {
            // A store may have forgotten the other versions, which therefore make no difference.
            let own = self.version(any).map(|index| self.versions[index].rule.clone());
            self.versions.retain(|version| {
                !version.rule.counts_with(any) || Some(&version.rule) == own.as_ref()
            });
        }
        if let Some(index) = self.version(any) {
            // Permits retain their dates under another rule.
            let version = &mut self.versions[index];
            (version.rule, version.state) = (any.clone(), state);
            return index;
        }
        let since = match self.source(any, now) {
            Some(_) => {
                let counting = self.versions.iter().filter(|it| it.rule.counts_with(any));
                let after = |from: &Version| (from.since + next).max(from.counts_from() + next);
                counting.map(after).fold(now, Timestamp::max)
            }
            None if was_reset => now + next,
            None => now,
        };
        let counting = self.versions.iter().filter(|version| version.rule.counts_with(any));
        if counting.count() == MAX_VERSIONS {
            let oldest = self.versions.iter().position(|version| version.rule.counts_with(any));
            self.versions.remove(oldest.expect("there are versions"));
        }
        self.versions.push(Version { rule: any.clone(), state, since });
        self.versions.len() - 1
    }

    /// Returns the versions that can be leased.
    pub(super) fn rate_limits(&mut self) -> impl Iterator<Item = &mut Version> {
        self.versions.iter_mut().filter(|version| version.is_rate_limit())
    }

    /// Whether the key could be forgotten.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.versions.iter().all(|version| version.is_fresh(now))
    }

    /// Charges the key under `any`. All other versions count the units.
    pub(super) fn change(
        &mut self,
        any: &AnyRule,
        now: Timestamp,
        was_reset: bool,
        change: Change,
    ) -> u64 {
        let own = self.version_mut(any, now, was_reset);
        let mut charged = with_state!(&mut self.versions[own], rule, state => match change {
            Change::Charge(cost, at) => {
                rule.charge(&mut state, at, cost);
                cost.get()
            }
            Change::Owe(units) => rule.owe(&mut state, units, now),
        });
        let (units, at) = match change {
            Change::Charge(cost, at) => (cost.get(), at),
            Change::Owe(units) => (units, now),
        };
        for (index, version) in self.versions.iter_mut().enumerate() {
            if index == own || !version.rule.counts_with(any) {
                continue;
            }
            if with_state!(version, rule, state => rule.count(&mut state, units, at)) {
                charged = units;
            } else {
                let next = now.max(version.counts_from()) + Micros::new(1);
                version.since = version.since.max(next);
            }
        }
        if matches!(any, AnyRule::CalendarWindowCounter(_)) {
            // Calendar quotas cannot be leased, so all leased units are charged immediately.
            let leased = std::mem::take(&mut self.holds).units();
            for version in self.rate_limits() {
                with_state!(version, rule, state => rule.owe(&mut state, leased, now));
            }
        }
        charged
    }

    /// Refunds units under each version that can identify the charge. Returns the largest number
    /// refunded under any version, or `None` if no version can identify it.
    pub(super) fn give_back(
        &mut self,
        any: &AnyRule,
        now: Timestamp,
        charged: Charged,
        units: u64,
    ) -> Option<u64> {
        let own = self.version(any);
        let oldest = self.versions.iter().position(|version| version.rule.counts_with(any));
        let mut refunded = None;
        for (index, version) in self.versions.iter_mut().enumerate() {
            let is_own = own == Some(index);
            let is_identified = match is_own || oldest == Some(index) {
                true => charged.charged_at >= version.since,
                false => charged.charged_at > version.since,
            };
            if !version.rule.counts_with(any) || !is_identified {
                continue;
            }
            let charged = if is_own { charged } else { charged.elsewhere() };
            let (returned, restarts) = with_state!(version, rule, state => {
                let returned = rule.give_back(&mut state, &charged, units, now);
                (returned, rule.restart_refunds(&mut state))
            });
            if restarts {
                version.since = now + Micros::new(1);
            }
            refunded = refunded.max(Some(returned));
        }
        refunded
    }
}

impl Version {
    /// The units of an unused key.
    fn room(&self) -> u64 {
        with_rule!(&self.rule, rule => {
            let (fresh, now) = (rule.fresh(), Timestamp::EPOCH);
            rule.assess(rule.refresh(&fresh, now), now, Cost::ZERO).remaining
        })
    }

    pub(super) fn reset_after(&self, now: Timestamp) -> Micros {
        with_rule!(self.rule.clone(), rule => {
            let state = rule.read(self);
            rule.assess(rule.refresh(&state, now), now, Cost::ZERO).reset_after
        })
    }

    pub(super) const fn is_rate_limit(&self) -> bool {
        !matches!(self.rule, AnyRule::ConcurrentRequests(_) | AnyRule::Penalty(_))
    }
}

const fn both_in_flight(one: &AnyRule, other: &AnyRule) -> bool {
    matches!((one, other), (AnyRule::ConcurrentRequests(_), AnyRule::ConcurrentRequests(_)))
}

macro_rules! any_state {
    ($($rule:ident: $module:ident),*) => {
        /// A state for any algorithm.
        #[derive(Clone, Debug)]
        pub(super) enum AnyState {
            $($rule(tollgate_core::algorithm::$module::State)),*
        }

        $(impl StoredRule for tollgate_core::algorithm::$module::$rule {
            fn wrap(&self, state: Self::State) -> AnyState {
                AnyState::$rule(state)
            }

            fn read(&self, version: &Version) -> Self::State {
                match (&version.rule, &version.state) {
                    (AnyRule::$rule(rule), AnyState::$rule(state)) if rule == self => state.clone(),
                    (AnyRule::$rule(rule), AnyState::$rule(state)) => self.convert(rule, state),
                    _ => {
                        let at = version.counts_from();
                        self.resume(version.consumed(at), at)
                    }
                }
            }
        })*

        impl Version {
            /// Whether the state could be forgotten.
            pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.is_fresh(state, now),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
            }

            fn counts_from(&self) -> Timestamp {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.counts_from(state),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
            }

            /// Returns the units that count in the state.
            fn consumed(&self, now: Timestamp) -> u64 {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.consumed(state, now),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
            }
        }
    };
}

any_state!(
    FixedWindowCounter: fixed_window_counter,
    SlidingWindowLog: sliding_window_log,
    SlidingWindowCounter: sliding_window_counter,
    TokenBucket: token_bucket,
    LeakyBucket: leaky_bucket,
    ConcurrentRequests: concurrent_requests,
    CalendarWindowCounter: calendar_window_counter,
    Penalty: penalty
);

/// A rule that can convert from and to [`AnyState`].
pub(super) trait StoredRule: Rule {
    fn wrap(&self, state: Self::State) -> AnyState;
    fn read(&self, version: &Version) -> Self::State;
}
