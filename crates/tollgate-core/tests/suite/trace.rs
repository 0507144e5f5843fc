//! Random policies and traces, and a macro that tests a law in every mode.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use tollgate_core::{
    Algorithm, Calendar, Decision, LeakyMode, Micros, Policy, Quota, Refill, Resolution, Timestamp,
};

use crate::limiter::{Limiter, limiter};

/// An algorithm in a specific mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    FixedWindowCounter,
    LogExact,
    LogThousandth,
    SlidingWindowCounter,
    TokenGreedy,
    TokenInterval,
    LeakyQueue,
    LeakyQueueWithMaxWait,
    LeakyMeter,
    ConcurrentRequests,
    CalendarWindows,
}

impl Mode {
    pub(crate) const ALL: [Self; 11] = [
        Self::FixedWindowCounter,
        Self::LogExact,
        Self::LogThousandth,
        Self::SlidingWindowCounter,
        Self::TokenGreedy,
        Self::TokenInterval,
        Self::LeakyQueue,
        Self::LeakyQueueWithMaxWait,
        Self::LeakyMeter,
        Self::ConcurrentRequests,
        Self::CalendarWindows,
    ];

    fn algorithm(self, max_wait: Micros) -> Algorithm {
        let log = |resolution| Algorithm::SlidingWindowLog { resolution };
        let token = |refill| Algorithm::TokenBucket { refill };
        let leaky = |mode| Algorithm::LeakyBucket { mode };
        match self {
            Self::FixedWindowCounter | Self::CalendarWindows => Algorithm::FixedWindowCounter,
            Self::LogExact => log(Resolution::Exact),
            Self::LogThousandth => log(Resolution::Thousandth),
            Self::SlidingWindowCounter => Algorithm::SlidingWindowCounter,
            Self::TokenGreedy => token(Refill::Greedy),
            Self::TokenInterval => token(Refill::Interval),
            Self::LeakyQueue => leaky(LeakyMode::Queue { max_wait: None }),
            Self::LeakyQueueWithMaxWait => leaky(LeakyMode::Queue { max_wait: Some(max_wait) }),
            Self::LeakyMeter => leaky(LeakyMode::Meter),
            Self::ConcurrentRequests => Algorithm::ConcurrentRequests,
        }
    }

    pub(crate) fn has_burst(self) -> bool {
        matches!(
            self,
            Self::TokenGreedy
                | Self::TokenInterval
                | Self::LeakyQueue
                | Self::LeakyQueueWithMaxWait
                | Self::LeakyMeter
        )
    }

    /// Valid policies in this mode: mostly small numbers, which expose rounding, and a few
    /// realistic ones, which expose large products.
    pub(crate) fn policies(self) -> impl Strategy<Value = Policy> {
        let window = prop_oneof![
            4 => 50..=120_u64,
            4 => 900..=5_000_u64,
            1 => Just(1_000_000),
            1 => Just(60_000_000),
            1 => Just(86_400_000_000),
            1 => Just(400 * 86_400_000_000),
        ];
        let limit = prop_oneof![
            8 => 1..=12_u64,
            1 => Just(100),
            1 => Just(1_000),
            1 => Just(1_000_000),
            1 => Just(1_000_000_000_000),
        ];
        // The burst in halves of the limit, and the longest wait in sixths of the time that a full
        // queue takes to drain.
        let halves = prop_oneof![Just(None), (1..=6_u64).prop_map(Some)];
        let wait_sixths = 0..=8_u64;
        (window, limit, halves, wait_sixths, 0..=2_u64).prop_filter_map(
            "does not build",
            move |(window, limit, halves, wait_sixths, more)| {
                let mut quota = Quota::new(limit, Duration::from_micros(window));
                if self == Self::CalendarWindows {
                    quota = Quota::per_calendar(limit, calendar(window));
                }
                if let (true, Some(halves)) = (self.has_burst(), halves) {
                    quota = quota.burst((limit / 2 * halves + limit % 2 * halves / 2).max(1));
                }
                let drain = u128::from(quota.capacity()) * u128::from(window) / u128::from(limit);
                let max_wait = u64::try_from(drain).ok()? / 6 * wait_sixths + more;
                Policy::new("p", quota, self.algorithm(Micros::new(max_wait))).ok()
            },
        )
    }
}

