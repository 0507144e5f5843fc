//! Shows callers where they stand, without charging them.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use tollgate_core::{Charge, Cost, Outcome, Source, Store, StoreError, Verdict};
use tollgate_engine::{AppliedLimit, Charges, Forecast, Limits, TierIndex};
use tower_service::Service;

use super::admit::{apply, is_on_allowlist};
use super::look_ups::LookUps;
use super::respond::{self, OwnResponse};
use super::service::RateLimitLayer;
use super::state::{Http, LayerState};
use crate::denial::{Denial, problem_response, standings};
use crate::headers::{self, ShownPolicy};
use crate::{Limit, RequestHead};

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
///
/// # Several layers
///
/// [`and`](Self::and) adds the limits of another layer, for example of a single route.
/// [`showing`](Self::showing) chooses the limits to show and names the requests to which each
/// applies. The headers contain at most the first 64 limits, as many as a layer can have.
///
/// ```
/// use tollgate::{Quota, RateLimitLayer};
///
/// let all = RateLimitLayer::per_ip(Quota::per_minute(60))?;
/// let search = RateLimitLayer::global(Quota::per_second(10))?;
/// let of_search = search.status().showing(|_| Some(vec!["GET /search".to_owned()]));
/// let status = all.status().and(&of_search);
/// # let _ = status;
/// # Ok::<(), tollgate::layer::LayerError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Status<St>(Arc<[Part<St>]>);

/// A layer in the status.
#[derive(Clone)]
struct Part<St> {
    layer: Arc<LayerState<St>>,
    /// For each of the layer's limits, the requests to which it applies. `None` hides the limit.
    shown: Arc<[Option<Vec<String>>]>,
}

impl<St: Store, M> RateLimitLayer<St, M> {
    /// Returns a service that shows callers their limits without charging them.
    pub fn status(&self) -> Status<St> {
        let layer = Arc::clone(&self.state);
        let shown = layer.face.limits.iter().map(|_| Some(Vec::new())).collect();
        Status([Part { layer, shown }].into())
    }
}

impl<St: Store> Status<St> {
    /// Also shows what `other` shows. The headers and denials follow this status's first layer.
    pub fn and(self, other: &Self) -> Self {
        Self(self.0.iter().chain(&*other.0).cloned().collect())
    }

    /// Chooses the limits to show: `None` hides a limit. If the list is not empty, the limit's entry
    /// contains it as `"applies_to":["GET /search"]`.
    pub fn showing(self, mut choose: impl FnMut(&Limit) -> Option<Vec<String>>) -> Self {
        let part = |Part { layer, shown }: &Part<St>| {
            let limits = layer.face.limits.iter().zip(&**shown);
            let shown = limits.map(|(it, shown)| shown.as_ref().and_then(|_| choose(&it.limit)));
            Part { layer: Arc::clone(layer), shown: shown.collect() }
        };
        Self(self.0.iter().map(part).collect())
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
        let (parts, request) = (Arc::clone(&self.0), request.into_parts().0);
        Box::pin(async move {
            let response = respond(&parts, &request).await.unwrap_or_else(|response| *response);
            // The bodies are JSON or text.
            let mut response = response.map(|body| String::from_utf8_lossy(&body).into_owned());
            if request.method == Method::HEAD {
                let length = HeaderValue::from(std::mem::take(response.body_mut()).len());
                response.headers_mut().insert(CONTENT_LENGTH, length);
            }
            Ok(response)
        })
    }
}

