//! `--on-store-error` with a store that is always down. No flag selects such a store, so the test
//! builds the layer itself.

use std::ffi::OsString;

use axum::body::Body;
use demo::args::Args;
use demo::{app, limits};
use http::{Request, Response};
use tollgate::key::Key;
use tollgate::policy::{Cost, OnStoreError};
use tollgate::store::{
    BoxFuture, Charge, Micros, NeverPending, PenaltyBlock, Receipt, Reply, Settlement, StoreError,
};
use tollgate::{Policy, Store};
use tower::ServiceExt;

#[derive(Clone)]
struct Down;

impl Down {
    fn error() -> StoreError {
        StoreError::not_charged("store", "it is down")
    }
}

impl Store for Down {
    type Future = NeverPending;

    fn decide(&self, _: &[Charge<'_>]) -> Reply<Self::Future> {
        Reply::ready(Err(Self::error()))
    }

    fn settle(&self, _: &Receipt, _: Cost) -> Reply<BoxFuture<Settlement>> {
        Reply::ready(Err(Self::error()))
    }

    fn renew(&self, _: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Reply::ready(Err(Self::error()))
    }

    fn reset(&self, _: &Policy, _: &Key) -> Reply<BoxFuture<()>> {
        Reply::ready(Err(Self::error()))
    }

    fn block(&self, _: &Policy, _: &Key, _: PenaltyBlock) -> Reply<BoxFuture<Option<Micros>>> {
        Reply::ready(Err(Self::error()))
    }
}

async fn get(on_store_error: Option<OnStoreError>) -> Response<Body> {
    let args = Args::from_command_line([OsString::from("demo")]).expect("the defaults are right");
    let args = Args { on_store_error, ..args };
    let layer = limits::layer(&args, Down).expect("the limit can be counted");
    let request = Request::get("/items").body(Body::empty()).expect("the request is sound");
    let Ok(response) = app::router(&args.server_id, layer).oneshot(request).await;
    response
}

#[tokio::test]
async fn on_store_error_flag_applies() {
    for (on_store_error, expected) in
        [(None, 200), (Some(OnStoreError::Open), 200), (Some(OnStoreError::Closed), 503)]
    {
        let response = get(on_store_error).await;
        assert_eq!(response.status(), expected, "{on_store_error:?}");
        assert!(response.headers().contains_key("x-server-id"), "{on_store_error:?}");
        assert!(!response.headers().contains_key("ratelimit"), "{on_store_error:?}");
        assert_eq!(response.headers().contains_key("retry-after"), expected == 503);
    }
}
