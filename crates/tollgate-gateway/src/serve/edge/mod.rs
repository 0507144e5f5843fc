//! Connections of clients: listeners, their bounds, and TLS.

pub(super) mod client_certificate;
pub(super) mod connection;
pub(super) mod listener;
pub(super) mod listener_settings;
#[cfg(unix)]
pub(super) mod local_socket;
pub(super) mod slots;
pub(super) mod workers;
