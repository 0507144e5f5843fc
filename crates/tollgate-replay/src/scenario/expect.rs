//! A test's expectations, which its requests' outcomes meet or fail.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::{RangeFrom, RangeInclusive, RangeToInclusive};

use tollgate_core::{Micros, Timestamp};

use super::{Arrival, Outcome, Requests, Seconds};

/// An expectation of some requests.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Which requests.
    pub scope: Scope,
    /// The expected outcome.
    pub expected: Expected,
}

/// The requests that an expectation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All requests.
    All,
    /// The requests of the sender with this number.
    Sender(u32),
}

/// An expected outcome.
#[derive(Clone, Debug)]
#[must_use]
pub enum Expected {
    /// Every answer has this status.
    Status(u16),
    /// So many requests pass.
    Allowed(Amount),
    /// So many requests are denied.
    Denied(Amount),
    /// So many requests of each client, which is a user or an address, pass.
    AllowedPerClient(Amount),
    /// This policy denies every denied request.
    Policy(String),
    /// The last request leaves so many units.
    Remaining(u64),
    /// The first denial's wait, rounded up to seconds.
    RetryAfter(u64),
    /// No request waits longer before it passes.
    MaxWait(Micros),
    /// No more requests pass within any window.
    Never {
        /// The largest permitted number.
        more_than: u64,
        /// The window's length. Two requests that are so far apart are not in the same window.
        window: Micros,
        /// Whether each client is counted separately.
        per_client: bool,
    },
}

/// A number of requests: exactly `5`, at most `..=5`, at least `5..`, or `5..=7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount(RangeInclusive<u64>);

impl From<u64> for Amount {
    fn from(exactly: u64) -> Self {
        Self(exactly..=exactly)
    }
}

impl From<RangeInclusive<u64>> for Amount {
    fn from(range: RangeInclusive<u64>) -> Self {
        Self(range)
    }
}

impl From<RangeToInclusive<u64>> for Amount {
    fn from(range: RangeToInclusive<u64>) -> Self {
        Self(0..=range.end)
    }
}

impl From<RangeFrom<u64>> for Amount {
    fn from(range: RangeFrom<u64>) -> Self {
        Self(range.start..=u64::MAX)
    }
}

impl Expected {
    /// Every response has this status.
    pub const fn status(status: u16) -> Self {
        Self::Status(status)
    }

    /// So many requests pass.
    pub fn allowed(amount: impl Into<Amount>) -> Self {
        Self::Allowed(amount.into())
    }

    /// So many requests are denied.
    pub fn denied(amount: impl Into<Amount>) -> Self {
        Self::Denied(amount.into())
    }

    /// So many requests of each client pass. Requests with the same user are of the same client.
    /// Without users, requests from the same address are.
    pub fn allowed_per_client(amount: impl Into<Amount>) -> Self {
        Self::AllowedPerClient(amount.into())
    }

    /// Some request is denied, and this policy is the first to deny every denied request.
    pub fn denied_by(policy: impl Into<String>) -> Self {
        Self::Policy(policy.into())
    }

    /// The last request leaves so many units under the tightest policy.
    pub const fn remaining(units: u64) -> Self {
        Self::Remaining(units)
    }

    /// The first denial's `Retry-After`, in seconds.
    pub const fn retry_after(seconds: u64) -> Self {
        Self::RetryAfter(seconds)
    }

    /// No request waits longer before it passes.
    pub fn max_wait(most: impl Into<Micros>) -> Self {
        Self::MaxWait(most.into())
    }

    /// No more requests than this pass within any window of this length. Two requests that are so
    /// far apart are not in the same window.
    pub fn never_more_than(more_than: u64, window: impl Into<Micros>) -> Self {
        Self::Never { more_than, window: window.into(), per_client: false }
    }

    /// Like [`never_more_than`](Self::never_more_than), for each client separately.
    pub fn never_more_than_per_client(more_than: u64, window: impl Into<Micros>) -> Self {
        Self::Never { more_than, window: window.into(), per_client: true }
    }
}

/// An expectation that is not met.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The position of the request that shows it.
    pub at: usize,
    /// The expected outcome.
    pub expected: String,
    /// What happened instead.
    pub got: String,
    /// Whether too many requests were counted. A shorter history then shows the failure if it
    /// still has an excess.
    pub(super) is_excess: bool,
}

