//! Rate limit headers, and which headers a layer sends.
//!
//! These headers tell clients how much quota remains. [`HeaderOptions`] selects the headers to
//! send, and [`EXPOSED`] lists them for browsers.
//!
//! | header | content |
//! |---|---|
//! | `RateLimit-Policy` | `"name";q=100;w=60` for each policy: 100 units per 60 seconds |
//! | `RateLimit` | `"name";r=42;t=26` for each policy: 42 units remain, for 26 seconds at the policy's rate |
//! | `X-RateLimit-Limit`, `-Remaining`, `-Reset` | one policy: the denying policy with the longest wait, otherwise the tightest policy; reset in Unix seconds |
//! | `X-RateLimit-Exceeded` | the soft limits that the request exceeds |
//! | `X-RateLimit-Reason` | `temporary-reduced-capacity`: the store could not decide |
//! | `Retry-After` | seconds, on denials for which waiting helps |
//!
//! A concurrency limit has no window: its policy is `"name";q=10;qu="concurrent-requests"`, and its
//! `RateLimit` has a `t` only on denials. It is unknown when running requests will finish, so all
//! headers on a denial contain an estimated wait: one second.
//!
//! By default, allowed responses have the first two headers, and denials have all: see
//! [`HeaderOptions`]. A penalty appears only while it blocks, in the form `"name";q=0` and
//! `"name";r=0;t=57`.
//!
//! The first two headers follow revision 11 of the Internet-Draft
//! [`draft-ietf-httpapi-ratelimit-headers`][draft]. `r` rounds down; `t`, reset and `Retry-After`
//! round up, so a client that obeys them is not denied. On a denial, `t` is the wait for that
//! policy. Otherwise `r` units in `t` seconds do not exceed the policy's rate, regardless of the
//! remaining burst. If `r` units do not suffice for another request with the same cost, such a
//! request is allowed after `t` seconds. For a sliding window log, `t` is then the time until all
//! units are available again, because the decision does not contain the times of earlier requests.
//! `w` appears only for windows of whole seconds, because the syntax requires an integer.
//!
//! # Nested limiters
//!
//! A layer appends its members of the two lists to those from inner services, as another header
//! line. There is only one set of `X-RateLimit` headers. If the inner response has `Retry-After`,
//! its set remains. Otherwise the set with the smaller remaining fraction of its limit is sent, and
//! the inner set if both are equal. A set with unreadable numbers is replaced. If there are two
//! `Retry-After` values, the larger remains, and seconds win over a date.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

mod by_policy;
mod digits;
mod fields;
mod intern;
mod names;
mod pace;
mod retry;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};
use tollgate_core::{Decision, Outcome, Timestamp};

pub use self::by_policy::names_of;
pub(crate) use self::fields::{PolicyFields, ShownPolicy};
pub use self::names::{
    COST, EXPOSED, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_EXCEEDED, X_RATELIMIT_LIMIT,
    X_RATELIMIT_REASON, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET,
};
pub(crate) use self::retry::{seconds_to_wait, seed_of};

pub(crate) const REDUCED: HeaderValue = HeaderValue::from_static("temporary-reduced-capacity");

/// Returns the policy names as a list of strings, or `None` if there are none.
pub(crate) fn names<'a>(policies: impl Iterator<Item = &'a str>) -> Option<HeaderValue> {
    let mut list = digits::ValueBuffer::new();
    for policy in policies {
        list.push(if list.as_slice().is_empty() { b"" } else { b", " });
        list.push(fields::quoted(policy).as_slice());
    }
    digits::value(list.as_slice()).filter(|value| !value.is_empty())
}

/// Selects the headers that a layer sends.
///
/// By default an allowed response has `RateLimit-Policy` and `RateLimit`, and a denial has the
/// `X-RateLimit` headers, too. With five more headers, the header map of most responses would have
/// to grow, which costs as much as the decision.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::headers::HeaderOptions;
///
/// // Without the `X-RateLimit` headers, and with up to 5 s more in `Retry-After`.
/// let headers = HeaderOptions::default().x_ratelimit(false).retry_jitter(Duration::from_secs(5));
/// # let _ = headers;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct HeaderOptions {
    ratelimit: bool,
    x_ratelimit: SendOn,
    retry_jitter: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendOn {
    Nothing,
    Denials,
    All,
    /// All responses, with three headers for each policy.
    ByPolicy,
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { ratelimit: true, x_ratelimit: SendOn::Denials, retry_jitter: Duration::ZERO }
    }
}

impl HeaderOptions {
    /// Sends all rate limit headers on all responses.
    pub const fn all() -> Self {
        Self { ratelimit: true, x_ratelimit: SendOn::All, retry_jitter: Duration::ZERO }
    }

    /// Sets whether to send `RateLimit-Policy` and `RateLimit`.
    pub const fn ratelimit(mut self, send: bool) -> Self {
        self.ratelimit = send;
        self
    }

    /// Sets whether to send `X-RateLimit-Limit`, `-Remaining` and `-Reset`, on all responses or
    /// never.
    pub const fn x_ratelimit(mut self, send: bool) -> Self {
        self.x_ratelimit = if send { SendOn::All } else { SendOn::Nothing };
        self
    }

