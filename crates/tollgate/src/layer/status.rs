//! Shows callers where they stand, without charging them.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use tollgate_core::{Charge, Cost, Outcome, Source, Store, StoreError, Verdict};
use tollgate_engine::{AppliedLimit, Forecast, TierIndex};
use tower_service::Service;

use super::admit::{apply, is_on_allowlist};
use super::look_ups::LookUps;
use super::respond::{self, OwnResponse};
use super::service::RateLimitLayer;
use super::state::{Http, LayerState};
use crate::RequestHead;
use crate::denial::{Denial, problem_response, standings};
use crate::headers::{self, ShownPolicy};

/// A service that shows callers where they stand: their limits, with the remaining units and the
/// time of the reset, also if the units are used up. It charges nothing.
///
/// [`RateLimitLayer::status`] makes it. Put it on a route outside of the layer:
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{Quota, RateLimitLayer};
///
/// let limits = RateLimitLayer::per_ip(Quota::per_minute(60))?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(limits.clone())
///     .route_service("/rate-limit", limits.status());
/// # let _ = app;
/// # Ok::<(), tollgate::layer::LayerError>(())
/// ```
///
/// # The response
///
/// ```json
/// {"limits":[{"policy":"client","limit":60,"remaining":0,"window":"60 seconds","retry_after":1,"reset_at":"2026-11-28T12:00:59Z"}]}
/// ```
///
/// * The members are those of a [problem body](crate::denial::Problem). `retry_after` appears if a
///   request that costs 1 would be denied now.
/// * The response has the layer's rate limit headers.
/// * A concurrency limit has `"quota_unit":"concurrent-requests"` and no window. A penalty appears
///   only while it blocks, with `"blocked":true`.
/// * Shadow policies, and limits with [`hide_headers`](crate::Limit::hide_headers), do not appear.
/// * A limit for some paths ([`on_paths`](crate::Limit::on_paths)) appears with its quota, although
///   the status has another path. Other [conditions](crate::Limit::when) see the request for the
///   status.
/// * A caller whose key is missing gets the layer's denial, for example 403.
/// * While the store cannot decide, the response is a 503.
///
/// The status itself has no limit and calls the store for each request, like a denied request does.
pub struct Status<St>(Arc<LayerState<St>>);

impl<St: Store, M> RateLimitLayer<St, M> {
    /// Returns a service that shows callers their limits without charging them.
    pub fn status(&self) -> Status<St> {
        Status(Arc::clone(&self.state))
    }
}

impl<St: Store, B> Service<Request<B>> for Status<St> {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (layer, parts) = (Arc::clone(&self.0), request.into_parts().0);
        Box::pin(async move {
            let response = respond(&layer, &parts).await.unwrap_or_else(|response| *response);
            let is_head = parts.method == Method::HEAD;
            // The bodies are JSON or text.
            let text = |body: Bytes| String::from_utf8_lossy(&body).into_owned();
            Ok(response.map(|body| if is_head { String::new() } else { text(body) }))
        })
    }
}

/// # Errors
/// The response to a caller without a key, on the blocklist, or with another method.
async fn respond<St: Store>(
    layer: &LayerState<St>,
    parts: &Parts,
) -> Result<Response<Bytes>, OwnResponse> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Box::new(wrong_method()));
    }
    let mut look_ups = None;
    let mut applied = loop {
        let applied = applied(&layer.face, &RequestHead::of_parts(parts), &mut look_ups)?;
        match look_ups.take_if(|look_ups| look_ups.is_pending()) {
            Some(pending) => look_ups = Some(pending.wait().await),
            None => break applied,
        }
    };
    if applied.is_empty() {
        return Ok(shown(&layer.face, &applied, None));
    }
    if layer.limits.has_overrides() {
        layer.limits.apply_overrides(&mut applied);
    }
    let charges: Vec<Charge<'_>> =
        applied.iter().map(|applied| Forecast::question(&layer.limits, applied)).collect();
    Ok(match layer.store.decide(&charges).await {
        Ok(verdict) => {
            let blocked = layer.limits.blocked(&applied, &verdict);
            shown(&layer.face, &applied, blocked.as_ref().or(Some(&verdict)))
        }
        Err(error) => unavailable(&layer.face, &applied, &error),
    })
}

/// The limits that the caller may see, as for a request that costs 1.
fn applied(
    http: &Http,
    head: &RequestHead<'_>,
    look_ups: &mut Option<Box<LookUps>>,
) -> Result<Vec<AppliedLimit>, OwnResponse> {
    if let Some(lists) = &http.options.access
        && is_on_allowlist(http, lists, head)?
    {
        return Ok(Vec::new());
    }
    let tier = http.tiers.as_ref().map_or_else(TierIndex::default, |tiers| tiers.of(head));
    let mut all = Vec::new();
    for (number, compiled) in (0..).zip(&http.limits) {
        let limit = &compiled.limit;
        if limit.is_shadow() || limit.hides_headers || !limit.applies_to_client(head) {
            continue;
        }
        let applied = apply(http, (number, compiled), tier, head, look_ups)?;
        all.extend(applied.map(|applied| AppliedLimit { cost: Cost::ONE, ..applied }));
    }
    Ok(all)
}

fn shown(http: &Http, applied: &[AppliedLimit], verdict: Option<&Verdict>) -> Response<Bytes> {
    let decisions = verdict.into_iter().flat_map(|verdict| verdict.decisions());
    let policies = applied.iter().zip(decisions).map(|(applied, decision)| -> ShownPolicy<'_> {
        (http.fields(applied), decision, applied.cost)
    });
    let policies = policies.filter(|(fields, decision, _)| {
        fields.is_shown(decision) && decision.outcome != Outcome::Undecided
    });
    let at = verdict.map(Verdict::decided_at).unwrap_or_default();
    let mut response = Response::new(Bytes::from(standings(at, policies.clone())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    http.options.headers.write(headers, at, false, policies);
    if verdict.is_some_and(|verdict| verdict.source() == Source::Local) {
        headers.insert(headers::X_RATELIMIT_REASON, headers::REDUCED);
    }
    response
}

fn unavailable(http: &Http, applied: &[AppliedLimit], error: &StoreError) -> Response<Bytes> {
    let policies = applied.iter().map(|applied| http.fields(applied));
    let denial = Denial::store_unavailable(policies, error.retry_after().unwrap_or(respond::PROBE));
    let mut response = http.options.response.respond(&denial);
    denial.write_headers(response.headers_mut());
    response
}

fn wrong_method() -> Response<Bytes> {
    let what = "Read the limits with GET.";
    let mut response = problem_response(StatusCode::METHOD_NOT_ALLOWED, None, what);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

impl<St> Clone for Status<St> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<St> fmt::Debug for Status<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<_> = self.0.face.limits.iter().map(|it| &it.limit).collect();
        f.debug_struct("Status").field("limits", &limits).finish_non_exhaustive()
    }
}
