//! The demo as a real process, with flags, signals and connections.

mod admin;
mod flags;
mod keys;
mod logging;
mod quota;
mod scenario;
mod service;
mod support;
