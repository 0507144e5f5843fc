//! Decides requests for proxies that send an HTTP subrequest, with headers that describe the
//! original request.
//!
//! | path | proxies | method, path and query |
//! |---|---|---|
//! | `/forward-auth` | Traefik, Caddy, HAProxy | `X-Forwarded-Method`, `X-Forwarded-Uri` |
//! | `/auth-request` | nginx | `X-Original-Method`, `X-Original-URI` |
//! | `/ext-authz/…` | Envoy | the subrequest's own |
//!
//! The last address in `X-Forwarded-For` is the proxy's client, which becomes the peer. Then the
//! request is decided as if it had arrived at the gateway itself: earlier addresses count if
//! `trustedProxies` contains the last address.
//!
//! Every answer has a status that the proxy passes on to its client. nginx passes only 401 and 403.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use tollgate::denial::problem_response;
use tollgate::observe::Inspect;
use tollgate_proxy::path::{Forwarded, PathRules};
use tower_service::Service;

use super::nginx::{AUTH_REQUEST, pass_through_nginx};
use crate::serve::app::App;
use crate::serve::body::Body;
use crate::serve::entrance::admitted;
use crate::serve::operations::access_log::{AccessLog, AccessLogEntry};
use tollgate_proxy::Connection;

/// Answers a proxy's subrequest with 200 or the denial.
pub(crate) async fn answer<St: Inspect, B>(
    app: &App<St>,
    asked: &Request<B>,
    peer: SocketAddr,
    log: &AccessLog,
) -> (Response<Body>, Option<Box<AccessLogEntry>>) {
    let (mut answer, entry) = decide(app, asked, peer, log).await;
    if asked.uri().path() == AUTH_REQUEST {
        pass_through_nginx(&mut answer);
    }
    (answer, entry)
}

async fn decide<St: Inspect, B>(
    app: &App<St>,
    asked: &Request<B>,
    peer: SocketAddr,
    log: &AccessLog,
) -> (Response<Body>, Option<Box<AccessLogEntry>>) {
    if !app.plan.forward_auth.contains(peer.ip()) {
        let ip = peer.ip().to_canonical();
        static LOGGED: DistinctWarnings = DistinctWarnings::new();
        LOGGED.warn(format!(
            "{ip} requests decisions but is not a trusted proxy: add it to \
             `rateLimiter.forwardAuth.trustedProxies` [TG0419]"
        ));
        return (rejected(StatusCode::FORBIDDEN, "untrusted-proxy", UNCHECKED), None);
    }
    let (request, connection) = match original(asked) {
        Ok(original) => original,
        Err(Unreadable::Check(cure)) => {
            static LOGGED: DistinctWarnings = DistinctWarnings::new();
            LOGGED.warn(format!("the proxy sends an incomplete check: {cure} [TG0418]"));
            return (rejected(StatusCode::BAD_REQUEST, "bad-question", UNCHECKED), None);
        }
        Err(Unreadable::Request(detail)) => {
            return (rejected(StatusCode::BAD_REQUEST, "bad-question", detail), None);
        }
    };
    let entry = log.begin(&request, &connection);
    let paths = PathRules { forward: Forwarded::Unchanged, ..app.plan.paths };
    let answer = match admitted(request, &Arc::new(connection), None, paths) {
        Ok(request) => app.decide(request, |_, _| Some(Allow)).await,
        Err(refused) => *refused,
    };
    if let Some(entry) = &entry {
        entry.answered(&answer);
    }
    (answer, entry)
}

/// Proxies pass the response on to their clients, so it does not mention the configuration.
fn rejected(status: StatusCode, code: &str, detail: &str) -> Response<Body> {
    problem_response(status, Some(code), detail).map(Body::from)
}

const UNCHECKED: &str = "The request cannot be checked.";

