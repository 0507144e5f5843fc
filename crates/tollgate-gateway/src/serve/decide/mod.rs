//! Which limits a request meets, and what it is charged.

pub(super) mod body_field;
pub(super) mod build;
pub(super) mod client_identity;
pub(super) mod denials;
pub(super) mod facts;
mod fetch;
mod forgiveness;
mod groups;
mod json_object;
pub(super) mod key_sets;
pub(super) mod key_sources;
pub(super) mod lists;
pub(super) mod llm;
pub(super) mod proxies;
pub(super) mod redis;
pub(super) mod settled;
pub(super) mod tenants;
pub(super) mod token_limit;
pub(super) mod values;
