//! Values that several sections use.

use std::path::PathBuf;

use tollgate::key::TrustedProxies;
use tollgate::policy::{Algorithm, LeakyMode, OnStoreError, Refill, Resolution};

use crate::file::format;
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::spec::Shape;
use crate::yaml::typed::{Input, List, ValueType, Values, Whole, durations, words};

words! {
    OnError -> OnStoreError {
        /// Allows all requests.
        "open" => OnStoreError::Open,
        /// Rejects requests with 503.
        "closed" => OnStoreError::Closed,
        /// Decides in this process with a share of the quota; see `store.redis.localShare`.
        "local" => OnStoreError::Local,
    }

    Strategy -> Algorithm {
        /// `limit` units in each fixed window, or in each day, week or month of a `calendar`.
        "fixed_window_counter" => Algorithm::FixedWindowCounter,
        /// `limit` units in any window, exactly.
        "sliding_window_log" => Algorithm::SlidingWindowLog { resolution: Resolution::Auto },
        /// The current window plus a weighted share of the previous window.
        "sliding_window_counter" => Algorithm::SlidingWindowCounter,
        /// An immediate burst, then `limit` units per window.
        "token_bucket" => Algorithm::TokenBucket { refill: Refill::Greedy },
        /// A queue that forwards requests at an even rate.
        "leaky_bucket" => Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    }
}

durations! {
    Timeout: 1 to 86_400_000, "no timeout at all would let connections pile up";
}

pub(super) type Units = Whole<1, { tollgate::Policy::MAX_LIMIT }>;

pub(super) type AtOnce = Whole<1, 10_000>;

/// A number of MiB, as bytes.
pub(crate) struct Megabytes<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> ValueType for Megabytes<MIN, MAX> {
    type Value = usize;
    const SHAPE: Shape = Whole::<MIN, MAX, usize>::SHAPE;

    fn read(input: Input<'_>) -> Checked<usize> {
        Whole::<MIN, MAX, usize>::read(input).map(|megabytes| megabytes << 20)
    }
}

/// The networks of proxies.
pub(crate) struct Proxies;

impl ValueType for Proxies {
    type Value = TrustedProxies;
    const SHAPE: Shape = List::<format::Network>::SHAPE;

    fn read(input: Input<'_>) -> Checked<TrustedProxies> {
        let networks = Values::<List<format::Network>>::read(input)?;
        TrustedProxies::parse(networks).map_err(|_| Reported)
    }
}

/// A file that `check` opens. A change to its contents causes a reload, or has its own watcher.
pub(crate) struct WatchedFile;

impl ValueType for WatchedFile {
    type Value = PathBuf;
    const SHAPE: Shape = format::File::SHAPE;

    fn read(input: Input<'_>) -> Checked<PathBuf> {
        let file = format::File::read(input)?;
        input.add_file(file.clone());
        Ok(file)
    }
}