    /// Sends the three `X-RateLimit` headers for each policy, on all responses, instead of only for
    /// a single policy. Language model APIs send such headers:
    ///
    /// ```text
    /// x-ratelimit-limit-tokens: 10000
    /// x-ratelimit-remaining-tokens: 4000
    /// x-ratelimit-reset-tokens: 6m0s
    /// ```
    ///
    /// Here `tokens` is the policy's name. Characters that a header name cannot contain become `-`.
    /// Names that then differ only by case would share their headers, so such a layer does not
    /// build. The reset is the time until the quota is full again.
    /// [`Limit::hide_headers`](crate::Limit::hide_headers) omits a policy, and
    /// [`Limit::header_name`](crate::Limit::header_name) lets several policies share headers.
    pub const fn x_ratelimit_by_policy(mut self) -> Self {
        self.x_ratelimit = SendOn::ByPolicy;
        self
    }

    /// Adds up to this time to `Retry-After`, in whole seconds, so clients that were denied at the
    /// same time return at different times. The jitter is fixed for a key and window, so another
    /// request gets no shorter wait.
    pub const fn retry_jitter(mut self, at_most: Duration) -> Self {
        self.retry_jitter = at_most;
        self
    }

    pub(crate) fn write<'a>(
        &self,
        headers: &mut HeaderMap,
        decided_at: Timestamp,
        is_denial: bool,
        policies: impl Iterator<Item = ShownPolicy<'a>> + Clone,
    ) {
        let sends_x_ratelimit = self.sends_x_ratelimit(is_denial);
        if !self.ratelimit && !sends_x_ratelimit {
            return;
        }
        if sends_x_ratelimit {
            // With `Content-Length`. A map grows faster while it has few headers.
            headers.reserve(6);
        }
        let shown = policies.filter(|(fields, decision, _)| {
            decision.outcome != Outcome::Undecided && !fields.is_hidden()
        });
        if self.ratelimit {
            fields::append(headers, shown.clone());
        }
        if !sends_x_ratelimit {
            return;
        }
        if self.x_ratelimit == SendOn::ByPolicy {
            for policy @ (fields, decision, _) in shown.clone() {
                let Some(names) = fields.names() else { continue };
                let mut same = shown.clone().filter(|other| other.0.names() == Some(names));
                if same.any(|other| has_less(other, policy)) {
                    continue;
                }
                let (limit, reset_after) = (fields.limit(decision), fields.reset_after(decision));
                names.write(headers, limit, decision.remaining, reset_after);
            }
            return;
        }
        // A 429 describes a policy that can deny.
        let tightest = shown
            .filter(|(fields, ..)| !(is_denial && fields.is_soft))
            .reduce(|tightest, shown| if is_tighter(shown, tightest) { shown } else { tightest });
        if let Some(tightest) = tightest {
            write_x_ratelimit(headers, decided_at, tightest);
        }
    }

    const fn sends_x_ratelimit(&self, is_denial: bool) -> bool {
        match self.x_ratelimit {
            SendOn::Nothing => false,
            SendOn::Denials => is_denial,
            SendOn::All | SendOn::ByPolicy => true,
        }
    }

    pub(crate) const fn by_policy(&self) -> bool {
        matches!(self.x_ratelimit, SendOn::ByPolicy)
    }

    pub(crate) const fn any(&self) -> bool {
        self.ratelimit || self.sends_x_ratelimit(false)
    }

    pub(crate) const fn jitter_limit(&self) -> Duration {
        self.retry_jitter
    }
}

pub(crate) fn write_retry_after(headers: &mut HeaderMap, seconds: u64) {
    if let Some(theirs) = headers.insert(RETRY_AFTER, digits::seconds(seconds))
        && number(&theirs).is_some_and(|theirs| theirs > seconds)
    {
        headers.insert(RETRY_AFTER, theirs);
    }
}

/// Whether `a` restricts the client more than `b`.
pub(crate) fn is_tighter(a: ShownPolicy<'_>, b: ShownPolicy<'_>) -> bool {
    a.0.shown(a.1).is_tighter(b.0.shown(b.1))
}

/// Like [`is_tighter`], for policies that count the same units.
fn has_less(a: ShownPolicy<'_>, b: ShownPolicy<'_>) -> bool {
    let rank = |shown: ShownPolicy<'_>| shown.0.shown(shown.1).rank();
    (rank(b), a.1.remaining) < (rank(a), b.1.remaining)
}

pub(crate) fn reset_at(decided_at: Timestamp, (fields, decision, _): ShownPolicy<'_>) -> u64 {
    (decided_at + fields.reset_after(decision)).since(Timestamp::EPOCH).as_secs_ceil()
}

/// The first insertion returns the header from an inner service, so most responses need no lookup.
fn write_x_ratelimit(headers: &mut HeaderMap, decided_at: Timestamp, shown: ShownPolicy<'_>) {
    let (fields, decision, _) = shown;
    let ours = digits::integer(decision.remaining);
    if let Some(theirs) = headers.insert(X_RATELIMIT_REMAINING, ours)
        && inner_set_wins(headers, &theirs, decision)
    {
        headers.insert(X_RATELIMIT_REMAINING, theirs);
        return;
    }
    // Each value is built in place, because a move would have to wait for the writes.
    match fields.limit_value(decision) {
        Some(value) => headers.insert(X_RATELIMIT_LIMIT, value.clone()),
        None => headers.insert(X_RATELIMIT_LIMIT, digits::integer(fields.limit(decision))),
    };
    headers.insert(X_RATELIMIT_RESET, digits::seconds(reset_at(decided_at, shown)));
}

fn inner_set_wins(headers: &HeaderMap, remaining: &HeaderValue, ours: &Decision) -> bool {
    let limit = headers.get(X_RATELIMIT_LIMIT).and_then(number);
    let (Some(remaining), Some(limit)) = (number(remaining), limit) else { return false };
    headers.contains_key(RETRY_AFTER)
        || u128::from(remaining) * u128::from(ours.limit)
            <= u128::from(ours.remaining) * u128::from(limit)
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}
