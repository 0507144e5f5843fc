//! Random policies and costs: small numbers, where rounding matters; realistic numbers, where
//! products grow; and the limits of valid policies.

use std::time::Duration;

use fastrand::Rng;
use tollgate_calendar::Unit;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Calendar, Kind, LeakyMode, Micros, Policy, Quota, Receipt, Refill, Resolution,
    Timestamp,
};

use super::Family;

/// Returns a name's usual policy and three other versions.
pub(crate) fn versions(rng: &mut Rng, family: Family, seed: u64, name: usize) -> Vec<Policy> {
    let name = format!("{family:?}-{seed}-{name}");
    let (limit, window) = (limit(rng, family), window(rng, family));
    let usual = kind(rng, family, window);
    let mut versions = vec![build(rng, &name, limit, window, usual)];
    versions.extend(restated(rng, &versions[0]));
    while versions.len() < 4 {
        let kind = if rng.u8(..3) == 0 { kind(rng, family, window) } else { usual };
        let limit = if rng.bool() { limit } else { self::limit(rng, family) };
        let window = if rng.bool() { window } else { self::window(rng, family) };
        versions.push(build(rng, &name, limit, window, kind));
    }
    versions
}

/// Returns the same rule for a quota in another notation, if the algorithm allows that.
fn restated(rng: &mut Rng, policy: &Policy) -> Option<Policy> {
    let (factor, window) = (rng.u64(2..=10), policy.window().get());
    let quota = policy.quota();
    let (kind, quota) = match policy.kind() {
        Kind::Limit(Algorithm::SlidingWindowLog { resolution: Resolution::Auto }) => {
            let exact = quota.limit() <= 1_000;
            let same = if exact { Resolution::Exact } else { Resolution::Thousandth };
            (Algorithm::SlidingWindowLog { resolution: same }.into(), quota)
        }
        Kind::Limit(Algorithm::FixedWindowCounter) => return None,
        kind => {
            let window = Duration::from_micros(window * factor);
            (kind, Quota::new(quota.limit() * factor, window).burst(policy.capacity()))
        }
    };
    let restated = Policy::new(policy.name(), quota, kind).ok()?;
    restated.shares_state_with(policy).then_some(restated)
}

/// Returns a cost, usually one that the policy can allow.
pub(crate) fn cost(rng: &mut Rng, policy: &Policy, family: Family) -> u64 {
    let capacity = policy.capacity();
    match (family, rng.u8(..16)) {
        (Family::LongLogs, 0..15) => rng.u64(1..=2),
        // Rarely allowed: nearly all entries have to expire first, and the script searches for that
        // instant.
        (Family::LongLogs, _) => capacity - rng.u64(0..capacity / 3),
        (Family::Heavy, 0..13) => capacity - rng.u64(0..=9),
        (_, 0) => 0,
        (_, 1..6) => 1,
        (_, 6..10) => rng.u64(2..=14),
        (_, 10..12) => rng.u64(0..=capacity),
        (_, 12) => capacity / 4 * rng.u64(1..=3),
        (_, 13..15) => (capacity + rng.u64(0..=4)).saturating_sub(2),
        _ => [u64::MAX, 1 << 53, 1 << 40][rng.usize(..3)],
    }
}

/// Returns the policy with these numbers, or a similar valid policy.
fn build(rng: &mut Rng, name: &str, limit: u64, window: u64, kind: Kind) -> Policy {
    let window = match kind {
        Kind::Limit(Algorithm::ConcurrentRequests) => window.min(Receipt::LIFETIME.get()),
        _ => window,
    };
    let limit = match kind {
        // Small limits make blocks follow each other.
        Kind::Penalty(_) if rng.u8(..4) > 0 => limit % 3 + 1,
        _ => limit,
    };
    let is_bucket = matches!(kind, Kind::Limit(algorithm) if algorithm.is_bucket());
    let burst = match rng.u8(..8) {
        _ if !is_bucket => None,
        0..4 => None,
        // The largest countable burst: with a debt as large again, it comes close to 2^53.
        4 => Some(((1 << 52) / (window / gcd(limit, window))).max(1)),
        _ => Some((limit / 2).max(1) * rng.u64(1..=6)),
    };
    let calendar = (kind == Kind::Limit(Algorithm::FixedWindowCounter) && rng.bool())
        .then(|| calendar(rng, window));
    let try_with = |limit: u64, burst: Option<u64>| {
        let quota = match calendar {
            Some(calendar) => Quota::per_calendar(limit, calendar),
            None => Quota::new(limit, Duration::from_micros(window)),
        };
        let quota = burst.map_or(quota, |units| quota.burst(units.min(Policy::MAX_LIMIT)));
        Policy::new(name, quota, kind)
    };
    let nearest = match try_with(limit, burst) {
        Ok(policy) => return policy,
        Err(error) => error.nearest_limit().unwrap_or(1),
    };
    try_with(nearest, burst).or_else(|_| try_with(1, None)).expect("one unit builds")
}

