//! Requests, time and outcomes of simulated services.

#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

#[path = "service/mistakes.rs"]
mod mistakes;
#[path = "service/recorded_traffic.rs"]
mod recorded_traffic;

use std::io::Write as _;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use tollgate::key::{ApiKey, ClientIp};
use tollgate::layer::RateLimitLayerBuilder;
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::{Costs, Limit, Policy, Quota, RateLimitLayer, Store};
use tollgate_testing::log::{Input, Options, Records};
use tollgate_testing::{Expected, Requests, Simulation, Test, TestStore, read, recorded};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn layer(store: TestStore, policy: Policy) -> RateLimitLayerBuilder<TestStore> {
    RateLimitLayer::builder(store).limit(Limit::new(policy, ClientIp::peer()))
}

fn routes(layer: RateLimitLayerBuilder<impl Store>) -> Router {
    let layer = layer.build().unwrap();
    Router::new().route("/", get(|| async { "hello" })).layer(layer)
}

fn bucket(store: TestStore) -> Router {
    routes(layer(store, Policy::token_bucket("client", Quota::per_minute(60).burst(10)).unwrap()))
}

fn passes(test: &Test, create: impl Fn(TestStore) -> Router) {
    Simulation::of(create).assert(test);
}

#[test]
fn clients_have_separate_quotas() {
    let requests = Requests::get("/").clients(20).count(12);
    let test = Test::new("separate")
        .send(requests.expect(Expected::allowed_per_client(10)))
        .send(Requests::get("/").at(MINUTE).count(11).expect(Expected::denied(1)))
        .expect(Expected::denied(41));
    passes(&test, bucket);
}

#[test]
fn denials_have_their_policy_and_wait() {
    let test =
        Test::new("denied").send(Requests::get("/").count(10).expect(Expected::remaining(0))).send(
            Requests::get("/")
                .expect(Expected::denied_by("client"))
                .expect(Expected::status(429))
                .expect(Expected::retry_after(1)),
        );
    passes(&test, bucket);
    // The same outcomes follow from the layer's decisions.
    let policy = || Policy::token_bucket("client", Quota::per_minute(60).burst(10)).unwrap();
    passes(&test, |store| routes(layer(store, policy()).expose_verdicts(true)));
}

#[test]
fn requests_arrive_with_microsecond_precision() {
    // A unit is refilled after exactly one second.
    let early = Duration::from_micros(999_999);
    let get = || Requests::get("/");
    let test = Test::new("precise")
        .send(get().count(10))
        .send(get().at(early).expect(Expected::status(429)))
        .send(get().at(SECOND).expect(Expected::status(200)));
    passes(&test, bucket);
}

#[test]
fn waiting_requests_take_no_real_time() {
    let waiting = |exposes| {
        move |store| {
            let policy = Policy::token_bucket("client", Quota::per_minute(1)).unwrap();
            let limit = Limit::new(policy, ClientIp::peer()).mode(Mode::Wait(MINUTE * 60));
            routes(RateLimitLayer::builder(store).limit(limit).expose_verdicts(exposes))
        }
    };
    let requests = Requests::get("/").count(30).every(SECOND);
    let test = |most| {
        Test::new("waits")
            .send(requests.clone().expect(Expected::allowed(30)))
            .expect(Expected::max_wait(most))
            .expect(Expected::never_more_than(1, MINUTE))
    };
    // The last of 30 arrives after 29 s, and passes after 29 minutes.
    let most = MINUTE * 29 - SECOND * 29;
    for exposes in [false, true] {
        passes(&test(most), waiting(exposes));
        let failed = Simulation::of(waiting(exposes)).check(&test(most - SECOND));
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].got, "1711 s");
    }
}

#[test]
fn thinking_clients_wait_for_the_entire_response() {
    let concurrent =
        |store| routes(layer(store, Policy::concurrent_requests("running", 2, MINUTE).unwrap()));
    // A client's next request arrives when its response has been read, so two clients never meet the
    // limit, and a third always does.
    let requests =
        |clients| Requests::get("/").client([10, 0, 0, 1]).clients(clients).during(MINUTE);
    let slow =
        |clients| requests(clients).think(Duration::ZERO).takes(SECOND).header("X-Key", "shared");
    let global = |store: TestStore| {
        let policy = Policy::concurrent_requests("running", 2, MINUTE).unwrap();
        routes(RateLimitLayer::builder(store).limit(Limit::global(policy)))
    };
    passes(&Test::new("one each").send(slow(5).expect(Expected::denied(0))), concurrent);
    passes(&Test::new("two").send(slow(2).expect(Expected::allowed(120))), global);
}

