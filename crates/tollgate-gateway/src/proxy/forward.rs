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
use tower_service::Service;

use super::body::{Body, Sent, Timed, Upload};
use super::client::{self, Clients};
use super::entrance::Admitted;
use super::failures::{Failures, Health};
use super::fault::Fault;
use super::forwarded::{self, TrustedProxies, Via};
use super::hop;
use super::pool::{Lease, Pool, SendError};
use super::settings::{Host, Protocol, Timeouts, Upstream};
use super::source::Source;
use super::tunnel::{Place, Tunnels};

/// Forwards requests to one upstream. Clones share its connections.
///
/// It takes requests that [`admit`](super::admit) has been over.
#[derive(Clone, Debug)]
pub struct Forward {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    common: Common,
    health: Arc<Health>,
    pool: Arc<Pool>,
    /// For requests that ask for another protocol, which HTTP/2 cannot carry.
    upgrades: Arc<Pool>,
    /// The `Host` of the upstream itself.
    host: HeaderValue,
}

/// The settings that all upstreams have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The proxies in front of us.
    pub trusted_proxies: TrustedProxies,
    /// The fields that identify clients and that the configuration names.
    pub identity: Arc<[HeaderName]>,
    /// Connections to upstreams.
    pub clients: Clients,
    /// Connections that have changed to another protocol.
    pub tunnels: Tunnels,
    /// Failures of upstreams in the log.
    pub failures: Failures,
    /// The element of `Via`. A request that carries it has come through here before.
    pub via: Via,
}

