//! A server's address, and how to speak to it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use http::header::{HeaderValue, InvalidHeaderValue};
use http::uri::{Authority, Scheme};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub endpoint: Endpoint,
    /// Prepended to each path. Empty, or starts with `/` and does not end with `/`.
    pub base_path: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, base_path } = self;
        match endpoint.socket {
            Some(_) => endpoint.fmt(f),
            None => write!(f, "{}://{endpoint}{base_path}", endpoint.scheme),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub scheme: Scheme,
    pub authority: Authority,
    pub socket: Option<Arc<Path>>,
}

impl Endpoint {
    pub fn unix(socket: &Path) -> Self {
        let authority = Authority::from_static("localhost");
        Self { scheme: Scheme::HTTP, authority, socket: Some(socket.into()) }
    }

    /// The `Host` header, without the scheme's default port.
    pub fn host_header(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let usual = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        match self.authority.port_u16() {
            Some(port) if port != usual => format!("{}:{port}", self.authority.host()).try_into(),
            _ => self.authority.host().try_into(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "unix:{}", socket.display()),
            None => self.authority.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    #[default]
    RoundRobin,
    LeastBusy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    #[default]
    Http1,
    /// HTTP/2; without TLS with prior knowledge (`h2c`). For gRPC.
    Http2,
}
