//! The middleware in front of a service that needs no network.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, StatusCode};
use http_body_util::Full;
use reqwest::{Body, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};
use tokio::time::Instant;
use tollgate::key::Key;
use tollgate::limiter::{AcquireError, LimiterBuilder, Permit};
use tollgate::policy::Cost;
use tollgate::store::TokioClock;
use tollgate::{Limiter, MemoryStore, Policy, Quota};
use tollgate_reqwest::{Idempotent, PoliteMiddleware};

const MINUTE: Duration = Duration::from_secs(60);
const URL: &str = "http://partner.example/orders";

type Store = MemoryStore<TokioClock>;

const fn is_clone<T: Clone>() {}

/// Lists of the public API do not show derived traits.
const fn middleware_is_clone<St: tollgate::Store>() {
    is_clone::<PoliteMiddleware<St>>();
}

const _: () = middleware_is_clone::<Store>();

/// The called service.
#[derive(Clone)]
struct Service {
    start: Instant,
    /// How many requests it still denies, and the header and value of these responses.
    denies: Arc<Mutex<(usize, &'static str, &'static str)>>,
    /// When requests came, in seconds, with their bodies.
    seen: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Service {
    fn denying(requests: usize, header: &'static str, value: &'static str) -> Self {
        let denies = Arc::new(Mutex::new((requests, header, value)));
        Self { start: Instant::now(), denies, seen: Arc::default() }
    }

    fn seconds(&self) -> Vec<u64> {
        self.seen.lock().expect("no panic").iter().map(|(second, _)| *second).collect()
    }
}

#[async_trait::async_trait]
impl Middleware for Service {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let body = request.body().and_then(Body::as_bytes).unwrap_or_default();
        let seen = (self.start.elapsed().as_secs(), String::from_utf8_lossy(body).into_owned());
        self.seen.lock().expect("no panic").push(seen);
        let (left, header, value) = &mut *self.denies.lock().expect("no panic");
        let response = http::Response::builder();
        let response = match left.checked_sub(1) {
            Some(fewer) => {
                *left = fewer;
                response.status(StatusCode::TOO_MANY_REQUESTS).header(*header, *value)
            }
            None => response,
        };
        Ok(response.body("done").expect("a response").into())
    }
}

/// Allows 2 requests a minute, and 1 retry.
fn limiter() -> LimiterBuilder<Store> {
    let store = MemoryStore::builder().clock(TokioClock::default()).build();
    let policy = Policy::sliding_window_log("partner", Quota::per_minute(2)).expect("a policy");
    Limiter::builder(store).policy(policy).queue(2 * MINUTE).pausable(MINUTE).retries(50)
}

fn client(polite: PoliteMiddleware<Store>, service: &Service) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(polite).with(service.clone()).build()
}

fn polite() -> PoliteMiddleware<Store> {
    PoliteMiddleware::new(limiter().build().expect("a limiter"))
}

fn refusal(error: &Error) -> &AcquireError {
    let Error::Middleware(error) = error else { panic!("{error}") };
    error.downcast_ref().expect("the limiter's error")
}

