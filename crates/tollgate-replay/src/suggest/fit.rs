//! Limits that would never have denied a given share of the clients.

use std::collections::VecDeque;

use serde::Serialize;
use tollgate_core::{Micros, Timestamp};

/// Limits for a group of requests. Each request costs 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// Requests.
    pub requests: u64,
    /// Clients that sent these requests.
    pub clients: u64,
    /// For 99, 99.9 and 99.99 % of the clients.
    pub levels: [Level; 3],
}

/// Limits that would never have denied a given share of the clients, provided that all routes use
/// this level's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The share in units of 0.01 %.
    pub share: u64,
    /// For a sliding window log: requests in any window.
    pub sliding_limit: u64,
    /// Clients that the sliding window log would have denied.
    pub sliding_beyond: u64,
    /// For a token bucket: units refilled in each window.
    pub bucket_limit: u64,
    /// For a token bucket: the burst.
    pub bucket_burst: u64,
    /// Clients that the token bucket would have denied.
    pub bucket_beyond: u64,
}

/// The levels' shares in units of 0.01 %.
pub const SHARES: [u64; 3] = [9_900, 9_990, 9_999];
/// A token bucket's limit is the mean over this many windows, or fewer in a shorter log.
pub(super) const WINDOWS: u64 = 10;

/// The client and time of each request that a limit charges, sorted by client and then by time.
pub(super) type Sorted<'a> = &'a [(u64, Timestamp)];

/// A value per client, sorted by client.
type Values = Vec<(u64, u64)>;

/// Fits limits to these sets of requests. The first set contains all requests, and the remaining
/// sets are subsets of the first.
///
/// Together, a level's limits may not deny more clients than the level allows. Therefore the
/// clients with the highest values are excluded from all sets, and each limit is the highest
/// remaining value.
pub(super) fn fits(window: Micros, sets: &[Sorted<'_>]) -> Vec<Fit> {
    let windows = windows(window, sets);
    let longer = Micros::new(window.get().saturating_mul(windows));
    let peaks: Vec<_> = sets.iter().map(|set| highest(window, set)).collect();
    // A client's rate is the mean over many windows, and the rest of the peak is a burst.
    let sustained = |set: &Sorted<'_>| -> Values {
        highest(longer, set).into_iter().map(|(of, most)| (of, most.div_ceil(windows))).collect()
    };
    let sustained: Vec<_> = sets.iter().map(sustained).collect();
    let levels = SHARES.map(|share| {
        let rates: Vec<_> = sustained.iter().map(|values| quantile(values, share)).collect();
        let bursts = sets.iter().zip(&rates).map(|(set, rate)| bursts(window, *rate, set));
        let bursts: Vec<_> = bursts.collect();
        let (sliding, buckets) = (joint(&peaks, share), joint(&bursts, share));
        let level = |set: usize| Level {
            share,
            sliding_limit: sliding[set],
            sliding_beyond: beyond(&peaks[set], sliding[set]),
            bucket_limit: rates[set],
            bucket_burst: buckets[set],
            bucket_beyond: beyond(&bursts[set], buckets[set]),
        };
        (0..sets.len()).map(level).collect::<Vec<_>>()
    });
    let fit = |set: usize| Fit {
        requests: sets[set].len() as u64,
        clients: peaks[set].len() as u64,
        levels: [levels[0][set], levels[1][set], levels[2][set]],
    };
    (0..sets.len()).map(fit).collect()
}

/// How many complete windows the requests span, up to [`WINDOWS`].
fn windows(window: Micros, sets: &[Sorted<'_>]) -> u64 {
    let times = || sets.iter().take(1).copied().flatten().map(|(_, at)| *at);
    let (first, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
    (last.since(first).get() / window.get()).clamp(1, WINDOWS)
}

fn beyond(values: &Values, limit: u64) -> u64 {
    values.iter().filter(|(_, value)| *value > limit).count() as u64
}

/// Returns a limit for each set. At least this share of the clients exceeds none of the limits.
fn joint(sets: &[Values], share: u64) -> Vec<u64> {
    let Some(all) = sets.first() else { return Vec::new() };
    // How far each client exceeds the limits that fit each set individually.
    let mut scores: Vec<(u64, u64)> = all.iter().map(|(client, _)| (0, *client)).collect();
    for values in sets {
        let base = u128::from(quantile(values, share));
        for (client, value) in values {
            let score = (u128::from(*value) << 16) / base;
            if let Ok(at) = all.binary_search_by_key(client, |(client, _)| *client) {
                let score = u64::try_from(score).unwrap_or(u64::MAX);
                scores[at].0 = scores[at].0.max(score);
            }
        }
    }
    scores.sort_unstable();
    let rest = enough(scores.len(), share);
    let mut left_out: Vec<_> = scores[rest..].iter().map(|(_, client)| *client).collect();
    left_out.sort_unstable();
    let limit = |values: &Values| {
        let rest = values.iter().filter(|(client, _)| left_out.binary_search(client).is_err());
        rest.map(|(_, value)| *value).max().unwrap_or(1).max(1)
    };
    sets.iter().map(limit).collect()
}

/// The smallest number of clients that makes up at least this share.
fn enough(clients: usize, share: u64) -> usize {
    let enough = (u128::from(share) * clients as u128).div_ceil(10_000);
    usize::try_from(enough).unwrap_or(usize::MAX).min(clients)
}

/// Returns each client's maximum number of requests in any window.
pub(super) fn highest(window: Micros, requests: Sorted<'_>) -> Values {
    let (mut all, mut inside, mut client) = (Values::new(), VecDeque::new(), None);
    for &(of, at) in requests {
        if client != Some(of) {
            inside.clear();
            client = Some(of);
            all.push((of, 0));
        }
        inside.push_back(at);
        // A request no longer counts when exactly a window has passed.
        while inside.front().is_some_and(|first| *first + window <= at) {
            inside.pop_front();
        }
        if let Some((_, most)) = all.last_mut() {
            *most = inside.len().max(usize::try_from(*most).unwrap_or(usize::MAX)) as u64;
        }
    }
    all
}

/// Returns, for each client, the smallest burst with which a bucket with this limit never denies
/// that client.
fn bursts(window: Micros, limit: u64, requests: Sorted<'_>) -> Values {
    // To avoid rounding, a unit weighs `window`, and `limit` drains per microsecond.
    let (mut all, mut client) = (Values::new(), None);
    let (mut level, mut last, unit) = (0_u128, Timestamp::EPOCH, u128::from(window.get()));
    for &(of, at) in requests {
        if client != Some(of) {
            (client, level, last) = (Some(of), 0, at);
            all.push((of, 0));
        }
        let drained = u128::from(at.since(last).get()) * u128::from(limit);
        level = level.saturating_sub(drained) + unit;
        last = at;
        if let Some((_, most)) = all.last_mut() {
            *most = (*most).max(u64::try_from(level.div_ceil(unit)).unwrap_or(u64::MAX));
        }
    }
    all
}

/// The smallest value that at least this share of the values does not exceed. The minimum is 1.
fn quantile(values: &Values, share: u64) -> u64 {
    let mut sorted: Vec<_> = values.iter().map(|(_, value)| *value).collect();
    sorted.sort_unstable();
    let index = enough(sorted.len(), share).max(1) - 1;
    sorted.get(index).copied().unwrap_or(1).max(1)
}
