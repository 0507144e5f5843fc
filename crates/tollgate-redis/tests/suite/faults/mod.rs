//! What happens when Redis fails: which answers callers get and how soon, what is charged
//! nevertheless, and how long recovery takes.
//!
//! Every test puts a load on the store, breaks something, and then checks each request: its result
//! must match Redis' state. See [`scene::Report`] for the rules.

mod failover;
mod network;
mod refusals;
mod scene;
mod server;
