//! A named quota with its algorithm, checked once so that nothing has to be later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::sliding_window_log::SlidingWindowLog;
use crate::scale::{Scale, nearest_limit};
use crate::{
    Algorithm, AnyRule, Form, LeakyMode, Micros, OnStoreError, Quota, Refill, Resolution, Timestamp,
};

/// A named quota with its algorithm.
///
/// Building one checks every bound; see [`PolicyError`]. A policy is cheap to clone.
/// State belongs to the *name*: two policies of one name in one store share it, and if
/// their quotas differ, what was consumed under one is kept under the other.
///
/// ```
/// use tollgate_core::{Algorithm, LeakyMode, Policy, Quota};
///
/// let global = Policy::sliding_window_log("global", Quota::per_minute(100))?;
/// let search = Policy::token_bucket("search", Quota::per_hour(1_000).burst(50))?;
/// let metered = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
/// let upload = Policy::new("upload", Quota::per_minute(10), metered)?;
/// # let _ = (global, search, upload);
///
/// let error = Policy::token_bucket("odd", Quota::per_day(123_457)).unwrap_err();
/// assert!(error.to_string().ends_with("the nearest limit that can is 123456"));
/// # Ok::<(), tollgate_core::PolicyError>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    rule: AnyRule,
    form: Form,
    name: Box<str>,
    quota: Quota,
    on_store_error: OnStoreError,
}

impl Policy {
    /// The largest limit and burst.
    pub const MAX_LIMIT: u64 = 1_000_000_000_000;
    /// The shortest window.
    pub const MIN_WINDOW: Duration = Duration::from_micros(50);
    /// The longest window: 400 days.
    pub const MAX_WINDOW: Duration = Duration::from_secs(400 * 86_400);
    /// The longest name, in bytes.
    pub const MAX_NAME: usize = 128;

    /// A policy of this name, or what stands in its way.
    pub fn new(
        name: impl Into<String>,
        quota: Quota,
        algorithm: Algorithm,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        let check = || {
            check_name(&name)?;
            let window = check_window(quota.window())?;
            check_limit(quota, algorithm)?;
            check_scale(quota, window, algorithm)?;
            Ok(window)
        };
        let window = check().map_err(|reason| PolicyError { name: name.clone(), reason })?;
        let form = Form {
            version: Form::VERSION,
            algorithm,
            limit: quota.limit(),
            window,
            capacity: quota.capacity(),
        };
        Ok(Self(Arc::new(Inner {
            rule: form.rule(),
            form,
            name: name.into(),
            quota,
            on_store_error: OnStoreError::default(),
        })))
    }

