//! Builds the layer from the flags.

use std::sync::Arc;

use clap::ValueEnum;
use tollgate::denial::{Members, Problem};
use tollgate::headers::HeaderOptions;
use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, Global, JwtKey, JwtKeys, JwtUser, JwtVerifier, KeySource,
    TrustedProxies, chain,
};
use tollgate::layer::LayerError;
use tollgate::limit::{OnMissingKey, Paths};
use tollgate::{Costs, Limit, Policy, Quota, RateLimitLayer, Store};

use crate::args::{Args, CostsBy, KeyBy, spelled};
use crate::{Failure, flag};

/// Builds the layer for these flags, over `store`.
pub(crate) fn layer<St: Store>(
    args: &Args,
    server_id: &str,
    store: St,
) -> Result<RateLimitLayer<St>, Failure> {
    let layer = RateLimitLayer::builder(store)
        .limit(Limit::new(policy(args)?, key(args)?))
        .costs(costs(args))
        // If a health check is denied, a load balancer assumes that the replica is down.
        .exempt_paths(Paths::new(["/healthz"])?)
        .headers(HeaderOptions::all())
        .on_missing_key(OnMissingKey::Deny)
        .denial_response(Problem::with_members(Members::new().with("server_id", server_id)?));
    Ok(layer.build().map_err(|error| match error {
        LayerError::CostAboveCapacity(it) => {
            let flag = spelled(if args.burst.is_some() { "--burst" } else { "--limit" });
            let (capacity, request, cost) = (it.capacity, it.request, it.cost.get());
            format!("{flag} {capacity}: {request} costs {cost}; use {flag} {cost}, or --costs one")
        }
        error => error.to_string(),
    })?)
}

/// The request costs.
pub(crate) fn costs(args: &Args) -> Costs {
    match args.costs {
        CostsBy::ByMethod => Costs::by_method(),
        CostsBy::One => Costs::flat(1),
    }
}

fn policy(args: &Args) -> Result<Policy, Failure> {
    let quota = Quota::new(args.limit, args.window);
    let quota = args.burst.map_or(quota, |burst| quota.burst(burst));
    let name = args.key.to_possible_value().ok_or("a key without a name")?;
    let policy = Policy::new(name.get_name(), quota, args.algorithm).map_err(|error| {
        // If a limit works with this window, the error contains it.
        let name = if error.nearest_limit().is_some() { "--limit" } else { "--window" };
        format!("{}: {error}", spelled(name))
    })?;
    let policy = args.on_store_error.into_iter().fold(policy, Policy::with_on_store_error);
    let policy = args.shed.into_iter().fold(policy, Policy::with_shed);
    let Some(lease) = args.lease else { return Ok(policy) };
    flag("--lease", policy.with_lease(lease))
}

fn key(args: &Args) -> Result<Arc<dyn KeySource>, Failure> {
    let trusted = match &args.trusted_proxies[..] {
        [] => TrustedProxies::none(),
        proxies => flag("--trusted-proxies", TrustedProxies::parse(proxies))?,
    };
    let ip = ClientIp::peer().trusting(trusted);
    let api_key = match &args.api_keys[..] {
        [] => ApiKey::in_x_api_key().trust_unverified(),
        accepted => ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(accepted)),
    };
    let user = |secret: &String| {
        let key = flag("--jwt-secret", JwtKey::hs256(secret.as_bytes()))?;
        Ok::<_, Failure>(JwtUser::new(JwtVerifier::new(JwtKeys::new([key])?)))
    };
    let user = args.jwt_secret.as_ref().map(user).transpose()?;
    Ok(match args.key {
        KeyBy::Global => Arc::new(Global),
        KeyBy::Ip => Arc::new(ip),
        KeyBy::ApiKey => Arc::new(api_key),
        KeyBy::User => Arc::new(user.ok_or("--key user needs --jwt-secret")?),
        KeyBy::Chain => {
            let user = user.map(|user| Arc::new(user) as Arc<dyn KeySource>);
            let others: [Arc<dyn KeySource>; 2] = [Arc::new(api_key), Arc::new(ip)];
            Arc::new(chain(user.into_iter().chain(others)))
        }
    })
}
