//! A store under load, and the result of each request.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::headers::HeaderOptions;
use tollgate::key::Key;
use tollgate::policy::{Cost, OnStoreError};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer, Store, StoreExt};
use tollgate_redis::{RedisStore, RedisStoreBuilder};
use tollgate_test_servers::until_async;
use tower::{Layer, ServiceExt};

use crate::cluster::MINUTE;

/// A store as a service uses it.
pub(crate) struct Scene {
    store: RedisStore,
    url: String,
    timeout: Duration,
    next: Arc<AtomicU64>,
    /// Time in [`TICK`]s, counted by this runtime.
    ticks: Arc<AtomicU64>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Admitted,
    NotCharged,
    MaybeCharged,
}

#[derive(Debug)]
struct Asked {
    id: u64,
    /// The number of ticks for which the request waited.
    ticks: u64,
    told: Told,
}

/// An endless series of requests, each with its own key.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    tasks: JoinSet<Vec<Asked>>,
}

/// The results of all requests, and the units that Redis has charged for them.
pub(crate) struct Report {
    asked: Vec<Asked>,
    pub(crate) held: Held,
}

/// Differences between a load's results and Redis' state.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The number of admitted requests that are not charged, because Redis has lost them.
    pub(crate) lost: usize,
    /// The ids of charged requests that failed for their callers. On a busy machine some answers
    /// from a healthy server are also too late.
    pub(crate) ghosts: Vec<u64>,
}

/// A store's default timeout.
const TIMEOUT: Duration = Duration::from_millis(50);
/// The interval at which waiting time is counted. If the machine stalls, so does the count.
const TICK: Duration = Duration::from_millis(5);
/// How long a caller may wait beyond the timeout: the answer takes three task wake-ups, and the
/// machine is busy with other tests.
const TOLERANCE: Duration = Duration::from_secs(1);
/// Long enough for the store to give up its connection, which it does after half a second.
pub(crate) const OUTAGE: Duration = Duration::from_millis(800);
/// How long the store may take to recover. It takes up to half a second between connection
/// attempts, or to replace a silent connection; the breaker probes five times per second. The rest
/// is for servers on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// The number of tasks that send requests.
pub(crate) const TASKS: usize = 32;

impl Scene {
    pub(crate) async fn new(url: &str) -> Self {
        Self::begin(Self::unconnected(url)).await
    }

    /// A scene with a timeout that a busy machine does not exceed, for faults that do not make
    /// requests wait.
    pub(crate) async fn patient(url: &str) -> Self {
        Self::begin(Self::with_timeout(url, Duration::from_secs(2))).await
    }

    /// A scene in which every request is sent, regardless of lost calls. The timeout is so long
    /// that a busy machine is not mistaken for a node that is down.
    pub(crate) async fn without_breaker(url: &str) -> Self {
        let builder = RedisStore::builder(url).expect("a URL").breaker(false);
        Self::begin(Self::of(url, builder.timeout(20 * TIMEOUT), 20 * TIMEOUT)).await
    }

    /// A scene with a server that may not be running yet.
    pub(crate) fn unconnected(url: &str) -> Self {
        Self::with_timeout(url, TIMEOUT)
    }

    fn with_timeout(url: &str, timeout: Duration) -> Self {
        let builder = RedisStore::builder(url).expect("a URL").timeout(timeout);
        Self::of(url, builder, timeout)
    }

    fn of(url: &str, builder: RedisStoreBuilder, timeout: Duration) -> Self {
        let store = builder.connect().expect("a runtime");
        let ticks = Arc::<AtomicU64>::default();
        let counted = Arc::downgrade(&ticks);
        tokio::spawn(async move {
            while let Some(ticks) = counted.upgrade() {
                ticks.fetch_add(1, Ordering::Relaxed);
                drop(ticks);
                sleep(TICK).await;
            }
        });
        Self { store, url: url.to_owned(), timeout, next: Arc::default(), ticks }
    }

    async fn begin(self) -> Self {
        self.until_up().await;
        self.policies_decide().await;
        self
    }

    pub(crate) fn store(&self) -> &RedisStore {
        &self.store
    }