    /// At most `limit` in each window of the calendar.
    pub fn fixed_window_counter(
        name: impl Into<String>,
        quota: Quota,
    ) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::FixedWindowCounter)
    }

    /// At most `limit` in any window.
    pub fn sliding_window_log(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::SlidingWindowLog { resolution: Resolution::Auto })
    }

    /// At most `limit` in this window and a share of the one before.
    pub fn sliding_window_counter(
        name: impl Into<String>,
        quota: Quota,
    ) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::SlidingWindowCounter)
    }

    /// Up to `burst` at once, refilled continuously.
    pub fn token_bucket(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::TokenBucket { refill: Refill::Greedy })
    }

    /// Up to `burst` in a queue that leaves at an even rate.
    pub fn leaky_bucket(name: impl Into<String>, quota: Quota) -> Result<Self, PolicyError> {
        Self::new(name, quota, Algorithm::LeakyBucket { mode: LeakyMode::default() })
    }

    /// What the policy does while its store cannot decide.
    #[must_use]
    pub fn with_on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        Arc::make_mut(&mut self.0).on_store_error = on_store_error;
        self
    }

    /// The name: printable ASCII.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The quota as it was stated.
    pub fn quota(&self) -> Quota {
        self.0.quota
    }

    /// The algorithm and its settings.
    pub fn algorithm(&self) -> Algorithm {
        self.0.form.algorithm
    }

    /// The window.
    pub fn window(&self) -> Micros {
        self.0.form.window
    }

    /// The most units granted at once: the limit, or the burst of a bucket.
    pub fn capacity(&self) -> u64 {
        self.0.form.capacity
    }

    /// What states written under this policy begin with.
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// The algorithm with the numbers filled in.
    pub fn rule(&self) -> &AnyRule {
        &self.0.rule
    }

    /// What the policy does while its store cannot decide.
    pub fn on_store_error(&self) -> OnStoreError {
        self.0.on_store_error
    }

    /// Whether the policy may hold requests back.
    pub fn queues(&self) -> bool {
        matches!(self.algorithm(), Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } })
    }

    /// Whether both are handles of one policy: a comparison of two pointers.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether a state written under one can be read under the other as it is.
    pub fn shares_state_with(&self, other: &Self) -> bool {
        self.is_same(other) || (self.form() == other.form() && self.name() == other.name())
    }

    /// The same policy with `numerator / denominator` of its quota, for a share of a
    /// tier or of a replica.
    ///
    /// Rounds down, but never below 1; where that does not build, to the nearest limit
    /// that does.
    ///
    /// # Panics
    /// If `denominator` is zero.
    #[must_use]
    pub fn share(&self, numerator: u32, denominator: u32) -> Self {
        assert!(denominator > 0, "a share of n/0 has no meaning");
        let part = |units: u64| {
            let part = u128::from(units) * u128::from(numerator) / u128::from(denominator);
            u64::try_from(part).unwrap_or(u64::MAX).clamp(1, Self::MAX_LIMIT)
        };
        let burst = self.0.quota.burst_units().map(part);
        let build = |limit| {
            let quota = Quota::new(limit, self.0.quota.window());
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            Self::new(self.name(), quota, self.algorithm())
        };
        let limit = part(self.0.quota.limit());
        let policy = build(limit).or_else(|error| match error.reason {
            Reason::Inexact { nearest: Some(nearest), .. } | Reason::TooSlow { nearest, .. } => {
                build(nearest)
            }
            _ => Err(error),
        });
        // What still does not build is kept whole rather than dropped.
        policy.map_or_else(
            |_| self.clone(),
            |policy| policy.with_on_store_error(self.on_store_error()),
        )
    }
}

/// Two handles of one policy, or two policies that say the same.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            || (self.shares_state_with(other) && self.on_store_error() == other.on_store_error())
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("quota", &self.0.quota)
            .field("algorithm", &self.0.form.algorithm)
            .field("on_store_error", &self.0.on_store_error)
            .finish()
    }
}

/// "search: 1000 units per 3600 seconds, burst 50, token_bucket"
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quota = self.0.quota;
        write!(f, "{}: {} units per {}", self.name(), quota.limit(), self.window())?;
        if let Some(burst) = quota.burst_units() {
            write!(f, ", burst {burst}")?;
        }
        write!(f, ", {}", self.algorithm())
    }
}

/// Why a policy cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy `{}`: {reason}", .name.escape_default())]
pub struct PolicyError {
    name: String,
    reason: Reason,
}

