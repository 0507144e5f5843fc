//! Runs tests with a service, on tokio's paused clock.

use std::cell::Cell;
use std::fmt;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use tokio::task::{JoinSet, LocalSet, yield_now};
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use tollgate::MemoryStore;
use tollgate::feedback::{Feedback, ServerQuota};
use tollgate::layer::{LimitVerdict, Verdicts};
use tollgate::store::{Timestamp, TokioClock};
use tollgate_core::Micros;
use tollgate_replay::scenario::{
    Arrival, Arrivals, Failed, Outcome, Requests, START, ShownPolicy, Test, for_client,
};
use tower_service::Service;

/// A tested service's store, on the simulation's clock.
pub type TestStore = MemoryStore<TokioClock>;

/// Runs tests with a service.
///
/// The simulation calls a function that creates the service with the given store, such as an
/// [`axum::Router`](https://docs.rs/axum/latest/axum/struct.Router.html). Each run of a test gets a new
/// service with unused quotas.
///
/// # Time
///
/// The simulation runs in its own tokio runtime with a paused clock, so call it from `#[test]`, not
/// from `#[tokio::test]`. The service's own sleeps take no real time, either. Requests
/// arrive with microsecond precision, but tokio's timers round a wait up to a millisecond.
///
/// # Requests
///
/// A client's address is in the extensions as `SocketAddr`, where
/// [`ClientIp`](tollgate::key::ClientIp) finds it. [`prepare`](Self::prepare) adds anything else,
/// such as axum's `ConnectInfo` or a body. The client reads the entire response, which takes at
/// least [`Requests::takes`].
///
/// # Outcomes
///
/// [`Feedback`] determines whether a response is a denial: for example, each 429 is. The
/// policy and its units are from the `RateLimit` headers, and a request passes when its response
/// starts. With [`expose_verdicts`](tollgate::layer::RateLimitLayerBuilder::expose_verdicts), the
/// outcomes are exact, because they contain the layer's decisions. A wait then excludes the time that
/// a handler takes, and the denying policy is certain if there are several.
///
/// # A limiter without HTTP
///
/// ```
/// use std::convert::Infallible;
///
/// use http::{Request, Response, StatusCode};
/// use http_body_util::{Empty, Full};
/// use tollgate::key::Key;
/// use tollgate::{Limiter, Policy, Quota};
/// use tollgate_testing::{Expected, Requests, Simulation, Test};
/// use bytes::Bytes;
///
/// let test = Test::new("a job runs twice a minute")
///     .send(Requests::get("/").count(5).expect(Expected::allowed(2)));
/// Simulation::of(|store| {
///     let policy = Policy::token_bucket("job", Quota::per_minute(2)).unwrap();
///     let limiter = Limiter::builder(store).global(policy).build().unwrap();
///     tower::service_fn(move |_: Request<Full<Bytes>>| {
///         let limiter = limiter.clone();
///         async move {
///             let mut response = Response::new(Empty::<Bytes>::new());
///             if limiter.acquire(&Key::GLOBAL, 1).await.is_err() {
///                 *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
///             }
///             Ok::<_, Infallible>(response)
///         }
///     })
/// })
/// .assert(&test);
/// ```
pub struct Simulation<F> {
    create: F,
    prepare: Box<Prepare>,
}

type Prepare = dyn Fn(&mut Request<Full<Bytes>>);

impl<F> fmt::Debug for Simulation<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

