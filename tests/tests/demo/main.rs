//! The demo as its users meet it: a process, flags, signals and a connection.

mod flags;
mod keys;
mod quota;
mod scenario;
mod service;
mod support;
