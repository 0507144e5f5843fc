//! The reverse proxy: one request to one upstream and back. It knows neither routes nor
//! limits nor where its settings come from.
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | what it is told |
//! | `entrance.rs` | a request is made unambiguous before anybody looks at it |
//! | `path.rs` | one spelling for each path |
//! | `normal.rs` | what that can look like |
//! | `forward.rs` | one request to one upstream and back |
//! | `hop.rs` | fields that are about one connection and end with it |
//! | `forwarded.rs` | what the upstream is told about the client it cannot see |
//! | `client.rs` | connections to upstreams, kept for further requests |
//! | `socket.rs` | one of these connections |
//! | `body.rs` | bodies that pass through piece by piece |
//! | `tunnel.rs` | connections that have changed to another protocol |
//! | `fault.rs` | what a request gets that no upstream answered |
//! | `bound.rs` | how many connections each upstream may have |
//! | `failures.rs` | what the log says of upstreams that fail |

mod body;
mod bound;
mod client;
mod entrance;
mod failures;
mod fault;
mod forward;
mod forwarded;
mod hop;
pub(crate) mod normal;
pub mod path;
mod settings;
mod socket;
mod source;
mod tunnel;

use std::net::SocketAddr;

pub use self::body::{Body, BodyError, Timed};
pub(crate) use self::body::{Received, UntilItsEnd, Watch};
#[cfg(feature = "otlp")]
pub(crate) use self::client::tls_config;
pub use self::client::{Clients, RootsError};
pub use self::entrance::admit;
pub use self::failures::Failures;
pub use self::fault::Fault;
pub use self::forward::{Common, Forward};
pub use self::forwarded::Fronts;
pub use self::settings::{Host, Protocol, Timeouts, Upstream};
pub(crate) use self::tunnel::TUNNELS;
pub use self::tunnel::Tunnels;

/// The connection that a request came on, as an extension of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Who is at its other end.
    pub peer: SocketAddr,
    /// Whether it is encrypted.
    pub is_tls: bool,
}
