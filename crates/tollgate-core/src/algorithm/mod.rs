//! The algorithms, one per file, all with the same methods.
//!
//! | algorithm | state per key | allows when |
//! |---|---|---|
//! | [`fixed_window_counter`] | a window and a count | the count has room |
//! | [`sliding_window_log`] | every charge of the last window | their sum has room |
//! | [`sliding_window_counter`] | two counts | the newer plus a share of the older has room |
//! | [`token_bucket`] | a level and an instant | there are enough tokens |
//! | [`leaky_bucket`] | a level and an instant | the bucket has room and the wait is short enough |
//! | [`concurrent_requests`] | every request in flight | their sum has room |
//! | [`penalty`] | strikes and a block | there is no block |
//!
//! [`calendar_window_counter`] is the fixed window counter for quotas with the days, weeks or
//! months of a [`Calendar`] as windows.
//!
//! A *rule* is an algorithm with a policy's numbers filled in. Every rule has the three main
//! methods of [`Rule`] in the same order: **refresh** advances time, **assess** decides without
//! changing state, and **charge** takes units. A denial only calls the first two, so it cannot
//! change state. [`take`](Rule::take) calls all three for a single charge. The remaining methods
//! correct a charge and convert a state to another quota.

use alloc::borrow::ToOwned;
use alloc::string::String;
pub mod calendar_window_counter;
pub mod concurrent_requests;
pub mod fixed_window_counter;
pub mod leaky_bucket;
pub mod penalty;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

use core::any::Any;
use core::fmt;
use core::str::FromStr;

use self::calendar_window_counter::CalendarWindowCounter;
use self::concurrent_requests::ConcurrentRequests;
use self::fixed_window_counter::FixedWindowCounter;
use self::leaky_bucket::LeakyBucket;
use self::penalty::{Penalty, Terms};
use self::sliding_window_counter::SlidingWindowCounter;
use self::sliding_window_log::SlidingWindowLog;
use self::token_bucket::TokenBucket;
use crate::{Calendar, Charged, Cost, Decision, Micros, PenaltyBlock, Timestamp};

