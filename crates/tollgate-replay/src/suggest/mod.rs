//! Limits that fit recorded traffic.
//!
//! | file | holds |
//! |---|---|
//! | `paths.rs` | groups of similar paths |
//! | `fit.rs` | limits that together would never have denied a given share of the clients |
//!
//! # Memory
//!
//! Each request takes 24 bytes. Whenever there are more than [`Bounds::requests`], half of the
//! clients are dropped by hash. The remaining clients are a fair sample with all of their requests,
//! and [`Suggestion::sample`] reports the sampling rate.

mod fit;
mod paths;

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use serde::Serialize;
use tollgate_core::{Key, Micros, Timestamp};

use self::fit::fits;
pub use self::fit::{Fit, Level};
use self::paths::{NONE, Paths};
use crate::Instant;

/// Limits a suggestion's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of stored requests. Default: 2^25, which take 768 MiB.
    pub requests: usize,
    /// The maximum number of routes with their own limits. Default: 256.
    pub routes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 1 << 25, routes: 256 }
    }
}

/// Learns limits from recorded requests.
#[derive(Debug)]
pub struct Suggest {
    bounds: Bounds,
    window: Micros,
    /// A strong hash. With a faster hash, similar client names might have equal low bits.
    hasher: RandomState,
    paths: Paths,
    requests: Vec<Seen>,
    /// A client is in the sample if its hash has at least this many trailing zeros.
    halvings: u32,
    seen: u64,
    without_client: u64,
    unsuccessful: u64,
    first: Option<Timestamp>,
    last: Timestamp,
    second: u64,
    in_second: u64,
    busiest_second: u64,
    minute: u64,
    in_minute: u64,
    busiest_minute: u64,
}

/// A stored request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    client: u64,
    at: Timestamp,
    /// The path's number, which is finally replaced by the route's number.
    path: u32,
}

/// Limits that fit the recorded traffic.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// The first request.
    pub first: Option<Instant>,
    /// The last request.
    pub last: Option<Instant>,
    /// All requests, including requests without a client.
    pub requests: u64,
    /// Requests without a client.
    pub without_client: u64,
    /// Requests that were not successful.
    pub unsuccessful: u64,
    /// Requests to paths beyond the bound. They belong to no route, even if a pattern matches.
    pub without_path: u64,
    /// The clients on which these limits are based.
    pub clients: u64,
    /// The number of requests from the busiest client.
    pub largest_client: u64,
    /// The sampling rate: the limits are based on one in this many clients.
    pub sample: u64,
    /// The window in seconds.
    pub window_seconds: u64,
    /// The maximum number of requests in a clock second.
    pub busiest_second: u64,
    /// The maximum number of requests in a clock minute.
    pub busiest_minute: u64,
    /// For all routes together.
    pub all: Fit,
    /// For each route, in the order in which a configuration must match the routes.
    pub routes: Vec<(String, Fit)>,
}

impl Suggest {
    /// Creates a learner for limits per `window`.
    ///
    /// `patterns` are known routes such as `/api/item/{id}`. Other paths are grouped automatically.
    #[must_use]
    pub fn new(window: Micros, patterns: &[String], bounds: Bounds) -> Self {
        Self {
            bounds,
            window: window.max(Micros::new(1_000_000)),
            hasher: RandomState::default(),
            paths: Paths::new(patterns),
            requests: Vec::new(),
            halvings: 0,
            seen: 0,
            without_client: 0,
            unsuccessful: 0,
            first: None,
            last: Timestamp::EPOCH,
            second: 0,
            in_second: 0,
            busiest_second: 0,
            minute: 0,
            in_minute: 0,
            busiest_minute: 0,
        }
    }

    /// Learns from a request. Requests must be in chronological order. Only successful requests
    /// show which paths exist.
    pub fn request(&mut self, at: Timestamp, client: Option<&Key>, path: &str, is_success: bool) {
        self.seen += 1;
        self.unsuccessful += u64::from(!is_success);
        self.first.get_or_insert(at);
        self.last = self.last.max(at);
        let (second, minute) = (at.as_micros() / 1_000_000, at.as_micros() / 60_000_000);
        if second != self.second {
            (self.second, self.in_second) = (second, 0);
        }
        if minute != self.minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_second += 1;
        self.in_minute += 1;
        self.busiest_second = self.busiest_second.max(self.in_second);
        self.busiest_minute = self.busiest_minute.max(self.in_minute);
        let path = self.paths.number(path, is_success);
        let Some(client) = client else {
            self.without_client += 1;
            return;
        };
        let client = self.hasher.hash_one(client);
        if !self.is_kept(client) {
            return;
        }
        self.requests.push(Seen { client, at, path });
        while self.requests.len() > self.bounds.requests.max(1) && self.halvings < 32 {
            self.halvings += 1;
            let halvings = self.halvings;
            self.requests.retain(|seen| seen.client.trailing_zeros() >= halvings);
        }
    }

    const fn is_kept(&self, client: u64) -> bool {
        client.trailing_zeros() >= self.halvings
    }

    /// Returns the limits that fit the requests.
    #[must_use]
    pub fn suggestion(mut self) -> Suggestion {
        let routes = self.paths.routes(self.bounds.routes);
        for seen in &mut self.requests {
            seen.path = routes.of(seen.path);
        }
        self.requests.sort_unstable();
        let pair = |seen: &Seen| (seen.client, seen.at);
        let all: Vec<_> = self.requests.iter().map(pair).collect();
        let clients = all.chunk_by(|one, other| one.0 == other.0);
        let largest_client = clients.map(|client| client.len() as u64).max().unwrap_or_default();
        // Group by route, then sort by client and time.
        self.requests.retain(|seen| seen.path != NONE);
        self.requests.sort_unstable_by_key(|seen| (seen.path, seen.client, seen.at));
        let parts: Vec<(u32, Vec<_>)> = self
            .requests
            .chunk_by(|one, other| one.path == other.path)
            .map(|route| (route[0].path, route.iter().map(pair).collect()))
            .collect();
        let sets: Vec<&[_]> =
            [&*all].into_iter().chain(parts.iter().map(|(_, route)| &**route)).collect();
        let mut fits = fits(self.window, &sets).into_iter();
        let all = fits.next().unwrap_or_default();
        let name = |number: u32| routes.names().get(number as usize).cloned().unwrap_or_default();
        let routes = parts.iter().map(|(number, _)| name(*number)).zip(fits).collect();
        Suggestion {
            first: self.first.map(Instant),
            last: self.first.map(|_| Instant(self.last)),
            requests: self.seen,
            without_client: self.without_client,
            unsuccessful: self.unsuccessful,
            without_path: self.paths.beyond,
            clients: all.clients,
            largest_client,
            sample: 1 << self.halvings,
            window_seconds: self.window.as_secs_ceil(),
            busiest_second: self.busiest_second,
            busiest_minute: self.busiest_minute,
            all,
            routes,
        }
    }
}
