//! Connections of clients: listeners, their bounds, and TLS.

pub(super) mod client_certificate;
pub(super) mod connection;
pub(super) mod listener;
pub(super) mod listener_settings;
pub(super) mod slots;
pub(super) mod workers;
