//! Reads a request's outcome from its response.

use std::time::{Duration, SystemTime};

use http::header::CONTENT_TYPE;
use http::response::Parts;
use tollgate::denial::{OwnDenial, Reason};
use tollgate::feedback::{Feedback, ServerQuota};
use tollgate::layer::{LimitVerdict, Verdicts};
use tollgate::store::Timestamp;
use tollgate_core::{Decision, Outcome as Decided};
use tollgate_engine::Shown;
use tollgate_replay::scenario::{Arrival, Outcome, ShownPolicy};

/// All reasons that a problem body can name.
const REASONS: [Reason; 8] = [
    Reason::QuotaExceeded,
    Reason::Blocked,
    Reason::CostExceedsQuota,
    Reason::StoreUnavailable,
    Reason::MissingKey,
    Reason::AmbiguousKey,
    Reason::DeniedSubject,
    Reason::Misconfigured,
];

/// Whether the body may contain a layer's reason.
pub(crate) fn is_problem(head: &Parts) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE);
    content_type.is_some_and(|it| it.as_bytes().starts_with(b"application/problem+json"))
}

/// Whether a layer of this project sent the response. `body` is the start of a problem's body.
fn is_own_denial(head: &Parts, body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    let is_type =
        |reason: &Reason| body.contains(&format!("\"type\":\"{}\"", reason.problem_type()));
    head.extensions.get::<OwnDenial>().is_some() || REASONS.iter().any(is_type)
}

/// Reads a response whose head arrives `now`.
pub(crate) fn outcome(arrival: Arrival, head: &Parts, body: &[u8], now: Timestamp) -> Outcome {
    let mut outcome = Outcome::unlimited(arrival, head.status.as_u16());
    outcome.sees_limits = false;
    outcome.wait = now.since(arrival.at);
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(now.as_micros());
    let feedback = Feedback::read(head.status, &head.headers, time);
    let verdicts = head.extensions.get::<Verdicts>();
    let enforced = || verdicts.into_iter().flat_map(Verdicts::iter).filter(|it| is_enforced(it));
    let exceeds = enforced().any(LimitVerdict::is_exceeded);
    outcome.is_allowed = !(exceeds || feedback.is_denial() || is_own_denial(head, body));
    // Another layer or the handler may deny a request that the exposed limits allow.
    if outcome.is_allowed != exceeds && enforced().next().is_some() {
        let passed = |it: &LimitVerdict| it.decided_at() + it.decision().delay();
        if let (true, Some(at)) = (outcome.is_allowed, enforced().map(passed).max()) {
            outcome.wait = at.since(arrival.at);
        }
        return outcome.decided_by(enforced().map(|it| (it.policy(), it.decision())));
    }
    let is_denied = feedback.is_denial();
    let shown = |quota| Some((quota, decision(quota, is_denied)?));
    let tightest = feedback.quotas().iter().filter_map(shown).reduce(|one, other| {
        if shown_as(&other.1).is_tighter(shown_as(&one.1)) { other } else { one }
    });
    outcome.policy = tightest.map(|(quota, Decision { limit, remaining, .. })| ShownPolicy {
        name: quota.name().into(),
        limit,
        remaining,
    });
    let pause = feedback.pause_at_most(Duration::MAX).filter(|_| is_denied);
    outcome.retry_after = pause.map(|pause| pause.duration().into());
    outcome
}

fn is_enforced(verdict: &LimitVerdict) -> bool {
    !verdict.is_shadow() && !verdict.is_soft()
}

const fn shown_as(decision: &Decision) -> Shown<'_> {
    Shown { decision, is_concurrency: false }
}

/// Returns the decision that a quota's headers show.
fn decision(quota: &ServerQuota, is_denied: bool) -> Option<Decision> {
    let (limit, remaining) = (quota.limit()?, quota.remaining()?);
    let reset_after = quota.resets_after().unwrap_or_default().into();
    let is_used_up = is_denied && quota.is_used_up();
    let retry_after = reset_after;
    let outcome = if is_used_up { Decided::Deny { retry_after } } else { Decided::WouldAllow };
    Some(Decision { outcome, limit, remaining, reset_after })
}
