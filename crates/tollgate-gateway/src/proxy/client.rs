//! Connections to upstreams, kept for further requests.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::UPGRADE;
use http::uri::Authority;
use http::{Request, Uri};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_rustls::rustls::{self, ClientConfig};
use tower_service::Service;

use super::body::Body;
use super::bound::PerTarget;
use super::settings::{Protocol, Timeouts};
use super::socket::Socket;
use crate::flow::Paced;

type Pool = Client<Patient<HttpsConnector<HttpConnector>>, Sent>;

/// In a box, because each connection has room for some dozen requests with their bodies.
type Sent = Pin<Box<Paced<Body>>>;

/// Pools of connections to any number of upstreams. Clones share them.
///
/// They outlive a reload: whoever made new ones each time would connect anew each time, and
/// leave the old connections to their timeouts.
#[derive(Clone, Debug)]
pub struct Clients {
    http1: Pool,
    http2: Pool,
    /// HTTP/1 for upgrades. It keeps no connection: some upstreams take a connection for upgraded
    /// although their answer denies the upgrade, and would misread the next request on it.
    upgrades: Pool,
    bound: PerTarget,
    timeouts: Timeouts,
    /// Whether they know which certificates to trust.
    tls: bool,
}

/// TLS to upstreams cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificates that this system trusts cannot be read: {0}; install the package \
     `ca-certificates`, or name a file in the variable SSL_CERT_FILE"
)]
pub struct RootsError(std::io::Error);

impl Clients {
    /// Empty pools, with at most `per_target` connections to each upstream.
    ///
    /// `tls` says whether any upstream is spoken to over TLS: without one the certificates of
    /// the system are not needed.
    ///
    /// # Errors
    /// See [`RootsError`].
    pub fn new(timeouts: Timeouts, tls: bool, per_target: usize) -> Result<Self, RootsError> {
        let bound = PerTarget::at_most(per_target);
        let config = tls_config(tls)?;
        let builder = || {
            let mut builder = Client::builder(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(timeouts.pool)
                .http1_max_buf_size(HEAD_BYTES)
                .http2_initial_stream_window_size(STREAM_BYTES)
                .http2_initial_connection_window_size(CONNECTION_BYTES);
            builder
        };
        let connector = || HttpsConnectorBuilder::new().with_tls_config(config.clone());
        let patient = |inner, protocol| {
            let bound = bound.clone();
            Patient { inner, limit: timeouts.connect, protocol, bound }
        };
        let http1 = connector().https_or_http().enable_http1().wrap_connector(tcp());
        let http1 = patient(http1, Protocol::Http1);
        let http2 = connector().https_or_http().enable_http2().wrap_connector(tcp());
        let http2 = patient(http2, Protocol::Http2);
        Ok(Self {
            http1: builder().build(http1.clone()),
            http2: builder().http2_only(true).build(http2),
            upgrades: builder().pool_max_idle_per_host(0).build(http1),
            bound,
            timeouts,
            tls,
        })
    }

    /// Whether new ones, made with these, would do nothing that these do not.
    pub fn fit(&self, timeouts: Timeouts, tls: bool, per_target: usize) -> bool {
        self.timeouts == timeouts && (self.tls || !tls) && self.bound.most() == per_target
    }

    pub(super) const fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Whether an upstream has as many connections as it may have.
    pub(super) fn is_full(&self, upstream: &Authority) -> bool {
        self.bound.is_full(upstream)
    }

    pub(crate) fn request(&self, protocol: Protocol, request: Request<Body>) -> ResponseFuture {
        let request = request.map(|body| Box::pin(Paced::request(body)));
        match protocol {
            Protocol::Http1 if request.headers().contains_key(UPGRADE) => {
                self.upgrades.request(request)
            }
            Protocol::Http1 => self.http1.request(request),
            Protocol::Http2 => self.http2.request(request),
        }
    }
}

/// The most bytes of the head of a response.
const HEAD_BYTES: usize = 64 << 10;

/// How much of one response over HTTP/2 waits here for a client that reads slowly.
const STREAM_BYTES: u32 = 256 << 10;

/// As much as HTTP/2 knows, so that only the window of a stream ever is used up. All requests
/// share the connection: if it had a window to fill, one client that does not read would hold
/// up the responses of all others.
const CONNECTION_BYTES: u32 = (1 << 31) - 1;

/// What a client of TLS needs; without `trusting` it trusts nobody.
pub(crate) fn tls_config(trusting: bool) -> Result<ClientConfig, RootsError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| RootsError(std::io::Error::other(error)))?;
    let builder = if trusting {
        builder.with_native_roots().map_err(RootsError)?
    } else {
        builder.with_root_certificates(rustls::RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    // A request is sent in few large pieces: to wait for more of them only delays it.
    connector.set_nodelay(true);
    connector
}

/// Waits until its target may have another connection, gives up on one that takes too long, TLS
/// included, and notes when an answer begins.
#[derive(Clone, Debug)]
struct Patient<C> {
    inner: C,
    limit: Duration,
    protocol: Protocol,
    bound: PerTarget,
}

/// A connection did not stand in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(super) struct ConnectTimeout(Duration);

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<C> Service<Uri> for Patient<C>
where
    C: Service<Uri, Error = BoxError>,
    C::Response: hyper::rt::Read,
    C::Future: Send + 'static,
{
    type Response = TokioIo<Socket<C::Response>>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (limit, protocol) = (self.limit, self.protocol);
        let bound = self.bound.clone();
        // It begins when it is polled.
        let connecting = self.inner.call(target.clone());
        Box::pin(async move {
            let authority = target.authority().ok_or("the target has no host")?;
            let permit = bound.permit(authority).await?;
            let connected = tokio::time::timeout(limit, connecting).await;
            let stream = connected.map_err(|_| ConnectTimeout(limit))??;
            Ok(Socket::new(stream, protocol, permit))
        })
    }
}
