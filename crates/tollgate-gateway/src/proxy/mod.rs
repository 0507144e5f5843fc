//! The reverse proxy: one request to one upstream and back. It knows neither routes nor
//! limits nor where its settings come from.
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | what it is told |
//! | `entrance.rs` | a request is made unambiguous before anybody looks at it |
//! | `path.rs` | one spelling for each path |
//! | `forward.rs` | one request to one upstream and back |
//! | `hop.rs` | fields that are about one connection and end with it |
//! | `forwarded.rs` | what the upstream is told about the client it cannot see |
//! | `rewrite.rs` | changes of the configuration to paths and headers |
//! | `group.rs` | the servers of one upstream: which gets a request, and which are down |
//! | `client.rs` | connections to all upstreams |
//! | `pool.rs` | the connections to one upstream, for each worker |
//! | `socket.rs` | one of these connections |
//! | `body.rs` | bodies that pass through piece by piece |
//! | `tunnel.rs` | connections that have changed to another protocol |
//! | `fault.rs` | what a request gets that no upstream answered |
//! | `failures.rs` | what the log says of upstreams that fail |

mod body;
mod client;
mod entrance;
mod failures;
mod fault;
mod forward;
mod forwarded;
mod group;
mod hop;
pub mod path;
mod pool;
mod rewrite;
mod settings;
mod socket;
mod source;
mod tunnel;

use std::net::{IpAddr, SocketAddr};

use http::Extensions;
use http::header::{HeaderValue, InvalidHeaderValue};

pub use self::body::{Body, BodyError, Timed};
pub(crate) use self::body::{Received, UntilItsEnd, Watch};
#[cfg(feature = "otlp")]
pub(crate) use self::client::tls_config;
pub use self::client::{Clients, RootsError};
pub use self::entrance::{Admitted, Meaning, admit};
pub use self::failures::Failures;
pub use self::fault::Fault;
pub use self::forward::{Common, Forward};
pub use self::forwarded::{TrustedProxies, Via};
pub(crate) use self::pool::become_worker;
pub use self::rewrite::{EditError, Edits};
pub use self::settings::{
    Active, Address, Balance, Endpoint, Host, Passive, Protocol, Servers, Timeouts, Upstream,
};
pub(crate) use self::tunnel::TUNNELS;
pub use self::tunnel::Tunnels;

/// A connection of a client, and what the requests on it have in common.
#[derive(Debug)]
pub struct Connection {
    /// Who is at its other end.
    pub peer: SocketAddr,
    /// Whether it is encrypted.
    pub is_tls: bool,
    /// Where limiters look for the peer.
    pub(crate) extensions: Extensions,
    /// The address, for `X-Forwarded-For`.
    ip: HeaderValue,
    /// Address and protocol, for `Forwarded`.
    hop: HeaderValue,
}

impl Connection {
    /// A connection with `peer`.
    ///
    /// # Errors
    /// The address cannot be in a field.
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

    const fn protocol(&self) -> &'static str {
        protocol(self.is_tls)
    }
}

const fn protocol(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}