#[test]
fn random_times_follow_from_the_seed() {
    let requests =
        Requests::get("/").at_random(SECOND / 2).during(MINUTE).expect(Expected::denied(0));
    let denied = |seed| {
        let failed =
            Simulation::of(bucket).check(&Test::new("random").seed(seed).send(requests.clone()));
        failed.first().map(|failed| failed.got.clone())
    };
    assert_eq!(denied(1), denied(1));
    assert_ne!(denied(1), denied(2));
}

#[test]
fn failures_show_their_shortest_history() {
    let test = Test::new("shortest")
        .send(Requests::get("/").client([198, 51, 100, 1]).clients(9).every(SECOND).count(50))
        .send(Requests::get("/").count(15))
        .expect(Expected::denied(0));
    let failed = Simulation::of(bucket).check(&test);
    let table = failed[0].to_string();
    assert!(table.contains("all requests: expected 0 denied, got 5 denied"), "{table}");
    assert!(table.contains("10 × GET / of 203.0.113.1"), "{table}");
    assert!(table.contains("0 of 10 left, free in 1 s"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");
}

#[test]
fn headers_and_extensions_reach_the_service() {
    let app = |store| {
        let policy = Policy::token_bucket("key", Quota::per_minute(2)).unwrap();
        let key = ApiKey::in_header(HeaderName::from_static("x-api-key")).verified_by(|_| true);
        let limit = Limit::new(policy, key).on_missing_key(OnMissingKey::Deny);
        let layer = RateLimitLayer::builder(store).limit(limit);
        let handler =
            async |ConnectInfo(peer): ConnectInfo<u16>| StatusCode::from_u16(peer).unwrap();
        Router::new().route("/", get(handler)).layer(layer.build().unwrap())
    };
    let requests = Requests::get("/").clients(3).count(3).header("X-Api-Key", "key-{client}");
    let test = Test::new("keys").send(requests.expect(Expected::allowed_per_client(2))).send(
        Requests::get("/").at(MINUTE).header("x-api-key", "key-1").expect(Expected::status(202)),
    );
    Simulation::of(app)
        .prepare(|request| {
            request.extensions_mut().insert(ConnectInfo(202_u16));
        })
        .assert(&test);
}

#[test]
fn arrivals_within_milliseconds_are_not_late() {
    let test = [900, 2_100, 2_900, 7_450, 7_460, 12_001, 13_000]
        .into_iter()
        .fold(Test::new("exact").expect(Expected::max_wait(Duration::ZERO)), |test, at| {
            test.send(Requests::get("/").at(Duration::from_micros(at)))
        });
    passes(&test, bucket);
    // A response of 10 ms that starts at 0.9 ms ends at the next millisecond after it.
    let slow = |_: TestStore| {
        let handler = async || tokio::time::sleep(Duration::from_millis(10)).await;
        Router::new().route("/", get(handler))
    };
    let one = Requests::get("/").at(Duration::from_micros(900));
    let wait = Expected::max_wait(Duration::from_micros(10_100));
    passes(&Test::new("timer").send(one.expect(wait)), slow);
}

#[test]
fn own_refusals_are_denials() {
    let denied =
        || Test::new("refused").send(Requests::get("/").count(3).expect(Expected::denied(3)));
    for exposes in [false, true] {
        let keyed = |missing| {
            move |store| {
                let policy = Policy::token_bucket("key", Quota::per_minute(9)).unwrap();
                let key = ApiKey::in_header(HeaderName::from_static("x-api-key"));
                let limit = Limit::new(policy, key.verified_by(|_| true)).on_missing_key(missing);
                routes(RateLimitLayer::builder(store).limit(limit).expose_verdicts(exposes))
            }
        };
        passes(&denied(), keyed(OnMissingKey::Deny));
        let mut ambiguous = denied();
        let request = ambiguous.requests[0].clone();
        ambiguous.requests[0] = request.header("X-Api-Key", "a").header("X-Api-Key", "b");
        passes(&ambiguous, keyed(OnMissingKey::Deny));
        passes(&denied(), |store| {
            let policy = Policy::token_bucket("client", Quota::per_minute(9)).unwrap();
            let costs = Costs::from_fn(|_| Some(10));
            routes(layer(store, policy).costs(costs).expose_verdicts(exposes))
        });
    }
}

#[test]
fn unreached_handlers_fail() {
    let failed = |test: &Test| {
        let failed = Simulation::of(bucket).check(test);
        failed
            .into_iter()
            .map(|failed| format!("{}: {}", failed.about, failed.got))
            .collect::<Vec<_>>()
    };
    let get = || Requests::get("/misspelt").count(2);
    let only = "only 404: check the method and the path, or expect this status";
    let test = Test::new("path").send(get().expect(Expected::allowed(2)));
    assert_eq!(failed(&test), [format!("requests[0]: {only}")]);
    let test = Test::new("path").send(get()).expect(Expected::denied(0));
    assert_eq!(failed(&test), [format!("all requests: {only}")]);
    let test = Test::new("path").send(get().expect(Expected::status(404)));
    assert_eq!(failed(&test), [""; 0]);
}

#[test]
fn responses_outrank_partial_verdicts() {
    let app = |store: TestStore| {
        let wide = Policy::token_bucket("wide", Quota::per_minute(100)).unwrap();
        let wide = layer(store.clone(), wide).expose_verdicts(true).build().unwrap();
        let tight = layer(store, Policy::token_bucket("tight", Quota::per_minute(2)).unwrap());
        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(wide)
            .layer(tight.build().unwrap())
    };
    let nested = |store: TestStore| {
        let tight =
            layer(store.clone(), Policy::token_bucket("tight", Quota::per_minute(2)).unwrap());
        let wide = Policy::token_bucket("wide", Quota::per_minute(100)).unwrap();
        let wide = layer(store, wide).expose_verdicts(true).build().unwrap();
        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(tight.build().unwrap())
            .layer(wide)
    };
    let requests = Requests::get("/").count(5);
    let test = Test::new("nested")
        .send(requests.expect(Expected::allowed(2)).expect(Expected::denied_by("tight")));
    passes(&test, app);
    passes(&test, nested);
}

#[test]
fn thinking_starts_after_the_handler() {
    // A response of 1 s and a pause of 1 s: a request every 2 s.
    let slow = |_: TestStore| {
        let handler = async || axum::body::Body::new(Late(Box::pin(tokio::time::sleep(SECOND))));
        Router::new().route("/", get(handler))
    };
    let requests = Requests::get("/").during(MINUTE).think(SECOND);
    passes(&Test::new("think").send(requests.expect(Expected::allowed(30))), slow);
}

/// A body that ends late, and is empty.
struct Late(std::pin::Pin<Box<tokio::time::Sleep>>);

impl http_body::Body for Late {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        self.0.as_mut().poll(context).map(|()| None)
    }
}

#[test]
fn missing_numbers_have_no_reason() {
    let plain =
        |_: TestStore| Router::new().route("/", get(|| async { StatusCode::TOO_MANY_REQUESTS }));
    let test = Test::new("plain").send(Requests::get("/").expect(Expected::allowed(1)));
    let failed = Simulation::of(plain).check(&test);
    assert_eq!((&*failed[0].rows[0].why, &*failed[0].rows[0].got), ("", "429"));
}

#[test]
#[should_panic(expected = "requests[1]: the service panicked: no hat")]
fn panics_name_their_request() {
    let app = |_: TestStore| {
        Router::new().route("/", get(|| async { "hello" })).route("/hat", get(no_hat))
    };
    let get = |path| Requests::get(path).expect(Expected::allowed(1));
    Simulation::of(app).assert(&Test::new("panic").send(get("/")).send(get("/hat")));
}

async fn no_hat() {
    panic!("no hat");
}

#[test]
fn sockets_and_dates_work() {
    // A date relative to the simulated time: START is 2026-01-01.
    let app = |_: TestStore| {
        let handler = async || {
            drop(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
            let after = [("retry-after", "Thu, 01 Jan 2026 00:01:00 GMT")];
            (StatusCode::TOO_MANY_REQUESTS, after)
        };
        Router::new().route("/", get(handler))
    };
    let requests = Requests::get("/").at(20 * SECOND).expect(Expected::retry_after(40));
    passes(&Test::new("date").send(requests), app);
}
