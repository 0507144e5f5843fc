//! The client's side of a request.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;
use http::header::{HeaderValue, InvalidHeaderValue};

/// A client connection, with the values that all its requests share.
#[derive(Debug)]
pub struct Connection {
    pub peer: SocketAddr,
    pub is_tls: bool,
    pub extensions: Extensions,
    pub(super) ip: HeaderValue,
    pub(super) hop: HeaderValue,
}

impl Connection {
    pub fn new(peer: SocketAddr, is_tls: bool) -> Result<Self, InvalidHeaderValue> {
        let mut extensions = Extensions::new();
        extensions.insert(peer);
        let ip = peer.ip().to_canonical();
        let (name, protocol) = (ip.to_string(), protocol(is_tls));
        let hop = match ip {
            IpAddr::V4(_) => format!("for={name};proto={protocol}"),
            IpAddr::V6(_) => format!("for=\"[{name}]\";proto={protocol}"),
        };
        Ok(Self { peer, is_tls, extensions, ip: name.try_into()?, hop: hop.try_into()? })
    }
}

pub(crate) const fn protocol(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}
