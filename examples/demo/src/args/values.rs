//! Parses the value of each flag.

use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate::key::{JwtKey, SubjectFormat, TrustedProxies};
use tollgate::policy::{Algorithm, Lease, OnStoreError};
use tollgate::{Policy, RedisStore};

use super::{AdminToken, ApiKeyList, Store};

pub(super) fn token(value: &str) -> Result<AdminToken, String> {
    // The router checks the token. Checking it here attributes the error to this flag.
    let built = tollgate_admin::Admin::builder().token(value).build();
    built.map(|_| AdminToken(value.to_owned())).map_err(|error| error.to_string())
}

pub(super) fn listen(value: &str) -> Result<SocketAddr, &'static str> {
    value
        .parse()
        .map_err(|_| "expected an address and a port, such as 127.0.0.1:3000 or [::1]:3000")
}

pub(super) fn store(value: &str) -> Result<Store, String> {
    if value == "memory" {
        return Ok(Store::Memory);
    }
    if !value.contains(':') {
        return Err("expected `memory` or a URL such as redis://127.0.0.1:6379".to_owned());
    }
    RedisStore::builder(value)
        .map(|redis| Store::Redis(Box::new(redis)))
        .map_err(|error| error.to_string())
}

pub(super) fn store_timeout(value: &str) -> Result<Duration, &'static str> {
    let timeout = humantime::parse_duration(value).ok();
    let possible = Duration::from_millis(1)..=Duration::from_secs(60);
    let timeout = timeout.filter(|timeout| possible.contains(timeout));
    timeout.ok_or("expected a duration from 1ms to 60s, such as 50ms")
}

pub(super) fn lease(value: &str) -> Result<Lease, &'static str> {
    let share = value.split_once('/');
    let share = share.and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    // The policy checks the range of the share, and whether its units can be leased.
    share.map(|(part, of)| Lease::of(part, of)).ok_or("expected a share such as 1/20")
}

pub(super) fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    let names = Algorithm::ALL.map(|algorithm| algorithm.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Algorithm>())
}

pub(super) fn on_store_error() -> impl TypedValueParser<Value = OnStoreError> {
    PossibleValuesParser::new(["open", "closed", "local"]).map(|name| match &*name {
        "closed" => OnStoreError::Closed,
        "local" => OnStoreError::Local,
        _ => OnStoreError::Open,
    })
}

pub(super) fn subjects() -> impl TypedValueParser<Value = SubjectFormat> {
    PossibleValuesParser::new(["hash", "masked", "clear"]).map(|name| match &*name {
        "hash" => SubjectFormat::Hash,
        "clear" => SubjectFormat::Clear,
        _ => SubjectFormat::Masked,
    })
}

pub(super) fn units(value: &str) -> Result<u64, String> {
    let most = Policy::MAX_LIMIT;
    let units = value.parse().ok().filter(|units| (1..=most).contains(units));
    units.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

pub(super) fn window(value: &str) -> Result<Duration, &'static str> {
    let window = humantime::parse_duration(value).ok();
    let possible = Policy::MIN_WINDOW..=Policy::MAX_WINDOW;
    let window = window
        .filter(|window| possible.contains(window) && window.subsec_nanos().is_multiple_of(1_000));
    window.ok_or("expected a duration from 50us to 400days, such as 60s, 500ms or 1h")
}

pub(super) fn trusted_proxies(value: &str) -> Result<TrustedProxies, tollgate::key::ClientIpError> {
    TrustedProxies::parse(value.split(',').map(str::trim))
}

pub(super) fn jwt_secret(value: &str) -> Result<JwtKey, tollgate::key::JwtKeyError> {
    JwtKey::hs256(value.as_bytes())
}

pub(super) fn api_keys(value: &str) -> Result<ApiKeyList, &'static str> {
    let keys: Vec<_> = value.split(',').map(|key| key.trim().to_owned()).collect();
    if keys.iter().any(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err("expected keys of printable ASCII without spaces, such as k-7f3a,k-91bc");
    }
    Ok(ApiKeyList(keys))
}