/// An algorithm with a policy's numbers filled in, as pure functions over a state.
///
/// `now` is always the current clock reading. If a state has seen a later instant, its time stops
/// at that instant, but every span in a decision still counts from `now`.
///
/// Rules that behave the same are equal, however their quotas were written: a bucket with 10 units
/// per second equals a bucket with 100 units per 10 seconds and the same burst.
pub trait Rule: Clone + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// A key's state.
    type State: Clone + PartialEq + fmt::Debug + Send + 'static;

    /// A state as seen at some instant.
    type View<'a>: Copy + fmt::Debug;

    /// Returns the state of an unused key.
    fn fresh(&self) -> Self::State;

    // An in-memory store decides with these four in about twenty nanoseconds. The rate limiting
    // rules inline them, because a decision that is written to memory and then read at a different
    // width has to wait until the write completes.
    /// Advances time to `now`, without modifying the state.
    fn refresh<'a>(&self, state: &'a Self::State, now: Timestamp) -> Self::View<'a>;

    /// Decides on `cost` as if it were charged. Changes no state.
    fn assess(&self, view: Self::View<'_>, now: Timestamp, cost: Cost) -> Decision;

    /// Takes `cost`, which must be above zero and allowed by [`assess`](Rule::assess) at `now`.
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: Cost);

    /// Decides on `cost`, and takes it if it is allowed.
    #[inline(always)]
    fn take(&self, state: &mut Self::State, now: Timestamp, cost: Cost) -> Decision {
        let decision = self.assess(self.refresh(state, now), now, cost);
        if decision.allows() && cost > Cost::ZERO {
            self.charge(state, now, cost);
        }
        decision
    }

    /// Refunds `units` from a charge if they still count, and returns the number of refunded units.
    /// Afterwards no more is admitted than if these units had never been charged.
    fn give_back(
        &self,
        state: &mut Self::State,
        charged: &Charged,
        units: u64,
        now: Timestamp,
    ) -> u64;

    /// Charges `units` even beyond the quota, up to a debt of one capacity. Returns the number of
    /// charged units.
    fn owe(&self, state: &mut Self::State, units: u64, now: Timestamp) -> u64;

    /// Counts `units` that another version of the quota has charged to the same key. Returns
    /// whether all of them count. If not, the state is full, and earlier charges can no longer be
    /// refunded, because some of their units may be among those that do not count.
    fn count(&self, state: &mut Self::State, units: u64, now: Timestamp) -> bool {
        self.owe(state, units, now) == units
    }

    /// Returns the units that count at `now`, rounded up.
    fn consumed(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Returns the instant at which the state's units count as charged under another quota: the last
    /// charge or, with refill in intervals, the interval's start.
    fn counts_from(&self, state: &Self::State) -> Timestamp;

    /// Returns a state in which `units` were charged at `at`, for a key about which only this is
    /// known.
    fn resume(&self, units: u64, at: Timestamp) -> Self::State;

    /// Converts a state written under the rule `from`, which has the same algorithm. The units that
    /// counted then still count from that instant on, rounded up.
    ///
    /// The result depends only on the state, not on the clock, because a denial does not store it:
    /// if each denial converted the state at its own time, the client's wait would never end.
    fn convert(&self, from: &Self, state: &Self::State) -> Self::State {
        let at = from.counts_from(state);
        self.resume(from.consumed(state, at), at)
    }

    /// Restarts the count of refunded units if it is about to exceed the range of exact numbers,
    /// and returns whether it did. Earlier charges can then no longer be refunded.
    fn restart_refunds(&self, state: &mut Self::State) -> bool {
        let _ = state;
        false
    }

    /// Returns whether the state equals [`fresh`](Rule::fresh), both now and later.
    fn is_fresh(&self, state: &Self::State, now: Timestamp) -> bool;

    /// Blocks the key, and returns how long it is blocked then. Returns `None` and changes no state
    /// if the block is old news, or if the rule does not block.
    fn block(
        &self,
        state: &mut Self::State,
        block: PenaltyBlock,
        now: Timestamp,
    ) -> Option<Micros> {
        let _ = (state, block, now);
        None
    }

    /// Returns the last instant up to which units can be charged with the same effect as if they
    /// were charged now. If replicas may spend units at any instant until some time, that time must
    /// not be later than this.
    fn last_instant(&self, state: &Self::State, now: Timestamp) -> Timestamp {
        let _ = (state, now);
        Timestamp::MAX
    }

    /// Returns the maximum heap size that a key's state can reach, in bytes.
    fn max_heap_bytes(&self) -> usize {
        0
    }
}

/// Returns the state under `rule` that continues a state written under `from`. An equal rule continues
/// the same state, including a debt. If the algorithm differs, only the number of units and their
/// time are known.
pub fn converted<R: Rule, F: Rule>(rule: &R, from: &F, state: &F::State) -> R::State {
    let same = (from as &dyn Any).downcast_ref::<R>();
    let same = same.zip((state as &dyn Any).downcast_ref::<R::State>());
    if let Some((from, state)) = same {
        return if from == rule { state.clone() } else { rule.convert(from, state) };
    }
    let at = from.counts_from(state);
    rule.resume(from.consumed(state, at), at)
}

/// An algorithm and its settings.
///
/// The enums for algorithms and settings are exhaustive, because every store implements each
/// algorithm, in Lua too. A new algorithm is therefore a breaking change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// See [`fixed_window_counter`], and [`calendar_window_counter`] for quotas per calendar.
    FixedWindowCounter,
    /// See [`sliding_window_log`].
    SlidingWindowLog {
        /// The precision of timestamps.
        resolution: Resolution,
    },
    /// See [`sliding_window_counter`].
    SlidingWindowCounter,
    /// See [`token_bucket`].
    TokenBucket {
        /// How tokens are refilled.
        refill: Refill,
    },
    /// See [`leaky_bucket`].
    LeakyBucket {
        /// Whether requests wait in the bucket.
        mode: LeakyMode,
    },
    /// See [`concurrent_requests`]. The window is a permit's time to live.
    ConcurrentRequests,
}

