//! The heads of requests and responses. Knows no bodies and no upstreams.

pub(super) mod authentication;
pub(super) mod connection;
pub(super) mod entrance;
pub(super) mod fault;
pub(super) mod fields;
pub(super) mod forwarded;
pub(super) mod hop;
pub(super) mod rewrite;
