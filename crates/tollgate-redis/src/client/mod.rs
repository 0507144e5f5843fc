//! Connections to Redis: one server, a master behind Sentinels, or all Cluster nodes.
//!
//! | file | content |
//! |---|---|
//! | `address.rs`, `host_port.rs`, `tls.rs` | URLs, addresses of nodes, TLS |
//! | `topology/` | which node has a slot, and the search for nodes |
//! | `node.rs` | a server, with its queue, connection, breaker and clock |
//! | `connection/` | a connection, by fred or simulated |
//! | `breaker.rs`, `node_breaker.rs` | when to stop calling a server |
//! | `server_clock.rs` | a server's time |
//! | `check.rs`, `report.rs` | a server's problems |
//! | `roster.rs` | how many processes share the quotas |
//! | `overrides.rs`, `override_list.rs` | operators' overrides, which all processes share |

pub(crate) mod address;
pub(crate) mod breaker;
pub(crate) mod check;
pub(crate) mod connection;
pub(crate) mod host_port;
mod keyed_script;
pub(crate) mod node;
pub(crate) mod node_breaker;
mod override_list;
pub(crate) mod overrides;
pub(crate) mod report;
pub(crate) mod roster;
pub(crate) mod server_clock;
pub(crate) mod tls;
pub(crate) mod topology;
