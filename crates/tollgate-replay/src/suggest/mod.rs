//! Limits that fit recorded traffic.
//!
//! | file | holds |
//! |---|---|
//! | `paths.rs` | paths that belong together |
//! | `fit.rs` | the limits under which a share of the clients would never have been denied |
//!
//! # Memory
//!
//! A request is kept as 24 bytes. When there are more than [`Bounds::requests`] of them, half of the
//! clients are left out, chosen by a hash, and so on: the others are a fair sample, and each is
//! whole. [`Suggestion::sample`] says which part is left.

mod fit;
mod paths;

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use serde::Serialize;
use tollgate_core::{Key, Micros, Timestamp};

pub use self::fit::{Fit, Level};
use self::paths::Paths;
use crate::Instant;

/// The most memory that a suggestion takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most requests that are kept. Default: 2^25, which take 768 MiB.
    pub requests: usize,
    /// The most routes. Default: 256. Further paths are one route.
    pub routes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 1 << 25, routes: 256 }
    }
}

/// Learns from recorded requests.
#[derive(Debug)]
pub struct Suggest {
    bounds: Bounds,
    window: Micros,
    /// Single bits of the faster hash may be the same for clients with similar names.
    hasher: RandomState,
    paths: Paths,
    requests: Vec<Seen>,
    /// Clients are kept if their hash has this many zeros at its end.
    halvings: u32,
    seen: u64,
    first: Option<Timestamp>,
    last: Timestamp,
    second: u64,
    in_second: u64,
    busiest_second: u64,
    minute: u64,
    in_minute: u64,
    busiest_minute: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    client: u64,
    at: Timestamp,
    /// Number of the path, which becomes the route.
    path: u32,
}

/// Limits that fit.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// The first request.
    pub first: Option<Instant>,
    /// The last request.
    pub last: Option<Instant>,
    /// All requests.
    pub requests: u64,
    /// The clients on which these limits are based.
    pub clients: u64,
    /// The limits are based on one client in this many.
    pub sample: u64,
    /// The window, in seconds.
    pub window_seconds: u64,
    /// Most requests in one second of the clock.
    pub busiest_second: u64,
    /// Most requests in one minute of the clock.
    pub busiest_minute: u64,
    /// For all routes together.
    pub all: Fit,
    /// For each route, those with most requests first.
    pub routes: Vec<(String, Fit)>,
}

impl Suggest {
    /// Starts without requests. The limits will be per `window`.
    ///
    /// `patterns` are known routes, such as `/api/item/{id}`. Other paths are grouped automatically.
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

    /// Learns from one request. Requests come in the order of their times.
    pub fn request(&mut self, at: Timestamp, client: &Key, path: &str) {
        self.seen += 1;
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
        let path = self.paths.number(path);
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

    /// The limits that fit what was learnt.
    #[must_use]
    pub fn suggestion(mut self) -> Suggestion {
        let routes = self.paths.routes(self.bounds.routes);
        for seen in &mut self.requests {
            seen.path = routes.of(seen.path);
        }
        // By client, and in time.
        self.requests.sort_unstable();
        let all = Fit::of(self.window, &self.requests.iter().map(|seen| (seen.client, seen.at)));
        let names = routes.names();
        // One route after the other, each by client and in time.
        self.requests.sort_unstable_by_key(|seen| (seen.path, seen.client, seen.at));
        let mut fits: Vec<_> = self
            .requests
            .chunk_by(|one, other| one.path == other.path)
            .map(|route| {
                let name = names.get(route[0].path as usize).cloned().unwrap_or_default();
                (name, Fit::of(self.window, &route.iter().map(|seen| (seen.client, seen.at))))
            })
            .collect();
        fits.sort_by(|(one, a), (other, b)| {
            b.requests.cmp(&a.requests).then_with(|| one.cmp(other))
        });
        Suggestion {
            first: self.first.map(Instant),
            last: self.first.map(|_| Instant(self.last)),
            requests: self.seen,
            clients: all.clients,
            sample: 1 << self.halvings,
            window_seconds: self.window.as_secs_ceil(),
            busiest_second: self.busiest_second,
            busiest_minute: self.busiest_minute,
            all,
            routes: fits,
        }
    }
}
