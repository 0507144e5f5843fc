//! Opens connections to upstreams, and the TLS settings for them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio_rustls::rustls::{self, ClientConfig};

use tollgate_config::plan::upstream::Protocol;

type Tcp = HttpsConnector<HttpConnector>;

#[derive(Debug)]
pub(super) enum Connector {
    /// To the scheme and the authority of this URI.
    Tcp(Tcp, Uri),
    Unix(Arc<Path>),
}

#[derive(Debug)]
pub(super) struct Connectors {
    http1: Tcp,
    http2: Tcp,
    tls: bool,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the certificates that this system trusts cannot be read: {0}; install the package \
     `ca-certificates`, or name a file in the variable SSL_CERT_FILE"
)]
pub struct RootsError(std::io::Error);

impl Connectors {
    pub(super) fn new(tls: bool) -> Result<Self, RootsError> {
        let config = tls_config(tls)?;
        let connector = || HttpsConnectorBuilder::new().with_tls_config(config.clone());
        let (http1, http2) = (tcp(None), tcp(Some(UNACKNOWLEDGED)));
        Ok(Self {
            http1: connector().https_or_http().enable_http1().wrap_connector(http1),
            http2: connector().https_or_http().enable_http2().wrap_connector(http2),
            tls,
        })
    }

    /// Whether server certificates are verified.
    pub(super) const fn has_tls(&self) -> bool {
        self.tls
    }

    pub(super) fn tcp(
        &self,
        protocol: Protocol,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Result<Connector, http::Error> {
        let connector = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let server = Uri::builder().scheme(scheme.clone()).authority(authority.clone());
        Ok(Connector::Tcp(connector.clone(), server.path_and_query("/").build()?))
    }
}

/// A client's TLS settings. Without `trusting`, the client trusts no certificate.
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

fn tcp(unacknowledged: Option<Duration>) -> HttpConnector {
    let mut connector = HttpConnector::new();
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
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn system_detects_dead_servers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let Connectors { http1, http2, .. } = Connectors::new(false).unwrap();
        for (mut connector, unacknowledged) in [(http1, None), (http2, Some(UNACKNOWLEDGED))] {
            let stream = connector.call(uri.clone()).await.unwrap();
            let hyper_rustls::MaybeHttpsStream::Http(stream) = stream else { panic!("TLS") };
            let socket = socket2::SockRef::from(stream.inner());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
            assert_eq!(socket.tcp_user_timeout().unwrap(), unacknowledged);
        }
    }
}
