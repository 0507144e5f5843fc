//! Connections of clients: listeners, their bounds, and the life of a connection.

pub(super) mod activity;
pub(super) mod client_certificate;
pub(super) mod connection;
pub(super) mod half_close;
pub(super) mod invalid_head;
pub(super) mod lifetime;
pub(super) mod linger;
pub(super) mod listener;
pub(super) mod listener_settings;
pub(super) mod slots;
pub(super) mod streams;
pub(super) mod workers;
