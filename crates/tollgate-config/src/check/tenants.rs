//! Where tenants' numbers come from, in words.

use std::fmt;

use tollgate::tier::{OnLookupFailure, OnUnknownClient};

use super::limits::span;
use crate::plan::{Plan, TenantSource, TenantsPlan, Whose};

/// "a client's own numbers come from tenants.yaml; without them, it has the quota of `client`"
pub(super) struct Tenants<'a>(pub(super) &'a Plan, pub(super) &'a TenantsPlan);

impl fmt::Display for Tenants<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(plan, TenantsPlan { of, source, ttl, on_failure, on_unknown, .. }) = self;
        let whose = match of {
            Whose::Group(level) => plan.levels.get(*level).map_or("group", |level| &level.name),
            _ => "client",
        };
        write!(f, "a {whose}'s own numbers come from {source}")?;
        if !matches!(source, TenantSource::File(_)) {
            write!(f, ", for {} at a time; while it fails, ", span((*ttl).into()))?;
            f.write_str(match on_failure {
                OnLookupFailure::Refuse => "its requests get 503",
                OnLookupFailure::LimitQuota => {
                    "the configured quota applies, or a smaller last known"
                }
                _ => "the last known numbers apply",
            })?;
        }
        match on_unknown {
            OnUnknownClient::Refuse => write!(f, "; an unknown {whose} gets 403"),
            _ => write!(f, "; an unknown {whose} has the configured quota"),
        }
    }
}
