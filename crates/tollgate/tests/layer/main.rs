//! The layer as its users have it: around services, in routers, over sockets.

mod answers;
mod conformance;
mod events;
mod nesting;
mod outages;
mod queue;
mod readiness;
mod sharing;
mod stage;
mod support;
