//! Runs tests with a service, on tokio's paused clock.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use tokio::task::{JoinError, JoinSet, LocalSet};
use tokio::time::{sleep, timeout};
use tollgate::MemoryStore;
use tollgate::store::{Timestamp, TokioClock};
use tollgate_replay::scenario::{Arrival, Arrivals, Failed, Outcome, Requests, START, Test};
use tower_service::Service;

use crate::checks;
use crate::clock::Started;
use crate::response::{is_problem, outcome};

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
/// arrive with microsecond precision. The simulated time has these limits:
///
/// * tokio's timers round a wait up to a millisecond.
/// * Only tokio's clock is simulated. `std::time::Instant`, `SystemTime` and calls over a network use
///   the real time, during which the simulated time may advance.
/// * While a task runs in `spawn_blocking`, the simulated time does not advance by itself.
/// * A service whose own tasks pass a request on has 32 turns of the runtime before the time advances
///   within a millisecond.
/// * A response, and its body, may take a day each. Then the test fails, or the body is closed.
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
/// [`Feedback`](tollgate::feedback::Feedback) determines whether a response is a denial: for example,
/// each 429 is. So are a layer's problem bodies, such as a 403 for a missing key. If the layer has
/// [another format](tollgate::layer::RateLimitLayerBuilder::on_denied), add
/// [`mark_denials`](tollgate::layer::RateLimitLayerBuilder::mark_denials). The policy and its units
/// are from the `RateLimit` headers, and a request passes when its response starts. With
/// [`expose_verdicts`](tollgate::layer::RateLimitLayerBuilder::expose_verdicts), they are from
/// the layer's decisions unless the response contradicts them. A wait then excludes the time that a
/// handler takes, and the denying policy is certain if there are several.
///
/// A test fails if all responses that an expectation is about are 404, 405 or server errors,
/// because the requests then did not reach a handler. [`Expected::status`](crate::Expected::status) permits them.
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

tollgate_core::debug_fields!([F] Simulation<F>);

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

    /// Runs a test, and returns the expectations that are not met. The search for a failure's shortest
    /// history takes about three seconds at most.
    ///
    /// # Panics
    /// The test has no requests or no expectations, a method, path or header is invalid, a field only
    /// applies to the gateway, or the service panics or returns an error instead of a response.
    #[track_caller]
    pub fn check(&self, test: &Test) -> Vec<Failed> {
        if let Err(error) = checks::valid(test) {
            panic!("{}: {error}", test.name);
        }
        let unreached = RefCell::new(None);
        let run = |arrivals: Arrivals<'_>| {
            let outcomes = self.outcomes(arrivals)?;
            // Only the first run has all requests.
            unreached.borrow_mut().get_or_insert_with(|| checks::unreached(test, &outcomes));
            Ok::<_, String>(outcomes)
        };
        match test.run(Some(PATIENCE), run) {
            Ok((_, failures)) => {
                let unreached = unreached.take().unwrap_or_default();
                unreached.into_iter().chain(failures).collect()
            }
            Err(error) => panic!("{}: {error}", test.name),
        }
    }

    fn outcomes(&self, arrivals: Arrivals<'_>) -> Result<Vec<Outcome>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
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
        let mut senders = HashMap::new();
        loop {
            let next = arrivals.next_at();
            if next.is_none() && running.is_empty() {
                return Ok(outcomes);
            }
            tokio::select! {
                biased;
                Some(done) = running.join_next_with_id() => {
                    let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
                    let sender = senders.remove(&id).unwrap_or_default();
                    let (_, done) = done.map_err(|error| panicked(sender, error))?;
                    let (outcome, ended): (Outcome, Timestamp) = done?;
                    arrivals.answered_at(&outcome.arrival, ended);
                    let number = outcome.arrival.number as usize;
                    outcomes[number] = outcome;
                }
                () = started.sleep_until(next) => {
                    let Some(arrival) = arrivals.next() else { continue };
                    // A shortened history retains the numbers of the original run.
                    let arrival = Arrival { number: outcomes.len() as u64, ..arrival };
                    let requests = arrivals.requests(&arrival);
                    let mut request = request(requests, &arrival)?;
                    (self.prepare)(&mut request);
                    outcomes.push(Outcome::unlimited(arrival, 0));
                    let takes = requests.takes.into();
                    let call = call(service.clone(), request, arrival, takes, started.clone());
                    started.sends();
                    senders.insert(running.spawn_local(call).id(), arrival.sender);
                }
            }
        }
    }
}

/// The longest search for a shorter history, in real time.
const PATIENCE: Duration = Duration::from_secs(3);

/// Names the request whose service has panicked.
fn panicked(sender: u32, error: JoinError) -> String {
    let text = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    };
    match error.try_into_panic() {
        Ok(panic) => format!("requests[{sender}]: the service panicked: {}", text(panic)),
        Err(error) => format!("requests[{sender}]: {error}"),
    }
}

/// # Errors
/// The test describes no valid request.
fn request(requests: &Requests, arrival: &Arrival) -> Result<Request<Full<Bytes>>, String> {
    let client = arrival.client;
    let path = requests.for_client(&requests.path, client);
    let mut request = Request::builder().method(requests.method.as_str()).uri(&*path);
    if let Some(host) = &requests.host {
        request = request.header(http::header::HOST, host);
    }
    for (name, value) in &requests.headers {
        request = request.header(name, &*requests.for_client(value, client));
    }
    request
        .extension(SocketAddr::new(requests.address(client), 50_000))
        .body(Full::default())
        .map_err(|error| format!("requests[{}]: {error}", arrival.sender))
}

/// Calls the service, and reads the response. Returns when it ended.
async fn call<S, B>(
    mut service: S,
    request: Request<Full<Bytes>>,
    arrival: Arrival,
    takes: Duration,
    started: Started,
) -> Result<(Outcome, Timestamp), String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Error: fmt::Debug,
    B: Body,
{
    started.reaches();
    let failed = |error| format!("requests[{}]: the service failed: {error:?}", arrival.sender);
    let response = timeout(LONGEST, async {
        poll_fn(|context| service.poll_ready(context)).await?;
        service.call(request).await
    });
    let late = |_| format!("requests[{}]: no response within a day", arrival.sender);
    let response = response.await.map_err(late)?.map_err(failed)?;
    let (head, body) = response.into_parts();
    let responded = started.now();
    let mut body = std::pin::pin!(body);
    let mut problem = Vec::new();
    // An endless response is closed.
    if is_problem(&head) {
        let read = async {
            while let Some(Ok(frame)) = body.frame().await {
                let Ok(mut data) = frame.into_data() else { continue };
                let rest = PROBLEM.saturating_sub(problem.len()).min(data.remaining());
                problem.extend_from_slice(&data.copy_to_bytes(rest));
            }
        };
        let _ = timeout(LONGEST, read).await;
    }
    let outcome = outcome(arrival, &head, &problem, responded);
    if outcome.is_allowed {
        sleep(takes).await;
    }
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(LONGEST, read).await;
    Ok((outcome, started.now()))
}

/// A layer's own problem bodies are shorter.
const PROBLEM: usize = 16 << 10;

/// Nothing else happens while a test waits for a response, so the simulated time would stop.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);
