//! The layer, a replay and a forecast make the same decisions: random limits and random requests go
//! through the layer, on tokio's paused clock, and through a replay of the same requests. Some
//! requests later, a reload replaces the limits.
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
    Algorithm, Charge, Cost, Key, LeakyMode, Micros, Policy, Quota, Refill, Resolution, Store as _,
    Timestamp,
};
use tollgate_engine::{
    self as engine, AppliedLimit, Charges, Conclusion, Forecast, Limit as Rule, Limits, Mode,
    Queue, Step, SubjectKind, TierIndex, actual_cost,
};
use tollgate_memory::ManualClock;
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
    /// The policy's name is `p` and this number, also after a reload.
    name: usize,
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
    /// The limits from the request with this number on.
    reload: (usize, Vec<Limited>),
    places: usize,
    requests: Vec<Sent>,
}

impl Limited {
    fn is_permit(&self) -> bool {
        self.algorithm == Algorithm::ConcurrentRequests
    }

    fn policies(&self) -> [Policy; 2] {
        self.units.map(|units| {
            // Permits outlive every response.
            let steps = if self.is_permit() { 600 } else { self.interval * units };
            let window = Duration::from_millis(STEP * steps);
            Policy::new(format!("p{}", self.name), Quota::new(units, window), self.algorithm)
                .unwrap()
        })
    }

