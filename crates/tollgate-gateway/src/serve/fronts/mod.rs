//! Answers to clients, and decisions for other proxies and for programs.

pub(super) mod decision_api;
pub(super) mod forward_auth;
pub(super) mod nginx;
pub(super) mod proxy;
pub(super) mod rate_limit_service;
pub(super) mod rate_limits;