impl Forward {
    /// Forwards to `upstream`.
    ///
    /// # Errors
    /// The upstream has no valid address.
    pub fn new(upstream: Upstream, common: Common) -> Result<Self, http::Error> {
        let health = common.failures.of(&upstream.authority);
        let Upstream { scheme, authority, .. } = &upstream;
        let pool = common.clients.pool(scheme, authority, upstream.protocol)?;
        let upgrades = common.clients.pool(scheme, authority, Protocol::Http1)?;
        let host = client::host(scheme, authority)?;
        Ok(Self { shared: Arc::new(Shared { upstream, common, health, pool, upgrades, host }) })
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
        self.readdress(&mut parts, &admitted, upgrade.as_ref())?;
        let Admitted { body, received, .. } = admitted;
        let (upload, release, body) = if body.is_end_stream() {
            (None, None, Sent::default())
        } else {
            let upload = Upload::new(received.clone().unwrap_or_default());
            let (body, release) = Source::request(body);
            let body = Timed::request(body, self.timeouts().body, Arc::clone(&upload));
            (Some(upload), Some(release), Sent::of(body))
        };
        let request = Request::from_parts(parts, body);
        let exchanged = self.exchange(request, upload.as_deref(), upgrade.is_some()).await;
        let (mut response, lease) = exchanged.map_err(|error| self.fault(&error))?;
        // What the upstream spoke with us is not what we speak with the client.
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, upgrade);
        }
        let headers = response.headers_mut();
        if headers.contains_key(TRANSFER_ENCODING) {
            if !hop::is_merely_chunked(headers) {
                return Err(self.invalid("the answer has a transfer coding other than `chunked`"));
            }
            // The encoding counts, and the length of who says both is a lie (RFC 9112 §6.3);
            // whoever read our answer by it would take its rest for another one.
            headers.remove(CONTENT_LENGTH);
        }
        hop::remove(headers, &[]);
        self.health.answered();
        // An upgrade that was refused leaves a connection that some upstreams misread.
        let lease = upgrade.is_none().then_some(lease);
        let release = release.filter(|_| !received.is_some_and(|it| it.is_whole()));
        Ok(response.map(|body| {
            let (idle, health) = (self.timeouts().body, Arc::clone(&self.health));
            Body::of(Timed::response(Source::Response(body), idle, health, lease))
                .releasing(release)
        }))
    }

    fn timeouts(&self) -> &Timeouts {
        self.pool.timeouts()
    }

    /// The client's wish to change to another protocol, if it has one.
    ///
    /// Room is taken before the upstream is asked: it might open what nobody can use.
    fn take_upgrade(&self, request: &mut Request<Admitted>) -> Result<Option<Upgrade>, Fault> {
        let Some(protocols) = request.body_mut().upgrade.take() else { return Ok(None) };
        let place = self.common.tunnels.room().ok_or(Fault::Crowded)?;
        Ok(Some(Upgrade { protocols, client: hyper::upgrade::on(request), place }))
    }

    /// From what the client wrote to what the upstream gets.
    fn readdress(
        &self,
        parts: &mut Parts,
        admitted: &Admitted,
        upgrade: Option<&Upgrade>,
    ) -> Result<(), Fault> {
        let Common { trusted_proxies, identity, via, .. } = &self.common;
        // HTTP/2 has no such upgrades.
        let is_http1 = upgrade.is_some() || self.upstream.protocol == Protocol::Http1;
        let (headers, body) = (&mut parts.headers, &admitted.body);
        let reads_trailers = hop::reads_trailers(headers);
        hop::remove(headers, identity);
        let host = admitted.host.as_ref().map(Authority::as_str);
        forwarded::write(headers, &admitted.connection, host, trusted_proxies);
        via.append_to(headers, parts.version);
        if !is_http1 {
            headers.remove(HOST);
        } else if self.upstream.host == Host::Target || !headers.contains_key(HOST) {
            headers.insert(HOST, self.host.clone());
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
                // Without this field, hyper sends no body of a GET or HEAD.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        if let Some(target) = self.target(&parts.uri, is_http1)? {
            parts.uri = target;
        }
        parts.version = if is_http1 { Version::HTTP_11 } else { Version::HTTP_2 };
        // None of it is meant for the connection to the upstream.
        parts.extensions = Extensions::new();
        Ok(())
    }

    /// The target of the request, unless it is the one that the client sent.
    fn target(&self, uri: &Uri, is_http1: bool) -> Result<Option<Uri>, Fault> {
        let base = self.upstream.base_path.as_str();
        let sent = uri.path_and_query();
        let path = match sent {
            Some(_) if base.is_empty() && is_http1 => return Ok(None),
            Some(sent) if base.is_empty() => sent.clone(),
            _ => {
                let sent = sent.map_or("/", PathAndQuery::as_str);
                PathAndQuery::try_from(format!("{base}{sent}")).map_err(|_| Fault::Host)?
            }
        };
        if is_http1 {
            return Ok(Some(path.into()));
        }
        let target = Uri::builder()
            .scheme(self.upstream.scheme.clone())
            .authority(self.upstream.authority.clone())
            .path_and_query(path);
        // Its parts are valid, and so is the whole.
        target.build().map(Some).map_err(|_| Fault::Host)
    }

    /// Sends the request, and once more where that is harmless: the upstream may close a
    /// connection at the moment in which we use it again.
    async fn exchange(
        &self,
        mut request: Request<Sent>,
        upload: Option<&Upload>,
        is_upgrade: bool,
    ) -> Result<(Response<Incoming>, Lease), SendError> {
        let may_repeat = upload.is_none() && is_harmless(request.method());
        let mut was_repeated = false;
        loop {
            let mut lease = if is_upgrade {
                Box::pin(self.upgrades.lease_new()).await?
            } else {
                self.pool.lease().await?
            };
            let again = (may_repeat && !was_repeated).then(|| {
                let mut again = Request::new(Sent::default());
                again.method_mut().clone_from(request.method());
                again.uri_mut().clone_from(request.uri());
                again.version_mut().clone_from(&request.version());
                again.headers_mut().clone_from(request.headers());
                again
            });
            let unanswered = match lease.send(request, upload).await {
                Ok(response) => return Ok((response, lease)),
                Err(unanswered) => unanswered,
            };
            request = match (unanswered.unsent, again) {
                (Some(unsent), _) if lease.is_reused() => unsent,
                (_, Some(again)) if broke_off(&unanswered.error) && !lease.has_begun() => {
                    was_repeated = true;
                    again
                }
                _ => return Err(unanswered.error),
            };
        }
    }

    /// What the client is told; the log says more.
    fn fault(&self, error: &SendError) -> Fault {
        let fault = Fault::of(error);
        // Other faults are those of the client.
        if fault.status().is_server_error() {
            let cause: Option<&dyn Error> = match error {
                SendError::Connect(cause) => Some(&**cause),
                SendError::Http(error) => Some(error),
                _ => None,
            };
            self.health.failed(fault.code(), &fault, cause);
        }
        fault
    }

    /// An answer that cannot be passed on.
    fn invalid(&self, why: &str) -> Fault {
        self.health.failed(Fault::BadAnswer.code(), &why, None);
        Fault::BadAnswer
    }

    /// The upstream has changed to another protocol.
    fn switch(
        &self,
        mut response: Response<Incoming>,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Body>, Fault> {
        let unasked = || self.invalid("the answer is a change of protocol that was not asked for");
        let Upgrade { protocols, client, place } = upgrade.ok_or_else(unasked)?;
        if !hop::was_asked_for(response.headers(), &protocols) {
            return Err(unasked());
        }
        self.health.answered();
        let upstream = hyper::upgrade::on(&mut response);
        let idle = self.timeouts().tunnel;
        self.common.tunnels.open(client, upstream, place, idle);
        let headers = response.headers_mut();
        let answered = headers.get(UPGRADE).cloned();
        hop::remove(headers, &[]);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.extend(answered.map(|protocol| (UPGRADE, protocol)));
        Ok(response.map(|_| Body::empty()))
    }
}

/// A client that would like to change to another protocol, and room for that.
struct Upgrade {
    protocols: HeaderValue,
    client: OnUpgrade,
    place: Place,
}

/// Whether it makes no difference to send the request once more.
fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether the connection ended before the head of an answer did.
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
