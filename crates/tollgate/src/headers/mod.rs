//! The fields that tell a client where it stands.
//!
//! | field | says |
//! |---|---|
//! | `RateLimit-Policy` | `"name";q=100;w=60` of each policy: 100 units, all back after 60 seconds |
//! | `RateLimit` | `"name";r=42;t=26` of each: 42 units are left; used up in 26 seconds, they are what the policy sustains |
//! | `X-RateLimit-Limit`, `-Remaining`, `-Reset` | one policy: the violated one with the longest wait, else the tightest; reset in Unix seconds |
//! | `X-RateLimit-Reason` | `temporary-reduced-capacity`: the store could not decide |
//! | `Retry-After` | seconds, on denials that waiting cures |
//!
//! What counts in flight has no window: its policy is `"name";q=10;qu="concurrent-requests"`,
//! and its `RateLimit` has a `t` on denials alone. No one knows when a request in flight will end.
//! So every field tells a client that was denied to try again in a second. That is a guess: the
//! client may be denied again.
//!
//! By default allowed responses have the first two, and denials all: see [`HeaderOptions`].
//!
//! A penalty is in none of them until it blocks: then as `"name";q=0` and `"name";r=0;t=57`.
//!
//! The first two follow revision 11 of the Internet-Draft
//! [`draft-ietf-httpapi-ratelimit-headers`][draft]. `r` rounds down; `t`, reset and
//! `Retry-After` round up, so that a client which obeys them is not denied. On a denial
//! `t` is the wait of that policy. Otherwise `r` units in `t` seconds are at most what
//! the policy sustains, however much of a burst is left. `w` stands only where it is a
//! whole number of seconds, as the syntax has no other.
//!
//! # Where several limiters meet
//!
//! A layer adds to what the services inside have set: its members of the two lists
//! come after theirs, as a further field line. Of the `X-RateLimit` fields only one set
//! makes sense: that of a service inside which has denied, else the one with the smaller
//! part of its limit left, between equals the inner one; one whose numbers cannot be read
//! goes.
//! Of two `Retry-After` the larger stays, and one in seconds before a date.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

mod digits;
mod fields;
mod intern;
mod retry;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate_core::{Decision, Micros, Outcome, Source, Timestamp, Verdict};

use self::digits::Line;
pub(crate) use self::fields::PolicyFields;
pub(crate) use self::retry::seconds_to_wait;

/// Why a response was decided otherwise than by the store with the whole quota:
/// `temporary-reduced-capacity`, a problem type of the RateLimit draft. The store could not decide
/// the request in time, and it was refused with 503 or decided by a local store.
pub const X_RATELIMIT_REASON: HeaderName = HeaderName::from_static("x-ratelimit-reason");

/// The value of [`X_RATELIMIT_REASON`].
pub(crate) const REDUCED: HeaderValue = HeaderValue::from_static("temporary-reduced-capacity");

/// Says that a local store has decided.
pub(crate) fn tell_of_reduction(headers: &mut HeaderMap, verdict: &Verdict) {
    if verdict.source() == Source::Local {
        headers.insert(X_RATELIMIT_REASON, REDUCED);
    }
}

/// One policy and what it decided. Shadow policies are left out by whoever makes rows.
pub(crate) type Row<'a> = (&'a PolicyFields, &'a Decision);

/// Which fields to send.
///
/// By default an allowed response has `RateLimit-Policy` and `RateLimit`, and a denial has the
/// `X-RateLimit` fields too. Five more fields than a usual response has make the header map of many
/// responses grow, which costs as much as the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderOptions {
    ratelimit: bool,
    x_ratelimit: SendOn,
    retry_jitter: Duration,
}

/// The responses that have a set of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendOn {
    Nothing,
    Denials,
    All,
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { ratelimit: true, x_ratelimit: SendOn::Denials, retry_jitter: Duration::ZERO }
    }
}

impl HeaderOptions {
    /// All fields on all responses.
    pub const fn all() -> Self {
        Self { ratelimit: true, x_ratelimit: SendOn::All, retry_jitter: Duration::ZERO }
    }

    /// Whether to send `RateLimit-Policy` and `RateLimit`.
    #[must_use]
    pub const fn ratelimit(mut self, send: bool) -> Self {
        self.ratelimit = send;
        self
    }

    /// Whether to send `X-RateLimit-Limit`, `-Remaining` and `-Reset`: on all responses, or on
    /// none.
    #[must_use]
    pub const fn x_ratelimit(mut self, send: bool) -> Self {
        self.x_ratelimit = if send { SendOn::All } else { SendOn::Nothing };
        self
    }

    /// Adds up to so much to `Retry-After`, in whole seconds, so that clients which were
    /// denied together do not come back together. It is the same for a key within a
    /// window: asking again does not win a shorter wait.
    #[must_use]
    pub const fn retry_jitter(mut self, at_most: Duration) -> Self {
        self.retry_jitter = at_most;
        self
    }

