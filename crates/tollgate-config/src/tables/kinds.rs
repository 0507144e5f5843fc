//! Values that several sections use.

use tollgate::policy::{Algorithm, LeakyMode, OnStoreError, Refill, Resolution};

use super::super::{problem, spec, typed};
use typed::{Whole, durations, words};

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
