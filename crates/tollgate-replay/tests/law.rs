//! The layer and a replay make the same decisions: random limits and random requests go through the
//! layer, on tokio's paused clock, and through a replay of the same requests.
//!
//! Events at the same instant have no order, so none may coincide that affect each other. All limits
//! use multiples of [`STEP`], and each request has its own remainder. The ends of waits and of
//! responses have other remainders.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::key::{Global, from_fn};
use tollgate::layer::WaitQueue;
use tollgate::limit::OnMissingKey;
use tollgate::store::TokioClock;
use tollgate::{Costs, Limit, MemoryStore, RateLimitLayer, tier};
use tollgate_core::{
    Algorithm, Cost, Key, LeakyMode, Micros, Policy, Quota, Refill, Resolution, Timestamp,
};
use tollgate_engine::{
    AppliedLimit, Charges, Limit as Rule, Limits, Mode, SubjectKind, TierIndex, actual_cost,
};
use tollgate_replay::{Answer, Bounds, Replay, Request as Recorded};
use tower::{Layer, ServiceExt, service_fn};

/// In milliseconds.
const STEP: u64 = 1_000;
/// Requests arrive with the remainders 1 to 40.
const REQUESTS: usize = 40;
/// Added to each longest wait. Later events then have the remainders 51 to 90.
const GIVE_UP: u64 = 50;
/// Added to each response's duration. Responses end with the remainders 101 to 190.
const END: u64 = 100;

#[derive(Clone, Debug)]
struct Limited {
    algorithm: Algorithm,
    /// The quota outside of tiers and in the tier, in units per `interval` steps each.
    units: [u64; 2],
    interval: u64,
    mode: Mode,
    is_global: bool,
    /// Whether only failures count.
    counts: bool,
}

#[derive(Clone, Debug)]
struct Sent {
    /// In steps, after the previous request.
    after: u64,
    client: u8,
    cost: u64,
    duration: u64,
    fails: bool,
    in_tier: bool,
}

#[derive(Clone, Debug)]
struct Case {
    limits: Vec<Limited>,
    places: usize,
    requests: Vec<Sent>,
}

impl Limited {
    fn is_permit(&self) -> bool {
        self.algorithm == Algorithm::ConcurrentRequests
    }

    fn policies(&self, number: usize) -> [Policy; 2] {
        self.units.map(|units| {
            // Permits outlive every response.
            let steps = if self.is_permit() { 600 } else { self.interval * units };
            let window = Duration::from_millis(STEP * steps);
            Policy::new(format!("p{number}"), Quota::new(units, window), self.algorithm).unwrap()
        })
    }

    fn limit(&self, number: usize) -> Limit {
        let [policy, in_tier] = self.policies(number);
        let limit = match self.is_global {
            true => Limit::new(policy, Global),
            false => Limit::new(policy, from_fn(|head| head.headers.get("client").cloned()))
                .on_missing_key(OnMissingKey::Pass),
        };
        let limit = limit.in_tier("tier", in_tier.quota()).unwrap();
        let limit = match self.counts {
            true => limit.count_only(|response| response.status != StatusCode::OK),
            false => limit,
        };
        limit.mode(self.mode)
    }
}

impl Case {
    /// When each request arrives, in milliseconds.
    fn arrivals(&self) -> Vec<u64> {
        let mut steps = 0;
        let numbered = (1..).zip(&self.requests);
        let arrivals = numbered.map(|(number, sent)| {
            steps += sent.after;
            // Arrivals in the same step have increasing remainders.
            steps * STEP + number
        });
        arrivals.collect()
    }

