//! The heads of requests and responses. Knows no bodies and no upstreams.

pub(crate) mod authentication;
pub(crate) mod connection;
pub(crate) mod entrance;
pub(crate) mod fault;
pub(crate) mod fields;
pub(crate) mod forwarded;
pub(crate) mod hop;
pub(crate) mod rewrite;
pub(crate) mod via;
