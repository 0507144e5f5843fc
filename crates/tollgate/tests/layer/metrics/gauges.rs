//! Gauges show the current state, with or without requests.

use tollgate::key::ClientIp;
use tollgate::observe::refresh;
use tollgate::{Limit, StoreExt};
use tower::Layer;

use super::Meter;
use crate::stage::{Fault, Staged};
use crate::support::*;

#[tokio::test]
async fn gauges_refresh_without_requests() {
    let meter = Meter::start();
    let (clock, store) = memory();
    let staged = Staged::new(store.clone());
    let store = staged.clone().or_local(store);
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