/// Returns real days, weeks or months, or windows with irregular lengths around `window`.
fn calendar(rng: &mut Rng, window: u64) -> Calendar {
    let place = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"][rng.usize(..3)];
    let unit = [Unit::Day, Unit::Day, Unit::Week, Unit::Month][rng.usize(..4)];
    if rng.bool() {
        return tollgate_calendar::calendar(unit, place).expect("a place");
    }
    // Few distinct calendars, because a process never frees them.
    let window = window.clamp(64, 1 << 31).next_power_of_two();
    let lengths = [8, 7, 9, 16, 1, 8, 3].map(|eighths| window * eighths / 8);
    let starts =
        lengths.into_iter().cycle().take(2_000).scan(super::clock::EARLIEST, |at, length| {
            *at += length;
            Some(Timestamp::from_micros(*at))
        });
    Calendar::new(format!("about {window}"), starts).expect("ascending instants")
}

fn gcd(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { gcd(b % a, a) }
}

fn kind(rng: &mut Rng, family: Family, window: u64) -> Kind {
    let queue = |max_wait| Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let algorithm = match (family, rng.u8(..14)) {
        (Family::Heavy, _) => Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth },
        (Family::LongLogs, 0..3) | (_, 10..12) => Algorithm::ConcurrentRequests,
        (_, 12..) if family != Family::LongLogs => return penalty(rng, window),
        (Family::LongLogs, _) | (_, 0..2) => {
            let kinds = [Resolution::Auto, Resolution::Exact, Resolution::Thousandth];
            Algorithm::SlidingWindowLog { resolution: kinds[rng.usize(..3)] }
        }
        (_, 2 | 3) => Algorithm::FixedWindowCounter,
        (_, 4) => Algorithm::SlidingWindowCounter,
        (_, 5) => Algorithm::TokenBucket { refill: Refill::Greedy },
        (_, 6) => Algorithm::TokenBucket { refill: Refill::Interval },
        (_, 7) => Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        (_, 8) => queue(None),
        _ if rng.u8(..20) == 0 => queue(Some(Micros::MAX)),
        _ => queue(Some(Micros::new(window * rng.u64(0..=8) / 6 + rng.u64(0..=2)))),
    };
    algorithm.into()
}

fn penalty(rng: &mut Rng, window: u64) -> Kind {
    let most = Micros::from(Policy::MAX_WINDOW).get();
    let mut span = |least: u64| (rng.u64(least..=30) * window / 10).clamp(least, most);
    let (block, more, forget_after) = (span(1), span(0), span(0));
    Kind::Penalty(Terms {
        block: Micros::new(block),
        factor: [1, 2, 3, 1_000_000][rng.usize(..4)],
        max_block: Micros::new((block + more).min(most)),
        forget_after: Micros::new(forget_after),
        counts_denials: rng.u8(..4) > 0,
    })
}

fn limit(rng: &mut Rng, family: Family) -> u64 {
    match (family, rng.u8(..16)) {
        (Family::Heavy, _) => Policy::MAX_LIMIT,
        (Family::LongLogs, _) => [1_000, 3_000][rng.usize(..2)],
        (_, 0..9) => rng.u64(1..=12),
        (_, 9) => 100,
        (_, 10) => 1_000,
        (_, 11) => 1_000_000,
        (_, 12..14) => rng.u64(1..=Policy::MAX_LIMIT),
        _ => Policy::MAX_LIMIT,
    }
}

fn window(rng: &mut Rng, family: Family) -> u64 {
    match (family, rng.u8(..13)) {
        (Family::Heavy, _) => 50,
        (Family::LongLogs, _) => [1_000_000, 2_000_000][rng.usize(..2)],
        (_, 0..4) => rng.u64(50..=120),
        (_, 4..7) => rng.u64(900..=5_000),
        (_, 7) => 1_000_000,
        (_, 8) => 60_000_000,
        (_, 9) => 3_600_000_000,
        (_, 10) => 86_400_000_000,
        // With a limit that divides it, the bound is met to the last unit.
        (_, 11) => 1 << 40,
        _ => 400 * 86_400_000_000,
    }
}
