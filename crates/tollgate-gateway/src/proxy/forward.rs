//! One request to one upstream and back.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{Extensions, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;
use tower_service::Service;

use super::body::{Body, Sent, Timed, Upload};
use super::client::Clients;
use super::entrance::Admitted;
use super::failures::Failures;
use super::fault::Fault;
use super::forwarded::{self, TrustedProxies, Via};
use super::group::{Group, Member, Tried};
use super::hop;
use super::lease::{Lease, SendError, Unanswered};
use super::path::{PathFault, ambiguity};
use super::rewrite::{self, Edits};
use super::settings::{Host, Protocol, Upstream};
use super::source::Source;
use super::tunnel::{Place, Tunnels};

/// Forwards requests to one upstream. Clones share its connections.
///
/// Requests must have passed [`admit`](super::admit) before.
#[derive(Clone, Debug)]
pub struct Forward {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: Arc<Group>,
    common: Common,
    host: Host,
    strip_prefix: Option<Prefix>,
    request_headers: Option<Arc<Edits>>,
    response_headers: Edits,
    max_body: u64,
    /// Whether the request target over HTTP/1 differs from the target of the client.
    changes_target: bool,
}

#[derive(Debug)]
struct Prefix(String, HeaderValue);

#[derive(Clone, Debug)]
pub struct Common {
    pub trusted_proxies: TrustedProxies,
    pub identity: Arc<[HeaderName]>,
    pub clients: Clients,
    pub tunnels: Tunnels,
    pub failures: Failures,
    /// The element of `Via`. A request that has it has passed this gateway before.
    pub via: Via,
}

impl Forward {
    pub fn new(upstream: Upstream, common: Common) -> Result<Self, http::Error> {
        let group = common.clients.group(&upstream.servers, &common.failures)?;
        let prefix = |prefix: String| {
            let header = HeaderValue::try_from(&prefix)?;
            Ok::<_, http::Error>(Prefix(prefix, header))
        };
        let strip_prefix = upstream.strip_prefix.map(prefix).transpose()?;
        let changes_target = strip_prefix.is_some() || group.has_base_path();
        let edits = upstream.request_headers;
        let request_headers = (!edits.is_empty()).then(|| Arc::new(edits));
        Ok(Self {
            shared: Arc::new(Shared {
                group,
                common,
                host: upstream.host,
                strip_prefix,
                request_headers,
                response_headers: upstream.response_headers,
                max_body: upstream.max_body.unwrap_or(u64::MAX),
                changes_target,
            }),
        })
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = (String, bool)> {
        self.shared.group.servers()
    }
}

impl Service<Request<Admitted>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Admitted>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let answer = shared.forward(request).await;
            Ok(answer.unwrap_or_else(Fault::response))
        })
    }
}

