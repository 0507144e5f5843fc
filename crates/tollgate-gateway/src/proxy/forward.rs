//! One request to one upstream and back.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Error as ClientError;
use hyper_util::client::legacy::connect::capture_connection;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use super::body::{Body, Received, Timed, Upload};
use super::client::Clients;
use super::failures::{Failures, Health};
use super::fault::Fault;
use super::forwarded::{self, Caller, Fronts};
use super::settings::{Host, Protocol, Upstream};
use super::socket::has_begun;
use super::source::{Release, Source};
use super::tunnel::{Place, Tunnels};
use super::{Connection, hop};

/// Forwards requests to one upstream. Clones share its connections.
///
/// It takes requests that [`admit`](super::admit) has been over, with the peer's
/// `SocketAddr` and a [`Connection`] in their extensions.
#[derive(Clone, Debug)]
pub struct Forward {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    common: Common,
    health: Arc<Health>,
}

/// The settings that all upstreams have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// The proxies in front of us.
    pub fronts: Fronts,
    /// The fields that identify clients and that the configuration names.
    pub identity: Arc<[HeaderName]>,
    /// Connections to upstreams.
    pub clients: Clients,
    /// Connections that have changed to another protocol.
    pub tunnels: Tunnels,
    /// Failures of upstreams in the log.
    pub failures: Failures,
    /// The name in `Via`. A request that carries it has come through here before.
    pub name: Arc<str>,
}

impl Forward {
    /// Forwards to `upstream`.
    pub fn new(upstream: Upstream, common: Common) -> Self {
        let health = common.failures.of(&upstream.authority);
        Self { shared: Arc::new(Shared { upstream, common, health }) }
    }
}

impl Service<Request<Incoming>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let answer = shared.forward(request).await;
            Ok(answer.unwrap_or_else(Fault::response))
        })
    }
}

impl Shared {
    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Fault> {
        if forwarded::has_passed(request.headers(), &self.common.name) {
            return Err(Fault::Loop);
        }
        let upgrade = self.take_upgrade(&mut request)?;
        let received = request.extensions().get::<Received>().cloned().unwrap_or_default();
        // HTTP/2 has no such upgrades.
        let protocol = if upgrade.is_some() { Protocol::Http1 } else { self.upstream.protocol };
        self.readdress(&mut request, protocol, upgrade.as_ref())?;
        let (mut response, body) = self.exchange(request, protocol, received.clone()).await?;
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
        let idle = self.clients().timeouts().body;
        let health = Arc::clone(&self.health);
        let body = body.filter(|_| !received.is_whole());
        Ok(response.map(|response| {
            let response = Timed::response(Source::Response(response), idle, health);
            Body::of(response).releasing(body)
        }))
    }

    const fn clients(&self) -> &Clients {
        &self.common.clients
    }

    /// The client's wish to change to another protocol, if it has one.
    ///
    /// Room is taken before the upstream is asked: it might open what nobody can use.
    fn take_upgrade(&self, request: &mut Request<Incoming>) -> Result<Option<Upgrade>, Fault> {
        let protocols = hop::upgrade(request.headers());
        let Some(protocols) = protocols.filter(|_| request.version() == Version::HTTP_11) else {
            return Ok(None);
        };
        let place = self.common.tunnels.room().ok_or(Fault::Crowded)?;
        Ok(Some(Upgrade { protocols, client: hyper::upgrade::on(request), place }))
    }

