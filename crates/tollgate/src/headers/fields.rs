//! What the fields of one policy have in common over all responses.

use http::HeaderValue;
use tollgate_core::{Algorithm, Decision, Kind, Micros, Policy, Refill};

use super::digits::Line;
use super::intern::interned;

/// The fields of one policy, rendered as far as they do not depend on a decision.
///
/// Made once when a layer is built.
#[derive(Clone, Debug)]
pub(crate) struct PolicyFields {
    policy: Policy,
    /// The member of `RateLimit-Policy`: `"name";q=100;w=60`, without `w` where windows are
    /// not all of one length or no whole number of seconds.
    quota: Box<[u8]>,
    /// The same as a value, for a layer of this policy alone.
    quota_value: Option<HeaderValue>,
    /// The value of `X-RateLimit-Limit`.
    limit_value: Option<HeaderValue>,
    /// How the member of `RateLimit` begins: `"name";r=`.
    item: Line,
    full_after: Micros,
    terms: Terms,
}

/// The parts of the fields that depend on the kind of the policy.
#[derive(Clone, Copy, Debug)]
enum Terms {
    Rate(Pace),
    Concurrency,
    Penalty,
}

impl PolicyFields {
    /// The fields of `policy`.
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut item = quoted(policy.name());
        let mut quota = item.clone();
        item.push(b";r=");
        quota.push(b";q=");
        let terms = Terms::of(policy);
        // The fields name a penalty only while it blocks.
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
            quota: quota.as_slice().into(),
            quota_value: interned(quota.as_slice()),
            limit_value: interned(most.to_string().as_bytes()),
            item,
            full_after: Micros::new(narrow(micros.div_ceil(per))),
            terms,
        }
    }

    /// The policy.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The effective window in seconds, the `t` of `RateLimit`: the wait of a denial;
    /// otherwise so long that `r` units in it are no more than the policy sustains. With a
    /// calendar it is the time to the end of the period. What counts in flight has no window
    /// otherwise.
    pub(crate) fn effective_window(&self, decision: &Decision) -> Option<u64> {
        match (self.wait(decision), &self.terms) {
            (Some(wait), _) => Some(wait.as_secs_ceil().max(1)),
            (None, Terms::Rate(pace)) => Some(pace.window_of(decision)),
            (None, Terms::Concurrency | Terms::Penalty) => None,
        }
    }

    /// How long a client that was denied is told to wait.
    ///
    /// For a concurrency limit that is a guess, one second: the decision knows only when leases
    /// expire, and requests usually finish earlier.
    pub(crate) fn wait(&self, decision: &Decision) -> Option<Micros> {
        let soon = if let Terms::Concurrency = self.terms { SOON } else { Micros::MAX };
        decision.retry_after().map(|wait| wait.min(soon))
    }

    /// After what time a client is told that the quota is whole again.
    pub(crate) fn reset_after(&self, decision: &Decision) -> Micros {
        match self.terms {
            Terms::Rate(_) => decision.reset_after,
            Terms::Concurrency => decision.reset_after.min(SOON),
            // When the block ends, and not when it is forgotten.
            Terms::Penalty => decision.retry_after().unwrap_or_default(),
        }
    }

    /// Whether the fields name the policy. They name a penalty only while it blocks.
    pub(crate) const fn is_shown(&self, decision: &Decision) -> bool {
        decision.denies() || !matches!(self.terms, Terms::Penalty)
    }

    /// Whether the policy blocks for strikes.
    pub(crate) const fn is_penalty(&self) -> bool {
        matches!(self.terms, Terms::Penalty)
    }

    /// The time after which the whole capacity is back: the window (of a calendar the longest), or
    /// the time that a bucket takes to fill, rounded up to a microsecond. A concurrency limit has
    /// none.
    pub(crate) fn window(&self) -> Option<Micros> {
        (!matches!(self.terms, Terms::Concurrency)).then_some(self.full_after)
    }

    /// The member of `RateLimit-Policy`.
    pub(super) fn quota(&self) -> &[u8] {
        &self.quota
    }

    /// The value of `RateLimit-Policy` where this policy is alone.
    pub(super) fn quota_value(&self) -> Option<HeaderValue> {
        self.quota_value.clone()
    }

    /// The value of `X-RateLimit-Limit`, if it is kept and not another: a store may decide with
    /// a share of the quota.
    pub(super) fn limit_value(&self, decision: &Decision) -> Option<&HeaderValue> {
        self.limit_value.as_ref().filter(|_| decision.limit == self.policy.capacity())
    }

    /// The member of `RateLimit`: `"name";r=99;t=60`.
    pub(super) fn member(&self, decision: &Decision) -> Line {
        let mut line = self.item.clone();
        self.push_numbers(&mut line, decision);
        line
    }

    /// Appends the same.
    pub(super) fn push_member(&self, line: &mut Line, decision: &Decision) {
        line.push(self.item.as_slice());
        self.push_numbers(line, decision);
    }

    #[inline]
    fn push_numbers(&self, line: &mut Line, decision: &Decision) {
        line.push_integer(decision.remaining);
        if let Some(window) = self.effective_window(decision) {
            line.push_word(*b";t= ", 3);
            line.push_integer(window);
        }
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

/// How long a number of units takes to come back.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// So many seconds ...
    seconds: u64,
    /// ... per so many units, without common divisor, so that a product with the
    /// units of all but huge quotas fits a word.
    units: u64,
    /// Where units come back in steps: the time between two, in microseconds.
    step: Option<u64>,
    /// Whether the next step is the last one, and how long it is cannot be told beforehand.
    is_calendar: bool,
}