    /// Adds the fields of a verdict that came at `decided_at`.
    ///
    /// `Retry-After` belongs to the [`Denial`](crate::Denial). Policies whose store
    /// could not decide are left out; without any other there are no fields.
    pub(crate) fn write<'a>(
        &self,
        headers: &mut HeaderMap,
        decided_at: Timestamp,
        is_denial: bool,
        rows: impl IntoIterator<Item = Row<'a>>,
    ) {
        let mut rows =
            rows.into_iter().filter(|(_, decision)| decision.outcome != Outcome::Undecided);
        let Some(first) = rows.next() else {
            return;
        };
        let mut shown = first;
        let mut state = first.0.member(first.1);
        let mut quotas = None::<Line>;
        for row in rows {
            if self.ratelimit {
                let quotas = quotas.get_or_insert_with(|| {
                    let mut line = Line::new();
                    line.push(first.0.quota());
                    line
                });
                quotas.push(b", ");
                quotas.push(row.0.quota());
                state.push(b", ");
                row.0.push_member(&mut state, row.1);
            }
            if is_tighter(row, shown) {
                shown = row;
            }
        }
        if self.ratelimit {
            let quotas = match quotas {
                Some(quotas) => digits::value(quotas.as_slice()),
                None => first.0.quota_value(),
            };
            if let (Some(quotas), Some(state)) = (quotas, digits::value(state.as_slice())) {
                headers.append(RATELIMIT_POLICY, quotas);
                headers.append(RATELIMIT, state);
            }
        }
        if self.sends_x_ratelimit(is_denial) {
            write_x_ratelimit(headers, decided_at, shown);
        }
    }

    const fn sends_x_ratelimit(&self, is_denial: bool) -> bool {
        match self.x_ratelimit {
            SendOn::Nothing => false,
            SendOn::Denials => is_denial,
            SendOn::All => true,
        }
    }

    /// Whether an allowed response has any fields.
    pub(crate) const fn any(&self) -> bool {
        self.ratelimit || self.sends_x_ratelimit(false)
    }

    pub(crate) const fn jitter_limit(&self) -> Duration {
        self.retry_jitter
    }
}

/// Sets `Retry-After`, unless a larger one is there.
pub(crate) fn write_retry_after(headers: &mut HeaderMap, seconds: u64) {
    if let Some(theirs) = headers.insert(RETRY_AFTER, digits::integer(seconds))
        && number(&theirs).is_some_and(|theirs| theirs > seconds)
    {
        headers.insert(RETRY_AFTER, theirs);
    }
}

/// Whether `a` says more about the client's trouble than `b`: the longer wait, an endless
/// one before all, else the smaller part of its limit left.
pub(crate) fn is_tighter(a: Row<'_>, b: Row<'_>) -> bool {
    let part = |a: Row<'_>, b: Row<'_>| u128::from(a.1.remaining) * u128::from(b.1.limit);
    match wait(a).cmp(&wait(b)) {
        std::cmp::Ordering::Equal => part(a, b) < part(b, a),
        order => order.is_gt(),
    }
}

fn wait((fields, decision): Row<'_>) -> Option<Micros> {
    if decision.outcome == Outcome::ExceedsCapacity {
        Some(Micros::MAX)
    } else {
        fields.wait(decision)
    }
}

/// The instant at which the quota is whole again, in Unix seconds, rounded up.
pub(crate) fn reset_at(decided_at: Timestamp, (fields, decision): Row<'_>) -> u64 {
    (decided_at + fields.reset_after(decision)).since(Timestamp::EPOCH).as_secs_ceil()
}

/// The first insertion says whether a service inside has set these fields, so that a
/// response without them is not searched for them.
fn write_x_ratelimit(headers: &mut HeaderMap, decided_at: Timestamp, shown: Row<'_>) {
    let (fields, decision) = shown;
    let ours = digits::integer(decision.remaining);
    if let Some(theirs) = headers.insert(X_RATELIMIT_REMAINING, ours)
        && theirs_stay(headers, &theirs, decision)
    {
        headers.insert(X_RATELIMIT_REMAINING, theirs);
        return;
    }
    // Each value goes into its place from where it is made: to move what has just been written
    // waits for the writes.
    match fields.limit_value(decision) {
        Some(value) => headers.insert(X_RATELIMIT_LIMIT, value.clone()),
        None => headers.insert(X_RATELIMIT_LIMIT, digits::integer(decision.limit)),
    };
    digits::with_instant(reset_at(decided_at, shown), |value| {
        headers.insert(X_RATELIMIT_RESET, value.clone());
    });
}

/// Whether the set of a service inside stays: because that has denied, or because a
/// smaller part of its limit is left.
fn theirs_stay(headers: &HeaderMap, remaining: &HeaderValue, ours: &Decision) -> bool {
    let limit = headers.get(X_RATELIMIT_LIMIT).and_then(number);
    let (Some(remaining), Some(limit)) = (number(remaining), limit) else { return false };
    headers.contains_key(RETRY_AFTER)
        || u128::from(remaining) * u128::from(ours.limit)
            <= u128::from(ours.remaining) * u128::from(limit)
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// All fields of a limiter, for `Access-Control-Expose-Headers`: without it the scripts of
/// another origin cannot read them.
pub const EXPOSED: [HeaderName; 7] = [
    RATELIMIT_POLICY,
    RATELIMIT,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
    X_RATELIMIT_REASON,
    RETRY_AFTER,
];

/// `X-Tollgate-Cost`, by which a service tells the layer what a request has cost, see
/// [`Reserve::or_by_header`](crate::Reserve::or_by_header). Clients never see it.
pub const COST: HeaderName = HeaderName::from_static("x-tollgate-cost");
/// `RateLimit-Policy`
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `RateLimit`
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `X-RateLimit-Limit`
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
