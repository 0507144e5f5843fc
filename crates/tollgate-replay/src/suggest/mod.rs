//! Limits that fit recorded traffic.
//!
//! | file | holds |
//! |---|---|
//! | `paths.rs` | groups of similar paths |
//! | `fit.rs` | limits that together would never have denied a given share of the clients |
//! | `kinds.rs` | scanners and bots, and whom limits deny |
//!
//! # Memory
//!
//! Each request takes 24 bytes. Whenever there are more than [`Bounds::requests`], half of the
//! clients are dropped by hash. The remaining clients are a fair sample with all of their requests,
//! and [`Suggestion::sample`] reports the sampling rate.

mod fit;
mod kinds;
mod paths;

use serde::Serialize;
use tollgate_core::{Key, Micros, Timestamp};

use self::fit::fits;
pub use self::fit::{Fit, Level, SHARES};
use self::kinds::ROBOTS;
pub use self::kinds::{ClientKind, DeniedClients, Kinds, Part, Trial};
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
    kinds: Kinds,
    paths: Paths,
    /// In chronological order.
    requests: Vec<Seen>,
    seen: u64,
    without_client: u64,
    unsuccessful: u64,
    first: Option<Timestamp>,
    last: Timestamp,
    second: Busiest,
    minute: Busiest,
}

/// The requests in a second or a minute.
#[derive(Debug, Default)]
struct Busiest {
    number: u64,
    requests: u64,
    most: u64,
}

impl Busiest {
    fn note(&mut self, number: u64) {
        if number != self.number {
            (self.number, self.requests) = (number, 0);
        }
        self.requests += 1;
        self.most = self.most.max(self.requests);
    }
}

/// A stored request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    client: u64,
    at: Timestamp,
    /// The path's number, which is finally replaced by the route's number.
    path: u32,
    is_success: bool,
}

/// A recorded request.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// When it arrived.
    pub at: Timestamp,
    /// The client, if known.
    pub client: Option<&'a Key>,
    /// The path in normal form, without a query.
    pub path: &'a str,
    /// Whether the response was successful. Only successful requests show which paths exist.
    pub is_success: bool,
    /// Whether the client states that it is a bot.
    pub is_bot: bool,
}

/// Scanners or bots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Apart {
    /// The number of these clients.
    pub clients: u64,
    /// Their requests.
    pub requests: u64,
    /// The largest number of requests from such a client in any window.
    pub in_window: u64,
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
    /// All clients. The limits are based on fewer: see [`Self::all`].
    pub clients: u64,
    /// The limits are based on requests before this time. The rest can judge them.
    pub until: Option<Instant>,
    /// Scanners, in the entire log.
    pub scanners: Apart,
    /// Bots, in the entire log.
    pub bots: Apart,
    /// Which clients are scanners or bots.
    #[serde(skip)]
    pub kinds: Kinds,
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
    /// For all routes together, without scanners and bots.
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
            kinds: Kinds::default(),
            paths: Paths::new(patterns),
            requests: Vec::new(),
            seen: 0,
            without_client: 0,
            unsuccessful: 0,
            first: None,
            last: Timestamp::EPOCH,
            second: Busiest::default(),
            minute: Busiest::default(),
        }
    }

    /// Learns from a request. Requests must be in chronological order.
    pub fn request(&mut self, request: &Observed<'_>) {
        let Observed { at, client, path, is_success, is_bot } = *request;
        self.seen += 1;
        self.unsuccessful += u64::from(!is_success);
        self.first.get_or_insert(at);
        self.last = self.last.max(at);
        self.second.note(at.as_micros() / 1_000_000);
        self.minute.note(at.as_micros() / 60_000_000);
        let number = self.paths.number(path, is_success);
        let Some(client) = client else {
            self.without_client += 1;
            return;
        };
        let Some(client) = self.kinds.hash(client) else { return };
        if is_bot || path == ROBOTS {
            self.kinds.add_bot(client);
        }
        self.requests.push(Seen { client, at, path: number, is_success });
        while self.requests.len() > self.bounds.requests.max(1) && self.kinds.halve() {
            self.requests.retain(|seen| self.kinds.is_kept(seen.client));
        }
    }

    /// Returns the limits that fit the requests. If `holds_out` is set, they only fit the requests
    /// before the last 30 % of the log's time, or before its last week if that is shorter. Without
    /// ten windows before this part, they fit the entire log.
    #[must_use]
    pub fn suggestion(mut self, holds_out: bool) -> Suggestion {
        let until = self.held_out().filter(|_| holds_out);
        self.requests.sort_unstable();
        let clients = self.requests.chunk_by(|one, other| one.client == other.client).count();
        self.kinds.find_scanners(&self.requests, &self.paths.existing());
        let scanners = self.apart(ClientKind::Scanner);
        let bots = self.apart(ClientKind::Bot);
        let Self { requests, kinds, paths, bounds, .. } = &mut self;
        requests.retain(|seen| until.is_none_or(|until| seen.at < until));
        let mut counts = vec![0; paths.len()];
        for seen in requests.iter().filter(|seen| seen.is_success && seen.path != NONE) {
            counts[seen.path as usize] += 1;
        }
        let routes = paths.routes(&counts, bounds.routes);
        requests.retain(|seen| kinds.of(seen.client) == ClientKind::Ordinary);
        for seen in &mut *requests {
            seen.path = routes.of(seen.path);
        }
        let all: Vec<_> = requests.iter().map(Seen::pair).collect();
        let each = all.chunk_by(|one, other| one.0 == other.0);
        let largest_client = each.map(|client| client.len() as u64).max().unwrap_or_default();
        // Group by route, then sort by client and time.
        requests.retain(|seen| seen.path != NONE);
        requests.sort_unstable_by_key(|seen| (seen.path, seen.client, seen.at));
        let parts: Vec<(u32, Vec<_>)> = requests
            .chunk_by(|one, other| one.path == other.path)
            .map(|route| (route[0].path, route.iter().map(Seen::pair).collect()))
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
            clients: clients as u64,
            until: until.map(Instant),
            scanners,
            bots,
            largest_client,
            sample: self.kinds.sample(),
            kinds: self.kinds,
            window_seconds: self.window.as_secs_ceil(),
            busiest_second: self.second.most,
            busiest_minute: self.minute.most,
            all,
            routes,
        }
    }

    /// When the last part of the log starts, which judges the limits.
    fn held_out(&self) -> Option<Timestamp> {
        let (first, last) = (self.requests.first()?.at, self.requests.last()?.at);
        let held_out = Micros::new((last.since(first).get() / 10 * 3).min(WEEK));
        let until = last - held_out;
        let least = self.window.get().saturating_mul(fit::WINDOWS);
        (until.since(first).get() >= least).then_some(until)
    }

    /// Counts the clients of a kind in requests that are sorted by client.
    fn apart(&self, kind: ClientKind) -> Apart {
        let of_kind = self.requests.iter().filter(|seen| self.kinds.of(seen.client) == kind);
        let requests: Vec<_> = of_kind.map(Seen::pair).collect();
        let peaks = fit::highest(self.window, &requests);
        let in_window = peaks.iter().map(|(_, most)| *most).max().unwrap_or_default();
        Apart { clients: peaks.len() as u64, requests: requests.len() as u64, in_window }
    }
}

impl Seen {
    const fn pair(&self) -> (u64, Timestamp) {
        (self.client, self.at)
    }
}

/// A week in microseconds, after which every weekday has judged the limits.
const WEEK: u64 = 7 * 86_400_000_000;
