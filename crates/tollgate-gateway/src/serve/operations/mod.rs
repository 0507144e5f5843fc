//! For operators: logs, metrics, the admin address, signals and reloads.

pub(super) mod access_log;
pub(super) mod admin;
pub(super) mod loader;
pub(super) mod observed;
pub(super) mod reload;
pub(super) mod signals;
pub(super) mod summary;
