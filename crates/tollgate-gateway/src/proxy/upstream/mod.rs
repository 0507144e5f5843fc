//! From an admitted request to its response: `forward` calls the other modules, `outgoing` prepares
//! the request, `group` selects a server, and `pool` has the connections to it.

mod addresses;
mod checkout;
pub(super) mod client;
mod connection;
pub(super) mod connector;
pub(super) mod failures;
pub(super) mod forward;
mod group;
pub(super) mod outgoing;
pub(super) mod pool;
mod private;
pub(super) mod response;
mod socket;
pub(super) mod tunnel;
