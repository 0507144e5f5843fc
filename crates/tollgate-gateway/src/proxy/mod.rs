//! The reverse proxy: forwards a request to an upstream, and returns its response. It knows nothing
//! about routes, limits or configuration files.
//!
//! It has three modules, and each uses only the modules before it:
//!
//! | module | content |
//! |---|---|
//! | `head` | checks a request's head before routes and limits read it, and changes headers and URLs on the way |
//! | `body` | passes bodies on piece by piece, with limits on their size and pauses |
//! | `upstream` | selects a server, sends the request over a pooled connection, and returns the response |

mod body;
mod head;
mod upstream;

pub(crate) use self::body::discard::{LONGEST, MOST_BYTES, QUIET};
pub(crate) use self::body::request_body::{ReadAhead, ReadBody};
pub(crate) use self::body::upload::Received;
pub use self::body::{error::BodyError, request_body::RequestBody, timed::Timed};
pub use self::head::connection::Connection;
pub use self::head::entrance::{Meaning, admit};
pub use self::head::fault::Fault;
pub(crate) use self::head::fields::{MOST_FIELDS, MOST_HEAD_BYTES};
pub use self::head::forwarded::Via;
pub use self::upstream::client::Clients;
pub use self::upstream::connector::RootsError;
#[cfg(feature = "otlp")]
pub(crate) use self::upstream::connector::tls_config;
pub use self::upstream::failures::Failures;
pub use self::upstream::forward::Forward;
pub(crate) use self::upstream::forward::LongPause;
pub use self::upstream::outgoing::{Admitted, Common};
pub(crate) use self::upstream::pool::become_worker;
pub use self::upstream::response::ResponseBody;
pub(crate) use self::upstream::tunnel::TUNNELS;
pub use self::upstream::tunnel::Tunnels;
