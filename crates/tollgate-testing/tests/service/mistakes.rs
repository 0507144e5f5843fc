//! Tests that show nothing, and tests that would never end.

use super::*;

#[test]
fn endless_requests_fail() {
    let failed = |requests: Requests| {
        let failed = Simulation::of(bucket).check(&Test::new("endless").send(requests));
        failed.into_iter().map(|failed| failed.got).collect::<Vec<_>>()
    };
    let get = || Requests::get("/").expect(Expected::allowed(1..));
    let at_once =
        "more than 10000 requests of a client at the same instant: set the time between them";
    assert_eq!(failed(get().during(MINUTE)), [at_once]);
    assert_eq!(failed(get().during(MINUTE).think(Duration::ZERO)), [at_once]);
    let five = Requests::get("/").count(5).during(MINUTE);
    assert_eq!(failed(five.clone().expect(Expected::allowed(5))), [""; 0]);
    assert_eq!(failed(five.every(20 * SECOND).expect(Expected::allowed(3))), [""; 0]);
}

#[test]
fn slow_searches_end() {
    // Each request takes real time.
    let slow = |store| {
        bucket(store).layer(axum::middleware::from_fn(
            async |request: axum::extract::Request, next: axum::middleware::Next| {
                let end = std::time::Instant::now() + Duration::from_millis(3);
                while std::time::Instant::now() < end {}
                next.run(request).await
            },
        ))
    };
    let senders = (0..40_u8).map(|client| Requests::get("/").client([10, 0, 0, client]).count(12));
    let mut test = Test::new("slow").expect(Expected::never_more_than(399, SECOND));
    test.requests = senders.collect();
    let start = std::time::Instant::now();
    let failed = Simulation::of(slow).check(&test);
    assert!(start.elapsed() < 4 * PATIENCE, "{:?}", start.elapsed());
    let table = failed[0].to_string();
    assert!(table.contains("The search took too long"), "{table}");
}

const PATIENCE: Duration = Duration::from_secs(3);

#[test]
fn tests_that_show_nothing_are_errors() {
    let get = || Requests::get("/");
    let denied = || Expected::denied(0);
    let with = |change: fn(&mut Requests)| {
        let mut requests = get();
        change(&mut requests);
        Test::new("a").send(requests).expect(denied())
    };
    for (test, error) in [
        (Test::new("a").send(get()), "it expects nothing"),
        (Test::new("a").send(get().count(0)).expect(denied()), "must be at least 1"),
        (Test::new("a").send(get().clients(0)).expect(denied()), "must be at least 1"),
        (with(|it| it.user = Some("ann".to_owned())), "requests[0]: `user` only applies"),
        (with(|it| it.tier = Some("pro".to_owned())), "requests[0]: `tier` only applies"),
        (with(|it| it.replica = Some(1)), "requests[0]: `replica` only applies"),
        (with(|it| it.answer = 201), "requests[0]: `answer` only applies"),
        (with(|it| it.bytes = 1), "requests[0]: `bytes` only applies"),
    ] {
        let check = || Simulation::of(bucket).check(&test);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains(error), "{message}");
    }
}

const EXPECT: &str = "expect: {allowed: 1}";

#[test]
fn gateway_keys_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.test.yaml");
    for (test, key) in [
        ("requests: [{path: /}], faults: [{at: 1s, storeLost: 1s}]", "faults"),
        ("requests: [{user: ann}]", "user"),
        ("requests: [{answer: 500}]", "answer"),
        ("requests: [{replica: 1}]", "replica"),
    ] {
        std::fs::write(&file, format!("tests: [{{name: one, {test}, {EXPECT}}}]")).unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains(&format!("test \"one\": `{key}` only applies")), "{error}");
    }
    for (text, error) in [
        (
            "limits: limits.yaml\ntests: [{name: a, requests: [{}], expect: {allowed: 1}}]",
            "`limits` only applies",
        ),
        ("tests: []", "tests: an empty list"),
        ("tests: [{name: a, requests: [{}]}]", "test \"a\": it has no `expect`"),
        ("tests: [{name: a, expect: {allowed: 1}}]", "test \"a\": it has no `requests`"),
        ("tests: [{name: a, worst: {atMost: 5}}]", "test \"a\": `worst` only applies"),
        (
            "tests: [{name: a, requests: [{for: 1s}], expect: {allowed: 1}}]",
            "requests[0]: with `for` alone",
        ),
        ("tests: [{name: a, requests: [{}], expect: {retryAfter: 1500ms}}]", "write `2s`"),
    ] {
        std::fs::write(&file, text).unwrap();
        let message = read(&file).unwrap_err().to_string();
        assert!(message.contains(error), "{message}");
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
    Simulation::of(app)
        .assert(&Test::new("never").send(Requests::get("/")).expect(Expected::denied(0)));
}

#[test]
#[should_panic(expected = "it has no requests")]
fn tests_without_requests_fail() {
    Simulation::of(bucket).assert(&Test::new("empty").expect(Expected::denied(0)));
}