/// A policy's kind: it either limits requests or blocks clients.
///
/// Exhaustive for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The policy charges requests to a quota.
    Limit(Algorithm),
    /// The policy blocks requests after strikes. It never charges, refunds or consumes units. See
    /// [`penalty`].
    Penalty(Terms),
}

impl Kind {
    /// Returns the algorithm's name, or `penalty`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Limit(algorithm) => algorithm.name(),
            Self::Penalty(_) => "penalty",
        }
    }
}

impl From<Algorithm> for Kind {
    fn from(algorithm: Algorithm) -> Self {
        Self::Limit(algorithm)
    }
}

/// The timestamp precision in a sliding window log.
///
/// Exhaustive for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// [`Exact`](Self::Exact) for limits up to 1000, otherwise [`Thousandth`](Self::Thousandth).
    #[default]
    Auto,
    /// One microsecond: an entry of 16 bytes per charge, up to the limit.
    Exact,
    /// A thousandth of the window, rounded up. The limit is never exceeded, units are refilled up
    /// to window/1000 late, and a key has at most 1001 entries.
    Thousandth,
}

/// How a token bucket is refilled: continuously, or in intervals.
///
/// Exhaustive for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Continuously: `limit` tokens, spread evenly over each window.
    #[default]
    Greedy,
    /// In intervals: `limit` tokens together at the end of each window. The first window starts
    /// with the first charge to a full bucket.
    Interval,
}

/// What a leaky bucket does with an allowed request: delay it, or let it continue immediately.
///
/// Exhaustive for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeakyMode {
    /// The request waits until the work before it has drained, so requests leave at an even rate. A
    /// request that would wait longer than `max_wait` is denied.
    Queue {
        /// The longest wait. If unset, only the capacity bounds the queue.
        max_wait: Option<Micros>,
    },
    /// The request continues immediately; the bucket only measures.
    Meter,
}

/// A queue bounded only by its capacity.
impl Default for LeakyMode {
    fn default() -> Self {
        Self::Queue { max_wait: None }
    }
}

impl Algorithm {
    /// The five rate limiting algorithms, with their default settings. The same quota fits each of
    /// them. A concurrency limit ([`ConcurrentRequests`](Self::ConcurrentRequests)) is not
    /// included: it needs a different quota, and a caller that returns its units.
    pub const ALL: [Self; 5] = [
        Self::FixedWindowCounter,
        Self::SlidingWindowLog { resolution: Resolution::Auto },
        Self::SlidingWindowCounter,
        Self::TokenBucket { refill: Refill::Greedy },
        Self::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    ];

    /// Returns the algorithm's name in configuration files.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindowCounter => "fixed_window_counter",
            Self::SlidingWindowLog { .. } => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket { .. } => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::ConcurrentRequests => "concurrent_requests",
        }
    }

    /// Returns whether this is a token bucket or a leaky bucket. Only their quotas have a burst.
    pub const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket { .. } | Self::LeakyBucket { .. })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses a name from [`Algorithm::ALL`], with default settings.
impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// Error returned when parsing an unknown algorithm name.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0605")]
#[error(
    "unknown algorithm `{0}`: use fixed_window_counter, sliding_window_log, \
     sliding_window_counter, token_bucket or leaky_bucket [TG0605]"
)]
pub struct UnknownAlgorithm(String);

crate::debug_as_display!(UnknownAlgorithm);