impl Expectation {
    /// Checks the outcomes, which are in the order of arrival. `requests` are all senders' requests,
    /// and name the callers: the same user or address is the same client for all senders.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self, requests: &[Requests], outcomes: &[Outcome]) -> Result<(), Failure> {
        let caller = |outcome: &Outcome| {
            let Arrival { sender, client, .. } = outcome.arrival;
            requests[sender as usize].caller(client)
        };
        let is_meant = |outcome: &Outcome| match self.scope {
            Scope::All => true,
            Scope::Sender(sender) => outcome.arrival.sender == sender,
        };
        let all = || outcomes.iter().enumerate().filter(|(_, outcome)| is_meant(outcome));
        let allowed = || all().filter(|(_, outcome)| outcome.is_allowed);
        let denied = || all().filter(|(_, outcome)| !outcome.is_allowed);
        let or = |got: Option<String>, none: &str| got.unwrap_or_else(|| none.to_owned());
        let found = match &self.expected {
            Expected::Allowed(range) => count(range, allowed(), denied(), "allowed"),
            Expected::Denied(range) => count(range, denied(), allowed(), "denied"),
            Expected::AllowedPerClient(range) => {
                let mut clients = HashMap::<_, (Vec<_>, Vec<_>)>::new();
                for (at, outcome) in all() {
                    let (allowed, denied) = clients.entry(caller(outcome)).or_default();
                    (if outcome.is_allowed { allowed } else { denied }).push((at, outcome));
                }
                let mut clients: Vec<_> = clients.into_iter().collect();
                clients.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
                clients.into_iter().find_map(|(client, (allowed, denied))| {
                    let what = format!("allowed for {client}");
                    count(range, allowed.into_iter(), denied.into_iter(), &what)
                })
            }
            Expected::Policy(_) | Expected::RetryAfter(_) if denied().next().is_none() => {
                let last = all().next_back().map_or(0, |(at, _)| at);
                Some((last, "no denied request".to_owned(), false))
            }
            Expected::Status(status) => all()
                .find(|(_, it)| it.status != *status)
                .map(|(at, it)| (at, it.status.to_string(), false)),
            Expected::Policy(policy) => denied()
                .find(|(_, it)| it.policy_name() != Some(policy))
                .map(|(at, it)| (at, or(it.policy_name().map(Into::into), "no policy"), false)),
            Expected::Remaining(units) => all()
                .next_back()
                .map(|(at, it)| (at, it.remaining()))
                .filter(|(_, left)| *left != Some(*units))
                .map(|(at, left)| (at, or(left.map(|it| it.to_string()), "no units"), false)),
            Expected::RetryAfter(seconds) => denied()
                .next()
                .map(|(at, it)| (at, it.retry_seconds()))
                .filter(|(_, wait)| *wait != Some(*seconds))
                .map(|(at, wait)| {
                    (at, or(wait.map(|it| format!("{it} s")), "no Retry-After"), false)
                }),
            Expected::MaxWait(most) => allowed()
                .find(|(_, it)| it.wait > *most)
                .map(|(at, it)| (at, Seconds(it.wait).to_string(), false)),
            Expected::Never { more_than, window, per_client } => {
                let passed = allowed().map(|(at, outcome)| {
                    (outcome.passed_at(), per_client.then(|| caller(outcome)), at)
                });
                exceeded(passed, *more_than, *window).map(|(at, first)| {
                    let from = Seconds(first.since(super::START));
                    (at, format!("{} allowed from {from} on", more_than + 1), true)
                })
            }
        };
        found.map_or(Ok(()), |(at, got, is_excess)| {
            Err(Failure { at, expected: self.expected.to_string(), got, is_excess })
        })
    }
}

/// Checks a number of requests. If there are too many, the failure is at the first request beyond
/// the range. If there are too few, it is at the first request that was not counted. The flag tells
/// whether there are too many.
fn count<'a>(
    Amount(range): &Amount,
    counted: impl Iterator<Item = (usize, &'a Outcome)>,
    mut others: impl Iterator<Item = (usize, &'a Outcome)>,
    what: &str,
) -> Option<(usize, String, bool)> {
    let (mut number, mut excess) = (0_u64, None);
    for (at, _) in counted {
        number += 1;
        if number > *range.end() && excess.is_none() {
            excess = Some(at);
        }
    }
    let missing = || (number < *range.start()).then(|| others.next().map_or(0, |(at, _)| at));
    let at = excess.or_else(missing)?;
    Some((at, format!("{number} {what}"), excess.is_some()))
}

/// Finds the first request that exceeds the number in a window, and when that window starts.
fn exceeded<K: std::hash::Hash + Eq>(
    passed: impl Iterator<Item = (Timestamp, K, usize)>,
    more_than: u64,
    window: Micros,
) -> Option<(usize, Timestamp)> {
    // Requests that wait pass later than requests after them.
    let mut passed: Vec<_> = passed.collect();
    passed.sort_by_key(|(at, ..)| *at);
    let mut recent = HashMap::<K, VecDeque<Timestamp>>::new();
    for (now, client, at) in passed {
        let recent = recent.entry(client).or_default();
        while recent.front().is_some_and(|first| *first + window <= now) {
            recent.pop_front();
        }
        recent.push_back(now);
        if recent.len() as u64 > more_than {
            return Some((at, recent[0]));
        }
    }
    None
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Allowed(range) => write!(f, "{range} allowed"),
            Self::Denied(range) => write!(f, "{range} denied"),
            Self::AllowedPerClient(range) => write!(f, "{range} allowed per client"),
            Self::Policy(policy) => f.write_str(policy),
            Self::Remaining(units) => write!(f, "{units} remaining"),
            Self::RetryAfter(seconds) => write!(f, "Retry-After {seconds} s"),
            Self::MaxWait(wait) => write!(f, "a wait of at most {}", Seconds(*wait)),
            Self::Never { more_than, window, per_client } => {
                let whose = if *per_client { " per client" } else { "" };
                write!(f, "never more than {more_than} in {}{whose}", Seconds(*window))
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self.0.start(), *self.0.end()) {
            (least, most) if least == most => write!(f, "{least}"),
            (0, most) => write!(f, "at most {most}"),
            (least, u64::MAX) => write!(f, "at least {least}"),
            (least, most) => write!(f, "{least} to {most}"),
        }
    }
}