    /// From what the client wrote to what the upstream gets.
    fn readdress(
        &self,
        request: &mut Request<Incoming>,
        protocol: Protocol,
        upgrade: Option<&Upgrade>,
    ) -> Result<(), Fault> {
        let Common { fronts, identity, name, .. } = &self.common;
        let connection = request.extensions().get::<Connection>().copied();
        // Whoever serves us without a word about the connection is no server of ours.
        let connection = connection.ok_or(Fault::Host)?;
        let version = request.version();
        let reads_trailers = hop::reads_trailers(request.headers());
        let target = self.target(request.uri())?;
        let has_unknown_length =
            !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
        let headers = request.headers_mut();
        hop::remove(headers, identity);
        let host = headers.get(HOST).cloned();
        let caller = Caller {
            peer: connection.peer,
            is_tls: connection.is_tls,
            host: host.as_ref().and_then(|host| host.to_str().ok()),
        };
        forwarded::write(headers, caller, fronts);
        forwarded::append_via(headers, version, name);
        if protocol == Protocol::Http2 || self.upstream.host == Host::Target {
            // The client writes that of the target.
            headers.remove(HOST);
        }
        if reads_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if protocol == Protocol::Http1 {
            if let Some(Upgrade { protocols, .. }) = upgrade {
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocols.clone());
            } else if reads_trailers {
                headers.insert(CONNECTION, HeaderValue::from_static("te"));
            }
            if has_unknown_length {
                // Without this field, hyper sends no body of a GET or HEAD.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        *request.uri_mut() = target;
        *request.version_mut() = match protocol {
            Protocol::Http1 => Version::HTTP_11,
            Protocol::Http2 => Version::HTTP_2,
        };
        // None of it is meant for the connection to the upstream.
        request.extensions_mut().clear();
        Ok(())
    }

    fn target(&self, uri: &Uri) -> Result<Uri, Fault> {
        let sent = uri.path_and_query().cloned();
        let path = match (sent, self.upstream.base_path.as_str()) {
            (Some(sent), "") => sent,
            (sent, base) => {
                let sent = sent.as_ref().map_or("/", PathAndQuery::as_str);
                PathAndQuery::try_from(format!("{base}{sent}")).map_err(|_| Fault::Host)?
            }
        };
        let target = Uri::builder()
            .scheme(self.upstream.scheme.clone())
            .authority(self.upstream.authority.clone())
            .path_and_query(path);
        // Its parts are valid, and so is the whole.
        target.build().map_err(|_| Fault::Host)
    }

    /// Sends the request, and once more where that is harmless: the upstream may close a
    /// connection at the moment in which we use it again.
    async fn exchange(
        &self,
        request: Request<Incoming>,
        protocol: Protocol,
        received: Received,
    ) -> Result<(Response<Incoming>, Option<Release>), Fault> {
        let idle = self.clients().timeouts().body;
        let upload = Upload::new(received);
        let (parts, body) = request.into_parts();
        if !body.is_end_stream() {
            let (body, release) = Source::request(body);
            let body = Body::of(Timed::request(body, idle, Arc::clone(&upload)));
            let request = Request::from_parts(parts, body);
            return match self.send(request, protocol, &upload).await {
                Ok(response) => Ok((response, Some(release))),
                Err(failure) => Err(self.fault(failure)),
            };
        }
        let again = is_harmless(&parts.method).then(|| parts.clone());
        let mut sent =
            self.send(Request::from_parts(parts, Body::empty()), protocol, &upload).await;
        if let (Err(Failure::Client(error)), Some(parts)) = (&sent, again)
            && broke_off(error)
            && !has_begun(error)
        {
            sent = self.send(Request::from_parts(parts, Body::empty()), protocol, &upload).await;
        }
        sent.map(|response| (response, None)).map_err(|failure| self.fault(failure))
    }

    async fn send(
        &self,
        mut request: Request<Body>,
        protocol: Protocol,
        upload: &Upload,
    ) -> Result<Response<Incoming>, Failure> {
        let timeouts = self.clients().timeouts();
        let mut connection = capture_connection(&mut request);
        let mut answer = std::pin::pin!(self.clients().request(protocol, request));
        tokio::select! {
            biased;
            answer = &mut answer => return answer.map_err(Failure::Client),
            _ = connection.wait_for_connection_metadata() => {}
            // The connector has this limit too, for each attempt. Over HTTP/2 a request can wait
            // for several attempts of other requests.
            () = sleep(timeouts.connect) => return Err(Failure::NoConnection),
        }
        // The time of the answer begins now, and again with each piece of the body.
        let connected = Instant::now();
        let mut deadline = std::pin::pin!(sleep_until(connected + timeouts.response));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.map_err(Failure::Client),
                () = &mut deadline => {
                    let due = upload.complete_since().max(connected) + timeouts.response;
                    if due <= Instant::now() {
                        return Err(Failure::Silence);
                    }
                    deadline.as_mut().reset(due);
                }
            }
        }
    }

    /// What the client is told; the log says more.
    fn fault(&self, failure: Failure) -> Fault {
        match failure {
            Failure::Silence => self.failed(Fault::AnswerTimeout, &Fault::AnswerTimeout, None),
            Failure::NoConnection => {
                let is_full = self.clients().is_full(&self.upstream.authority);
                let fault = if is_full { Fault::Full } else { Fault::ConnectTimeout };
                self.failed(fault, &fault, None)
            }
            Failure::Client(error) => {
                let fault = Fault::of(&error);
                // Other faults are those of the client.
                if fault.status().is_server_error() {
                    return self.failed(fault, &fault, Some(&error));
                }
                fault
            }
        }
    }

    /// An answer that cannot be passed on.
    fn invalid(&self, why: &str) -> Fault {
        self.failed(Fault::BadAnswer, &why, None)
    }

    fn failed(
        &self,
        fault: Fault,
        what: &dyn fmt::Display,
        error: Option<&(dyn Error + 'static)>,
    ) -> Fault {
        self.health.failed(fault.code(), what, error);
        fault
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
        let idle = self.clients().timeouts().tunnel;
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

/// Why there is no answer.
enum Failure {
    Client(ClientError),
    NoConnection,
    Silence,
}

/// Whether it makes no difference to send the request once more.
fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether the connection ended before the head of an answer did.
fn broke_off(error: &ClientError) -> bool {
    let mut source = Error::source(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            return error.is_incomplete_message() || error.is_canceled() || is_reset(error);
        }
        source = cause.source();
    }
    false
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    })
}