/// A rule for any algorithm. The fixed window counter has two rules.
///
/// Exhaustive for the same reason as [`Algorithm`].
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its rule")]
pub enum AnyRule {
    FixedWindowCounter(FixedWindowCounter),
    SlidingWindowLog(SlidingWindowLog),
    SlidingWindowCounter(SlidingWindowCounter),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    ConcurrentRequests(ConcurrentRequests),
    CalendarWindowCounter(CalendarWindowCounter),
    Penalty(Penalty),
}

impl AnyRule {
    /// Whether a charge under one rule also counts under the other, if both are versions of the
    /// same policy. Quota units, permits and strikes do not count as one another.
    pub const fn counts_with(&self, other: &Self) -> bool {
        const fn measured(rule: &AnyRule) -> u8 {
            match rule {
                AnyRule::ConcurrentRequests(_) => 1,
                AnyRule::Penalty(_) => 2,
                _ => 0,
            }
        }
        measured(self) == measured(other)
    }
}

/// The header of a stored state. It has the information needed to read the state after the policy
/// has changed, or in a replica that runs another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The layout version of the stored state, [`Form::VERSION`] for states written now.
    pub version: u8,
    /// The algorithm and its settings, or the penalty's terms.
    pub kind: Kind,
    /// The units per window. Together with the window, they determine a bucket's scale.
    pub limit: u64,
    /// The window of the policy that wrote the state.
    pub window: Micros,
    /// The policy's capacity: the limit, or a bucket's burst.
    pub capacity: u64,
    /// The calendar that defines the windows, if a fixed window counter has one.
    pub calendar: Option<Calendar>,
}

impl Form {
    /// The layout version that this crate describes.
    pub const VERSION: u8 = 2;

    /// Returns the rule that reads and writes states of this form.
    ///
    /// A form is created by a [`Policy`](crate::Policy), which has checked the bounds.
    pub fn rule(&self) -> AnyRule {
        let algorithm = match self.kind {
            Kind::Limit(algorithm) => algorithm,
            Kind::Penalty(terms) => return AnyRule::Penalty(Penalty::new(self, terms)),
        };
        match algorithm {
            Algorithm::FixedWindowCounter => match self.calendar {
                None => AnyRule::FixedWindowCounter(FixedWindowCounter::new(self)),
                Some(calendar) => {
                    AnyRule::CalendarWindowCounter(CalendarWindowCounter::new(self, calendar))
                }
            },
            Algorithm::SlidingWindowLog { resolution } => {
                AnyRule::SlidingWindowLog(SlidingWindowLog::new(self, resolution))
            }
            Algorithm::SlidingWindowCounter => {
                AnyRule::SlidingWindowCounter(SlidingWindowCounter::new(self))
            }
            Algorithm::TokenBucket { refill } => {
                AnyRule::TokenBucket(TokenBucket::new(self, refill))
            }
            Algorithm::LeakyBucket { mode } => AnyRule::LeakyBucket(LeakyBucket::new(self, mode)),
            Algorithm::ConcurrentRequests => {
                AnyRule::ConcurrentRequests(ConcurrentRequests::new(self))
            }
        }
    }
}

/// Evaluates `$body` with `$rule` bound to the rule inside an [`AnyRule`]. A trait object is not
/// possible, because each rule has its own state type.
#[macro_export]
macro_rules! with_rule {
    ($any:expr, $rule:ident => $body:expr) => {
        match $any {
            $crate::AnyRule::FixedWindowCounter($rule) => $body,
            $crate::AnyRule::SlidingWindowLog($rule) => $body,
            $crate::AnyRule::SlidingWindowCounter($rule) => $body,
            $crate::AnyRule::TokenBucket($rule) => $body,
            $crate::AnyRule::LeakyBucket($rule) => $body,
            $crate::AnyRule::ConcurrentRequests($rule) => $body,
            $crate::AnyRule::CalendarWindowCounter($rule) => $body,
            $crate::AnyRule::Penalty($rule) => $body,
        }
    };
}
