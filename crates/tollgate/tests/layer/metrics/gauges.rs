//! Gauges show the current state, with or without requests.

use tollgate::key::ClientIp;
use tollgate::observe::{Inspect, refresh};
use tollgate::{Limit, Policy, StoreExt};
use tower::Layer;

use super::Meter;
use crate::stage::{Fault, Staged};
use crate::support::*;

#[tokio::test]
async fn gauges_refresh_without_requests() {
    let meter = Meter::start();
    let (clock, store) = memory();
    let staged = Staged::new(store.clone());
    let store = Watched(staged.clone()).or_local(store);
    let limits = [Limit::global(log("shared", 10)), Limit::new(log("ip", 9), ClientIp::peer())];
    let layer = layer(&store, limits);
    let service = layer.clone().layer(hello());
    ask(&service, get()).await;
    let remaining = || meter.sum("tollgate_remaining_units", &["policy=\"shared\""]);
    assert_eq!((remaining(), meter.sum("tollgate_limit_units", &[])), (9.0, 10.0));
    clock.advance(seconds(60));
    let handles = [layer.handle(), layer.handle()];
    refresh(&handles).await;
    assert_eq!(remaining(), 10.0);
    assert_eq!(meter.sum("tollgate_store_available", &["store=\"stage\""]), 1.0);
    assert_eq!(meter.sum("tollgate_breaker_open", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_memory_keys", &["store=\"local\""]), 2.0);
    staged.fail(Fault::NotCharged);
    refresh(&handles).await;
    assert_eq!(meter.sum("tollgate_store_available", &["store=\"stage\""]), 0.0);
    assert_eq!(meter.sum("tollgate_breaker_open", &["store=\"stage\""]), 1.0);
    assert_eq!(remaining(), 10.0, "the last known value remains");
}

/// A staged store that can be inspected. Its breaker is open while it fails.
#[derive(Clone)]
struct Watched<S>(Staged<S>);

impl<S: tollgate::Store> tollgate::Store for Watched<S> {
    type Future = <Staged<S> as tollgate::Store>::Future;

    fn decide(
        &self,
        charges: &[tollgate::store::Charge<'_>],
    ) -> tollgate::store::Reply<Self::Future> {
        self.0.decide(charges)
    }

    fn settle(
        &self,
        receipt: &tollgate::store::Receipt,
        actual: tollgate::policy::Cost,
    ) -> tollgate::store::Reply<tollgate::store::BoxFuture<tollgate::store::Settlement>> {
        self.0.settle(receipt, actual)
    }

    fn renew(
        &self,
        receipt: &tollgate::store::Receipt,
    ) -> tollgate::store::Reply<tollgate::store::BoxFuture<Option<tollgate::store::Receipt>>> {
        self.0.renew(receipt)
    }

    fn reset(
        &self,
        policy: &Policy,
        key: &tollgate::key::Key,
    ) -> tollgate::store::Reply<tollgate::store::BoxFuture<()>> {
        self.0.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &tollgate::key::Key,
        block: tollgate::store::PenaltyBlock,
    ) -> tollgate::store::Reply<tollgate::store::BoxFuture<Option<tollgate::store::Micros>>> {
        self.0.block(policy, key, block)
    }

    fn name(&self) -> &'static str {
        "stage"
    }
}

impl<S: tollgate::Store> Inspect for Watched<S> {
    fn inspect(&self) -> tollgate::observe::StoreReport {
        let state = if self.0.fails() { "down" } else { "closed" };
        let mut report = tollgate::observe::StoreReport::new("stage", 0);
        (report.breaker, report.is_available) = (Some(state), !self.0.fails());
        report
    }
}