    /// How long each request waits until it passes, or `None` if it is denied.
    async fn serve(&self) -> Vec<Option<u64>> {
        let store = MemoryStore::builder().clock(TokioClock::default()).build();
        let queue = WaitQueue::new().max_requests(self.places);
        let cost = |head: &tollgate::key::RequestHead<'_>| {
            head.headers.get("cost")?.to_str().ok()?.parse::<u64>().ok()
        };
        let limits = self.limits.iter().enumerate();
        let layer = limits.fold(
            RateLimitLayer::builder(store)
                .costs(Costs::default().from_fn(cost))
                .tiers(tier::from_fn(|head| head.headers.get("tier").map(|_| "tier")))
                .wait_queue(&queue),
            |layer, (number, limited)| layer.limit(limited.limit(number)),
        );
        let layer = layer.build().unwrap();
        let start = Instant::now();
        let (passed, mut tasks) = (Arc::new(parking_lot::Mutex::new(Vec::new())), Vec::new());
        for (number, (sent, at)) in self.requests.iter().zip(self.arrivals()).enumerate() {
            let (sent, passed) = (sent.clone(), Arc::clone(&passed));
            let mut request = Request::builder()
                .header("client", sent.client.to_string())
                .header("cost", sent.cost.to_string());
            if sent.in_tier {
                request = request.header("tier", "");
            }
            let service = layer.layer(service_fn(move |_: Request<()>| {
                let waited = start.elapsed() - Duration::from_millis(at);
                passed.lock().push((number, u64::try_from(waited.as_millis()).unwrap()));
                let status = if sent.fails { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
                async move {
                    sleep(Duration::from_millis(sent.duration * STEP + END)).await;
                    let mut response = Response::new(Full::<bytes::Bytes>::default());
                    *response.status_mut() = status;
                    Ok::<_, Infallible>(response)
                }
            }));
            let request = request.body(()).unwrap();
            tasks.push(tokio::spawn(async move {
                sleep_until(start + Duration::from_millis(at)).await;
                drop(service.oneshot(request).await);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut answers = vec![None; self.requests.len()];
        for (number, waited) in passed.lock().drain(..) {
            answers[number] = Some(waited);
        }
        answers
    }

    fn replay(&self) -> Vec<Option<u64>> {
        let rules = self.limits.iter().enumerate().map(|(number, limited)| {
            let [policy, in_tier] = limited.policies(number);
            let rule = Rule::new(policy).mode(limited.mode);
            Rule { in_tiers: [in_tier].into(), ..rule }
        });
        let limits = Arc::new(Limits::new(rules));
        let mut replay = Replay::within(Bounds { waiting: self.places, ..Bounds::default() });
        let mut answers = Vec::new();
        for (sent, at) in self.requests.iter().zip(self.arrivals()) {
            let (mut charges, mut actual) = (Charges::default(), Vec::new());
            for (number, limited) in (0..).zip(&self.limits) {
                let (kind, key) = match limited.is_global {
                    true => (SubjectKind::Global, Key::GLOBAL),
                    false => (SubjectKind::Other, Key::new([sent.client])),
                };
                let cost = if limited.is_permit() { 1 } else { sent.cost };
                let mut applied = AppliedLimit::new(number, kind, key, Cost::new(cost));
                applied.tier = if sent.in_tier { TierIndex(0) } else { TierIndex::default() };
                let policy = limits.policy(&applied).clone();
                charges.push(applied, &limits);
                let counts = limited.counts.then_some(sent.fails);
                let settled = actual_cost(&policy, Cost::new(cost), counts, None);
                actual.extend(settled.map(|settled| (number, settled)));
            }
            // `TokioClock` starts then.
            let at = Timestamp::from_micros(1_704_067_200_000_000 + at * 1_000);
            let duration = Micros::new((sent.duration * STEP + END) * 1_000);
            let request = Recorded::new(at, &limits, charges).settling(&actual).lasting(duration);
            answers.push(replay.request(request).unwrap());
        }
        let _ = replay.finish().unwrap();
        for (number, answer) in replay.resolved() {
            answers[usize::try_from(number).unwrap()] = answer;
        }
        let waited = |answer| match answer {
            Answer::Allowed { wait } => Some(wait.get() / 1_000),
            Answer::Denied => None,
            Answer::Waits => panic!("a request still waits"),
        };
        answers.into_iter().map(waited).collect()
    }

    fn agrees(&self) -> Vec<Option<u64>> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let served = runtime.block_on(self.serve());
        assert_eq!(self.replay(), served, "the replay differs from the layer");
        served
    }
}

fn limited() -> impl Strategy<Value = Limited> {
    let algorithms = prop::sample::select(vec![
        Algorithm::FixedWindowCounter,
        Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::TokenBucket { refill: Refill::Interval },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
        Algorithm::ConcurrentRequests,
    ]);
    let wait =
        (1_u64..40).prop_map(|steps| Mode::Wait(Duration::from_millis(steps * STEP + GIVE_UP)));
    let mode = prop_oneof![
        2 => Just(Mode::Reject),
        4 => wait,
        1 => Just(Mode::Annotate),
        1 => Just(Mode::Shadow),
    ];
    let units = prop::array::uniform2(1_u64..5);
    (algorithms, units, 1_u64..12, mode, any::<bool>()).prop_map(
        |(algorithm, units, interval, mode, counts)| {
            let is_permit = algorithm == Algorithm::ConcurrentRequests;
            // A request asks a concurrency limit again every 25 ms, and a sliding window refills at
            // any time, which would meet other events.
            let meets_others = is_permit || algorithm == Algorithm::SlidingWindowCounter;
            let mode = if meets_others && mode.max_wait().is_some() { Mode::Reject } else { mode };
            let counts = counts && !is_permit;
            Limited { algorithm, units, interval, mode, is_global: false, counts }
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let sent = (0_u64..4, 0_u8..2, 1_u64..3, 0_u64..12, any::<bool>(), any::<bool>());
    let sent = sent.prop_map(|(after, client, cost, duration, fails, in_tier)| Sent {
        after,
        client,
        cost,
        duration,
        fails,
        in_tier,
    });
    let requests = prop::collection::vec(sent, 1..=REQUESTS);
    let limits = prop::collection::vec(limited(), 1..4);
    (limits, any::<bool>(), 1_usize..12, requests).prop_map(
        |(mut limits, is_global, places, requests)| {
            // Requests may wake at the same instant, for example at the end of a window. So that
            // their order does not matter, they wait for one limit only, and all limits have the
            // same key: either the client's own, or the shared one.
            let (mut queues, mut waits) = (0, false);
            for limited in &mut limits {
                limited.is_global = is_global;
                if limited.mode.max_wait().is_some() && std::mem::replace(&mut waits, true) {
                    limited.mode = Mode::Reject;
                }
            }
            limits.retain(|limited| {
                let Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } } = limited.algorithm
                else {
                    return true;
                };
                queues += usize::from(limited.mode.enforces());
                !limited.mode.enforces() || queues == 1
            });
            Case { limits, places, requests }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layer_and_replay_agree(case in cases()) {
        case.agrees();
    }
}

#[test]
fn a_client_takes_half_of_the_places_in_both() {
    let limited = Limited {
        algorithm: Algorithm::TokenBucket { refill: Refill::Greedy },
        units: [1, 1],
        interval: 1,
        mode: Mode::Wait(Duration::from_secs(30)),
        is_global: false,
        counts: false,
    };
    let sent = Sent { after: 0, client: 0, cost: 1, duration: 0, fails: false, in_tier: false };
    let case = Case { limits: vec![limited], places: 4, requests: vec![sent; 6] };
    let answers = case.agrees();
    // A second and two seconds after the first request.
    assert_eq!(answers, [Some(0), Some(999), Some(1_998), None, None, None]);
}

#[test]
fn permits_pass_to_the_next_request_in_both() {
    let limited = Limited {
        algorithm: Algorithm::ConcurrentRequests,
        units: [1, 1],
        interval: 1,
        mode: Mode::Wait(Duration::from_secs(4)),
        is_global: true,
        counts: false,
    };
    let sent = Sent { after: 0, client: 0, cost: 1, duration: 1, fails: false, in_tier: false };
    let case = Case { limits: vec![limited], places: 9, requests: vec![sent; 5] };
    let answers = case.agrees();
    // The first response ends after 1100 ms, and the next request asks every 25 ms.
    assert_eq!(answers, [Some(0), Some(1_100), Some(2_199), Some(3_298), None]);
}
