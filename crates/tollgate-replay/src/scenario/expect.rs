//! A test's expectations, which its requests' outcomes meet or fail.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

use tollgate_core::{Micros, Timestamp};

use super::Outcome;

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
pub enum Expected {
    /// Every answer has this status.
    Status(u16),
    /// So many requests pass.
    Allowed(RangeInclusive<u64>),
    /// So many requests are denied.
    Denied(RangeInclusive<u64>),
    /// So many requests of each client pass.
    AllowedPerClient(RangeInclusive<u64>),
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
    /// Checks the outcomes, which are in the order of arrival.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self, outcomes: &[Outcome]) -> Result<(), Failure> {
        let is_meant = |outcome: &Outcome| match self.scope {
            Scope::All => true,
            Scope::Sender(sender) => outcome.arrival.sender == sender,
        };
        let all = || outcomes.iter().enumerate().filter(|(_, outcome)| is_meant(outcome));
        let allowed = || all().filter(|(_, outcome)| outcome.is_allowed);
        let denied = || all().filter(|(_, outcome)| !outcome.is_allowed);
        let last = || all().next_back().map_or(0, |(at, _)| at);
        let fail = |at, got: String| Err(self.failure(at, got, false));
        match &self.expected {
            Expected::Status(status) => {
                match all().find(|(_, outcome)| outcome.status != *status) {
                    Some((at, outcome)) => fail(at, outcome.status.to_string()),
                    None => Ok(()),
                }
            }
            Expected::Allowed(range) => self.count(range, allowed(), denied(), "allowed"),
            Expected::Denied(range) => self.count(range, denied(), allowed(), "denied"),
            Expected::AllowedPerClient(range) => {
                let mut clients = HashMap::<_, (Vec<_>, Vec<_>)>::new();
                for (at, outcome) in all() {
                    let key = (outcome.arrival.sender, outcome.arrival.client);
                    let (allowed, denied) = clients.entry(key).or_default();
                    (if outcome.is_allowed { allowed } else { denied }).push((at, outcome));
                }
                let mut clients: Vec<_> = clients.into_iter().collect();
                clients.sort_unstable_by_key(|(client, _)| *client);
                clients.into_iter().try_for_each(|((_, client), (allowed, denied))| {
                    let what = format!("allowed for client {}", client + 1);
                    self.count(range, allowed.into_iter(), denied.into_iter(), &what)
                })
            }
            Expected::Policy(policy) => {
                match denied().find(|(_, outcome)| outcome.policy_name() != Some(policy)) {
                    Some((at, outcome)) => {
                        fail(at, outcome.policy_name().unwrap_or("no policy").to_owned())
                    }
                    None if denied().next().is_none() => fail(last(), NO_DENIAL.to_owned()),
                    None => Ok(()),
                }
            }
            Expected::Remaining(units) => match all().next_back() {
                Some((at, outcome)) if outcome.remaining != Some(*units) => fail(
                    at,
                    outcome.remaining.map_or_else(|| "no units".to_owned(), |it| it.to_string()),
                ),
                _ => Ok(()),
            },
            Expected::RetryAfter(seconds) => match denied().next() {
                Some((at, outcome)) if outcome.retry_seconds() != Some(*seconds) => {
                    let got = outcome.retry_seconds();
                    fail(at, got.map_or_else(|| "no Retry-After".to_owned(), |it| format!("{it}s")))
                }
                None => fail(last(), NO_DENIAL.to_owned()),
                _ => Ok(()),
            },
            Expected::MaxWait(most) => match allowed().find(|(_, it)| it.wait > *most) {
                Some((at, outcome)) => fail(at, Time(outcome.wait).to_string()),
                None => Ok(()),
            },
            Expected::Never { more_than, window, per_client } => {
                let passed = allowed().map(|(at, outcome)| {
                    let client = (outcome.arrival.sender, outcome.arrival.client);
                    (outcome.passed_at(), per_client.then_some(client), at)
                });
                match exceeded(passed, *more_than, *window) {
                    Some((at, first)) => {
                        let from = Time(first.since(super::START));
                        let got = format!("{} allowed from {from} on", more_than + 1);
                        Err(self.failure(at, got, true))
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Checks a number of requests. If there are too many, the failure is at the first request
    /// beyond the range. If there are too few, it is at the first request that was not counted.
    fn count<'a>(
        &self,
        range: &RangeInclusive<u64>,
        mut counted: impl Iterator<Item = (usize, &'a Outcome)>,
        mut others: impl Iterator<Item = (usize, &'a Outcome)>,
        what: &str,
    ) -> Result<(), Failure> {
        let (mut number, mut excess) = (0_u64, None);
        for (at, _) in &mut counted {
            number += 1;
            if number > *range.end() && excess.is_none() {
                excess = Some(at);
            }
        }
        let got = format!("{number} {what}");
        match excess {
            Some(at) => Err(self.failure(at, got, true)),
            None if number < *range.start() => {
                let at = others.next().map_or(0, |(at, _)| at);
                Err(self.failure(at, got, false))
            }
            None => Ok(()),
        }
    }

    fn failure(&self, at: usize, got: String, is_excess: bool) -> Failure {
        Failure { at, expected: self.expected.to_string(), got, is_excess }
    }
}

const NO_DENIAL: &str = "no denied request";

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
            Self::Allowed(range) => write!(f, "{} allowed", Amount(range)),
            Self::Denied(range) => write!(f, "{} denied", Amount(range)),
            Self::AllowedPerClient(range) => write!(f, "{} allowed per client", Amount(range)),
            Self::Policy(policy) => f.write_str(policy),
            Self::Remaining(units) => write!(f, "{units} remaining"),
            Self::RetryAfter(seconds) => write!(f, "Retry-After {seconds}s"),
            Self::MaxWait(wait) => write!(f, "a wait of at most {}", Time(*wait)),
            Self::Never { more_than, window, per_client } => {
                let whose = if *per_client { " per client" } else { "" };
                write!(f, "never more than {more_than} in {}{whose}", Time(*window))
            }
        }
    }
}

/// An amount as in test files.
struct Amount<'a>(&'a RangeInclusive<u64>);

impl fmt::Display for Amount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self.0.start(), *self.0.end()) {
            (least, most) if least == most => write!(f, "{least}"),
            (0, most) => write!(f, "at most {most}"),
            (least, u64::MAX) => write!(f, "at least {least}"),
            (least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// A time in seconds, with its fraction only if it has one.
struct Time(Micros);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.get() / 1_000_000, self.0.get() % 1_000_000);
        if micros == 0 {
            return write!(f, "{seconds}s");
        }
        let text = format!("{seconds}.{micros:06}");
        write!(f, "{}s", text.trim_end_matches('0'))
    }
}
