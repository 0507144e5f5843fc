use std::borrow::Cow;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Request, State as Extract};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use tollgate::Limit;
use tollgate::key::{Key, Subject, SubjectName};
use tollgate::observe::{self, LayerHandle};
use tollgate::policy::Cost;
use tollgate::store::{Charged, Receipt, ReceiptId, Source, Timestamp};
use tollgate::tier::Tier;

use super::answers::{Settle, Top, json};
use super::peers::EVENTS;
use super::problem::{Problem, Reply};
use super::state::State;
use super::subjects::{matches, subject_name};
use super::{events, overrides, page, peers, policies, reports};

pub(super) fn router(state: State, further: Router) -> Router {
    Router::new()
        .route("/status", get(all))
        .route("/status/{policy}/{*subject}", get(read).delete(reset).post(settle))
        .route("/subjects/{*subject}", get(policies::read))
        .route("/overrides", get(overrides::list))
        .route(
            "/overrides/{policy}/{*subject}",
            get(overrides::read).put(overrides::set).delete(overrides::remove),
        )
        .route("/top", get(top))
        .route(EVENTS, get(stream))
        .route("/metrics", get(metrics))
        .merge(page::router())
        .merge(further.with_state(()))
        .fallback(|| async {
            let detail = "There are /, /status, /overrides, /top, /events and /metrics.";
            Problem::new(StatusCode::NOT_FOUND, detail)
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Allow lists the methods.")
        })
        .layer(DefaultBodyLimit::max(4096))
        .layer(middleware::from_fn_with_state(state.clone(), check_site))
        .with_state(state)
}

async fn check_site(Extract(state): Extract<State>, request: Request, next: Next) -> Response {
    let guard = &state.0.guard;
    let origin = match guard.check_site(request.method(), request.uri(), request.headers()) {
        // Browsers send a preflight without the token.
        Ok(Some(origin)) if request.method() == Method::OPTIONS => return peers::preflight(origin),
        Ok(origin) => origin,
        Err(problem) => return problem.into_response(),
    };
    let response = match guard.check_reader(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    match origin {
        Some(origin) => peers::readable(response, origin),
        None => response,
    }
}

async fn all(Extract(state): Extract<State>) -> Reply {
    json(&reports::status(&state).await)
}

async fn read(Found { layer, limit, key, tier }: Found) -> Reply {
    let limit = layer.limits()[limit];
    json(&reports::subject(&layer, limit, tier.as_ref(), &key).await?)
}

async fn reset(Found { layer, limit, key, .. }: Found) -> Reply {
    let limit = layer.limits()[limit];
    layer.reset(limit, &key).await?;
    tracing::info!(target: "tollgate", policy = limit.policy().name(), "reset by an operator");
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn settle(
    Found { layer, limit, key, tier }: Found,
    body: Result<Bytes, BytesRejection>,
) -> Reply {
    let policy = &layer.policy_of(layer.limits()[limit], tier.as_ref(), &key);
    let wrong = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let settle: Settle =
        serde_json::from_slice(&body?).map_err(|error| wrong(error.to_string()))?;
    // `from_str_radix` accepts a sign.
    let is_id = settle.id.len() == 32 && !settle.id.starts_with('+');
    let id = u128::from_str_radix(&settle.id, 16).ok().filter(|_| is_id);
    let id = id.ok_or_else(|| wrong("`id` must be 32 hex digits.".to_owned()))?;
    let charged_at = Timestamp::from_micros(settle.charged_at);
    let receipt = Receipt {
        id: ReceiptId(id),
        source: if settle.local { Source::Local } else { Source::Store },
        policy: policy.clone(),
        key,
        charged: Charged {
            leaves_at: settle.leaves_at.map_or(charged_at, Timestamp::from_micros),
            ..Charged::new(policy, Cost::new(settle.cost), charged_at)
        },
    };
    let settled = layer.settle(&receipt, Cost::new(settle.actual)).await?;
    tracing::info!(target: "tollgate", policy = policy.name(), ?settled, "settled by an operator");
    json(&serde_json::json!({ "settlement": settled.name(), "units": settled.units() }))
}

async fn top(Extract(state): Extract<State>, headers: HeaderMap, uri: Uri) -> Reply {
    state.0.guard.check_token(&headers)?;
    let most = match parameter(&uri, "most") {
        Some(most) => {
            most.parse().ok().filter(|most| (1..=128).contains(most)).ok_or_else(|| {
                Problem::new(StatusCode::BAD_REQUEST, "`most` must be a number from 1 to 128.")
            })?
        }
        None => 20,
    };
    json(&Top { policies: reports::top_of(&state, most) })
}

/// Without a token the stream contains only numbers. A wrong token is an error.
async fn stream(Extract(state): Extract<State>, headers: HeaderMap) -> Reply {
    let shows_token = headers.contains_key(AUTHORIZATION);
    if shows_token {
        state.0.guard.check_token(&headers)?;
    }
    events::open(&state, shows_token)
}

async fn metrics(Extract(state): Extract<State>) -> Reply {
    let Some(render) = &state.0.metrics else {
        let detail = "This router was built without `.metrics(..)`.";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    observe::refresh(&state.layers()).await;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(CONTENT_TYPE, kind)], render()).into_response())
}

struct Found {
    layer: LayerHandle,
    limit: usize,
    key: Key,
    /// The tier in the query, otherwise the subject's tier if the tier source finds it.
    tier: Option<Tier>,
}

/// Requests that name a client need the token.
impl FromRequestParts<State> for Found {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        state.0.guard.check_token(&parts.headers)?;
        let path = Path::<(String, String)>::from_request_parts(parts, state).await?;
        find(state, &path.0.0, &path.0.1, &parts.uri)
    }
}

fn find(state: &State, policy: &str, subject: &str, uri: &Uri) -> Result<Found, Problem> {
    let name: SubjectName = subject_name(subject)?;
    let mut found = matches(state, policy, subject)?;
    let (layer, limit, Subject { key, .. }) = found.swap_remove(0);
    let limits = layer.limits();
    let tier = match parameter(uri, "tier") {
        Some(asked) => Some(known_tier(limits[limit], &asked)?),
        None => layer.tier_of(&name),
    };
    drop(limits);
    Ok(Found { layer, limit, key, tier })
}

fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let mut parameters = form_urlencoded::parse(uri.query()?.as_bytes());
    parameters.find_map(|(key, value)| (key == name).then_some(value))
}

fn known_tier(limit: &Limit, asked: &str) -> Result<Tier, Problem> {
    let tier = Tier::from(asked.to_owned());
    if reports::has_tier(limit, &tier) {
        return Ok(tier);
    }
    let detail = "This policy has no quota for this tier. /status lists its tiers.";
    Err(Problem::new(StatusCode::NOT_FOUND, detail))
}