/// A calendar with windows of about this length, each different from its neighbours. Only the times
/// at which traces run have such short windows.
fn calendar(window: u64) -> Calendar {
    // Rounding limits the number of calendars, which a process never frees.
    let window = window.min(86_400_000_000).next_power_of_two();
    let lengths = [8, 7, 9, 16, 1, 8, 3].map(|eighths| window * eighths / 8);
    let from = |start: u64| {
        lengths.into_iter().cycle().take(350).scan(start, |at, length| {
            *at += length;
            Some(*at)
        })
    };
    let dense = [0, 1_800_000_000_000_000 - 20 * window, Timestamp::MAX.as_micros()];
    let starts = dense.windows(2).flat_map(|pair| {
        let sparse = (1..).map(|n| pair[0] + 350 * window + n * 300 * 86_400_000_000);
        from(pair[0]).chain(sparse.take_while(|at| *at < pair[1]))
    });
    let starts = starts.map(Timestamp::from_micros);
    Calendar::new(format!("about {window}"), starts).expect("ascending instants")
}

/// A policy, and requests for a single key under it.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) policy: Policy,
    pub(crate) start: u64,
    pub(crate) steps: Vec<Step>,
}

/// A request, and the time before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) gap: Gap,
    pub(crate) units: Units,
    /// Whether the units are taken without regard to the limit, like settling a charge that was too
    /// low.
    pub(crate) owed: bool,
}

/// How far the clock moves. Most gaps aim at an instant at which a decision changes, and often miss
/// it by a microsecond.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    Micros(u64),
    /// Tenths of the window.
    Tenths(u64, i64),
    Windows(u64),
    /// To the next window boundary.
    Boundary(i64),
    /// To the instant of the last `retry_after`.
    Retry(i64),
    /// To the instant of the last `reset_after`.
    Reset(i64),
    /// Back by tenths of the window plus microseconds.
    Back(u64, u64),
}

/// A number of units, relative to the policy where possible.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Units {
    Exactly(u64),
    /// Quarters of the capacity.
    Quarters(u64),
    /// The capacity plus this number of units, which may be negative.
    Capacity(i64),
}

impl Units {
    pub(crate) fn of(self, policy: &Policy) -> u64 {
        let capacity = policy.capacity();
        match self {
            Self::Exactly(units) => units,
            Self::Quarters(quarters) => capacity * quarters / 4,
            Self::Capacity(more) => capacity.saturating_add_signed(more),
        }
    }
}

/// The trace's clock, which the steps move.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) now: u64,
    calendar: Option<Calendar>,
    window: u64,
    retry_at: u64,
    reset_at: u64,
}

impl Clock {
    pub(crate) fn new(trace: &Trace) -> Self {
        Self::of(&trace.policy, trace.start)
    }

    pub(crate) fn of(policy: &Policy, start: u64) -> Self {
        let calendar = policy.quota().calendar();
        let window = calendar.map_or_else(
            || policy.window(),
            |calendar| {
                let first = calendar.period(Timestamp::EPOCH);
                first.end().since(first.start())
            },
        );
        Self { now: start, calendar, window: window.get(), retry_at: start, reset_at: start }
    }

    /// Moves the clock forward or back, and returns the new time.
    pub(crate) fn pass(&mut self, gap: Gap) -> u64 {
        let (now, window) = (self.now, self.window);
        let forward = |to: u64, off: i64| to.saturating_add_signed(off).max(now);
        self.now = match gap {
            Gap::Micros(span) => now + span,
            Gap::Tenths(tenths, off) => forward(now + window * tenths / 10, off),
            Gap::Windows(windows) => now + windows * window,
            Gap::Boundary(off) => forward(self.boundary(), off),
            Gap::Retry(off) => forward(self.retry_at, off),
            Gap::Reset(off) => forward(self.reset_at, off),
            Gap::Back(tenths, micros) => now.saturating_sub(window * tenths / 10 + micros),
        };
        self.now
    }

    fn boundary(&self) -> u64 {
        match self.calendar {
            Some(calendar) => calendar.period(Timestamp::from_micros(self.now)).end().as_micros(),
            None => (self.now / self.window + 1) * self.window,
        }
    }

    /// Like [`pass`](Clock::pass), for laws in which the clock never steps back.
    pub(crate) fn pass_forward(&mut self, gap: Gap) -> u64 {
        match gap {
            Gap::Back(..) => self.now,
            gap => self.pass(gap),
        }
    }

    /// Records the decision's later instants, at which later steps can aim.
    pub(crate) fn note(&mut self, decision: &Decision) {
        if let Some(retry_after) = decision.retry_after() {
            self.retry_at = self.now + retry_after.get();
        }
        self.reset_at = self.now + decision.reset_after.get();
    }
}

