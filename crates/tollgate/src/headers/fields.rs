//! The header parts that are the same in all responses.

use http::{HeaderMap, HeaderValue};
use tollgate_core::{Algorithm, Cost, Decision, Kind, Micros, Policy, Refill};
use tollgate_engine::Shown;

use super::by_policy::Names;
use super::digits::{self, ValueBuffer};
use super::intern::interned;
use super::names::{RATELIMIT, RATELIMIT_POLICY};
use super::pace::{MICROS, Pace, gcd, narrow};

/// A policy, its decision, and the request cost that it decided. Callers omit shadow policies.
pub(crate) type ShownPolicy<'a> = (&'a PolicyFields, &'a Decision, Cost);

/// A policy's headers, rendered as far as they do not depend on a decision.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFields {
    pub(crate) policy: Policy,
    /// The member of `RateLimit-Policy`: `"name";q=100;w=60`.
    quota: Option<HeaderValue>,
    /// The start of the member of `RateLimit`: `"name";r=`.
    item: Option<HeaderValue>,
    limit_value: Option<HeaderValue>,
    /// The names of this policy's own headers.
    names: Option<Names>,
    full_after: Micros,
    terms: Terms,
    pub(super) is_soft: bool,
}

#[derive(Clone, Copy, Debug)]
enum Terms {
    Rate(Pace),
    Concurrency,
    Penalty,
}

impl PolicyFields {
    /// Makes a limit's header values. They are never freed, so there must be few.
    pub(crate) fn new(policy: &Policy) -> Self {
        Self::with_values(policy, Terms::of(policy), interned)
    }

    /// Makes the header values for a client with this policy. They are freed together with it.
    pub(crate) fn of_client(&self, policy: &Policy) -> Self {
        self.of_client_under(policy, Terms::of(policy))
    }

    /// Makes the header values for a client that an operator has blocked. A block looks like a
    /// penalty, until it ends.
    pub(crate) fn of_blocked_client(&self, policy: &Policy) -> Self {
        self.of_client_under(policy, Terms::Penalty)
    }

    fn of_client_under(&self, policy: &Policy, terms: Terms) -> Self {
        let own = Self::with_values(policy, terms, |text| HeaderValue::from_bytes(text).ok());
        let (names, is_soft) = (self.names.clone(), self.is_soft);
        Self { names, is_soft, ..own.hidden(self.is_hidden()) }
    }

    fn with_values(policy: &Policy, terms: Terms, value: fn(&[u8]) -> Option<HeaderValue>) -> Self {
        let mut item = quoted(policy.name());
        let mut quota = item.clone();
        item.push(b";r=");
        quota.push(b";q=");
        // The headers name a penalty only while it blocks.
        let most = if let Terms::Penalty = terms { 0 } else { policy.capacity() };
        quota.push_integer(most);
        let (micros, per) = time_to_fill(policy);
        match terms {
            Terms::Concurrency => quota.push(b";qu=\"concurrent-requests\""),
            Terms::Rate(pace) if !pace.is_calendar && micros.is_multiple_of(per * MICROS) => {
                quota.push(b";w=");
                quota.push_integer(narrow(micros / (per * MICROS)));
            }
            Terms::Rate(_) | Terms::Penalty => {}
        }
        Self {
            policy: policy.clone(),
            quota: value(quota.as_slice()),
            item: value(item.as_slice()),
            limit_value: value(most.to_string().as_bytes()),
            names: Names::of(policy.name()),
            full_after: Micros::new(narrow(micros.div_ceil(per))),
            terms,
            is_soft: false,
        }
    }

    /// Uses the headers of this name with `x_ratelimit_by_policy`.
    pub(crate) fn named(self, name: &str) -> Self {
        if name == self.policy.name() { self } else { Self { names: Names::of(name), ..self } }
    }

    /// Omits the policy from all headers except `Retry-After`.
    pub(crate) fn hidden(self, is_hidden: bool) -> Self {
        if is_hidden { Self { quota: None, item: None, names: None, ..self } } else { self }
    }

    /// A soft limit denies no request.
    pub(crate) fn soft(self, is_soft: bool) -> Self {
        Self { is_soft, ..self }
    }

    pub(super) const fn is_hidden(&self) -> bool {
        self.quota.is_none()
    }

    pub(super) const fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    /// Returns `t` for `RateLimit`, in seconds: the wait on a denial, the rest of the period for a
    /// calendar, and otherwise the time in which the policy sustains `r` units. If `r` units do not
    /// suffice for another request with this `cost`, it is not shorter than the wait for it.
    pub(crate) fn effective_window(&self, decision: &Decision, cost: Cost) -> Option<u64> {
        match (self.wait(decision), &self.terms) {
            (Some(wait), _) => Some(wait.as_secs_ceil().max(1)),
            (None, Terms::Rate(pace)) => Some(pace.window_of(decision, cost)),
            (None, Terms::Concurrency | Terms::Penalty) => None,
        }
    }

    /// Returns the wait that a denied client gets. For a concurrency limit it is a guess of one
    /// second: only the permits' expiry is known, and requests usually finish earlier.
    pub(crate) fn wait(&self, decision: &Decision) -> Option<Micros> {
        self.shown(decision).wait()
    }

