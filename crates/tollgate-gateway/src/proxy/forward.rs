//! One request to one upstream and back.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Error as ClientError;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::body::{Body, Received, Timed, Upload};
use super::client::Clients;
use super::fault::Fault;
use super::forwarded::{self, Caller, Fronts};
use super::settings::{Host, Protocol, Upstream};
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
    fronts: Fronts,
    clients: Clients,
    tunnels: Tunnels,
    name: Arc<str>,
}

impl Forward {
    /// Forwards to `upstream`, over `clients`. `name` is what stands in `Via`; a request
    /// that carries it has come through here before.
    pub fn new(
        upstream: Upstream,
        fronts: Fronts,
        clients: Clients,
        tunnels: Tunnels,
        name: Arc<str>,
    ) -> Self {
        Self { shared: Arc::new(Shared { upstream, fronts, clients, tunnels, name }) }
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
        if forwarded::has_passed(request.headers(), &self.name) {
            return Err(Fault::Loop);
        }
        let upgrade = self.take_upgrade(&mut request)?;
        let received = request.extensions().get::<Received>().cloned().unwrap_or_default();
        // HTTP/2 has no such upgrades.
        let protocol = if upgrade.is_some() { Protocol::Http1 } else { self.upstream.protocol };
        self.readdress(&mut request, protocol)?;
        let mut response = self.exchange(request, protocol, received).await?;
        // What the upstream spoke with us is not what we speak with the client.
        *response.version_mut() = Version::HTTP_11;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(response, upgrade);
        }
        let headers = response.headers_mut();
        if headers.contains_key(TRANSFER_ENCODING) {
            if !hop::is_merely_chunked(headers) {
                return Err(Fault::BadAnswer);
            }
            // The encoding counts, and the length of who says both is a lie (RFC 9112 §6.3);
            // whoever read our answer by it would take its rest for another one.
            headers.remove(CONTENT_LENGTH);
        }
        hop::remove(headers);
        let idle = self.clients.timeouts().body;
        Ok(response.map(|body| Body::of(Timed::new(body, idle))))
    }

    /// The client's wish to change to another protocol, if it has one.
    ///
    /// Room is taken before the upstream is asked: it might open what nobody can use.
    fn take_upgrade(&self, request: &mut Request<Incoming>) -> Result<Option<Upgrade>, Fault> {
        if request.version() != Version::HTTP_11 || hop::upgrade(request.headers()).is_none() {
            return Ok(None);
        }
        let place = self.tunnels.room().ok_or(Fault::Crowded)?;
        Ok(Some(Upgrade { client: hyper::upgrade::on(request), place }))
    }

    /// From what the client wrote to what the upstream gets.
    fn readdress(&self, request: &mut Request<Incoming>, protocol: Protocol) -> Result<(), Fault> {
        let connection = request.extensions().get::<Connection>().copied();
        // Whoever serves us without a word about the connection is no server of ours.
        let connection = connection.ok_or(Fault::Host)?;
        let version = request.version();
        let upgrade = hop::upgrade(request.headers());
        let reads_trailers = hop::reads_trailers(request.headers());
        let target = self.target(request.uri())?;
        let headers = request.headers_mut();
        hop::remove(headers);
        let host = headers.get(HOST).cloned();
        let caller = Caller {
            peer: connection.peer,
            is_tls: connection.is_tls,
            host: host.as_ref().and_then(|host| host.to_str().ok()),
        };
        forwarded::write(headers, caller, &self.fronts);
        forwarded::append_via(headers, version, &self.name);
        if protocol == Protocol::Http2 || self.upstream.host == Host::Target {
            // The client writes that of the target.
            headers.remove(HOST);
        }
        if reads_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if protocol == Protocol::Http1 {
            if let Some(protocols) = upgrade {
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(UPGRADE, protocols);
            } else if reads_trailers {
                headers.insert(CONNECTION, HeaderValue::from_static("te"));
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
    ) -> Result<Response<Incoming>, Fault> {
        let idle = self.clients.timeouts().body;
        let upload = Upload::new(received);
        let (parts, body) = request.into_parts();
        if !body.is_end_stream() {
            let body = Body::of(Timed::new(body, idle).watched(Arc::clone(&upload)));
            let request = Request::from_parts(parts, body);
            return self
                .send(request, protocol, &upload)
                .await
                .map_err(|failure| self.fault(failure));
        }
        let again = is_harmless(&parts.method).then(|| parts.clone());
        let mut sent =
            self.send(Request::from_parts(parts, Body::empty()), protocol, &upload).await;
        if let (Err(Failure::Client(error)), Some(parts)) = (&sent, again)
            && broke_off(error)
        {
            sent = self.send(Request::from_parts(parts, Body::empty()), protocol, &upload).await;
        }
        sent.map_err(|failure| self.fault(failure))
    }

    async fn send(
        &self,
        request: Request<Body>,
        protocol: Protocol,
        upload: &Upload,
    ) -> Result<Response<Incoming>, Failure> {
        let patience = self.clients.timeouts().response;
        let mut answer = std::pin::pin!(self.clients.request(protocol, request));
        // Connecting has a limit of its own, and is not the time of the answer.
        let mut deadline = std::pin::pin!(sleep_until(Instant::now() + patience));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.map_err(Failure::Client),
                () = &mut deadline => {
                    let due = upload.complete_since() + patience;
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
        let upstream = &self.upstream.authority;
        match failure {
            Failure::Silence => {
                tracing::warn!(%upstream, "the upstream did not answer in time");
                Fault::AnswerTimeout
            }
            Failure::Client(error) => {
                let fault = Fault::of(&error);
                if fault.status().is_server_error() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%upstream, error, "{fault}");
                }
                fault
            }
        }
    }

    /// The upstream has changed to another protocol.
    fn switch(
        &self,
        mut response: Response<Incoming>,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Body>, Fault> {
        // Nobody asked for it.
        let Upgrade { client, place } = upgrade.ok_or(Fault::BadAnswer)?;
        let upstream = hyper::upgrade::on(&mut response);
        self.tunnels.open(client, upstream, place, self.clients.timeouts().tunnel);
        let headers = response.headers_mut();
        let protocol = headers.get(UPGRADE).cloned().ok_or(Fault::BadAnswer)?;
        hop::remove(headers);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        Ok(response.map(|_| Body::empty()))
    }
}

/// A client that would like to change to another protocol, and room for that.
struct Upgrade {
    client: OnUpgrade,
    place: Place,
}

/// Why there is no answer.
enum Failure {
    Client(ClientError),
    Silence,
}

/// Whether it makes no difference to send the request once more.
fn is_harmless(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether the connection ended before a byte of an answer came.
fn broke_off(error: &ClientError) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            return error.is_incomplete_message() || error.is_canceled() || is_reset(error);
        }
        source = cause.source();
    }
    false
}

fn is_reset(error: &hyper::Error) -> bool {
    let io = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    })
}
