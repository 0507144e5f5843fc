//! The demo as its users meet it: a process, flags, signals and a connection.

mod admin;
mod flags;
mod keys;
mod logging;
mod quota;
mod scenario;
mod service;
mod support;