impl Pace {
    fn new(policy: &Policy, algorithm: Algorithm) -> Self {
        let (step, per_window) = match algorithm {
            Algorithm::FixedWindowCounter | Algorithm::SlidingWindowCounter => {
                (true, policy.quota().limit())
            }
            // What does not fit the bucket is lost.
            Algorithm::TokenBucket { refill: Refill::Interval } => {
                (true, policy.quota().limit().min(policy.capacity()))
            }
            _ => (false, policy.quota().limit()),
        };
        let window = policy.window().get();
        let micros = u128::from(per_window) * MICROS;
        let divisor = gcd(u128::from(window), micros);
        Self {
            seconds: narrow(u128::from(window) / divisor),
            units: narrow(micros / divisor),
            step: step.then_some(window),
            is_calendar: policy.quota().calendar().is_some(),
        }
    }

    /// Seconds in which no more than the remaining units should be used. With nothing
    /// left it is the time until there may be something again.
    fn window_of(&self, decision: &Decision) -> u64 {
        if self.is_calendar && decision.reset_after > Micros::ZERO {
            return decision.reset_after.as_secs_ceil();
        }
        let paced = self.seconds_for(decision.remaining.max(1));
        match self.step {
            Some(step) => paced.max(until_step(decision.reset_after, step)),
            None => paced,
        }
    }

    fn seconds_for(&self, units: u64) -> u64 {
        match units.checked_mul(self.seconds) {
            Some(product) => product.div_ceil(self.units),
            None => narrow(
                (u128::from(units) * u128::from(self.seconds)).div_ceil(u128::from(self.units)),
            ),
        }
    }
}

/// Seconds until the next step, where the last one of several is `reset_after` away.
fn until_step(reset_after: Micros, step: u64) -> u64 {
    let micros = match reset_after.get() {
        last if last <= step => last,
        last => (last - 1) % step + 1,
    };
    Micros::new(micros).as_secs_ceil()
}

/// The time in which the whole capacity comes back, as a fraction: so many
/// microseconds, divided by the second number.
fn time_to_fill(policy: &Policy) -> (u128, u128) {
    let window = u128::from(policy.window().get());
    let capacity = u128::from(policy.capacity());
    let limit = u128::from(policy.quota().limit());
    match policy.algorithm() {
        Some(Algorithm::TokenBucket { refill: Refill::Interval }) => {
            (window * capacity.div_ceil(limit), 1)
        }
        // For the window algorithms the capacity is the limit.
        _ => {
            let divisor = gcd(capacity, limit);
            (window * (capacity / divisor), limit / divisor)
        }
    }
}

/// A string of a structured field.
fn quoted(name: &str) -> Line {
    let mut line = Line::new();
    line.push(b"\"");
    for byte in name.bytes() {
        if matches!(byte, b'"' | b'\\') {
            line.push(b"\\");
        }
        line.push(&[byte]);
    }
    line.push(b"\"");
    line
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

const MICROS: u128 = 1_000_000;
/// When it is worth asking again for what is in flight.
const SOON: Micros = Micros::new(1_000_000);
