//! Decisions for other proxies.

pub(super) mod forward_auth;
pub(super) mod nginx;
pub(super) mod rate_limit_service;
pub(super) mod rate_limits;
