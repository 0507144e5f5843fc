//! What layers have decided, shared by those that are told of it.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

#[cfg(feature = "admin")]
use super::Answer;
use super::ObservedPolicy;
use super::endpoint::Endpoints;

/// What layers have decided. **Clones share it**, and so do layers that are given clones.
///
/// A layer without one has its own. Share one between the layers of a process where there
/// are many, or where layers are replaced while the process runs: a policy then goes on
/// counting under its name.
///
/// # Metrics
/// They go to the recorder that is installed when something is first counted: install it
/// before the first request.
///
/// # What bounds memory
/// Policies, which the operator writes, times endpoints, of which at most so many are told
/// apart; the others count as `other`. Nothing that a client sends becomes a label.
#[derive(Clone)]
pub struct Observer(Arc<Inner>);

struct Inner {
    endpoints: Arc<Endpoints>,
    policies: Mutex<Vec<(Box<str>, Arc<ObservedPolicy>)>>,
}

impl Observer {
    /// Tells up to 100 endpoints apart.
    pub fn new() -> Self {
        Self::with_endpoints(100)
    }

    /// Tells so many endpoints apart, and counts all others as `other`.
    pub fn with_endpoints(endpoints: usize) -> Self {
        crate::metrics::describe();
        let endpoints = Arc::new(Endpoints::new(endpoints));
        Self(Arc::new(Inner { endpoints, policies: Mutex::default() }))
    }

    /// What is kept of the policies of this name.
    pub(crate) fn policy(&self, name: &str) -> Arc<ObservedPolicy> {
        let mut policies = self.0.policies.lock();
        if let Some((_, policy)) = policies.iter().find(|(known, _)| **known == *name) {
            return Arc::clone(policy);
        }
        let policy = Arc::new(ObservedPolicy::new(name, &self.0.endpoints));
        policies.push((name.into(), Arc::clone(&policy)));
        policy
    }

    /// How often each policy has denied so far, for those who tell of it now and then.
    #[cfg(feature = "admin")]
    pub fn denials(&self) -> Vec<Denials> {
        let of = |(name, policy): &(Box<str>, Arc<ObservedPolicy>)| {
            let mut denials =
                Denials { policy: name.to_string(), denied: 0, shadow: 0, failed_closed: 0 };
            for (answer, count) in policy.counts.read() {
                match answer {
                    Answer::Deny => denials.denied = count,
                    Answer::ShadowDeny => denials.shadow = count,
                    Answer::FailedClosed => denials.failed_closed = count,
                    Answer::Allow | Answer::FailedOpen | Answer::Local => {}
                }
            }
            denials
        };
        self.0.policies.lock().iter().map(of).collect()
    }

    /// The number of an endpoint.
    #[inline]
    pub(crate) fn endpoint(&self, name: &str) -> usize {
        self.0.endpoints.number(name)
    }
}

/// How often a policy has denied since it was first seen.
#[cfg(feature = "admin")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// Its name.
    pub policy: String,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied if it did not only watch.
    pub shadow: u64,
    /// Requests refused because the store could not decide.
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