    /// Returns the next request's id.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Starts a load.
    pub(crate) fn load(&self) -> Load {
        let (is_over, admitted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, next) = (self.store.clone(), Arc::clone(&self.next));
            let (is_over, admitted) = (Arc::clone(&is_over), Arc::clone(&admitted));
            let ticks = Arc::clone(&self.ticks);
            tasks.spawn(async move {
                let mut asked = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let before = ticks.load(Ordering::Relaxed);
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    let told = ask(&store, id).await;
                    admitted.fetch_add(u64::from(told == Told::Admitted), Ordering::Relaxed);
                    let ticks = ticks.load(Ordering::Relaxed) - before;
                    asked.push(Asked { id, ticks, told });
                    sleep(Duration::from_millis(5)).await;
                }
                asked
            });
        }
        Load { is_over, admitted, tasks }
    }

    /// Starts a load, and waits until the store decides its requests.
    pub(crate) async fn load_under_way(&self) -> Load {
        let load = self.load();
        load.goes_on().await;
        load
    }

    /// Waits until all requests so far have timed out.
    pub(crate) async fn timeout_passes(&self) {
        sleep(4 * self.timeout).await;
    }

    /// Waits until `is_so` returns true, and asserts that it takes no longer than `SOON`.
    pub(crate) async fn soon(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let ticks = || self.ticks.load(Ordering::Relaxed);
        let before = ticks();
        until_async(what, MINUTE, async || is_so().await.then_some(())).await;
        let (took, most) = (u128::from(ticks() - before), SOON.as_millis() / TICK.as_millis());
        println!("{what} after {took} ticks");
        assert!(took <= most, "{what} after {took} ticks, and not {most}");
    }

    /// Waits until the store decides.
    pub(crate) async fn until_up(&self) {
        let decides = async || self.store.peek(&policy(), &Key::GLOBAL).await.is_ok();
        self.soon("the store decides", decides).await;
    }

    /// Asserts that the store recovers soon after a fault, including policies with other failure
    /// policies. Stops the load.
    pub(crate) async fn recovers(&self, load: Load) -> Report {
        self.until_up().await;
        load.goes_on().await;
        let report = load.end(self).await;
        self.policies_decide().await;
        report
    }

    /// Waits until requests fail immediately, because the server rejects them, or because it does
    /// not answer and the breaker is open.
    async fn until_down(&self) {
        let mut refused = 0;
        until_async("requests fail immediately", MINUTE, async || {
            if self.store.breaker().is_open() {
                return Some(());
            }
            let asked = Instant::now();
            let told = ask(&self.store, self.next.fetch_add(1, Ordering::Relaxed)).await;
            let is_refused = told == Told::NotCharged && asked.elapsed() < self.timeout / 2;
            refused = if is_refused { refused + 1 } else { 0 };
            (refused == 5).then_some(())
        })
        .await;
    }

    /// Asserts that the store decides under each failure policy.
    async fn policies_decide(&self) {
        for on_error in [OnStoreError::Open, OnStoreError::Closed, OnStoreError::Local] {
            let mut seen = Vec::new();
            // A busy machine may exceed the timeout, but not every time.
            for _ in 0..10 {
                seen = self.ask_layer(on_error, 2).await.iter().map(Answer::seen).collect();
                if seen == ["200 limit 10"; 2] {
                    break;
                }
                self.until_up().await;
            }
            assert_eq!(seen, ["200 limit 10"; 2], "{on_error:?}");
        }
    }

    /// Asserts that the failure policies apply while the store is down: fail open admits, fail
    /// closed rejects, and the local fallback decides with half the quota. No request waits.
    pub(crate) async fn policies_fail(&self) {
        self.until_down().await;
        let cases = [
            (OnStoreError::Open, ["200"; 6]),
            (OnStoreError::Closed, ["503"; 6]),
            (OnStoreError::Local, {
                let passes = "200 limit 5";
                [passes, passes, passes, passes, passes, "429 limit 5"]
            }),
        ];
        for (on_error, expected) in cases {
            let began = Instant::now();
            let answers = self.ask_layer(on_error, 6).await;
            let late = 2 + began.elapsed().as_millis() / 200;
            let seen: Vec<_> = answers.iter().map(Answer::seen).collect();
            assert_eq!(seen, expected, "{on_error:?}");
            for answer in &answers {
                let refused = matches!(answer.status, 429 | 503);
                assert_eq!(answer.headers.contains_key("retry-after"), refused, "{answer:?}");
            }
            // Requests do not probe the server, but a busy machine may be late itself.
            let waited = answers.iter().filter(|answer| answer.waited).count() as u128;
            assert!(waited <= late, "{waited} of 6 waited for the store: {on_error:?}");
        }
    }

    /// Sends requests to a service with a single limit of ten requests per minute.
    async fn ask_layer(&self, on_error: OnStoreError, count: usize) -> Vec<Answer> {
        let store = self.store.clone().or_local(MemoryStore::default());
        let store = store.with_share(1, 2).expect("a share");
        let name = format!("layer-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let policy = Policy::sliding_window_log(name, Quota::per_minute(10)).expect("builds");
        let limit = Limit::global(policy.with_on_store_error(on_error));
        let layer = RateLimitLayer::builder(store).limit(limit).headers(HeaderOptions::all());
        let layer = layer.build().expect("builds");
        let service = layer.any_body().layer(tower::service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
        let mut answers = Vec::new();
        for _ in 0..count {
            let was_open = self.store.breaker().is_open();
            let mut call = pin!(service.clone().oneshot(Request::new(())));
            let at_once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            let waited = was_open && at_once.is_pending();
            let response = match at_once {
                Poll::Ready(response) => response,
                Poll::Pending => call.await,
            };
            let response = response.expect("infallible");
            answers.push(Answer {
                status: response.status().as_u16(),
                headers: response.headers().clone(),
                waited,
            });
        }
        answers
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    /// Whether the first poll was pending although the breaker was open.
    waited: bool,
}

impl Answer {
    /// Returns the status, and the limit if the response has one.
    fn seen(&self) -> String {
        match self.headers.get("x-ratelimit-limit") {
            Some(limit) => format!("{} limit {}", self.status, limit.to_str().expect("ASCII")),
            None => self.status.to_string(),
        }
    }
}

impl Load {
    /// Waits until more requests were admitted than were in flight.
    pub(crate) async fn goes_on(&self) {
        let admitted = || self.admitted.load(Ordering::Relaxed);
        let enough = admitted() + 2 * TASKS as u64;
        until_async("the load goes on", MINUTE, async || (admitted() >= enough).then_some(()))
            .await;
    }

    /// Stops the load while Redis is up, and compares its results with Redis' state.
    pub(crate) async fn end(self, scene: &Scene) -> Report {
        self.is_over.store(true, Ordering::Relaxed);
        let asked = self.tasks.join_all().await.into_iter().flatten().collect();
        let mut report = Report { asked, held: Held::default() };
        report.print();
        report.held = report.compare(scene).await;
        report
    }
}

impl Report {
    pub(crate) fn count(&self, told: Told) -> usize {
        self.asked.iter().filter(|asked| asked.told == told).count()
    }

    /// Compares every request with Redis' state. Redis must be up again. Asserts:
    ///
    /// * no request waited longer than the timeout plus one second, in ticks;
    /// * no request was charged twice;
    /// * no request was charged if its caller was told otherwise.
    ///
    /// The test checks the rest.
    async fn compare(&self, scene: &Scene) -> Held {
        assert!(self.count(Told::Admitted) > 0, "no request was admitted");
        let slowest = self.asked.iter().max_by_key(|asked| asked.ticks).expect("a request");
        let bound = (scene.timeout + TOLERANCE).as_millis() / TICK.as_millis();
        assert!(u128::from(slowest.ticks) <= bound, "{slowest:?} took more than {bound} ticks");

        // Uses another store with a long timeout, because checking thousands of keys takes a while.
        let store = connect(&scene.url, Duration::from_secs(30));
        store.connected().await;
        let (policy, mut held) = (policy(), Held::default());
        for asked in self.asked.chunks(256) {
            let answers: Vec<_> =
                asked.iter().map(|asked| store.peek(&policy, &key(asked.id))).collect();
            for (asked, answer) in asked.iter().zip(answers) {
                let charged = 10 - answer.await.expect("Redis is back").decisions()[0].remaining;
                match (asked.told, charged) {
                    (Told::Admitted, 1) | (Told::NotCharged | Told::MaybeCharged, 0) => {}
                    (Told::Admitted, 0) => held.lost += 1,
                    (Told::MaybeCharged, 1) => held.ghosts.push(asked.id),
                    _ => panic!("charged {charged} times: {asked:?}"),
                }
            }
        }
        held
    }

    /// Printed for failed tests, and with `--nocapture`.
    fn print(&self) {
        println!(
            "{} admitted, {} not charged, {} maybe; slowest {:?} ticks",
            self.count(Told::Admitted),
            self.count(Told::NotCharged),
            self.count(Told::MaybeCharged),
            self.asked.iter().map(|asked| asked.ticks).max(),
        );
    }
}

/// Each request has its own key, so a double charge is visible.
async fn ask<S: Store>(store: &S, id: u64) -> Told {
    match store.charge(&policy(), &key(id), Cost::ONE).await {
        Ok(verdict) => {
            assert!(verdict.is_admitted(), "no other test uses the key: {verdict:?}");
            Told::Admitted
        }
        Err(error) if error.may_have_charged() => Told::MaybeCharged,
        Err(_) => Told::NotCharged,
    }
}

fn connect(url: &str, timeout: Duration) -> RedisStore {
    let store = RedisStore::builder(url).expect("a URL").timeout(timeout);
    store.connect().expect("a store")
}

fn policy() -> Policy {
    Policy::sliding_window_log("each", Quota::per_hour(10)).expect("builds")
}

fn key(id: u64) -> Key {
    Key::new(id.to_string().as_bytes())
}