/// # Errors
/// The response to a caller without a key, on the blocklist, or with another method, and while the
/// store cannot decide.
async fn respond<St: Store>(
    parts: &[Part<St>],
    request: &Parts,
) -> Result<Response<Bytes>, OwnResponse> {
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(Box::new(wrong_method()));
    }
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let mut applied = part.applied(request).await?;
        let limits = &part.layer.limits;
        if limits.has_overrides() {
            limits.apply_overrides(applied.iter_mut());
        }
        all.push(applied);
    }
    // Every store is called before the first reply is awaited, so calls to Redis share a round trip.
    let calls = parts.iter().zip(&all).map(|(part, applied)| {
        let limits = &part.layer.limits;
        let charges: Vec<Charge<'_>> =
            applied.iter().map(|applied| Forecast::question(limits, applied)).collect();
        (!charges.is_empty()).then(|| part.layer.store.decide(&charges))
    });
    let calls: Vec<_> = calls.collect();
    let mut verdicts = Vec::with_capacity(calls.len());
    for ((part, applied), call) in parts.iter().zip(&all).zip(calls) {
        let Some(call) = call else {
            verdicts.push(None);
            continue;
        };
        match call.await {
            Ok(verdict) => {
                let blocked = part.layer.limits.blocked(applied, &verdict);
                verdicts.push(Some(blocked.unwrap_or(verdict)));
            }
            Err(error) => return Err(Box::new(unavailable(&part.layer.face, applied, &error))),
        }
    }
    Ok(shown(parts, &all, &verdicts))
}

impl<St: Store> Part<St> {
    /// The limits that the caller may see, as for a request that costs 1.
    async fn applied(&self, request: &Parts) -> Result<Charges, OwnResponse> {
        let mut look_ups = None;
        loop {
            let applied = self.apply(&RequestHead::of_parts(request), &mut look_ups)?;
            match look_ups.take_if(|look_ups: &mut Box<LookUps>| look_ups.is_pending()) {
                Some(pending) => look_ups = Some(pending.wait().await),
                None => return Ok(applied),
            }
        }
    }

    fn apply(
        &self,
        head: &RequestHead<'_>,
        look_ups: &mut Option<Box<LookUps>>,
    ) -> Result<Charges, OwnResponse> {
        let http = &self.layer.face;
        if let Some(lists) = &http.options.access
            && is_on_allowlist(http, lists, head)?
        {
            return Ok(Charges::default());
        }
        let tier = http.tiers.as_ref().map_or_else(TierIndex::default, |tiers| tiers.of(head));
        let mut all = Charges::default();
        for ((number, compiled), shown) in (0..).zip(&http.limits).zip(&*self.shown) {
            let limit = &compiled.limit;
            let is_hidden = limit.is_shadow() || limit.hides_headers || shown.is_none();
            if is_hidden || !limit.applies_to_client(head) {
                continue;
            }
            apply(&self.layer, (number, compiled), tier, head, look_ups, &mut all)?;
        }
        all.iter_mut().for_each(|applied| applied.cost = Cost::ONE);
        Ok(all)
    }

    fn applies_to(&self, applied: &AppliedLimit) -> &[String] {
        self.shown[usize::from(applied.limit)].as_deref().unwrap_or_default()
    }
}

fn shown<St>(parts: &[Part<St>], all: &[Charges], verdicts: &[Option<Verdict>]) -> Response<Bytes>
where
    St: Store,
{
    let decided = parts.iter().zip(all).zip(verdicts).flat_map(|((part, applied), verdict)| {
        let at = verdict.as_ref().map(Verdict::decided_at).unwrap_or_default();
        let decisions = verdict.iter().flat_map(Verdict::decisions);
        applied.iter().zip(decisions).map(move |(applied, decision)| {
            let policy: ShownPolicy<'_> = (part.layer.face.fields(applied), decision, applied.cost);
            (at, policy, part.applies_to(applied))
        })
    });
    let decided = decided.filter(|(_, (fields, decision, _), _)| {
        fields.is_shown(decision) && decision.outcome != Outcome::Undecided
    });
    let mut response = Response::new(Bytes::from(standings(decided.clone())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(first) = parts.first() {
        // The decisions of several layers differ by less than a millisecond.
        let at = decided.clone().map(|(at, ..)| at).max().unwrap_or_default();
        let policies = decided.map(|(_, policy, _)| policy).take(Limits::MAX);
        first.layer.face.options.headers.write(headers, at, false, policies);
    }
    if verdicts.iter().flatten().any(|verdict| verdict.source() == Source::Local) {
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

/// Shows no limit. Add some with [`and`](Status::and).
impl<St> Default for Status<St> {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<St> fmt::Debug for Status<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.0.iter().map(|part| &part.layer.face);
        let limits: Vec<_> = layers.flat_map(|http| &http.limits).map(|it| &it.limit).collect();
        f.debug_struct("Status").field("limits", &limits).finish_non_exhaustive()
    }
}