impl<F, S, B> Simulation<F>
where
    F: Fn(TestStore) -> S,
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + 'static,
    S::Error: fmt::Debug,
    S::Future: 'static,
    B: Body + 'static,
{
    /// Creates a simulation. `create` creates the service.
    #[must_use]
    pub fn of(create: F) -> Self {
        Self { create, prepare: Box::new(|_| {}) }
    }

    /// Changes each request before the service gets it.
    #[must_use]
    pub fn prepare(mut self, prepare: impl Fn(&mut Request<Full<Bytes>>) + 'static) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Runs a test, and panics with a table if it fails.
    ///
    /// # Panics
    /// An expectation is not met. Same as [`check`](Self::check).
    #[track_caller]
    pub fn assert(&self, test: &Test) {
        self.assert_all(std::slice::from_ref(test));
    }

    /// Runs all tests, and panics with a table for each failure.
    ///
    /// # Panics
    /// Same as [`assert`](Self::assert).
    #[track_caller]
    pub fn assert_all(&self, tests: &[Test]) {
        let mut report = String::new();
        for test in tests {
            let failures = self.check(test);
            if !failures.is_empty() {
                let _ = writeln!(report, "\nFAIL  {}", test.name);
            }
            failures.iter().for_each(|failed| report.extend([failed.to_string()]));
        }
        assert!(report.is_empty(), "{report}");
    }

    /// Runs a test, and returns the expectations that are not met.
    ///
    /// # Panics
    /// The test has no requests, a method, path or header is invalid, or the service returns an
    /// error instead of a response.
    #[track_caller]
    pub fn check(&self, test: &Test) -> Vec<Failed> {
        assert!(
            !test.requests.is_empty(),
            "{}: it has no requests, so it shows nothing",
            test.name
        );
        match test.run(|arrivals| self.outcomes(arrivals)) {
            Ok((_, failures)) => failures,
            Err(error) => panic!("{}: {error}", test.name),
        }
    }

    fn outcomes(&self, arrivals: Arrivals<'_>) -> Result<Vec<Outcome>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        LocalSet::new().block_on(&runtime, self.run(arrivals))
    }

    async fn run(&self, mut arrivals: Arrivals<'_>) -> Result<Vec<Outcome>, String> {
        let started = Started::default();
        let store = MemoryStore::builder().clock(TokioClock::at(START)).build();
        let service = (self.create)(store);
        let (mut outcomes, mut running) = (Vec::new(), JoinSet::new());
        loop {
            let next = arrivals.next_at();
            if next.is_none() && running.is_empty() {
                return Ok(outcomes);
            }
            tokio::select! {
                biased;
                Some(done) = running.join_next() => {
                    let outcome: Outcome = done.map_err(|error| error.to_string())??;
                    arrivals.answered(&outcome);
                    let number = outcome.arrival.number as usize;
                    outcomes[number] = outcome;
                }
                () = started.sleep_until(next), if next.is_some() => {
                    let Some(arrival) = arrivals.next() else { continue };
                    // A shortened history retains the numbers of the original run.
                    let arrival = Arrival { number: outcomes.len() as u64, ..arrival };
                    let requests = arrivals.requests(&arrival);
                    let mut request = request(requests, &arrival)?;
                    (self.prepare)(&mut request);
                    outcomes.push(Outcome::unlimited(arrival, 0));
                    let takes = requests.takes.into();
                    let call = call(service.clone(), request, arrival, takes, started.clone());
                    started.sent.set(started.sent.get() + 1);
                    running.spawn_local(call);
                }
            }
        }
    }
}

/// How many requests were sent, and how many have reached the service.
#[derive(Clone, Debug)]
struct Started {
    sent: Rc<Cell<u64>>,
    reached: Rc<Cell<u64>>,
    start: Instant,
}

impl Default for Started {
    fn default() -> Self {
        Self { sent: Rc::default(), reached: Rc::default(), start: Instant::now() }
    }
}

impl Started {
    fn now(&self) -> Timestamp {
        START + Micros::from(self.start.elapsed())
    }

    /// Sleeps until a request arrives. Requests that arrived earlier reach the service before.
    async fn sleep_until(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return };
        if at <= self.now() {
            return;
        }
        while self.reached.get() < self.sent.get() {
            yield_now().await;
        }
        // A timer has a precision of milliseconds. It also waits until all tasks are idle.
        let after = at.since(START).get();
        sleep_until(self.start + Duration::from_millis(after / 1_000)).await;
        let now = self.now();
        if at > now {
            advance(at.since(now).into()).await;
        }
    }
}

