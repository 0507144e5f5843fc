use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::endpoint::Endpoints;
use super::metric;
use super::outcome::CountedOutcome;
use super::policy::ObservedPolicy;

/// Counts the decisions of layers. **Clones share their counts**, so layers with clones of the same
/// observer do, too.
///
/// By default each layer has its own observer. If many layers, or a layer and its replacement,
/// share an observer, a policy continues to count under its name.
///
/// # Metrics
/// The counts are sent to the recorder that is installed at the first count, so install it before
/// the first request.
///
/// # Memory
/// Bounded by the number of policies times the bound on endpoints. Other endpoints count as
/// `other`. Data from clients never becomes a label.
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

    /// Creates an observer with up to `endpoints` names. All other names count as `other`.
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

    /// Returns each policy's denials so far.
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

/// A policy's denials since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// The policy's name.
    pub policy: String,
    /// The number of requests that the policy denied.
    pub denied: u64,
    /// The number of requests that the policy would have denied if it were enforced.
    pub shadow: u64,
    /// The number of requests that were rejected because the store could not decide.
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