#[tokio::test(start_paused = true)]
async fn requests_queue_per_host() {
    let service = Service::denying(0, "", "");
    let client = client(polite(), &service);
    for _ in 0..3 {
        client.get(URL).send().await.unwrap();
    }
    client.get("http://other.example/").send().await.unwrap();
    assert_eq!(service.seconds(), [0, 0, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn own_refusal_is_a_typed_error() {
    let service = Service::denying(0, "", "");
    let client = client(polite().deadline(MINUTE / 2), &service);
    for _ in 0..2 {
        client.get(URL).send().await.unwrap();
    }
    let error = client.get(URL).send().await.unwrap_err();
    assert!(matches!(refusal(&error), AcquireError::TooLate(_)));
    assert_eq!(refusal(&error).retry_after(), Some(MINUTE / 2));
    assert_eq!(service.seconds().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn denied_request_is_sent_again_after_the_pause() {
    let service = Service::denying(1, "retry-after", "30");
    let client = client(polite().retries(3), &service);
    let response = client.put(URL).body("order").send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(
        *service.seen.lock().expect("no panic"),
        [(0, "order".into()), (30, "order".into())]
    );
}

#[tokio::test(start_paused = true)]
async fn other_clients_pause_too() {
    let service = Service::denying(1, "retry-after", "30");
    let client = client(polite(), &service);
    // Without retries, the response is the service's.
    assert_eq!(client.get(URL).send().await.unwrap().status(), 429);
    assert_eq!(client.get(URL).send().await.unwrap().status(), 200);
    assert_eq!(service.seconds(), [0, 30]);
}

#[tokio::test(start_paused = true)]
async fn some_requests_are_not_sent_again() {
    let stream = || Body::wrap(Full::new(Bytes::from_static(b"x")));
    for (header, value, attempts, build) in [
        ("retry-after", "1", 1, (|client| client.post(URL)) as Build),
        ("retry-after", "1", 2, |client| client.post(URL).with_extension(Idempotent(true))),
        ("retry-after", "1", 2, |client| client.get(URL)),
        ("retry-after", "1", 1, |client| client.get(URL).with_extension(Idempotent(false))),
        ("x-should-retry", "false", 1, |client| client.get(URL)),
        // Past the deadline.
        ("retry-after", "50", 1, |client| client.get(URL)),
    ] {
        let service = Service::denying(1, header, value);
        let client = client(polite().retries(3).deadline(MINUTE / 2), &service);
        let response = build(&client).send().await.unwrap();
        assert_eq!(service.seconds().len(), attempts, "{header}: {value}");
        assert_eq!(response.status(), if attempts == 1 { 429 } else { 200 });
        let service = Service::denying(1, header, value);
        let client = self::client(polite().retries(3).deadline(MINUTE / 2), &service);
        // A body that cannot be sent again.
        build(&client).body(stream()).send().await.unwrap();
        assert_eq!(service.seconds().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn spent_budget_returns_the_response() {
    let service = Service::denying(usize::MAX, "retry-after", "1");
    let client = client(polite().retries(9), &service);
    let response = client.get(URL).send().await.unwrap();
    assert_eq!(response.status(), 429);
    // The budget allows one retry.
    assert_eq!(service.seconds(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn key_and_cost_depend_on_the_request() {
    let limiter = limiter().build().unwrap();
    let service = Service::denying(0, "", "");
    let polite = PoliteMiddleware::new(limiter.clone())
        .key(|request| Key::from(request.url().path()))
        .cost(|request| Cost::new(if request.method().is_safe() { 1 } else { 2 }));
    let client = client(polite, &service);
    let response = client.post(URL).send().await.unwrap();
    let left = async || {
        let verdicts = limiter.peek(&Key::from("/orders")).await.unwrap();
        verdicts.get("partner").unwrap().decision().remaining
    };
    assert_eq!(left().await, 0);
    let permit = response.extensions().get::<Arc<Permit<Store>>>().unwrap();
    permit.settle_policy("partner", 1).await.unwrap();
    assert_eq!(left().await, 1);
}

#[tokio::test]
async fn refused_connection_costs_nothing() {
    let limiter = limiter().build().unwrap();
    let client = ClientBuilder::new(reqwest::Client::new());
    let client = client.with(PoliteMiddleware::new(limiter.clone())).build();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = client.get(format!("http://127.0.0.1:{port}/")).send().await.unwrap_err();
    assert!(error.is_connect(), "{error}");
    let verdicts = limiter.peek(&Key::from("127.0.0.1")).await.unwrap();
    assert_eq!(verdicts.get("partner").unwrap().decision().remaining, 2);
}

type Build = fn(&ClientWithMiddleware) -> reqwest_middleware::RequestBuilder;