    fn limit(&self) -> Limit {
        let [policy, in_tier] = self.policies();
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
    /// The limits that a request meets.
    fn limits_of(&self, number: usize) -> &[Limited] {
        let (reload, limits) = &self.reload;
        if number < *reload { &self.limits } else { limits }
    }

    /// The rules of all requests, before and after the reload.
    fn rules(&self) -> Vec<Arc<Limits>> {
        let rules = |limits: &[Limited]| {
            let rule = |limited: &Limited| {
                let [policy, in_tier] = limited.policies();
                Rule { in_tiers: [in_tier].into(), ..Rule::new(policy).mode(limited.mode) }
            };
            Arc::new(Limits::new(limits.iter().map(rule)))
        };
        let (first, second) = (rules(&self.limits), rules(&self.reload.1));
        let number = 0..self.requests.len();
        number.map(|it| Arc::clone(if it < self.reload.0 { &first } else { &second })).collect()
    }

    /// A request's charges, and the costs to which its response settles them.
    fn charges(&self, number: usize, rules: &Limits) -> (Charges, Vec<(u8, Cost)>) {
        let (mut charges, mut actual) = (Charges::default(), Vec::new());
        let sent = &self.requests[number];
        for (number, limited) in (0..).zip(self.limits_of(number)) {
            let (kind, key) = match limited.is_global {
                true => (SubjectKind::Global, Key::GLOBAL),
                false => (SubjectKind::Other, Key::new([sent.client])),
            };
            let cost = Cost::new(if limited.is_permit() { 1 } else { sent.cost });
            let mut applied = AppliedLimit::new(number, kind, key, cost);
            applied.tier = if sent.in_tier { TierIndex(0) } else { TierIndex::default() };
            let policy = rules.policy(&applied).clone();
            charges.push(applied, rules);
            let counts = limited.counts.then_some(sent.fails);
            actual.extend(actual_cost(&policy, cost, counts, None).map(|cost| (number, cost)));
        }
        (charges, actual)
    }

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
        let layer = |limits: &[Limited]| {
            let builder = RateLimitLayer::builder(store.clone())
                .costs(Costs::default().from_fn(cost))
                .tiers(tier::from_fn(|head| head.headers.get("tier").map(|_| "tier")))
                .wait_queue(&queue);
            let limits = limits.iter().map(Limited::limit);
            limits.fold(builder, |layer, limit| layer.limit(limit)).build().unwrap()
        };
        let layers = [layer(&self.limits), layer(&self.reload.1)];
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
            let layer = &layers[usize::from(number >= self.reload.0)];
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
        let rules = self.rules();
        let mut replay = Replay::within(Bounds { waiting: self.places, ..Bounds::default() });
        let mut answers = Vec::new();
        for (number, (sent, at)) in self.requests.iter().zip(self.arrivals()).enumerate() {
            let (charges, actual) = self.charges(number, &rules[number]);
            let duration = Micros::new((sent.duration * STEP + END) * 1_000);
            let request = Recorded::new(instant(at), &rules[number], charges);
            let request = request.settling(&actual).lasting(duration);
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

    /// Compares the forecast of each request with its first steps when it is charged, if no other
    /// request waits. Returns the first forecast.
    fn forecast(&self) -> Forecast {
        let clock = ManualClock::default();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let rules = self.rules();
        let forecast = |(number, at): (usize, u64)| {
            clock.set(instant(at));
            let (limits, (charges, _)) = (&rules[number], self.charges(number, &rules[number]));
            let dry: Vec<_> = limits.charges(&charges).into_iter().map(Charge::dry).collect();
            let dry = store.decide(&dry).into_inner().unwrap();
            let forecast = Forecast::new(limits, charges.clone(), &dry);
            let arrival = limits.may_wait().then(|| Queue::new().arrive(0));
            let (mut request, mut step) = engine::Request::start(limits, charges, arrival);
            while let Step::Ask(question) = step {
                let reply = store.decide(&question.charges(limits, request.charges()));
                step = request.on_reply(limits, reply.into_inner(), instant(at));
            }
            let agrees = match (forecast, &step) {
                (Forecast::Pass(one), Step::Done(Conclusion::Pass(other))) => one == *other,
                (Forecast::Wait(_), Step::Sleep(_)) => true,
                (Forecast::Reject, Step::Done(Conclusion::Reject(_))) => true,
                _ => false,
            };
            assert!(agrees, "request {number}: {forecast:?}, {step:?}");
            forecast
        };
        let forecasts: Vec<_> = self.arrivals().into_iter().enumerate().map(forecast).collect();
        forecasts[0]
    }

    fn agrees(&self) -> Vec<Option<u64>> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let served = runtime.block_on(self.serve());
        assert_eq!(self.replay(), served, "the replay differs from the layer");
        let first = served[0].map(|waited| Micros::new(waited * 1_000));
        let is_foretold = match self.forecast() {
            Forecast::Pass(delay) => first == Some(delay),
            Forecast::Wait(max) => {
                first.is_none_or(|waited| (Micros::new(1)..=max).contains(&waited))
            }
            Forecast::Reject => first.is_none(),
        };
        assert!(is_foretold, "the forecast differs from the layer");
        served
    }
}

/// `TokioClock` starts then.
const fn instant(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_704_067_200_000_000 + millis * 1_000)
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
    (algorithms, units, 1_u64..12, mode, any::<[bool; 2]>()).prop_map(
        |(algorithm, units, interval, mode, [counts, is_global])| {
            let is_permit = algorithm == Algorithm::ConcurrentRequests;
            // A request asks a concurrency limit again every 25 ms, and a sliding window refills at
            // any time, which would meet other events.
            let meets_others = is_permit || algorithm == Algorithm::SlidingWindowCounter;
            let mode = if meets_others && mode.max_wait().is_some() { Mode::Reject } else { mode };
            let counts = counts && !is_permit;
            Limited { name: 0, algorithm, units, interval, mode, is_global, counts }
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
    let limits = prop::collection::vec(limited(), 1..4).prop_map(|mut limits| {
        for (name, limited) in limits.iter_mut().enumerate() {
            limited.name = name;
        }
        // Requests with different keys may wake at the same instant if they wait for the end of the
        // same window, or for two limits.
        let is_mixed = limits.iter().any(|it| it.is_global != limits[0].is_global);
        let mut waits = false;
        for limited in limits.iter_mut().filter(|it| is_mixed && it.mode.max_wait().is_some()) {
            let is_window = limited.algorithm == Algorithm::FixedWindowCounter;
            if is_window || std::mem::replace(&mut waits, true) {
                limited.mode = Mode::Reject;
            }
        }
        let mut queues = 0;
        limits.retain(|limited| {
            let Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } } = limited.algorithm else {
                return true;
            };
            queues += usize::from(limited.mode.enforces());
            !limited.mode.enforces() || queues == 1
        });
        limits
    });
    // A reload changes quotas, and the numbers of limits.
    let reloaded = limits.prop_flat_map(|limits| {
        let units = prop::collection::vec(prop::array::uniform2(1_u64..5), limits.len());
        let changed = (Just(limits.clone()).prop_shuffle(), units, any::<bool>());
        let changed = changed.prop_map(|(mut limits, units, keeps)| {
            for (limited, units) in limits.iter_mut().zip(units).filter(|_| !keeps) {
                limited.units = units;
            }
            limits
        });
        (Just(limits), changed)
    });
    (reloaded, 0..=REQUESTS, 1_usize..12, requests).prop_map(
        |((limits, changed), number, places, requests)| {
            let reload = (number, changed);
            Case { limits, reload, places, requests }
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
        name: 0,
        algorithm: Algorithm::TokenBucket { refill: Refill::Greedy },
        units: [1, 1],
        interval: 1,
        mode: Mode::Wait(Duration::from_secs(30)),
        is_global: false,
        counts: false,
    };
    let sent = Sent { after: 0, client: 0, cost: 1, duration: 0, fails: false, in_tier: false };
    let case = Case {
        limits: vec![limited.clone()],
        reload: (REQUESTS, vec![limited]),
        places: 4,
        requests: vec![sent; 6],
    };
    let answers = case.agrees();
    // A second and two seconds after the first request.
    assert_eq!(answers, [Some(0), Some(999), Some(1_998), None, None, None]);
}

#[test]
fn permits_pass_to_the_next_request_in_both() {
    let limited = Limited {
        name: 0,
        algorithm: Algorithm::ConcurrentRequests,
        units: [1, 1],
        interval: 1,
        mode: Mode::Wait(Duration::from_secs(4)),
        is_global: true,
        counts: false,
    };
    let sent = Sent { after: 0, client: 0, cost: 1, duration: 1, fails: false, in_tier: false };
    let case = Case {
        limits: vec![limited.clone()],
        reload: (REQUESTS, vec![limited]),
        places: 9,
        requests: vec![sent; 5],
    };
    let answers = case.agrees();
    // The first response ends after 1100 ms, and the next request asks every 25 ms.
    assert_eq!(answers, [Some(0), Some(1_100), Some(2_199), Some(3_298), None]);
}
