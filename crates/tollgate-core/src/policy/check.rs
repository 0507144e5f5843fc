//! Validates policies.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::Policy;
use crate::algorithm::concurrent_requests::ConcurrentRequests;
use crate::algorithm::penalty::{Penalty, Terms};
use crate::algorithm::sliding_window_log::SlidingWindowLog;
use crate::scale::{Scale, nearest_limit};
use crate::{
    Algorithm, Form, Kind, LeakyMode, Lease, Micros, Quota, Receipt, Refill, Resolution, Timestamp,
};

/// Error returned when a policy cannot be built. Its message includes how to fix it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0102")]
#[doc(alias = "TG0103")]
#[doc(alias = "TG0104")]
#[doc(alias = "TG0105")]
#[doc(alias = "TG0106")]
#[doc(alias = "TG0111")]
#[doc(alias = "TG0113")]
#[doc(alias = "TG0116")]
#[doc(alias = "TG0120")]
#[error("policy `{}`: {reason} [{}]", .name.escape_default(), .reason.code())]
pub struct PolicyError {
    name: String,
    reason: Reason,
}

crate::debug_as_display!(PolicyError);

impl PolicyError {
    /// Returns the nearest valid limit, if the limit was the reason.
    pub fn nearest_limit(&self) -> Option<u64> {
        match self.reason {
            Reason::Limit { nearest, .. } => Some(nearest),
            Reason::TooSlow { nearest, .. } => Some(nearest),
            Reason::Inexact { nearest, .. } => nearest,
            Reason::ExactLog { .. } => Some(SlidingWindowLog::MAX_EXACT_LIMIT),
            Reason::InFlight { .. } => Some(ConcurrentRequests::MAX_LIMIT),
            Reason::Strikes { .. } => Some(Penalty::MAX_STRIKES),
            _ => None,
        }
    }
}

impl Reason {
    const fn code(&self) -> &'static str {
        match self {
            Self::Limit { .. } | Self::Window(..) | Self::WindowFraction(..) | Self::Share(..) => {
                "TG0102"
            }
            Self::Name => "TG0103",
            Self::ExactLog { .. }
            | Self::InFlight { .. }
            | Self::Strikes { .. }
            | Self::Inexact { .. }
            | Self::TooSlow { .. } => "TG0104",
            Self::Burst(..) => "TG0105",
            Self::Calendar(..) => "TG0106",
            Self::InFlightQueue | Self::CalendarQueue | Self::LeakyQueue | Self::LeasedQueue => {
                "TG0111"
            }
            Self::Factor(..) | Self::Block { .. } | Self::Longest { .. } => "TG0113",
            Self::NotLeasedInFlight
            | Self::NotLeasedPenalty
            | Self::NotLeasedCalendar
            | Self::NotLeased(..)
            | Self::LeaseShare(..)
            | Self::LeaseTtl { .. } => "TG0116",
            Self::InFlightFor { .. } => "TG0120",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("a name is 1 to {} printable ASCII characters", Policy::MAX_NAME)]
    Name,
    #[error(
        "a {what} of {given} is outside 1 to {}; the {} is {nearest}",
        Policy::MAX_LIMIT,
        if given < nearest { "minimum" } else { "maximum" }
    )]
    Limit { what: &'static str, given: u64, nearest: u64 },
    #[error("a window of {0:?} is outside 50 µs to 400 days")]
    Window(Duration),
    #[error("a window of {0:?} is not a whole number of microseconds")]
    WindowFraction(Duration),
    #[error("{0} has no burst: drop the burst, or use token_bucket or leaky_bucket")]
    Burst(Algorithm),
    #[error(
        "{0} needs windows of equal length, unlike a calendar's: use \
         fixed_window_counter, or a span such as 24 hours"
    )]
    Calendar(Algorithm),
    #[error(
        "a log of {limit} units is more than {} at full resolution: lower the limit or use a \
         resolution of a thousandth of the window",
        SlidingWindowLog::MAX_EXACT_LIMIT
    )]
    ExactLog { limit: u64 },
    #[error(
        "{limit} units in flight are more than {}, because each is stored separately: lower the limit, \
         or limit their rate",
        ConcurrentRequests::MAX_LIMIT
    )]
    InFlight { limit: u64 },
    #[error(
        "{strikes} strikes are more than {}, because each is stored separately: lower their number",
        Penalty::MAX_STRIKES
    )]
    Strikes { strikes: u64 },
    #[error("a factor of {0} is outside 1 to {max}: 1 for blocks that do not grow", max = Penalty::MAX_FACTOR)]
    Factor(u64),
    #[error("{what} of {given} is outside {least} to 400 days")]
    Block { what: &'static str, given: Micros, least: &'static str },
    #[error("a first block of {block} is longer than the longest, {max_block}: swap them")]
    Longest { block: Micros, max_block: Micros },
    #[error(
        "a permit's time to live of {ttl} is longer than {}: choose how long a crashed process may hold \
         its permits; longer requests renew theirs",
        Receipt::LIFETIME
    )]
    InFlightFor { ttl: Micros },
    #[error(
        "a bucket of {capacity} units at {limit} per {window} cannot be counted exactly: \
         2 · {capacity} · {unit} is past 2^53; {}",
        nearest.map_or_else(
            || "with this window no limit works: choose a rounder window".to_owned(),
            |limit| format!("the nearest limit that works is {limit}"),
        )
    )]
    Inexact { limit: u64, window: Micros, capacity: u64, unit: u64, nearest: Option<u64> },
    #[error(
        "a bucket of {capacity} units at {limit} per {window} takes longer than 2^52 µs to \
         fill; the nearest limit that works is {nearest}"
    )]
    TooSlow { limit: u64, window: Micros, capacity: u64, nearest: u64 },
    #[error("permits cannot be leased, because each is returned separately: drop the lease")]
    NotLeasedInFlight,
    #[error("a penalty grants no units that could be leased: drop the lease")]
    NotLeasedPenalty,
    #[error(
        "the windows of a calendar cannot be leased, because a shared store knows only the current \
         period: drop the lease, or use windows of equal length"
    )]
    NotLeasedCalendar,
    #[error(
        "{0} cannot be leased, because the instant at which a unit is spent determines when other \
         requests may proceed: drop the lease, or use {1}"
    )]
    NotLeased(&'static str, &'static str),
    #[error(
        "a concurrency limit cannot queue in the store, because permits return at unknown times: \
         let its requests wait in each process"
    )]
    InFlightQueue,
    #[error(
        "requests cannot queue for the windows of a calendar, because a shared store knows only the \
         current period: use windows of equal length"
    )]
    CalendarQueue,
    #[error("a leaky_bucket has its own queue: use its mode, queue, and its max_wait")]
    LeakyQueue,
    #[error(
        "leased units cannot queue, because replicas spend them without the store: drop one of the two"
    )]
    LeasedQueue,
    #[error("a share of {0}/0 has no meaning: choose a denominator of at least 1")]
    Share(u32),
    #[error("a lease of {0}/{1} of the quota is not a share: use more than 0 and at most 1")]
    LeaseShare(u32, u32),
    #[error(
        "a lease's time to live of {given} is outside {} to {most}, the window",
        Micros::from(Lease::MIN_TTL)
    )]
    LeaseTtl { given: Micros, most: Micros },
}