/// Why the client's request is unknown.
enum Unreadable {
    /// The proxy does not describe it. Contains the cure, for the log.
    Check(String),
    /// The client has sent an invalid request. Contains the response's detail.
    Request(&'static str),
}

/// Logs each warning a single time, and at most [`MOST_WARNINGS`] warnings.
struct DistinctWarnings(Mutex<BTreeSet<String>>);

impl DistinctWarnings {
    const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    fn warn(&self, warning: String) {
        let mut logged = self.0.lock();
        if logged.len() < MOST_WARNINGS && !logged.contains(&warning) {
            tracing::warn!("{warning}");
            logged.insert(warning);
        }
    }
}

const MOST_WARNINGS: usize = 32;

fn original<B>(asked: &Request<B>) -> Result<(Request<()>, Connection), Unreadable> {
    let headers = asked.headers();
    let mut request = Request::new(());
    request.headers_mut().clone_from(headers);
    let (method, uri, host) = match asked.uri().path() {
        FORWARD_AUTH => (
            Some(one(headers, "x-forwarded-method")?),
            target(one(headers, "x-forwarded-uri")?)?,
            Some(one(headers, "x-forwarded-host")?),
        ),
        AUTH_REQUEST => (
            Some(one(headers, "x-original-method")?),
            target(one(headers, "x-original-uri")?)?,
            None,
        ),
        path if path.starts_with(EXT_AUTHZ) => {
            let target = asked.uri().path_and_query().map_or(path, |target| target.as_str());
            (None, target[EXT_AUTHZ.len() - 1..].parse().map_err(|_| BAD_PATH)?, None)
        }
        _ => {
            return Err(Unreadable::Check(format!(
                "send checks to {FORWARD_AUTH} (Traefik, Caddy, HAProxy), {AUTH_REQUEST} (nginx) or \
                 with the prefix {EXT_AUTHZ} (Envoy)"
            )));
        }
    };
    *request.method_mut() = match method {
        None => asked.method().clone(),
        Some(method) => {
            let method = Method::from_bytes(method.as_bytes());
            method.map_err(|_| Unreadable::Request("The method is not valid."))?
        }
    };
    *request.uri_mut() = uri;
    if let Some(host) = host.cloned() {
        request.headers_mut().insert(HOST, host);
    }
    if request.headers().get(HOST).is_none_or(HeaderValue::is_empty) {
        // The proxy has accepted a request of HTTP/1.0, which needs no host.
        request.headers_mut().remove(HOST);
        *request.version_mut() = Version::HTTP_10;
    }
    let peer = last_hop(request.headers_mut())?;
    for name in SUBREQUEST_HEADERS {
        request.headers_mut().remove(name);
    }
    let connection = Connection::new(SocketAddr::new(peer, 0), false);
    let connection = connection.map_err(|_| Unreadable::Check(BAD_CLIENT.to_owned()))?;
    Ok((request, connection))
}

/// The value of a header that must be set exactly once. If the proxy appended its value to the
/// client's, the client could choose.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a HeaderValue, Unreadable> {
    let mut lines = headers.get_all(name).iter();
    Err(Unreadable::Check(match (lines.next(), lines.next()) {
        (Some(value), None) => return Ok(value),
        (None, _) => format!("let the proxy set `{name}`; see docs/fronts.md"),
        (Some(_), Some(_)) => format!("let the proxy replace `{name}` instead of adding it"),
    }))
}

/// The target of the client's request. Some proxies also accept and forward characters that a URI
/// must not contain. Services read these as if they were escaped.
fn target(written: &HeaderValue) -> Result<Uri, Unreadable> {
    let escaped = percent_encode(written.as_bytes(), NOT_IN_TARGETS).to_string();
    escaped.parse().map_err(|_| BAD_PATH)
}

/// Removes the proxy's client from the end of `X-Forwarded-For`.
fn last_hop(headers: &mut HeaderMap) -> Result<IpAddr, Unreadable> {
    let wrong = || Unreadable::Check(BAD_CLIENT.to_owned());
    let lines: Vec<_> = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::to_str).collect();
    let lines = lines.into_iter().collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
    let hops = lines.join(",");
    let (rest, last) = hops.rsplit_once(',').unwrap_or(("", &hops));
    let last = last.trim();
    let ip = last.parse().or_else(|_| last.parse::<SocketAddr>().map(|peer| peer.ip()));
    let ip = ip.map_err(|_| wrong())?;
    let rest = HeaderValue::from_str(rest).map_err(|_| wrong())?;
    match rest.is_empty() {
        true => headers.remove(FORWARDED_FOR),
        false => headers.insert(FORWARDED_FOR, rest),
    };
    Ok(ip)
}

#[derive(Clone, Copy, Debug)]
struct Allow;

impl<B> Service<Request<B>> for Allow {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

const BAD_PATH: Unreadable = Unreadable::Request("The path is not valid.");
const BAD_CLIENT: &str = "let the proxy set `x-forwarded-for` to the address of its client";

/// Besides characters outside ASCII.
const NOT_IN_TARGETS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

const FORWARD_AUTH: &str = "/forward-auth";
const EXT_AUTHZ: &str = "/ext-authz/";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// These headers describe the subrequest, not the client's request.
const SUBREQUEST_HEADERS: [HeaderName; 12] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("x-forwarded-method"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-original-uri"),
];
