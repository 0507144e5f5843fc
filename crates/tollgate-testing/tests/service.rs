//! Requests, time and outcomes of simulated services.

#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::io::Write as _;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use tollgate::key::{ApiKey, ClientIp};
use tollgate::layer::RateLimitLayerBuilder;
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::{Limit, Policy, Quota, RateLimitLayer, Store};
use tollgate_replay::log::{Input, Options, Records};
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
fn recorded_requests_have_their_times_and_clients() {
    let mut log = tempfile::NamedTempFile::new().unwrap();
    for (second, client) in [(0, 1), (0, 1), (0, 2), (30, 1), (31, 1)] {
        let time = format!("22/Nov/2026:09:00:{second:02} +0000");
        writeln!(log, "203.0.113.{client} - - [{time}] \"GET / HTTP/1.1\" 200 5").unwrap();
    }
    let records = Records::new(vec![Input::open(log.path()).unwrap()], &Options::default());
    let mut test = Test::new("recorded").expect(Expected::allowed(4));
    test.requests = recorded(records).unwrap();
    passes(&test, |store| {
        routes(layer(store, Policy::token_bucket("client", Quota::per_minute(2)).unwrap()))
    });
}

#[test]
fn gateway_keys_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.test.yaml");
    for (test, key) in [
        ("worst: {atMost: 5}", "worst"),
        ("requests: [{path: /}], faults: [{at: 1s, storeLost: 1s}]", "faults"),
        ("requests: [{user: ann}]", "user"),
        ("requests: [{answer: 500}]", "answer"),
    ] {
        std::fs::write(&file, format!("tests: [{{name: one, {test}}}]")).unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains(&format!("test \"one\": `{key}` only applies")), "{error}");
    }
    std::fs::write(&file, "tests: [{name: one, request: []}]").unwrap();
    let error = read(&file).unwrap_err().to_string();
    assert!(error.contains("requests") && error.contains("limits.test.yaml:1"), "{error}");
}

#[test]
#[should_panic(expected = "requests[0]: no response within a day")]
fn services_that_never_respond_fail() {
    let app = |_: TestStore| {
        Router::new().route("/", get(|| async { std::future::pending::<&str>().await }))
    };
    Simulation::of(app).assert(&Test::new("never").send(Requests::get("/")));
}

#[test]
#[should_panic(expected = "it has no requests")]
fn tests_without_requests_fail() {
    Simulation::of(bucket).assert(&Test::new("empty").expect(Expected::denied(0)));
}
