//! The layer, a replay and a forecast make the same decisions: random limits and random requests go
//! through the layer, on tokio's paused clock, and through a replay of the same requests. Each
//! decision, its numbers and its wait must be equal. Some requests later, a reload replaces the
//! limits.
//!
//! Any number of limits may wait, under any keys. A service has no order for events at the same
//! instant. The test continues the earliest request first, because a replay does.
//!
//! | file | holds |
//! |---|---|
//! | `case.rs` | random limits and requests |
//! | `serve.rs` | the requests through the layer |
//! | `replay.rs` | the requests through a replay |
//! | `forecast.rs` | forecasts of the same requests |
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

mod case;
mod forecast;
mod replay;
mod serve;

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Algorithm, Decision, Micros, Refill, Timestamp};
use tollgate_engine::{Forecast, Mode};

use self::case::{Case, Limited, Rule, Sent};

/// What happened to a request.
#[derive(Debug, PartialEq)]
struct Decided {
    /// How long it waited until it passed, or `None` if it was rejected.
    waited: Option<Micros>,
    at: Timestamp,
    /// By the policies' names.
    decisions: Vec<(String, Decision)>,
}

impl Case {
    /// Returns how long each request waits.
    fn agrees(&self) -> Vec<Option<Micros>> {
        let (served, replayed) = (self.serve(), self.replay());
        for (number, (served, replayed)) in served.iter().zip(replayed).enumerate() {
            assert_eq!(replayed, *served, "request {number}: the replay differs from the layer");
        }
        let waits: Vec<_> = served.iter().map(|decided| decided.waited).collect();
        let is_foretold = match self.forecast() {
            Forecast::Pass(delay) => waits[0] == Some(delay),
            Forecast::Wait(max) => {
                waits[0].is_none_or(|waited| (Micros::new(1)..=max).contains(&waited))
            }
            Forecast::Reject => waits[0].is_none(),
        };
        assert!(is_foretold, "the forecast differs from the layer");
        waits
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layer_and_replay_agree(case in case::cases()) {
        case.agrees();
    }
}

/// A request that arrives this many milliseconds after the previous one.
const fn sent(after: u64) -> Sent {
    Sent { after, client: 0, cost: 1, duration: 0, fails: false, in_tier: false, has_own: false }
}

fn waits(limited: Limited, places: usize, requests: Vec<Sent>) -> Vec<Option<u64>> {
    let reload = (requests.len(), vec![limited.clone()]);
    let case = Case { limits: vec![limited], reload, places, requests };
    let millis = |waited: Micros| waited.get() / 1_000;
    case.agrees().into_iter().map(|waited| waited.map(millis)).collect()
}

#[test]
fn a_client_takes_half_of_the_places_in_both() {
    let limited = Limited {
        name: 0,
        rule: Rule::Quota(Algorithm::TokenBucket { refill: Refill::Greedy }),
        units: [1, 1],
        interval: 1_000,
        mode: Mode::Wait(Duration::from_secs(30)),
        is_global: false,
        counts: false,
        forgives: false,
        by_body: false,
        max_queue_time: None,
    };
    let answers = waits(limited, 4, vec![sent(1); 6]);
    // A second and two seconds after the first request.
    assert_eq!(answers, [Some(0), Some(999), Some(1_998), None, None, None]);
}

#[test]
fn permits_pass_to_the_next_request_in_both() {
    let limited = Limited {
        name: 0,
        rule: Rule::Quota(Algorithm::ConcurrentRequests),
        units: [1, 1],
        interval: 1_000,
        mode: Mode::Wait(Duration::from_secs(4)),
        is_global: true,
        counts: false,
        forgives: false,
        by_body: false,
        max_queue_time: None,
    };
    let answers = waits(limited, 9, vec![Sent { duration: 1_100, ..sent(1) }; 5]);
    // The first response ends after 1100 ms, and the next request asks every 25 ms.
    assert_eq!(answers, [Some(0), Some(1_100), Some(2_199), Some(3_298), None]);
}

#[test]
fn requests_queue_in_the_store_in_both() {
    let limited = Limited {
        name: 0,
        rule: Rule::Quota(Algorithm::FixedWindowCounter),
        units: [2, 2],
        interval: 1_000,
        mode: Mode::Reject,
        is_global: true,
        counts: false,
        forgives: false,
        by_body: false,
        max_queue_time: Some(3_300),
    };
    let waits = waits(limited, 1, vec![sent(100); 8]);
    // Windows of two seconds with two requests each, and at most 3.3 seconds in the queue.
    let expected =
        [0, 0, 1_700, 1_600].map(Some).into_iter().chain([None, None, Some(3_300), Some(3_200)]);
    assert!(expected.eq(waits.iter().copied()), "{waits:?}");
}
