//! Concurrency limits together with other features: queues, costs, headers, settling.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tollgate::key::Key;
use tollgate::layer::LayerError;
use tollgate::limit::{Mode, Reserve};
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, Policy, Quota, StoreExt};
use tower::{Layer, ServiceExt};

use super::{Slow, at_once, limited};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn waiter_enters_when_a_permit_returns() {
    let store = on_tokio_time();
    let slow = Slow::default();
    let max = Duration::from_secs(5);
    let limit = Limit::global(at_once(1)).mode(Mode::Wait(max));
    let service = layer(&store, [limit]).layer(slow.service());
    let first = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    let second = tokio::spawn(service.clone().oneshot(get()));
    sleep(Duration::from_secs(2)).await;
    assert!(!second.is_finished(), "the first request still holds its permit");
    slow.go.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    sleep(Duration::from_millis(100)).await;
    slow.go.notify_one();
    let second = timeout(Duration::from_millis(100), second).await;
    assert_eq!(second.unwrap().unwrap().unwrap().status(), 200);
    let kept = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    let (start, denied) = (Instant::now(), service.clone().oneshot(get()).await.unwrap());
    assert_eq!(denied.status(), 429);
    assert!(start.elapsed() > max - Duration::from_millis(100), "{:?}", start.elapsed());
    kept.abort();
}

/// Each layer has its own wait queue, like another process.
#[tokio::test(start_paused = true)]
async fn waiters_of_two_processes_enter_one_by_one() {
    let store = on_tokio_time();
    let slow = Slow::default();
    let wait = Mode::Wait(Duration::from_secs(60));
    let process = || {
        let limit = Limit::global(at_once(1)).mode(wait);
        layer(&store, [limit]).layer(slow.service())
    };
    let processes = [process(), process()];
    let mut requests = Vec::new();
    for service in [0, 0, 1, 0, 1].map(|number| &processes[number]) {
        requests.push(tokio::spawn(service.clone().oneshot(get())));
        settle_down().await;
    }
    for finished in 0..=requests.len() {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(requests.iter().filter(|request| request.is_finished()).count(), finished);
        slow.go.notify_one();
    }
    for request in requests {
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(slow.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn queued_requests_hold_one_permit() {
    let (_, store) = memory();
    let queue = Policy::leaky_bucket("queue", Quota::per_minute(60)).unwrap();
    let limits = [Limit::global(queue), Limit::global(at_once(3))];
    let service = limited(&store, limits);
    let held = ask(&service, get()).await;
    let queued = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    assert_eq!(left(&store, &at_once(3)).await, 1);
    queued.abort();
    assert!(queued.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &at_once(3)).await, 2, "the other permit is still held");
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
}

#[tokio::test]
async fn permits_are_independent_of_other_costs() {
    let (_, store) = memory();
    let limits = [Limit::global(at_once(3)), Limit::global(log("all", 100)).cost(10)];
    let service = limited(&store, limits);
    let held = ask(&service, request(Method::DELETE, "/")).await;
    assert_eq!(left(&store, &at_once(3)).await, 2);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    let heavy = Limit::global(at_once(3)).costs(Costs::flat(Cost::new(2))).shadow();
    let held = ask(&limited(&store, [heavy]), get()).await;
    assert_eq!(left(&store, &at_once(3)).await, 1, "a shadow limit counts as well");
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
}

#[tokio::test]
async fn denial_has_short_retry_after() {
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(at_once(1)), Limit::global(log("all", 100))]);
    let held = ask(&service, get()).await;
    assert_eq!(
        rate_fields(held.headers()),
        [
            "ratelimit: \"at-once\";r=0, \"all\";r=99;t=60",
            "ratelimit-policy: \"at-once\";q=1;qu=\"concurrent-requests\", \"all\";q=100;w=60",
            "x-ratelimit-limit: 1",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START + 1),
        ]
    );
    let denied = ask(&service, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("1"));
    let limits = "\"at-once\";r=0;t=1, \"all\";r=99;t=60";
    assert_eq!(field(denied.headers(), "ratelimit").as_deref(), Some(limits));
    let body = json(denied).await;
    let detail =
        "The quota is 1 unit at a time. This request costs 1; 0 remain. Retry in 1 second.";
    for (member, value) in [
        ("code", json!("quota-exceeded")),
        ("detail", json!(detail)),
        ("limit", json!(1)),
        ("quota_unit", json!("concurrent-requests")),
        ("retry_after", json!(1)),
        ("violated-policies", json!(["at-once"])),
    ] {
        assert_eq!(body[member], value, "{member}");
    }
    assert!(body.get("window").is_none());
    // If a rate limit denies too, its longer wait is reported.
    let minute = log("minute", 1);
    let both = limited(&store, [Limit::global(at_once(1)), Limit::global(minute.clone())]);
    store.charge(&minute, &Key::GLOBAL, Cost::ONE).await.unwrap();
    let denied = ask(&both, get()).await;
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("60"));
    drop(held);
}

#[test]
fn concurrency_limits_cannot_settle() {
    let (_, store) = memory();
    let limit = || Limit::global(at_once(1));
    for limit in [limit().count_only(|_| true), limit().reserve(Reserve::by_handler())] {
        let error = builder(&store, [limit]).build().unwrap_err();
        assert_eq!(error, LayerError::SettlesInFlight("at-once".into()));
        assert!(error.to_string().ends_with("on a limit of another kind"), "{error}");
    }
}