impl PolicyError {
    /// The nearest limit that builds, where a limit was the reason and there is one.
    pub fn nearest_limit(&self) -> Option<u64> {
        match self.reason {
            Reason::Limit { nearest, .. } => Some(nearest),
            Reason::TooSlow { nearest, .. } => Some(nearest),
            Reason::Inexact { nearest, .. } => nearest,
            Reason::ExactLog { .. } => Some(SlidingWindowLog::MAX_EXACT_LIMIT),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("a name is 1 to {} printable ASCII characters", Policy::MAX_NAME)]
    Name,
    #[error(
        "a {what} of {given} is outside 1 to {}; the nearest that can be is {nearest}",
        Policy::MAX_LIMIT
    )]
    Limit { what: &'static str, given: u64, nearest: u64 },
    #[error("a window of {0:?} is outside 50 µs to 400 days")]
    Window(Duration),
    #[error("a window of {0:?} is not a whole number of microseconds")]
    WindowFraction(Duration),
    #[error("{0} has no burst: drop the burst, or use token_bucket or leaky_bucket")]
    Burst(Algorithm),
    #[error(
        "a log at full resolution of {limit} units is more than {}: lower the limit or use \
         the resolution of a thousandth of the window",
        SlidingWindowLog::MAX_EXACT_LIMIT
    )]
    ExactLog { limit: u64 },
    #[error(
        "a bucket of {capacity} units at {limit} per {window} cannot be counted exactly: \
         2 · {capacity} · {unit} is past 2^53; {}",
        nearest.map_or_else(
            || "no limit can with this window: choose a rounder one".to_owned(),
            |limit| format!("the nearest limit that can is {limit}"),
        )
    )]
    Inexact { limit: u64, window: Micros, capacity: u64, unit: u64, nearest: Option<u64> },
    #[error(
        "a bucket of {capacity} units at {limit} per {window} takes longer than 2^52 µs to \
         fill; the nearest limit that does not is {nearest}"
    )]
    TooSlow { limit: u64, window: Micros, capacity: u64, nearest: u64 },
}

fn check_name(name: &str) -> Result<(), Reason> {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if name.is_empty() || name.len() > Policy::MAX_NAME || !printable {
        return Err(Reason::Name);
    }
    Ok(())
}

fn check_window(window: Duration) -> Result<Micros, Reason> {
    if !(Policy::MIN_WINDOW..=Policy::MAX_WINDOW).contains(&window) {
        return Err(Reason::Window(window));
    }
    if !window.subsec_nanos().is_multiple_of(1_000) {
        return Err(Reason::WindowFraction(window));
    }
    let micros = u64::try_from(window.as_micros()).map_err(|_| Reason::Window(window))?;
    Ok(Micros::new(micros))
}

fn check_limit(quota: Quota, algorithm: Algorithm) -> Result<(), Reason> {
    let within = |what, given: u64| match given.clamp(1, Policy::MAX_LIMIT) {
        nearest if nearest == given => Ok(()),
        nearest => Err(Reason::Limit { what, given, nearest }),
    };
    within("limit", quota.limit())?;
    if let Some(burst) = quota.burst_units() {
        within("burst", burst)?;
    }
    match algorithm {
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => Ok(()),
        _ if quota.burst_units().is_some() => Err(Reason::Burst(algorithm)),
        Algorithm::SlidingWindowLog { resolution: Resolution::Exact }
            if quota.limit() > SlidingWindowLog::MAX_EXACT_LIMIT =>
        {
            Err(Reason::ExactLog { limit: quota.limit() })
        }
        _ => Ok(()),
    }
}

fn check_scale(quota: Quota, window: Micros, algorithm: Algorithm) -> Result<(), Reason> {
    match algorithm {
        Algorithm::TokenBucket { refill: Refill::Interval } => check_intervals(quota, window),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            let (limit, capacity) = (quota.limit(), quota.capacity());
            let scale = Scale::new(limit, window);
            if scale.holds(capacity) {
                return Ok(());
            }
            let nearest = nearest_limit(limit, window, quota.burst_units(), Policy::MAX_LIMIT);
            Err(Reason::Inexact { limit, window, capacity, unit: scale.unit, nearest })
        }
        _ => Ok(()),
    }
}

