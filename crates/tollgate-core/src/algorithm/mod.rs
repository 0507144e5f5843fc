//! The algorithms, one file each, all with the same verbs.
//!
//! | algorithm | keeps per key | allows when |
//! |---|---|---|
//! | [`fixed_window_counter`] | a window and a count | the count has room |
//! | [`sliding_window_log`] | every charge of the last window | their sum has room |
//! | [`sliding_window_counter`] | two counts | the newer plus a share of the older has room |
//! | [`token_bucket`] | a level and an instant | there are tokens enough |
//! | [`leaky_bucket`] | a level and an instant | the bucket has room, and in queue mode soon enough |
//! | [`concurrent_requests`] | every request in flight | their sum has room |
//! | [`penalty`] | strikes and a block | there is no block |
//!
//! [`calendar_window_counter`] is the fixed window counter of a quota whose windows are the
//! days, weeks or months of a [`Calendar`].
//!
//! A *rule* is an algorithm with the numbers of one policy filled in. Every rule has
//! the three verbs of [`Rule`] in the same order: **refresh** lets time pass,
//! **assess** decides and changes nothing, **charge** takes. Because a denial calls
//! only the first two, it cannot change anything. The verbs after them correct a
//! charge and carry a state over to another quota.

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
use crate::{Calendar, Charged, Cost, Decision, Micros, Timestamp};

/// An algorithm with the numbers of one policy filled in: pure functions over a state.
///
/// `now` is always the time as the clock has it. Where a state has seen a later
/// instant, time stands still at that one, and every span in a decision still counts
/// from `now`.
///
/// Rules that are alike are equal, however their quotas were stated: a bucket of 10 a
/// second is one of 100 in 10 seconds with the same burst.
pub trait Rule: Clone + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The state of a key.
    type State: Clone + PartialEq + fmt::Debug + Send + 'static;

    /// A state as it is at one instant.
    type View<'a>: Copy + fmt::Debug;

    /// Returns the state of a key that was never charged.
    fn fresh(&self) -> Self::State;

    // A store in memory decides with these three in about twenty nanoseconds. The rules of rates
    // inline them, because a decision that is written to memory and read in other widths waits for
    // the writes.
    /// Lets time pass up to `now`, without touching the state.
    fn refresh<'a>(&self, state: &'a Self::State, now: Timestamp) -> Self::View<'a>;

    /// Decides on `cost` as if it were charged; changes no state.
    fn assess(&self, view: Self::View<'_>, now: Timestamp, cost: Cost) -> Decision;

    /// Takes `cost`, more than zero, which [`assess`](Rule::assess) has allowed at `now`.
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: Cost);

    /// Refunds `units` of a charge if they still count, and returns how many. Afterwards no more is
    /// admitted than if they had never been charged.
    fn give_back(
        &self,
        state: &mut Self::State,
        charged: &Charged,
        units: u64,
        now: Timestamp,
    ) -> u64;

    /// Charges `units` even beyond the quota, up to a debt of one capacity, and returns the number
    /// of charged units.
    fn owe(&self, state: &mut Self::State, units: u64, now: Timestamp) -> u64;

    /// Returns the units that count at `now`, rounded up.
    fn consumed(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Returns the state of a key of which only the number of units that count at `now` is known.
    fn resume(&self, units: u64, now: Timestamp) -> Self::State;

    /// Reads a state that was written under the rule `from` of the same algorithm:
    /// what was consumed is kept, rounded up.
    ///
    /// Therefore two versions of a quota side by side admit no more than the larger quota alone.
    /// For counters this holds if one window is a multiple of the other. Otherwise units that have
    /// expired in one window may still be inside the other window, and be admitted again.
    fn convert(&self, from: &Self, state: &Self::State, now: Timestamp) -> Self::State {
        self.resume(from.consumed(state, now), now)
    }

    /// Returns whether the state equals [`fresh`](Rule::fresh), now and later.
    fn is_fresh(&self, state: &Self::State, now: Timestamp) -> bool;

    /// The last instant at which units charged now, or any time until then, count as they do
    /// now. Where others may spend units at any instant up to some end, it must not be later.
    fn last_instant(&self, state: &Self::State, now: Timestamp) -> Timestamp {
        let _ = (state, now);
        Timestamp::MAX
    }

    /// Bytes that the state of one key may come to hold besides itself.
    fn max_heap_bytes(&self) -> usize {
        0
    }
}

