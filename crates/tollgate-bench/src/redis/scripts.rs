//! Scripts that teams write for themselves, with a call per request through a plain client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use fred::interfaces::LuaInterface;
use fred::prelude::Client;
use http::StatusCode;

use crate::Failure;
use crate::redis::load::Ask;
use crate::redis::sides::{CAPACITY, address};
use crate::redis::worst::{LIMIT, WINDOW};

/// A minimal token bucket.
pub(crate) struct Lean {
    client: Client,
    sha1: String,
    keys: u64,
    rate: String,
}

impl Lean {
    /// `rate` is the refill rate of each of the `keys` buckets, in units per second.
    pub(crate) async fn new(client: Client, keys: u64, rate: u64) -> Result<Self, Failure> {
        let sha1 = client.script_load(include_str!("lean.lua")).await?;
        Ok(Self { client, sha1, keys, rate: rate.to_string() })
    }
}

impl Ask for Lean {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let key = format!("lean:{}", address(number % self.keys));
        let args = vec![CAPACITY.to_string(), self.rate.clone(), "1".to_owned()];
        let (admitted, _): (u8, i64) = self.client.evalsha(&self.sha1, key, args).await?;
        Ok(admitted == 1)
    }
}

/// `router` behind a middleware that calls the lean script, with one bucket for all requests.
pub(crate) async fn limited(router: Router, client: Client) -> Result<Router, Failure> {
    let bucket = Arc::new(Lean::new(client, 1, 1).await?);
    let ask =
        async move |State(bucket): State<Arc<Lean>>, request: Request, next: Next| match bucket
            .ask(0)
            .await
        {
            Ok(true) => next.run(request).await,
            Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        };
    Ok(router.layer(from_fn_with_state(bucket, ask)))
}

/// A sliding window log that adds up its members for each decision.
pub(crate) struct Summing {
    client: Client,
    sha1: String,
    /// Numbers the members, because equal names would be one member.
    members: AtomicU64,
}

impl Summing {
    pub(crate) async fn new(client: Client) -> Result<Self, Failure> {
        let sha1 = client.script_load(include_str!("sum.lua")).await?;
        Ok(Self { client, sha1, members: AtomicU64::new(0) })
    }
}

impl Ask for Summing {
    async fn ask(&self, _: u64) -> Result<bool, Failure> {
        let member = self.members.fetch_add(1, Ordering::Relaxed);
        let args = [LIMIT.to_string(), WINDOW.as_micros().to_string(), "1".to_owned()];
        let args = args.into_iter().chain([member.to_string()]).collect::<Vec<_>>();
        let (admitted, _): (u8, i64) = self.client.evalsha(&self.sha1, "summing", args).await?;
        Ok(admitted == 1)
    }
}
