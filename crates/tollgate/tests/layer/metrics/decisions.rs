//! Each decision is counted once, with its outcome.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use tollgate::headers::HeaderOptions;
use tollgate::key::ClientIp;
use tollgate::observe::Observer;
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, MemoryStore, RateLimitLayer, StoreExt};
use tower::Layer;

use super::{Meter, counted};
use crate::stage::{Fault, Staged};
use crate::support::*;

#[tokio::test]
async fn decisions_are_counted_by_outcome() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store);
    let closed = log("closed", 50).with_on_store_error(OnStoreError::Closed);
    let limits = [
        Limit::global(log("first", 2)),
        Limit::global(log("trial", 1)).shadow(),
        Limit::global(closed).when(|head| head.method == Method::DELETE),
    ];
    let service = limited(&staged, limits);
    for expected in [200, 200, 429, 429, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("first"), counted(&[("allow", 2.0), ("deny", 3.0)]));
    // A request that "first" denied is not counted for "trial" unless "trial" denies it too.
    assert_eq!(meter.outcomes("trial"), counted(&[("allow", 1.0), ("shadow_deny", 4.0)]));
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"first\""]), 2.0);
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &["policy=\"first\""]), 5.0);

    staged.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 200);
    assert_eq!(ask(&service, request(Method::DELETE, "/")).await.status(), 503);
    assert_eq!(meter.outcomes("closed"), counted(&[("failed_closed", 1.0)]));
    assert_eq!(meter.sum("tollgate_decisions_total", &["first", "failed_open"]), 1.0);
}

/// Without headers, the layer drops the verdict after the decision, so it must count before.
#[tokio::test]
async fn layer_without_headers_counts_decisions() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store);
    let silent = HeaderOptions::default().ratelimit(false).x_ratelimit(false);
    let alone = builder(&staged, [Limit::global(log("alone", 2))]).headers(silent);
    let beside = [Limit::global(log("beside", 2)), Limit::global(log("trial", 1)).shadow()];
    let beside = builder(&staged, beside).headers(silent);
    for service in [alone, beside].map(|layer| layer.build().unwrap().layer(hello())) {
        for expected in [200, 200, 429] {
            assert_eq!(status(&service).await, expected);
        }
        staged.fail(Fault::NotCharged);
        assert_eq!(status(&service).await, 200);
        staged.recover();
    }
    let expected = counted(&[("allow", 2.0), ("deny", 1.0), ("failed_open", 1.0)]);
    assert_eq!(meter.outcomes("alone"), expected);
    assert_eq!(meter.outcomes("beside"), expected);
    assert_eq!(meter.sum("tollgate_decisions_total", &["trial", "shadow_deny"]), 2.0);
    for policy in ["policy=\"alone\"", "policy=\"beside\""] {
        assert_eq!(meter.sum("tollgate_units_charged_total", &[policy]), 2.0);
    }
}

#[tokio::test]
async fn rejected_requests_do_not_count_as_failed_open() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store.clone());
    let open = || Limit::global(log("open", 9).with_on_store_error(OnStoreError::Open));
    let closed = log("closed", 9).with_on_store_error(OnStoreError::Closed);
    let beside = Limit::global(log("beside", 9).with_on_store_error(OnStoreError::Local));
    let with_local = staged.clone().or_local(store.clone());
    let service = limited(&with_local, [open(), Limit::global(closed), beside]);
    staged.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 503);
    assert_eq!(meter.outcomes("closed"), counted(&[("failed_closed", 1.0)]));
    assert_eq!(meter.outcomes("open"), []);
    assert_eq!(meter.outcomes("beside"), [], "the local store was not called");

    // Nor does a request count as failed open if the local store denies it.
    let local = log("local", 1).with_on_store_error(OnStoreError::Local);
    let service = limited(&staged.or_local(store), [open(), Limit::global(local)]);
    for expected in [200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("local"), counted(&[("deny", 1.0), ("local", 1.0)]));
    assert_eq!(meter.outcomes("open"), counted(&[("failed_open", 1.0)]));
}

#[tokio::test]
async fn penalties_charge_no_units() {
    let meter = Meter::start();
    let (_, store) = memory();
    let minute = Duration::from_secs(60);
    let client = Limit::new(log("client", 2), ClientIp::peer());
    let banned = client.penalty("banned", Strikes::of_denials(9, minute).block(minute)).unwrap();
    let service = limited(&store, [client, banned]);
    for expected in [200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("banned"), counted(&[("allow", 2.0)]));
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"client\""]), 2.0);
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"banned\""]), 0.0);
}

#[tokio::test]
async fn local_fallback_counts_as_local() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store.clone());
    staged.fail(Fault::NotCharged);
    let policy = log("shared", 4).with_on_store_error(OnStoreError::Local);
    let service = limited(&staged.or_local(store), [Limit::global(policy)]);
    for expected in [200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("shared"), counted(&[("deny", 1.0), ("local", 2.0)]));
    let of_local = ["policy=\"shared\"", "store=\"local\""];
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &of_local), 3.0);
}

#[tokio::test]
async fn shared_observer_sums_layers() {
    let meter = Meter::start();
    let observer = Observer::new();
    let new = || {
        let layer = RateLimitLayer::builder(MemoryStore::new()).observer(&observer);
        layer.limit(Limit::global(log("same", 1))).build().unwrap().layer(hello())
    };
    for _ in 0..3 {
        assert_eq!(status(&new()).await, 200);
    }
    assert_eq!(meter.outcomes("same"), counted(&[("allow", 3.0)]));
    assert!(format!("{observer:?}").contains("same"));
    let _ = Arc::new(observer);
}

#[tokio::test]
async fn unlimited_requests_are_not_counted() {
    let meter = Meter::start();
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(log("some", 1)).when(|_| false)]);
    assert_eq!(status(&service).await, 200);
    let preflight = Request::builder()
        .method("OPTIONS")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "PUT");
    ask(&service, preflight.body(()).unwrap()).await;
    assert_eq!(meter.series().len(), 0);
}
