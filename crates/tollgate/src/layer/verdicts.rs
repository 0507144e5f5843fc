//! The decisions on a request, for its handler and for outer layers.

use http::{Extensions, HeaderValue};
use tollgate_core::{Decision, Policy, Source, Timestamp};
use tollgate_engine::{Charges, Limits, Mode};

use crate::headers;

/// The decisions on a request, by policy. They are ordered by layer, outermost first, and then by
/// the layer's limits.
///
/// With the feature `axum` it is an extractor for every handler; otherwise it is in the extensions
/// of requests and responses. It contains the decisions of layers with
/// [`expose_verdicts`](crate::layer::RateLimitLayerBuilder::expose_verdicts), and of each layer
/// with a [soft limit](crate::Mode::Annotate) that the request exceeds. Otherwise it is
/// empty. On the response, the numbers include the settlement of a
/// [`Reservation`](super::Reservation).
///
/// ```
/// use tollgate::layer::Verdicts;
///
/// async fn search(verdicts: Verdicts) -> &'static str {
///     let tokens = verdicts.get("tokens").map(|verdict| verdict.decision().remaining);
///     if verdicts.exceeded().next().is_some() || tokens.is_some_and(|tokens| tokens < 100) {
///         return "ten results from the cache";
///     }
///     "all results, fresh"
/// }
/// # let _ = search;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<LimitVerdict>);

/// A limit's decision on a request.
#[derive(Clone, Debug)]
pub struct LimitVerdict {
    policy: Policy,
    mode: Mode,
    decision: Decision,
    decided_at: Timestamp,
    source: Source,
}

impl Verdicts {
    /// Returns the decision of the policy with this name. If nested layers have policies with the
    /// same name, it returns the innermost layer's decision.
    pub fn get(&self, policy: &str) -> Option<&LimitVerdict> {
        self.0.iter().rfind(|verdict| verdict.policy.name() == policy)
    }

    /// Returns all decisions.
    pub fn iter(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.0.iter()
    }

    /// Returns the [soft limits](crate::Mode::Annotate) that the request exceeds.
    pub fn exceeded(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.0.iter().filter(|verdict| verdict.is_soft() && verdict.is_exceeded())
    }

    /// Returns the [`X-RateLimit-Exceeded`](crate::headers::X_RATELIMIT_EXCEEDED) value for a
    /// request to another service, or `None` if no soft limit is exceeded.
    pub fn exceeded_header(&self) -> Option<HeaderValue> {
        headers::names(self.exceeded().map(|verdict| verdict.policy.name()))
    }

    pub(crate) fn of(limits: &Limits, charges: &Charges) -> Self {
        Self(of_charges(limits, charges).collect())
    }

    /// For a request, which reaches the outer layer first.
    pub(super) fn push(extensions: &mut Extensions, limits: &Limits, charges: &Charges) {
        let verdicts = &mut extensions.get_or_insert_default::<Self>().0;
        verdicts.extend(of_charges(limits, charges));
    }

    /// For a response, which reaches the inner layer first.
    pub(super) fn push_outer(extensions: &mut Extensions, limits: &Limits, charges: &Charges) {
        let verdicts = &mut extensions.get_or_insert_default::<Self>().0;
        verdicts.splice(..0, of_charges(limits, charges));
    }
}

fn of_charges(limits: &Limits, charges: &Charges) -> impl Iterator<Item = LimitVerdict> {
    charges.iter().map(|applied| LimitVerdict {
        policy: limits.policy(applied).clone(),
        mode: limits.of(applied).mode,
        decision: applied.decision,
        decided_at: charges.decided_at(),
        source: charges.source(),
    })
}

impl LimitVerdict {
    /// Returns the policy, with the quota for the request's tier.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the decision with its numbers.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether the request exceeds the quota. A shadow or soft limit allows it nevertheless.
    pub const fn is_exceeded(&self) -> bool {
        self.decision.denies()
    }

    /// Whether it is a [shadow policy](crate::Limit::shadow).
    pub const fn is_shadow(&self) -> bool {
        matches!(self.mode, Mode::Shadow)
    }

    /// Whether it is a [soft limit](crate::Mode::Annotate).
    pub const fn is_soft(&self) -> bool {
        matches!(self.mode, Mode::Annotate)
    }

    /// Returns the time of the decision.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns which store decided, for example the local fallback.
    pub const fn source(&self) -> Source {
        self.source
    }
}
