//! The layer as its users have it: around services, in routers, over sockets.

mod answers;
mod charges;
mod conformance;
mod events;
mod keys;
mod nesting;
mod outages;
mod queue;
mod readiness;
mod sharing;
mod stage;
mod support;
