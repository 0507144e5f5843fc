//! When Redis fails: what callers are told and how soon, what is charged all the same, and
//! how long it takes until all is well again.
//!
//! Every test puts a load on the store, breaks something under it, and then looks at each
//! single request: what it was told must be true of what Redis holds. See
//! [`scene::Report`] for the laws.

mod cluster;
mod failover;
mod network;
mod refusals;
mod scene;
mod server;
