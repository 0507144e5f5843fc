//! The limiters: Tollgate, the same script without its store, and what teams write for themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use bytes::Bytes;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::prelude::{Client, Value};
use fred::types::CustomCommand;
use http::StatusCode;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::Charge;
use tollgate::{Policy, Quota, RedisStore, Store};
use tollgate_redis::protocol::{Batch, KeyedCharge, Reply, SHA1, ScriptAnswer, TEXT};

use crate::Failure;
use crate::redis::load::{Ask, LIMIT, WINDOW, address};

/// The capacity of buckets: far more than the load, so every request is allowed.
pub(crate) const CAPACITY: u64 = 1_000_000_000;

/// A bucket that is refilled at `rate` units per second. With one unit, its keys remain after a
/// request, like the keys of real quotas. With `CAPACITY` units, they expire immediately.
pub(crate) fn bucket(name: &str, rate: u64) -> Result<Policy, Failure> {
    Ok(Policy::token_bucket(name, Quota::per_second(rate).burst(CAPACITY))?)
}

/// A request's policies, each with its number of keys. If a policy has several quotas, they take
/// turns over its keys.
pub(crate) type Limits = Vec<(Vec<Policy>, u64)>;

/// A request's policies and their keys.
fn charged(limits: &Limits, number: u64) -> Vec<(&Policy, String)> {
    let charged = limits.iter().map(|(quotas, keys)| {
        let number = number % keys;
        (&quotas[number as usize % quotas.len()], address(number))
    });
    charged.collect()
}

/// Tollgate's stores, which take turns.
pub(crate) struct Tollgate {
    pub(crate) stores: Vec<RedisStore>,
    pub(crate) limits: Limits,
}

impl Tollgate {
    pub(crate) fn new(store: RedisStore, policy: Policy, keys: u64) -> Self {
        Self { stores: vec![store], limits: vec![(vec![policy], keys)] }
    }
}

impl Ask for Tollgate {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let (number, store) =
            (number / self.stores.len() as u64, number as usize % self.stores.len());
        let charged = charged(&self.limits, number);
        let keys: Vec<_> = charged.iter().map(|(_, key)| Key::new(key)).collect();
        let charges = charged.iter().zip(&keys);
        let charges: Vec<_> =
            charges.map(|((policy, _), key)| Charge::new(policy, key, Cost::ONE)).collect();
        Ok(self.stores[store].decide(&charges).await?.is_admitted())
    }
}

/// Tollgate's script with a call per request, through a plain client.
pub(crate) struct OneEach {
    client: Client,
    limits: Limits,
    /// Whether each policy has its own call.
    apart: bool,
    nonce: AtomicU64,
}

impl OneEach {
    pub(crate) async fn new(client: Client, limits: Limits, apart: bool) -> Result<Self, Failure> {
        let _: Value = client.script_load(TEXT).await?;
        Ok(Self { client, limits, apart, nonce: AtomicU64::new(0) })
    }

    async fn call(&self, lines: &[KeyedCharge<'_>]) -> Result<bool, Failure> {
        let mut batch = Batch::new(self.nonce.fetch_add(1, Ordering::Relaxed));
        batch.decide(lines)?;
        let keys: Vec<fred::types::Key> = batch.keys().map(fred::types::Key::from).collect();
        let args = batch.args(None).into_iter().map(|arg| Value::Bytes(Bytes::from(arg)));
        let args: Vec<Value> = args.collect();
        let reply: Bytes = self.client.evalsha(SHA1, keys, args).await?;
        let Reply { rows, .. } = batch.parse(&reply)?;
        match rows.first() {
            Some(ScriptAnswer::Verdict(verdict, _)) => Ok(verdict.is_admitted()),
            other => Err(format!("the script returned {other:?}").into()),
        }
    }
}

impl Ask for OneEach {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let charged = charged(&self.limits, number);
        let key = |(policy, key): &(&Policy, String)| format!("{{{key}}}:{}", policy.name());
        let keys: Vec<_> = charged.iter().map(key).collect();
        let lines = charged.iter().zip(&keys);
        let lines: Vec<_> = lines
            .map(|((policy, _), key)| KeyedCharge::new(key.as_bytes(), policy, Cost::ONE))
            .collect();
        let mut admitted = true;
        for lines in lines.chunks(if self.apart { 1 } else { lines.len() }) {
            admitted &= self.call(lines).await?;
        }
        Ok(admitted)
    }
}

/// A command or a script with a call per request. Clients take turns.
pub(crate) struct Plain {
    clients: Vec<Client>,
    keys: u64,
    call: Call,
    sha1: String,
    /// Numbers the members of a log, because equal names would be one member.
    members: AtomicU64,
}

pub(crate) enum Call {
    /// The fastest possible counter.
    Incr,
    /// redis-cell, a Redis module in Rust. One unit per second, with a burst of a million: larger
    /// values overflow its 64-bit sums.
    Cell,
    /// A minimal token bucket, which is refilled at this rate.
    Lean(u64),
    /// A sliding window log that adds up its members for each decision.
    Sum,
}

impl Plain {
    pub(crate) async fn new(clients: Vec<Client>, keys: u64, call: Call) -> Result<Self, Failure> {
        let script = match call {
            Call::Sum => include_str!("sum.lua"),
            _ => include_str!("lean.lua"),
        };
        let sha1 = clients.first().ok_or("no client")?.script_load(script).await?;
        Ok(Self { clients, keys, call, sha1, members: AtomicU64::new(0) })
    }

    async fn script<const N: usize>(
        &self,
        client: &Client,
        key: String,
        args: [u64; N],
    ) -> Result<bool, Failure> {
        let args = args.map(|number| number.to_string()).to_vec();
        let (admitted, _): (u8, i64) = client.evalsha(&self.sha1, key, args).await?;
        Ok(admitted == 1)
    }
}

impl Ask for Plain {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let clients = self.clients.len() as u64;
        let client = &self.clients[(number % clients) as usize];
        let address = address(number / clients % self.keys);
        match self.call {
            Call::Incr => {
                let _: i64 = client.incr(format!("incr:{address}")).await?;
                Ok(true)
            }
            Call::Cell => {
                let command = CustomCommand::new_static("CL.THROTTLE", None, false);
                let key = format!("cell:{address}");
                let args = vec![key.as_str(), "1000000", "1", "1"];
                let answer: Vec<i64> = client.custom(command, args).await?;
                Ok(answer.first() == Some(&0))
            }
            Call::Lean(rate) => {
                self.script(client, format!("lean:{address}"), [CAPACITY, rate, 1]).await
            }
            Call::Sum => {
                let member = self.members.fetch_add(1, Ordering::Relaxed);
                let args = [LIMIT, WINDOW.as_micros() as u64, 1, member];
                self.script(client, "summing".to_owned(), args).await
            }
        }
    }
}

/// `router` behind a middleware that calls the lean script, with one bucket for all requests.
pub(crate) async fn limited(router: Router, client: Client) -> Result<Router, Failure> {
    let bucket = Arc::new(Plain::new(vec![client], 1, Call::Lean(1)).await?);
    let ask = async |State(bucket): State<Arc<Plain>>, request: Request, next: Next| match bucket
        .ask(0)
        .await
    {
        Ok(true) => next.run(request).await,
        Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    Ok(router.layer(from_fn_with_state(bucket, ask)).with_state(()))
}
