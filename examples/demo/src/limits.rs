//! Builds the layer from the flags.

use std::sync::Arc;

use tollgate::denial::{Members, Problem};
use tollgate::headers::HeaderOptions;
use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, Global, JwtKeys, JwtUser, JwtVerifier, KeySource, TrustedProxies,
    chain,
};
use tollgate::layer::LayerError;
use tollgate::limit::{OnMissingKey, Paths};
use tollgate::policy::{Algorithm, OnStoreError};
use tollgate::{Costs, Limit, Policy, Quota, RateLimitLayer, Store};

use crate::args::{Args, CostsBy, KeyBy};

/// Paths without a limit: if a health check is denied, a load balancer assumes that the replica is
/// down.
pub(crate) const EXEMPT: [&str; 1] = ["/healthz"];

/// Builds the layer for these flags, over `store`.
///
/// # Errors
/// A limit is invalid. The error is a single line that explains how to fix it.
pub fn layer<St: Store>(args: &Args, store: St) -> Result<RateLimitLayer<St>, String> {
    let members = Members::new().with("server_id", args.server_id.as_str());
    let members = members.map_err(|error| error.to_string())?;
    let exempt = Paths::new(EXEMPT).map_err(|error| error.to_string())?;
    let layer = RateLimitLayer::builder(store)
        .limit(Limit::new(policy(args)?, key(args)?))
        .costs(costs(args.costs))
        .exempt_paths(exempt)
        .headers(HeaderOptions::all())
        .on_missing_key(OnMissingKey::Deny)
        .denial_response(Problem::with_members(members))
        .build();
    layer.map_err(|error| match error {
        LayerError::CostAboveCapacity(it) => {
            let flag = if args.burst.is_some() { "--burst" } else { "--limit" };
            let (request, cost) = (&it.request, it.cost.get());
            format!(
                "{flag} {}: {request} costs {cost}; use {flag} {cost}, or --costs one",
                it.capacity
            )
        }
        error => error.to_string(),
    })
}

/// The request costs.
pub(crate) fn costs(costs: CostsBy) -> Costs {
    match costs {
        CostsBy::ByMethod => Costs::by_method(),
        CostsBy::One => Costs::flat(1),
    }
}

/// Whether the replica uses a local fallback while Redis cannot decide.
pub fn falls_back(args: &Args) -> bool {
    let [usual, shed] = [args.on_store_error, args.shed];
    usual.unwrap_or(OnStoreError::Local) == OnStoreError::Local || shed == Some(OnStoreError::Local)
}

fn policy(args: &Args) -> Result<Policy, String> {
    let quota = Quota::new(args.limit, args.window);
    let quota = args.burst.map_or(quota, |burst| quota.burst(burst));
    let policy = Policy::new(args.key.name(), quota, args.algorithm);
    let policy = policy.map_err(|error| match error.nearest_limit() {
        Some(nearest) => format!("--limit {}: {error}; use --limit {nearest}", args.limit),
        None => format!("--limit {} and --window: {error}", args.limit),
    })?;
    let policy = args.on_store_error.into_iter().fold(policy, Policy::with_on_store_error);
    let policy = args.shed.into_iter().fold(policy, Policy::with_shed);
    match args.lease {
        Some(lease) => policy.with_lease(lease).map_err(|error| format!("--lease: {error}")),
        None => Ok(policy),
    }
}

fn key(args: &Args) -> Result<Arc<dyn KeySource>, String> {
    Ok(match args.key {
        KeyBy::Global => Arc::new(Global),
        KeyBy::Ip => Arc::new(client_ip(args)),
        KeyBy::ApiKey => Arc::new(api_key(args)),
        KeyBy::User => user(args)?.ok_or("--key user needs --jwt-secret")?,
        KeyBy::Chain => {
            let (user, api_key, ip) = (user(args)?, api_key(args), client_ip(args));
            let others: [Arc<dyn KeySource>; 2] = [Arc::new(api_key), Arc::new(ip)];
            Arc::new(chain(user.into_iter().chain(others)))
        }
    })
}

fn client_ip(args: &Args) -> ClientIp {
    ClientIp::peer().trusting(args.trusted_proxies.clone().unwrap_or_else(TrustedProxies::none))
}

fn api_key(args: &Args) -> ApiKey {
    match &args.api_keys {
        Some(accepted) => ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(&accepted.0)),
        None => ApiKey::in_x_api_key().trust_unverified(),
    }
}

fn user(args: &Args) -> Result<Option<Arc<dyn KeySource>>, String> {
    let Some(secret) = &args.jwt_secret else { return Ok(None) };
    let keys = JwtKeys::new([secret.clone()]).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(JwtUser::new(JwtVerifier::new(keys)))))
}

/// Whether requests may wait in this algorithm's queue.
pub(crate) fn queues(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::LeakyBucket { .. })
}
