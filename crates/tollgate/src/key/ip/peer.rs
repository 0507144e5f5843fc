//! The peer of the connection.

use std::net::SocketAddr;

use http::Extensions;

use super::address::Address;

/// An extension that marks requests over a Unix socket.
///
/// tonic's servers have their own mark (feature `tonic`). For other servers add it to each request,
/// with axum by `.layer(axum::Extension(UnixPeer))`. Without it the peer is unknown, which is an
/// error.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnixPeer;

/// The peer in the extensions.
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

/// axum's own replacement for a connection in tests of a router.
#[cfg(feature = "axum")]
fn of_axum_test(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::MockConnectInfo;
    extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0)
}

#[cfg(not(feature = "axum"))]
fn of_axum_test(_: &Extensions) -> Option<SocketAddr> {
    None
}

/// Over TLS tonic sets this too, beside its own type.
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
