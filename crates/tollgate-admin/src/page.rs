//! The page: static files and its settings. Neither contains data, so they need no token.

use axum::Router;
use axum::extract::State as Extract;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::HeaderName;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use serde::Serialize;

use super::answers::json;
use super::files::{FILES, SETTINGS};
use super::problem::Problem;
use super::state::State;

pub(super) fn router() -> Router<State> {
    let mut router = Router::new().route(SETTINGS, get(settings));
    for (path, kind, text) in FILES {
        let answer = move |Extract(state): Extract<State>| async move { file(&state, kind, text) };
        router = router.route(path, get(answer));
    }
    router
}

#[derive(Serialize)]
struct Settings<'a> {
    peers: Vec<&'a str>,
    target: Option<&'a str>,
}

impl<'a> Settings<'a> {
    fn of(state: &'a State) -> Self {
        Self {
            peers: state.0.guard.peers.origins().collect(),
            target: state.0.target.as_ref().and_then(|target| target.to_str().ok()),
        }
    }
}

async fn settings(Extract(state): Extract<State>) -> Result<Response, Problem> {
    json(&Settings::of(&state))
}

fn file(state: &State, kind: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_TYPE, kind);
    // The files change with the program, but their paths have no version.
    set(CACHE_CONTROL, "no-cache");
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    headers.insert(CONTENT_SECURITY_POLICY, policy(state));
    response
}

/// The page loads only its own files and calls only addresses that the operator has configured.
fn policy(state: &State) -> HeaderValue {
    let Settings { peers, target } = Settings::of(state);
    let others = peers.into_iter().chain(target);
    let others = others.fold(String::new(), |others, origin| others + " " + origin);
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{others}; \
         img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'"
    );
    // The origins are valid header values, so this cannot fail.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}