/// # Errors
/// The test describes no valid request.
fn request(requests: &Requests, arrival: &Arrival) -> Result<Request<Full<Bytes>>, String> {
    let client = arrival.client;
    let path = for_client(&requests.path, client);
    let mut request = Request::builder().method(requests.method.as_str()).uri(&*path);
    if let Some(host) = &requests.host {
        request = request.header(http::header::HOST, host);
    }
    for (name, value) in &requests.headers {
        request = request.header(name, &*for_client(value, client));
    }
    request
        .extension(SocketAddr::new(requests.address(client), 50_000))
        .body(Full::default())
        .map_err(|error| format!("requests[{}]: {error}", arrival.sender))
}

/// Calls the service, and reads the response.
async fn call<S, B>(
    mut service: S,
    request: Request<Full<Bytes>>,
    arrival: Arrival,
    takes: Duration,
    started: Started,
) -> Result<Outcome, String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Error: fmt::Debug,
    B: Body,
{
    started.reached.set(started.reached.get() + 1);
    let failed = |error| format!("requests[{}]: the service failed: {error:?}", arrival.sender);
    let response = timeout(LONGEST, async {
        poll_fn(|context| service.poll_ready(context)).await?;
        service.call(request).await
    });
    let late = |_| format!("requests[{}]: no response within a day", arrival.sender);
    let response = response.await.map_err(late)?.map_err(failed)?;
    let outcome = outcome(arrival, &response, started.now());
    if outcome.is_allowed {
        sleep(takes).await;
    }
    let mut body = std::pin::pin!(response.into_body());
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    // An endless response is closed.
    let _ = timeout(LONGEST, read).await;
    Ok(outcome)
}

/// Nothing else happens while a test waits for a response, so the simulated time would stop.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

fn outcome<B>(arrival: Arrival, response: &Response<B>, now: Timestamp) -> Outcome {
    let (status, headers) = (response.status(), response.headers());
    let mut outcome = Outcome::unlimited(arrival, status.as_u16());
    outcome.wait = now.since(arrival.at);
    if let Some(verdicts) = response.extensions().get::<Verdicts>() {
        let enforced = || verdicts.iter().filter(|it| !it.is_shadow() && !it.is_soft());
        outcome.is_allowed = enforced().all(|it| !it.is_exceeded());
        let passed = |it: &LimitVerdict| it.decided_at() + it.decision().delay();
        if let (true, Some(at)) = (outcome.is_allowed, enforced().map(passed).max()) {
            outcome.wait = at.since(arrival.at);
        }
        return outcome.decided_by(enforced().map(|it| (it.policy(), it.decision())));
    }
    let feedback = Feedback::read(status, headers, SystemTime::UNIX_EPOCH);
    outcome.is_allowed = !feedback.is_denial();
    let shown = |quota: &ServerQuota| {
        let (name, limit, remaining) = (quota.name().into(), quota.limit()?, quota.remaining()?);
        Some((quota.resets_after(), ShownPolicy { name, limit, remaining }))
    };
    let tighter = |one: &ShownPolicy, other: &ShownPolicy| {
        let product =
            |a: &ShownPolicy, b: &ShownPolicy| u128::from(a.remaining) * u128::from(b.limit);
        product(one, other).cmp(&product(other, one))
    };
    let tightest = feedback
        .quotas()
        .iter()
        .filter_map(shown)
        .min_by(|one, other| tighter(&one.1, &other.1).then_with(|| other.0.cmp(&one.0)));
    outcome.policy = tightest.map(|(_, policy)| policy);
    let pause = feedback.pause_at_most(Duration::MAX).filter(|_| feedback.is_denial());
    outcome.retry_after = pause.map(|pause| pause.duration().into());
    outcome
}