/// Tokens that come back whole need no scale, but the instant at which a bucket that owes
/// as much again is full must be one that can be expressed.
fn check_intervals(quota: Quota, window: Micros) -> Result<(), Reason> {
    let (limit, capacity) = (quota.limit(), quota.capacity());
    // Windows that fit; at least 260 of the longest.
    let most = Timestamp::MAX.as_micros() / window.get();
    if (2 * capacity).div_ceil(limit) <= most {
        return Ok(());
    }
    Err(Reason::TooSlow { limit, window, capacity, nearest: (2 * capacity).div_ceil(most) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NANOS: fn(u64) -> Duration = Duration::from_nanos;

    #[test]
    fn what_cannot_be_counted_is_refused_with_the_number_and_the_cure() {
        let bucket = Algorithm::TokenBucket { refill: Refill::Greedy };
        let interval = Algorithm::TokenBucket { refill: Refill::Interval };
        let exact = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
        for (quota, algorithm, expected) in [
            (
                Quota::per_second(0),
                bucket,
                "a limit of 0 is outside 1 to 1000000000000; the nearest that can be is 1",
            ),
            (Quota::per_day(u64::MAX), bucket, "the nearest that can be is 1000000000000"),
            (Quota::per_second(1).burst(0), bucket, "a burst of 0 is outside"),
            (Quota::new(1, NANOS(49_000)), bucket, "a window of 49µs is outside 50 µs to 400 days"),
            (
                Quota::new(1, NANOS(50_001)),
                bucket,
                "50.001µs is not a whole number of microseconds",
            ),
            (
                Quota::new(1, Duration::from_secs(400 * 86_400 + 1)),
                bucket,
                "outside 50 µs to 400 days",
            ),
            (Quota::per_day(123_457), bucket, "the nearest limit that can is 123456"),
            (Quota::per_day(1).burst(1_000_000), interval, "the nearest limit that does not is 20"),
            (
                Quota::per_second(5).burst(9),
                Algorithm::FixedWindowCounter,
                "fixed_window_counter has no burst",
            ),
            (
                Quota::per_day(100_001),
                exact,
                "a log at full resolution of 100001 units is more than 100000",
            ),
        ] {
            let error = Policy::new("p", quota, algorithm).unwrap_err().to_string();
            assert!(error.starts_with("policy `p`: ") && error.contains(expected), "{error}");
        }
        for name in ["", "naïve", "tab\t", &"x".repeat(129)] {
            let error = Policy::fixed_window_counter(name, Quota::per_second(1)).unwrap_err();
            assert!(error.to_string().contains("1 to 128 printable ASCII"), "{error}");
        }
    }

    #[test]
    fn the_extremes_build() {
        for algorithm in Algorithm::ALL {
            for quota in [
                Quota::new(1, Policy::MIN_WINDOW),
                Quota::new(1, Policy::MAX_WINDOW),
                Quota::new(Policy::MAX_LIMIT, Policy::MIN_WINDOW),
                Quota::per_day(1_000_000),
                Quota::new(3, Duration::from_secs(7)),
            ] {
                Policy::new("p", quota, algorithm).unwrap();
            }
        }
    }

    #[test]
    fn what_comes_back_whole_needs_no_round_rate() {
        let interval = Algorithm::TokenBucket { refill: Refill::Interval };
        Policy::new("p", Quota::per_day(123_457), interval).unwrap();
        let error = Policy::new("p", Quota::per_day(1).burst(1_000_000), interval).unwrap_err();
        let nearest = error.nearest_limit().unwrap();
        let build = |limit| Policy::new("p", Quota::per_day(limit).burst(1_000_000), interval);
        assert!(build(nearest).is_ok() && build(nearest - 1).is_err());
    }

    #[test]
    fn the_nearest_limit_builds() {
        let error = Policy::token_bucket("p", Quota::per_day(123_457)).unwrap_err();
        let nearest = error.nearest_limit().unwrap();
        Policy::token_bucket("p", Quota::per_day(nearest)).unwrap();
    }

    #[test]
    fn a_share_rounds_down_to_what_builds_and_never_below_one() {
        let share = |limit, numerator, denominator| {
            let policy = Policy::token_bucket("p", Quota::per_day(limit)).unwrap();
            policy.share(numerator, denominator).quota().limit()
        };
        assert_eq!(share(100, 1, 3), 33);
        assert_eq!(share(1, 1, 10), 1);
        // Half of it is 123 457, which does not build.
        assert_eq!(share(246_915, 1, 2), 123_456);
    }
}
