//! From an admitted request to its response: `forward` calls the other modules, `outgoing` prepares
//! the request, `group` selects a server, and `pool` has the connections to it.

mod addresses;
mod checkout;
pub(crate) mod client;
mod connection;
pub(crate) mod connector;
pub(crate) mod failures;
pub(crate) mod forward;
mod group;
pub(crate) mod outgoing;
pub(crate) mod pool;
mod private;
pub(crate) mod response;
mod socket;
pub(crate) mod tunnel;
