//! The policies of overridden keys.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Override, OverrideChange, Overrides, Policy, Quota, Timestamp};

use crate::applied::OwnPolicy;

/// The overrides that apply to limits.
pub(crate) struct Overridden {
    pub(crate) overrides: Overrides,
    prepare: Box<Prepare>,
    built: Mutex<Built>,
}

type Prepare = dyn Fn(usize, &Policy, bool) -> Box<dyn Any + Send + Sync> + Send + Sync;

/// The policies for overridden keys. Keys with equal numbers share a policy.
#[derive(Default)]
struct Built {
    version: u64,
    policies: HashMap<(u8, Quota, Option<Timestamp>), Arc<OwnPolicy>>,
}

/// How many policies are stored, because clients' own quotas may all differ.
const MOST_BUILT: usize = 1_024;

impl Overridden {
    pub(crate) fn new(
        overrides: Overrides,
        prepare: impl Fn(usize, &Policy, bool) -> Box<dyn Any + Send + Sync> + Send + Sync + 'static,
    ) -> Self {
        Self { overrides, prepare: Box::new(prepare), built: Mutex::default() }
    }

    /// Returns the policy that replaces `policy` under the limit with this number. Returns `None` if
    /// the override does not fit.
    pub(crate) fn own(&self, limit: u8, policy: &Policy, it: &Override) -> Option<Arc<OwnPolicy>> {
        let is_block = it.change == OverrideChange::Block;
        let policy = it.change.policy(policy).ok()?;
        let blocked_until = is_block.then_some(it.until);
        let mut built = self.built.lock();
        let version = self.overrides.version();
        if built.version != version || built.policies.len() >= MOST_BUILT {
            *built = Built { version, policies: HashMap::new() };
        }
        let key = (limit, policy.quota(), blocked_until);
        let own = built.policies.entry(key).or_insert_with(|| {
            let prepared = (self.prepare)(usize::from(limit), &policy, is_block);
            Arc::new(OwnPolicy { policy, prepared, blocked_until })
        });
        Some(Arc::clone(own))
    }
}

tollgate_core::debug_fields!(Overridden, overrides);
