//! Opens connections to upstreams, and the TLS settings for them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::settings::TargetTls;
use crate::settings::{Connections, Protocol};
use http::Uri;
use http::uri::{Authority, Scheme};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tower_service::Service;

use super::addresses::{Addresses, Lookup, Resolver};

type Tcp = HttpsConnector<HttpConnector<Resolver>>;
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

pub(super) enum Connector {
    /// To the scheme and the authority of this URI, at one of the addresses.
    Tcp(Tcp, Uri, Arc<Addresses>),
    Unix(Arc<Path>),
    #[cfg(test)]
    Test(Dial),
}

/// Opens a connection in a test.
#[cfg(test)]
pub(crate) type Dial = Arc<
    dyn Fn() -> std::pin::Pin<
            Box<dyn Future<Output = std::io::Result<tokio::io::DuplexStream>> + Send>,
        > + Send
        + Sync,
>;

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, server, _) => server.fmt(f),
            Self::Unix(socket) => socket.fmt(f),
            #[cfg(test)]
            Self::Test(_) => f.write_str("Test"),
        }
    }
}

/// Opens a TCP connection. If this fails, and the name has other addresses by now, tries these.
pub(super) async fn connect(
    tcp: &Tcp,
    server: &Uri,
    addresses: &Addresses,
) -> Result<<Tcp as Service<Uri>>::Response, ConnectError> {
    match tcp.clone().call(server.clone()).await {
        Err(error) if !addresses.have_changed().await => Err(error),
        Err(_) => tcp.clone().call(server.clone()).await,
        connected => connected,
    }
}

pub(super) struct Connectors {
    tls: ClientConfig,
    has_tls: bool,
    lookup: Lookup,
    #[cfg(test)]
    pub(super) dial: Option<Dial>,
}

impl fmt::Debug for Connectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connectors").field("has_tls", &self.has_tls).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[doc(alias = "TG0410")]
#[error(
    "the certificates that this system trusts cannot be read: {0}; install the package \
     `ca-certificates`, or name a file in the variable SSL_CERT_FILE [TG0410]"
)]
pub struct RootsError(std::io::Error);

impl Connectors {
    pub(super) fn new(has_tls: bool, lookup: Lookup) -> Result<Self, RootsError> {
        Ok(Self {
            tls: tls_config(has_tls)?,
            has_tls,
            lookup,
            #[cfg(test)]
            dial: None,
        })
    }

    /// Verifies server certificates from now on.
    pub(super) fn allow_tls(&mut self) -> Result<(), RootsError> {
        if !self.has_tls {
            (self.tls, self.has_tls) = (tls_config(true)?, true);
        }
        Ok(())
    }

    pub(super) fn tcp(
        &self,
        protocol: Protocol,
        scheme: &Scheme,
        authority: &Authority,
        settings: &Connections,
        tls: Option<&TargetTls>,
    ) -> Result<Connector, http::Error> {
        #[cfg(test)]
        if let Some(dial) = &self.dial {
            return Ok(Connector::Test(Arc::clone(dial)));
        }
        let addresses = Addresses::of(authority.host(), &self.lookup, settings.lookup_interval);
        let tls = tls.map_or(&self.tls, |own| &own.config).clone();
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = connector.https_or_http();
        let resolver = Resolver(Arc::clone(&addresses));
        let connector = match protocol {
            Protocol::Http1 => {
                connector.enable_http1().wrap_connector(tcp(resolver, settings.timeout, None))
            }
            Protocol::Http2 => {
                let tcp = tcp(resolver, settings.timeout, Some(UNACKNOWLEDGED));
                connector.enable_http2().wrap_connector(tcp)
            }
        };
        let server = Uri::builder().scheme(scheme.clone()).authority(authority.clone());
        Ok(Connector::Tcp(connector, server.path_and_query("/").build()?, addresses))
    }
}

/// A client's TLS settings. Without `trusting`, the client trusts no certificate.
pub fn tls_config(trusting: bool) -> Result<ClientConfig, RootsError> {
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

fn tcp(
    resolver: Resolver,
    timeout: Duration,
    unacknowledged: Option<Duration>,
) -> HttpConnector<Resolver> {
    let mut connector = HttpConnector::new_with_resolver(resolver);
    // Divided between the addresses, so one that does not answer leaves time for the next.
    connector.set_connect_timeout(Some(timeout));
    connector.enforce_http(false);
    // A request is sent in a few large pieces, so waiting for more only adds delay.
    connector.set_nodelay(true);
    // Detects dead servers on idle connections within 30 seconds.
    connector.set_keepalive(Some(Duration::from_secs(15)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    connector.set_tcp_user_timeout(unacknowledged);
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _ = unacknowledged;
    connector
}

/// The system closes an HTTP/2 connection if the server acknowledges no bytes for this time. An
/// HTTP/1 server may read a body slowly, but an HTTP/2 server always reads.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::super::addresses::system;
    use super::*;

    #[tokio::test]
    async fn system_detects_dead_servers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority: Authority = listener.local_addr().unwrap().to_string().parse().unwrap();
        let connectors = Connectors::new(false, system()).unwrap();
        for (protocol, unacknowledged) in
            [(Protocol::Http1, None), (Protocol::Http2, Some(Duration::from_secs(30)))]
        {
            let settings = Connections::of(Duration::from_secs(60));
            let connector =
                connectors.tcp(protocol, &Scheme::HTTP, &authority, &settings, None).unwrap();
            let Connector::Tcp(tcp, server, addresses) = connector else { panic!("Unix") };
            let stream = connect(&tcp, &server, &addresses).await.unwrap();
            let hyper_rustls::MaybeHttpsStream::Http(stream) = stream else { panic!("TLS") };
            let socket = socket2::SockRef::from(stream.inner());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
            assert_eq!(socket.tcp_user_timeout().unwrap(), unacknowledged);
        }
    }
}
