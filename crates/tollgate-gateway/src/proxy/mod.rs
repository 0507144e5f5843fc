//! The reverse proxy: forwards a request to an upstream, and returns its response. It knows nothing
//! about routes, limits or configuration files, except that its body can hold a limiter's permit.

mod addresses;
mod body;
mod body_error;
mod checkout;
mod client;
mod connection;
mod connector;
mod entrance;
mod failures;
mod fault;
mod fields;
mod forward;
mod forwarded;
mod group;
mod hop;
mod outgoing;
mod pool;
mod request_body;
mod response;
mod rewrite;
mod sent;
mod socket;
mod source;
mod timed;
mod tunnel;
mod upload;

use std::net::{IpAddr, SocketAddr};

use http::Extensions;
use http::header::{HeaderValue, InvalidHeaderValue};

pub use self::body::Body;
pub(crate) use self::body::Watch;
pub use self::body_error::BodyError;
pub use self::client::Clients;
pub use self::connector::RootsError;
#[cfg(feature = "otlp")]
pub(crate) use self::connector::tls_config;
pub use self::entrance::{Admitted, Meaning, admit, check_method, is_host_and_port};
pub use self::failures::Failures;
pub use self::fault::Fault;
pub use self::forward::Forward;
pub(crate) use self::forward::{Answering, LongPause};
pub use self::forwarded::{TrustedProxies, Via};
pub use self::outgoing::Common;
pub(crate) use self::pool::become_worker;
pub use self::request_body::RequestBody;
pub(crate) use self::request_body::{ReadAhead, ReadBody};
pub use self::timed::Timed;
pub(crate) use self::tunnel::TUNNELS;
pub use self::tunnel::Tunnels;
pub(crate) use self::upload::Received;

/// A client connection, with the values that all its requests share.
#[derive(Debug)]
pub struct Connection {
    pub peer: SocketAddr,
    pub is_tls: bool,
    pub(crate) extensions: Extensions,
    ip: HeaderValue,
    hop: HeaderValue,
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

const fn protocol(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}