/// Runs a trace, and checks the key after each decision at a time about a number of units.
pub(crate) fn each_decision(
    trace: &Trace,
    check: impl Fn(&dyn Limiter, u64, u64, &Decision) -> TestCaseResult,
) -> TestCaseResult {
    let mut key = limiter(&trace.policy);
    let mut clock = Clock::new(trace);
    for step in &trace.steps {
        let now = clock.pass(step.gap);
        let units = step.units.of(&trace.policy);
        if step.owed {
            key.owe(units, now);
            continue;
        }
        let decision = key.request(now, units);
        check(&*key, now, units, &decision)?;
        clock.note(&decision);
    }
    Ok(())
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
    let off = || -1..=1_i64;
    prop_oneof![
        4 => Just(Gap::Micros(0)),
        2 => Just(Gap::Micros(1)),
        2 => (2..60_u64).prop_map(Gap::Micros),
        4 => (1..=12_u64, off()).prop_map(|(tenths, off)| Gap::Tenths(tenths, off)),
        1 => (1..=3_u64).prop_map(Gap::Windows),
        2 => off().prop_map(Gap::Boundary),
        3 => off().prop_map(Gap::Retry),
        1 => off().prop_map(Gap::Reset),
        2 => (0..=12_u64, 0..=2_u64).prop_map(|(tenths, micros)| Gap::Back(tenths, micros)),
    ]
}

pub(crate) fn units() -> impl Strategy<Value = Units> {
    prop_oneof![
        1 => Just(Units::Exactly(0)),
        4 => Just(Units::Exactly(1)),
        4 => (2..=14_u64).prop_map(Units::Exactly),
        2 => (1..=3_u64).prop_map(Units::Quarters),
        2 => (-2..=2_i64).prop_map(Units::Capacity),
    ]
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (gaps(), units(), prop::bool::weighted(0.06));
    let step = step.prop_map(|(gap, units, owed)| Step { gap, units, owed });
    prop::collection::vec(step, 1..=most)
}

pub(crate) fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..10_000_u64,
        Just(1_800_000_000_000_000),
        1_800_000_000_000_000..1_800_100_000_000_000_u64,
    ]
}

/// Traces in the given mode with up to `most` steps.
pub(crate) fn traces(mode: Mode, most: usize) -> impl Strategy<Value = Trace> {
    (mode.policies(), starts(), steps(most)).prop_map(|(policy, start, steps)| Trace {
        policy,
        start,
        steps,
    })
}

/// Whether `TOLLGATE_LONG=1` requests long tests.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TOLLGATE_LONG").is_some_and(|value| value == "1")
}

/// Checks a law for values from a strategy. A failure is shrunk, and its seed is stored beside
/// `file`.
pub(crate) fn check<S: Strategy>(
    file: &'static str,
    values: &S,
    law: impl Fn(S::Value) -> TestCaseResult,
) {
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => Config::default().cases,
        None if is_long() => 256,
        None => 96,
    };
    check_cases(file, cases, values, law);
}

/// Like [`check`], for laws with long cases.
pub(crate) fn check_cases<S: Strategy>(
    file: &'static str,
    cases: u32,
    values: &S,
    law: impl Fn(S::Value) -> TestCaseResult,
) {
    let config = Config { cases, source_file: Some(file), ..Config::default() };
    match TestRunner::new(config).run(values, law) {
        Ok(()) => {}
        // A single line is easier to read than a page per trace.
        Err(TestError::Fail(reason, least)) => panic!("{reason}\nleast failing input: {least:?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// One test per mode: `every_rule!(the_law)` creates a module with that name from
/// `fn the_law(trace: &Trace) -> TestCaseResult`.
macro_rules! every_rule {
    ($law:ident) => {
        $crate::trace::rules!($law:
            fixed_window_counter FixedWindowCounter,
            sliding_window_log_exact LogExact,
            sliding_window_log_thousandth LogThousandth,
            sliding_window_counter SlidingWindowCounter,
            token_bucket_greedy TokenGreedy,
            token_bucket_interval TokenInterval,
            leaky_bucket_queue LeakyQueue,
            leaky_bucket_queue_with_max_wait LeakyQueueWithMaxWait,
            leaky_bucket_meter LeakyMeter,
            concurrent_requests ConcurrentRequests,
            calendar_windows CalendarWindows,
        );
    };
}

/// One test for each listed mode.
macro_rules! rules {
    ($law:ident: $($test:ident $mode:ident),+ $(,)?) => {
        mod $law {
            use $crate::trace::{Mode, check, traces};
            $(
                #[test]
                fn $test() {
                    check(file!(), &traces(Mode::$mode, 32), |trace| super::$law(&trace));
                }
            )+
        }
    };
}

/// One test for each line: `cases!(law: one(1), two(2))` calls `law(1)` in the test `one`.
macro_rules! cases {
    ($law:ident: $($test:ident($($argument:expr),+)),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                $law($($argument),+);
            }
        )+
    };
}

pub(crate) use {cases, every_rule, rules};