impl Shared {
    async fn forward(&self, mut request: Request<Admitted>) -> Result<Response<Body>, Fault> {
        if self.common.via.is_in(request.headers()) {
            return Err(Fault::Loop);
        }
        let upgrade = self.take_upgrade(&mut request)?;
        let (mut parts, admitted) = request.into_parts();
        self.describe(&mut parts, &admitted, upgrade.as_ref());
        let Admitted { body, received, .. } = admitted;
        let idle = self.common.clients.timeouts().body;
        let (upload, release, body) = if body.is_end_stream() {
            (None, None, Sent::default())
        } else {
            if body.size_hint().lower() > self.max_body {
                return Err(Fault::TooLarge);
            }
            let edits = self.request_headers.clone();
            let upload = Upload::new(received.clone().unwrap_or_default(), self.max_body, edits);
            let (body, release) = Source::request(body);
            let body = Timed::request(body, idle, Arc::clone(&upload));
            (Some(upload), Some(release), Sent::of(body))
        };
        let request = Request::from_parts(parts, body);
        let exchanged = self.exchange(request, upload.as_deref(), upgrade.is_some()).await;
        let (mut response, lease, member) = exchanged?;
        // The version of the upstream's connection is not the version of the client's connection.
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, lease, member, upgrade);
        }
        let headers = response.headers_mut();
        if headers.contains_key(TRANSFER_ENCODING) {
            if !hop::is_merely_chunked(headers) {
                let what = "the answer has a transfer coding other than `chunked`";
                return Err(self.invalid(member, what));
            }
            // If both are there, the encoding counts (RFC 9112 §6.3). A client that trusted the
            // length would read the rest of this answer as the next answer.
            headers.remove(CONTENT_LENGTH);
        }
        hop::remove(headers, &[]);
        let prefix = self.strip_prefix.as_ref().map_or("", |Prefix(prefix, _)| prefix);
        rewrite::redirect(headers, &member.address, prefix);
        self.response_headers.apply(headers);
        // Some upstreams misread the connection after they have rejected an upgrade.
        let lease = upgrade.is_none().then_some(lease);
        let release = release.filter(|_| !received.is_some_and(|it| it.is_whole()));
        Ok(response.map(|body| {
            let health = Arc::clone(&member.health);
            Body::of(Timed::response(Source::Response(body), idle, health, lease))
                .releasing(release)
        }))
    }

    /// The client's upgrade request, if there is one.
    ///
    /// The place for the tunnel is reserved before the request is sent. Otherwise the upstream
    /// might accept an upgrade while the gateway has no room.
    fn take_upgrade(&self, request: &mut Request<Admitted>) -> Result<Option<Upgrade>, Fault> {
        let Some(protocols) = request.body_mut().upgrade.take() else { return Ok(None) };
        let place = self.common.tunnels.room().ok_or(Fault::Crowded)?;
        Ok(Some(Upgrade { protocols, client: hyper::upgrade::on(request), place }))
    }

    fn describe(&self, parts: &mut Parts, admitted: &Admitted, upgrade: Option<&Upgrade>) {
        let Common { trusted_proxies, identity, via, .. } = &self.common;
        // HTTP/2 has no upgrades of this kind.
        let is_http1 = upgrade.is_some() || self.group.protocol == Protocol::Http1;
        let (headers, body) = (&mut parts.headers, &admitted.body);
        let reads_trailers = hop::reads_trailers(headers);
        hop::remove(headers, identity);
        let host = admitted.host.as_ref().map(Authority::as_str);
        forwarded::write(headers, &admitted.connection, host, trusted_proxies);
        via.append_to(headers, parts.version);
        if !is_http1 {
            headers.remove(HOST);
        }
        if let Some(Prefix(_, prefix)) = &self.strip_prefix {
            headers.insert(forwarded::PATH_PREFIX, prefix.clone());
        }
        if let Some(edits) = &self.request_headers {
            edits.apply(headers);
        }
        if reads_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if is_http1 {
            if let Some(Upgrade { protocols, .. }) = upgrade {
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocols.clone());
            } else if reads_trailers {
                headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                // Without this header, hyper does not send the body of a GET or HEAD.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        parts.version = if is_http1 { Version::HTTP_11 } else { Version::HTTP_2 };
        // The extensions are not meant for the connection to the upstream.
        parts.extensions = Extensions::new();
    }

    /// The path at the servers, if it differs from the path of the client.
    fn path(&self, sent: &Uri, base: &str) -> Result<Option<PathAndQuery>, Fault> {
        let path = sent.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = match &self.strip_prefix {
            Some(Prefix(prefix, _)) => {
                // Another reading of the path could be outside the prefix and evade its limits.
                if let Some(escape) = ambiguity(sent.path()) {
                    return Err(PathFault::Ambiguous(escape).into());
                }
                rewrite::strip(path, prefix).ok_or(Fault::NoRoute)?
            }
            None if base.is_empty() => return Ok(sent.path_and_query().cloned()),
            None => path,
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = PathAndQuery::try_from(format!("{base}{slash}{path}"));
        path.map(Some).map_err(|_| Fault::Host)
    }

    /// Sends the request, and repeats it if that is harmless: the upstream may close a connection
    /// at the moment when the gateway reuses it. If a request could not be sent to a server, the
    /// next server gets it.
    async fn exchange(
        &self,
        mut request: Request<Sent>,
        upload: Option<&Upload>,
        is_upgrade: bool,
    ) -> Result<(Response<Incoming>, Lease, &Arc<Member>), Fault> {
        let group = &*self.group;
        let is_http1 = is_upgrade || group.protocol == Protocol::Http1;
        let own_host =
            is_http1 && (self.host == Host::Target || !request.headers().contains_key(HOST));
        let sent = (self.changes_target || !is_http1 || request.uri().path_and_query().is_none())
            .then(|| request.uri().clone());
        let may_repeat = upload.is_none() && is_harmless(request.method());
        let mut was_repeated = false;
        let mut tried = Tried::default();
        let mut member = group.choose(&mut tried).ok_or(Fault::NoRoute)?;
        loop {
            if let Some(sent) = &sent {
                let path = self.path(sent, &member.address.base_path)?;
                let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
                // The parts are valid, so the URI is valid, too.
                *request.uri_mut() = member.target(path, is_http1).map_err(|_| Fault::Host)?;
            }
            if own_host {
                request.headers_mut().insert(HOST, member.host.clone());
            }
            let busy = group.busy(member);
            let lease = if is_upgrade {
                Box::pin(member.upgrades.lease_new()).await
            } else {
                member.pool.lease().await
            };
            let mut lease = match lease {
                Ok(lease) => lease,
                Err(error) => {
                    let fault = self.fault(member, &error);
                    member = group.choose(&mut tried).ok_or(fault)?;
                    continue;
                }
            };
            lease.counting(busy);
            let again = (may_repeat && !was_repeated).then(|| {
                let mut again = Request::new(Sent::default());
                again.method_mut().clone_from(request.method());
                again.uri_mut().clone_from(request.uri());
                again.version_mut().clone_from(&request.version());
                again.headers_mut().clone_from(request.headers());
                again
            });
            let begun = Instant::now();
            let Unanswered { error, unsent } = match lease.send(request, upload).await {
                Ok(response) => {
                    Group::answered(member, response.status(), begun.elapsed());
                    return Ok((response, lease, member));
                }
                Err(unanswered) => unanswered,
            };
            let again = again.filter(|_| broke_off(&error) && !lease.has_begun());
            match (unsent, again) {
                // This idle connection was already closed. Other idle connections may be open.
                (Some(unsent), _) if lease.is_reused() => request = unsent,
                (unsent, again) => {
                    let may_stay = again.is_some();
                    let Some(next) = unsent.or(again) else {
                        return Err(self.fault(member, &error));
                    };
                    (request, was_repeated) = (next, true);
                    match group.choose(&mut tried) {
                        Some(other) => {
                            self.fault(member, &error);
                            member = other;
                        }
                        None if may_stay => {}
                        None => return Err(self.fault(member, &error)),
                    }
                }
            }
        }
    }

    /// The fault for the client. The log has the details.
    fn fault(&self, member: &Member, error: &SendError) -> Fault {
        let fault = Fault::of(error);
        // All other faults are the client's.
        if fault.status().is_server_error() {
            let cause: Option<&dyn Error> = match error {
                SendError::Connect(cause) => Some(&**cause),
                SendError::Http(error) => Some(error),
                _ => None,
            };
            member.health.failed(fault.code(), &fault, cause);
            if fault != Fault::Full {
                self.group.failed(member);
            }
        }
        fault
    }

    /// An answer that cannot be passed on.
    fn invalid(&self, member: &Member, why: &str) -> Fault {
        member.health.failed(Fault::BadAnswer.code(), &why, None);
        self.group.failed(member);
        Fault::BadAnswer
    }

    fn switch(
        &self,
        mut response: Response<Incoming>,
        mut lease: Lease,
        member: &Member,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Body>, Fault> {
        let what = "the answer is a change of protocol that was not asked for";
        let unasked = || self.invalid(member, what);
        let Upgrade { protocols, client, place } = upgrade.ok_or_else(unasked)?;
        if !hop::was_asked_for(response.headers(), &protocols) {
            return Err(unasked());
        }
        let upstream = hyper::upgrade::on(&mut response);
        let idle = self.common.clients.timeouts().tunnel;
        self.common.tunnels.open(client, upstream, (place, lease.take_busy()), idle);
        let headers = response.headers_mut();
        let answered = headers.get(UPGRADE).cloned();
        hop::remove(headers, &[]);
        self.response_headers.apply(headers);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.extend(answered.map(|protocol| (UPGRADE, protocol)));
        Ok(response.map(|_| Body::empty()))
    }
}

struct Upgrade {
    protocols: HeaderValue,
    client: OnUpgrade,
    place: Place,
}

fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether the connection ended before the head of the answer was complete.
fn broke_off(error: &SendError) -> bool {
    let SendError::Http(error) = error else { return false };
    error.is_incomplete_message() || error.is_canceled() || is_reset(error)
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    })
}
