//! The limits under which a share of the clients would never have been denied.

use std::collections::VecDeque;

use serde::Serialize;
use tollgate_core::{Micros, Timestamp};

/// Limits for one kind of requests, each of which counts 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// Requests.
    pub requests: u64,
    /// Clients that sent them.
    pub clients: u64,
    /// For 99, 99.9 and 99.99 % of the clients.
    pub levels: [Level; 3],
}

/// Limits under which a share of the clients would never have been denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The share, in hundredths of a percent.
    pub share: u64,
    /// For a sliding window log: requests in any window.
    pub sliding_limit: u64,
    /// Clients that this would have denied.
    pub sliding_beyond: u64,
    /// For a token bucket: units refilled in each window.
    pub bucket_limit: u64,
    /// For a token bucket: units at once.
    pub bucket_burst: u64,
    /// Clients that this would have denied.
    pub bucket_beyond: u64,
}

/// The shares, in hundredths of a percent.
const SHARES: [u64; 3] = [9_900, 9_990, 9_999];
/// The limit of a bucket is the mean over this many windows.
const WINDOWS: u64 = 10;

impl Fit {
    /// `requests` are sorted by client, and then by time.
    pub(super) fn of(
        window: Micros,
        requests: &(impl Iterator<Item = (u64, Timestamp)> + Clone),
    ) -> Self {
        let longer = Micros::new(window.get().saturating_mul(WINDOWS));
        let peaks = highest(window, requests.clone());
        // The rate of a client is its mean over many windows; the rest of its peak is a burst.
        let sustained = highest(longer, requests.clone());
        let sustained: Vec<_> = sustained.iter().map(|most| most.div_ceil(WINDOWS)).collect();
        let (count, clients) = (requests.clone().count() as u64, peaks.len() as u64);
        let levels = SHARES.map(|share| {
            let sliding_limit = quantile(&peaks, share);
            let bucket_limit = quantile(&sustained, share);
            let bursts = bursts(window, bucket_limit, requests.clone());
            let bucket_burst = quantile(&bursts, share);
            let beyond =
                |values: &[u64], limit| values.iter().filter(|it| **it > limit).count() as u64;
            Level {
                share,
                sliding_limit,
                sliding_beyond: beyond(&peaks, sliding_limit),
                bucket_limit,
                bucket_burst,
                bucket_beyond: beyond(&bursts, bucket_burst),
            }
        });
        Self { requests: count, clients, levels }
    }
}

/// For each client, the most requests in any window.
fn highest(window: Micros, requests: impl Iterator<Item = (u64, Timestamp)>) -> Vec<u64> {
    let (mut all, mut inside, mut client) = (Vec::new(), VecDeque::new(), None);
    for (of, at) in requests {
        if client != Some(of) {
            inside.clear();
            client = Some(of);
            all.push(0);
        }
        inside.push_back(at);
        // A request counts for less than a window.
        while inside.front().is_some_and(|first| *first + window <= at) {
            inside.pop_front();
        }
        if let Some(most) = all.last_mut() {
            *most = inside.len().max(usize::try_from(*most).unwrap_or(usize::MAX)) as u64;
        }
    }
    all
}

/// For each client, the smallest burst under which a bucket of this limit never denies it.
fn bursts(
    window: Micros,
    limit: u64,
    requests: impl Iterator<Item = (u64, Timestamp)>,
) -> Vec<u64> {
    // A unit weighs a window, and each microsecond takes the limit away: nothing is rounded.
    let (mut all, mut client) = (Vec::new(), None);
    let (mut level, mut last, unit) = (0_u128, Timestamp::EPOCH, u128::from(window.get()));
    for (of, at) in requests {
        if client != Some(of) {
            (client, level, last) = (Some(of), 0, at);
            all.push(0_u64);
        }
        let drained = u128::from(at.since(last).get()) * u128::from(limit);
        level = level.saturating_sub(drained) + unit;
        last = at;
        if let Some(most) = all.last_mut() {
            *most = (*most).max(u64::try_from(level.div_ceil(unit)).unwrap_or(u64::MAX));
        }
    }
    all
}

/// The smallest value that at least this share of the values does not exceed; at least 1.
fn quantile(values: &[u64], share: u64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let enough = (u128::from(share) * sorted.len() as u128).div_ceil(10_000);
    let index = usize::try_from(enough).unwrap_or(usize::MAX).max(1) - 1;
    sorted.get(index).copied().unwrap_or(1).max(1)
}