    pub(super) const fn shown<'a>(&self, decision: &'a Decision) -> Shown<'a> {
        Shown { decision, is_concurrency: matches!(self.terms, Terms::Concurrency) }
    }

    pub(crate) fn reset_after(&self, decision: &Decision) -> Micros {
        match self.terms {
            Terms::Rate(_) => decision.reset_after,
            Terms::Concurrency => decision.reset_after.min(Shown::SOON),
            // The end of the block, not the time at which it is forgotten.
            Terms::Penalty => decision.retry_after().unwrap_or_default(),
        }
    }

    /// Returns the time until the quota is full again if `units` are charged in addition to the
    /// decision, at a time `elapsed` after it.
    pub(crate) fn reset_after_debt(
        &self,
        decision: &Decision,
        units: u64,
        elapsed: Micros,
    ) -> Micros {
        match self.terms {
            Terms::Rate(pace) => pace.reset_after_debt(decision, units, elapsed),
            Terms::Concurrency | Terms::Penalty => decision.reset_after,
        }
    }

    /// Whether the headers name the policy. They name a penalty only while it blocks.
    pub(crate) const fn is_shown(&self, decision: &Decision) -> bool {
        decision.denies() || !matches!(self.terms, Terms::Penalty)
    }

    pub(crate) const fn is_penalty(&self) -> bool {
        matches!(self.terms, Terms::Penalty)
    }

    /// The time to refill the full capacity, or the longest period for a calendar. A concurrency
    /// limit has no window.
    pub(crate) fn window(&self) -> Option<Micros> {
        (!matches!(self.terms, Terms::Concurrency)).then_some(self.full_after)
    }

    /// The limit that headers show. It differs from the policy's if a store decides with a share of
    /// the quota. A penalty grants no units.
    pub(super) const fn limit(&self, decision: &Decision) -> u64 {
        if self.is_penalty() { 0 } else { decision.limit }
    }

    /// The value of [`limit`](Self::limit), unless a store decides with a share of the quota.
    pub(super) fn limit_value(&self, decision: &Decision) -> Option<&HeaderValue> {
        self.limit_value.as_ref().filter(|_| decision.limit == self.policy.capacity())
    }
}

/// Adds `RateLimit-Policy` and `RateLimit`.
#[inline]
pub(super) fn append<'a>(headers: &mut HeaderMap, policies: impl Iterator<Item = ShownPolicy<'a>>) {
    let (mut first, mut quotas, mut state) = (None::<&HeaderValue>, None, ValueBuffer::new());
    for (fields, decision, cost) in policies {
        let (Some(quota), Some(item)) = (&fields.quota, &fields.item) else { continue };
        if let Some(first) = first {
            let quotas = quotas.get_or_insert_with(|| ValueBuffer::from(first));
            quotas.push(b", ");
            quotas.push(quota.as_bytes());
            state.push(b", ");
        } else {
            first = Some(quota);
        }
        push_member(&mut state, item, decision.remaining, fields.effective_window(decision, cost));
    }
    let Some(first) = first else { return };
    // Each value is built in place, because a move would have to wait for the writes.
    let Some(state) = digits::value(state.as_slice()) else { return };
    match quotas {
        // A single quota is the same in all responses, so its value is shared.
        None => drop(headers.append(RATELIMIT_POLICY, first.clone())),
        Some(quotas) => {
            let Some(quotas) = digits::frequent(quotas.as_slice()) else { return };
            headers.append(RATELIMIT_POLICY, quotas);
        }
    }
    headers.append(RATELIMIT, state);
}

/// Appends a member of `RateLimit`: `"name";r=99;t=60`.
#[inline]
fn push_member(buffer: &mut ValueBuffer, item: &HeaderValue, remaining: u64, window: Option<u64>) {
    buffer.push(item.as_bytes());
    buffer.push_integer(remaining);
    if let Some(window) = window {
        buffer.push_word(*b";t= ", 3);
        buffer.push_integer(window);
    }
}

impl Terms {
    fn of(policy: &Policy) -> Self {
        match policy.kind() {
            Kind::Penalty(_) => Self::Penalty,
            Kind::Limit(Algorithm::ConcurrentRequests) => Self::Concurrency,
            Kind::Limit(algorithm) => Self::Rate(Pace::new(policy, algorithm)),
        }
    }
}

fn time_to_fill(policy: &Policy) -> (u128, u128) {
    let window = u128::from(policy.window().get());
    let capacity = u128::from(policy.capacity());
    let limit = u128::from(policy.quota().limit());
    match policy.algorithm() {
        Some(Algorithm::TokenBucket { refill: Refill::Interval }) => {
            (window * capacity.div_ceil(limit), 1)
        }
        // For the window algorithms, the capacity is the limit.
        _ => {
            let divisor = gcd(capacity, limit);
            (window * (capacity / divisor), limit / divisor)
        }
    }
}

pub(super) fn quoted(name: &str) -> ValueBuffer {
    let mut buffer = ValueBuffer::new();
    buffer.push(b"\"");
    for byte in name.bytes() {
        if matches!(byte, b'"' | b'\\') {
            buffer.push(b"\\");
        }
        buffer.push(&[byte]);
    }
    buffer.push(b"\"");
    buffer
}
