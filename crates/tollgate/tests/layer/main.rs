//! The layer as its users have it: around services, in routers, over sockets.

mod answers;
mod events;
mod nesting;
mod queue;
mod readiness;
mod sharing;
mod stage;
mod support;