/// Checks everything and returns the window.
pub(super) fn check(name: &str, quota: Quota, kind: Kind) -> Result<Micros, PolicyError> {
    let check = || {
        check_name(name)?;
        let window = check_window(quota.window())?;
        check_limit(quota)?;
        match kind {
            Kind::Limit(algorithm) => check_algorithm(quota, window, algorithm)?,
            Kind::Penalty(terms) => check_penalty(quota, terms)?,
        }
        Ok(window)
    };
    check().map_err(|reason| PolicyError { name: name.to_owned(), reason })
}

/// Checks whether a quota can be shared this way.
pub(crate) fn check_share(name: &str, numerator: u32, denominator: u32) -> Result<(), PolicyError> {
    if denominator > 0 {
        return Ok(());
    }
    Err(PolicyError { name: name.to_owned(), reason: Reason::Share(numerator) })
}

/// Checks whether units may be leased.
pub(super) fn check_lease(
    name: &str,
    quota: Quota,
    form: Form,
    lease: Lease,
    max_queue_time: Option<Micros>,
) -> Result<(), PolicyError> {
    let (numerator, denominator) = lease.share();
    let (ttl, window) = (lease.time_to_live(), form.window);
    let Kind::Limit(algorithm) = form.kind else {
        return Err(PolicyError { name: name.to_owned(), reason: Reason::NotLeasedPenalty });
    };
    let reason = match algorithm {
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } } => {
            Reason::NotLeased("a leaky_bucket in queue mode", "the mode meter")
        }
        Algorithm::TokenBucket { refill: Refill::Interval } => {
            Reason::NotLeased("a token_bucket that refills in intervals", "the greedy refill")
        }
        Algorithm::ConcurrentRequests => Reason::NotLeasedInFlight,
        _ if max_queue_time.is_some() => Reason::LeasedQueue,
        _ if quota.calendar().is_some() => Reason::NotLeasedCalendar,
        _ if !lease.is_share() => Reason::LeaseShare(numerator, denominator),
        _ if ttl < Lease::MIN_TTL.into() || ttl > window => {
            Reason::LeaseTtl { given: ttl, most: window }
        }
        _ => return Ok(()),
    };
    Err(PolicyError { name: name.to_owned(), reason })
}

