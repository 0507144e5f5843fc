//! Who opened the connection.

use std::net::SocketAddr;

use http::Extensions;

use super::address::Address;

/// An extension that says: this request came over a Unix socket.
///
/// tonic's servers say so by themselves (feature `tonic`); behind any other, put it into the
/// extensions of each request, with axum by `.layer(axum::Extension(UnixPeer))`. Without
/// it the peer is unknown, and unknown is an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnixPeer;

/// Who opened the connection, as far as the extensions tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Address(Address),
    Unix,
    Unknown,
}

impl Peer {
    #[inline(always)]
    pub(super) fn of(extensions: &Extensions) -> Self {
        let address = of_axum(extensions)
            .or_else(|| of_tonic(extensions))
            .or_else(|| extensions.get::<SocketAddr>().copied())
            .or_else(|| of_axum_test(extensions));
        match address {
            Some(address) => Self::Address(address.ip().into()),
            None if is_unix(extensions) => Self::Unix,
            None => Self::Unknown,
        }
    }
}

#[cfg(feature = "axum")]
fn of_axum(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::ConnectInfo;
    extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0)
}

#[cfg(not(feature = "axum"))]
fn of_axum(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// What axum's own extractor takes where there is no connection: tests of a router.
#[cfg(feature = "axum")]
fn of_axum_test(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::MockConnectInfo;
    extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0)
}

#[cfg(not(feature = "axum"))]
fn of_axum_test(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// Over TLS tonic sets this as well, beside its own type with the certificates.
#[cfg(feature = "tonic")]
fn of_tonic(extensions: &Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;
    extensions.get::<TcpConnectInfo>()?.remote_addr()
}

#[cfg(not(feature = "tonic"))]
fn of_tonic(_: &Extensions) -> Option<SocketAddr> {
    None
}

fn is_unix(extensions: &Extensions) -> bool {
    #[cfg(all(feature = "tonic", unix))]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    extensions.get::<UnixPeer>().is_some()
}