/// The choice of an algorithm and its settings.
///
/// The set is closed, and so are the sets of settings: every store implements each algorithm, in Lua
/// too, so a new algorithm is a breaking change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// See [`fixed_window_counter`], and [`calendar_window_counter`] for quotas per calendar.
    FixedWindowCounter,
    /// See [`sliding_window_log`].
    SlidingWindowLog {
        /// How finely instants are kept.
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
    /// See [`concurrent_requests`]: the window is how long a lease lasts.
    ConcurrentRequests,
}

/// The kind of a policy: it limits requests, or it blocks clients.
///
/// The set is closed for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The policy charges requests to a quota.
    Limit(Algorithm),
    /// The policy blocks requests after strikes. It charges, refunds and consumes nothing. See
    /// [`penalty`].
    Penalty(Terms),
}

impl Kind {
    /// The name of the algorithm, or `penalty`.
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

/// The precision at which a sliding window log keeps instants.
///
/// The set is closed for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// [`Exact`](Self::Exact) up to a limit of 1000, [`Thousandth`](Self::Thousandth) above.
    #[default]
    Auto,
    /// Every microsecond: an entry per charge, 16 bytes each, up to the limit.
    Exact,
    /// A thousandth of the window, rounded up: never over the limit, units are refilled up to
    /// window/1000 late, and a key has at most 1001 entries.
    Thousandth,
}

/// The refill of a token bucket: continuously, or in intervals.
///
/// The set is closed for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Continuously: `limit` tokens spread evenly over each window.
    #[default]
    Greedy,
    /// All at once: `limit` tokens at the end of each window. The first window starts
    /// with the first charge to a full bucket.
    Interval,
}

/// The effect of a leaky bucket on a request that it allows: let it pass immediately, or hold it back.
///
/// The set is closed for the same reason as [`Algorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeakyMode {
    /// The request waits until the work before it has drained, so that requests leave
    /// at an even rate. One that would wait longer than `max_wait` is denied.
    Queue {
        /// The longest wait; without one the capacity is the only bound.
        max_wait: Option<Micros>,
    },
    /// The request passes at once; the bucket only measures.
    Meter,
}

/// A queue that is bounded by its capacity alone.
impl Default for LeakyMode {
    fn default() -> Self {
        Self::Queue { max_wait: None }
    }
}

impl Algorithm {
    /// The five algorithms that limit a rate, with their default settings. Each of them fits the
    /// same quota. A concurrency limit ([`ConcurrentRequests`](Self::ConcurrentRequests)) needs
    /// another quota, and a caller that returns its units.
    pub const ALL: [Self; 5] = [
        Self::FixedWindowCounter,
        Self::SlidingWindowLog { resolution: Resolution::Auto },
        Self::SlidingWindowCounter,
        Self::TokenBucket { refill: Refill::Greedy },
        Self::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    ];

    /// The name of the algorithm, as configuration spells it.
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
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads one of the names of [`Algorithm::ALL`]; the settings are the defaults.
impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The error of a name that is not one of the five algorithms.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown algorithm `{0}`: use fixed_window_counter, sliding_window_log, \
     sliding_window_counter, token_bucket or leaky_bucket"
)]
pub struct UnknownAlgorithm(String);

crate::debug_as_display!(UnknownAlgorithm);

/// The rule of one of the algorithms; the fixed window counter has two.
///
/// The set is closed for the same reason as [`Algorithm`].
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

/// The start of a stored state: enough to read it under a policy that has changed, or under another
/// version of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The version of the layout of a stored state: [`Form::VERSION`] for states written now.
    pub version: u8,
    /// The algorithm and its settings, or the terms of a penalty.
    pub kind: Kind,
    /// The units per window. Together with the window it is the scale of a bucket.
    pub limit: u64,
    /// The window of the policy that wrote the state.
    pub window: Micros,
    /// The most units that the policy grants at once.
    pub capacity: u64,
    /// The calendar that says when windows begin, of a fixed window counter that has one.
    pub calendar: Option<Calendar>,
}

impl Form {
    /// The version of the layouts that this crate describes.
    pub const VERSION: u8 = 1;

    /// The rule that reads and writes states of this form.
    ///
    /// Forms come from a [`Policy`](crate::Policy), which has checked the bounds.
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

/// Calls `$body` with `$rule` bound to the rule inside an [`AnyRule`]. Rules have different states,
/// so a trait object is not possible.
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
