use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::endpoint::Endpoints;
use super::metric;
use super::outcome::CountedOutcome;
use super::policy::ObservedPolicy;

/// Counts the decisions of layers. **Clones share their counts**, and so do layers with clones.
///
/// A layer without an observer has its own. Share one between many layers, or between a layer and
/// its replacement: a policy then continues to count under its name.
///
/// # Metrics
/// They go to the recorder that is installed at the first count: install it before the first
/// request.
///
/// # What bounds memory
/// The number of policies times the bound of endpoints; other endpoints count as `other`. Nothing
/// that a client sends becomes a label.
#[derive(Clone)]
pub struct Observer(Arc<Inner>);

struct Inner {
    endpoints: Arc<Endpoints>,
    policies: Mutex<Vec<(Box<str>, Arc<ObservedPolicy>)>>,
}

impl Observer {
    /// Creates an observer with up to 100 endpoints.
    pub fn new() -> Self {
        Self::with_endpoints(100)
    }

    /// Creates an observer with up to `endpoints` names. All others count as `other`.
    pub fn with_endpoints(endpoints: usize) -> Self {
        metric::describe();
        let endpoints = Arc::new(Endpoints::new(endpoints));
        Self(Arc::new(Inner { endpoints, policies: Mutex::default() }))
    }

    pub(crate) fn policy(&self, name: &str) -> Arc<ObservedPolicy> {
        let mut policies = self.0.policies.lock();
        if let Some((_, policy)) = policies.iter().find(|(known, _)| **known == *name) {
            return Arc::clone(policy);
        }
        let policy = Arc::new(ObservedPolicy::new(name, &self.0.endpoints));
        policies.push((name.into(), Arc::clone(&policy)));
        policy
    }

    /// Returns the denials of each policy so far.
    pub fn denials(&self) -> Vec<Denials> {
        let of = |(name, policy): &(Box<str>, Arc<ObservedPolicy>)| {
            let mut denials =
                Denials { policy: name.to_string(), denied: 0, shadow: 0, failed_closed: 0 };
            for (answer, count) in policy.counts.read() {
                match answer {
                    CountedOutcome::Deny => denials.denied = count,
                    CountedOutcome::ShadowDeny => denials.shadow = count,
                    CountedOutcome::FailedClosed => denials.failed_closed = count,
                    CountedOutcome::Allow | CountedOutcome::FailedOpen | CountedOutcome::Local => {}
                }
            }
            denials
        };
        self.0.policies.lock().iter().map(of).collect()
    }

    #[inline]
    pub(crate) fn endpoint(&self, name: &str) -> usize {
        self.0.endpoints.number(name)
    }
}

/// The denials of a policy since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// The name of the policy.
    pub policy: String,
    /// The requests that the policy denied.
    pub denied: u64,
    /// The requests that the policy would have denied, had it not been a shadow.
    pub shadow: u64,
    /// The requests that were rejected because the store could not decide.
    pub failed_closed: u64,
}

impl Default for Observer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.0.policies.lock();
        let names = policies.iter().map(|(name, _)| name);
        f.debug_set().entries(names).finish()
    }
}
