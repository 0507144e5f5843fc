//! The codes of errors, which `docs/errors.md` explains.

use std::time::Duration;

use http::Request;
use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, JwtKeyError, KeySource, RequestHead, SubjectName, UnixPeer,
};
use tollgate::limiter::AcquireError;
use tollgate::observe::Origin;
use tollgate::policy::calendar::{Unit, calendar};
use tollgate::policy::{Algorithm, Calendar, OnStoreError};
use tollgate::store::{ConnectError, OverrideError};
use tollgate::{Limit, Limiter, Policy, Quota, RateLimitLayer, RedisStore};

use crate::support::*;

fn failing<T, E: ToString>(result: Result<T, E>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn mistakes_have_their_codes() {
    let (_, store) = memory();
    let policy = |name: &str| Policy::token_bucket(name, Quota::per_second(5)).unwrap();
    let layer = |limit| failing(RateLimitLayer::builder(store.clone()).limit(limit).build());
    let at_once = Policy::concurrent_requests("at-once", 5, Duration::from_secs(30)).unwrap();
    let request = Request::new(());
    let subject = |source: ClientIp| failing(source.subject(&RequestHead::of(&request)));
    let mut by_socket = Request::new(());
    by_socket.extensions_mut().insert(UnixPeer);
    let api_key = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k-7f3a"]));
    let redis = |url: &str| failing(RedisStore::builder(url));
    let rows = [
        ("TG0102", failing(Policy::token_bucket("p", Quota::per_second(0)))),
        ("TG0103", failing(Policy::token_bucket("Gäste", Quota::per_second(5)))),
        ("TG0104", failing(Policy::token_bucket("p", Quota::per_day(123_457)))),
        ("TG0201", subject(ClientIp::peer())),
        ("TG0204", failing(ClientIp::peer().subject(&RequestHead::of(&by_socket)))),
        ("TG0205", failing(ClientIp::behind(["proxy.internal"]))),
        ("TG0206", failing(ClientIp::peer().v6_prefix(0))),
        ("TG0209", JwtKeyError::NoCryptoProvider.to_string()),
        ("TG0212", layer(Limit::new(policy("p"), api_key))),
        ("TG0215", failing("alice".parse::<SubjectName>())),
        ("TG0217", failing(ApiKeys::from_sha256_hex(["k-7f3a"]))),
        ("TG0302", redis("http://localhost")),
        ("TG0308", ConnectError::Client("no such option".to_owned()).to_string()),
        ("TG0316", layer(Limit::global(policy("p").with_on_store_error(OnStoreError::Local)))),
        ("TG0601", failing(RateLimitLayer::builder(store.clone()).build())),
        (
            "TG0602",
            failing(
                Limiter::builder(store.clone())
                    .policy(at_once)
                    .queue(Duration::from_secs(1))
                    .build(),
            ),
        ),
        ("TG0603", failing(Calendar::new("empty", []))),
        ("TG0604", failing(calendar(Unit::Day, "CEST"))),
        ("TG0605", failing("leaky".parse::<Algorithm>())),
        ("TG0606", OverrideError::Penalty("logins".to_owned()).to_string()),
        ("TG0607", failing("http://localhost/admin".parse::<Origin>())),
        ("TG0609", AcquireError::UnknownPolicy("p".to_owned()).to_string()),
        ("TG0609", AcquireError::NoRetryBudget.to_string()),
    ];
    for (code, error) in rows {
        assert!(error.ends_with(&format!(" [{code}]")), "{code}: {error:?}");
    }
}