/// Checks whether requests may queue.
pub(super) fn check_queue(name: &str, form: Form, lease: Option<Lease>) -> Result<(), PolicyError> {
    let reason = match form.kind {
        Kind::Limit(Algorithm::ConcurrentRequests) => Reason::InFlightQueue,
        Kind::Limit(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) => Reason::LeakyQueue,
        _ if form.calendar.is_some() => Reason::CalendarQueue,
        _ if lease.is_some() => Reason::LeasedQueue,
        _ => return Ok(()),
    };
    Err(PolicyError { name: name.to_owned(), reason })
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

fn check_limit(quota: Quota) -> Result<(), Reason> {
    let within = |what, given: u64| match given.clamp(1, Policy::MAX_LIMIT) {
        nearest if nearest == given => Ok(()),
        nearest => Err(Reason::Limit { what, given, nearest }),
    };
    within("limit", quota.limit())?;
    if let Some(burst) = quota.burst_units() {
        within("burst", burst)?;
    }
    Ok(())
}

fn check_algorithm(quota: Quota, window: Micros, algorithm: Algorithm) -> Result<(), Reason> {
    let limit = quota.limit();
    match algorithm {
        _ if quota.burst_units().is_some() && !algorithm.is_bucket() => {
            Err(Reason::Burst(algorithm))
        }
        Algorithm::SlidingWindowLog { resolution: Resolution::Exact }
            if limit > SlidingWindowLog::MAX_EXACT_LIMIT =>
        {
            Err(Reason::ExactLog { limit })
        }
        Algorithm::ConcurrentRequests if limit > ConcurrentRequests::MAX_LIMIT => {
            Err(Reason::InFlight { limit })
        }
        // A receipt must not lapse before its permit, because the permit could then not be
        // returned.
        Algorithm::ConcurrentRequests if window > Receipt::LIFETIME => {
            Err(Reason::InFlightFor { ttl: window })
        }
        Algorithm::FixedWindowCounter => Ok(()),
        _ if quota.calendar().is_some() => Err(Reason::Calendar(algorithm)),
        Algorithm::TokenBucket { refill: Refill::Interval } => check_intervals(quota, window),
        _ if algorithm.is_bucket() => check_scale(quota, window),
        _ => Ok(()),
    }
}

fn check_penalty(quota: Quota, terms: Terms) -> Result<(), Reason> {
    let Terms { block, factor, max_block, forget_after, .. } = terms;
    let longest = Micros::from(Policy::MAX_WINDOW);
    if quota.limit() > Penalty::MAX_STRIKES {
        return Err(Reason::Strikes { strikes: quota.limit() });
    }
    if !(1..=Penalty::MAX_FACTOR).contains(&factor) {
        return Err(Reason::Factor(factor));
    }
    for (what, given) in [("a block", block), ("a maximum block", max_block)] {
        if given == Micros::ZERO || given > longest {
            return Err(Reason::Block { what, given, least: "a microsecond" });
        }
    }
    if forget_after > longest {
        return Err(Reason::Block { what: "a time to forget", given: forget_after, least: "0" });
    }
    if block > max_block {
        return Err(Reason::Longest { block, max_block });
    }
    Ok(())
}

fn check_scale(quota: Quota, window: Micros) -> Result<(), Reason> {
    let (limit, capacity) = (quota.limit(), quota.capacity());
    let scale = Scale::new(limit, window);
    if scale.holds(capacity) {
        return Ok(());
    }
    let nearest = nearest_limit(limit, window, quota.burst_units(), Policy::MAX_LIMIT);
    Err(Reason::Inexact { limit, window, capacity, unit: scale.unit, nearest })
}

/// Whole tokens need no scale, but the instant at which a bucket with a debt is full must be valid.
fn check_intervals(quota: Quota, window: Micros) -> Result<(), Reason> {
    let (limit, capacity) = (quota.limit(), quota.capacity());
    // The number of windows that fit into the representable time, at least 260 even for the
    // longest.
    let most = Timestamp::MAX.as_micros() / window.get();
    if (2 * capacity).div_ceil(limit) <= most {
        return Ok(());
    }
    Err(Reason::TooSlow { limit, window, capacity, nearest: (2 * capacity).div_ceil(most) })
}
