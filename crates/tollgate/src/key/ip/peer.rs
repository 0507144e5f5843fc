use std::net::SocketAddr;

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::Extensions;

use super::address::Address;

/// Request extension: marks a request that arrived over a Unix socket.
///
/// tonic's servers have their own mark (feature `tonic`). For other servers, add this to each
/// request, in axum with `.layer(axum::Extension(UnixPeer))`. An unmarked peer is unknown, which is
/// an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnixPeer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Address(Address),
    Unix,
    Unknown,
}

impl Peer {
    #[inline(always)]
    pub(super) fn of(extensions: &Extensions) -> Self {
        match socket_address(extensions) {
            Some(address) => Self::Address(address.ip().into()),
            None if is_unix(extensions) => Self::Unix,
            None => Self::Unknown,
        }
    }
}

#[inline(always)]
pub(super) fn socket_address(extensions: &Extensions) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    if let Some(ConnectInfo(address)) = extensions.get() {
        return Some(*address);
    }
    // Over TLS, tonic sets this in addition to its own type.
    #[cfg(feature = "tonic")]
    if let Some(info) = extensions.get::<tonic::transport::server::TcpConnectInfo>()
        && let Some(address) = info.remote_addr()
    {
        return Some(address);
    }
    if let Some(address) = extensions.get() {
        return Some(*address);
    }
    // axum's substitute for a connection in router tests.
    #[cfg(feature = "axum")]
    if let Some(MockConnectInfo(address)) = extensions.get() {
        return Some(*address);
    }
    None
}

fn is_unix(extensions: &Extensions) -> bool {
    #[cfg(all(feature = "tonic", unix))]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    extensions.get::<UnixPeer>().is_some()
}
