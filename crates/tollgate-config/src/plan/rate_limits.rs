//! Rules of Envoy's Rate Limit Service: which descriptors are limited, and how.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::key::Key;
use tollgate::policy::{Algorithm, OnStoreError, PolicyError};
use tollgate::store::{Decision, Timestamp};
use tollgate::{Policy, Quota};

use crate::file::tables::ResponseHeaders;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitsPlan {
    pub files: Vec<PathBuf>,
    /// The answer while the store cannot decide.
    pub on_store_error: OnStoreError,
    /// Whether all rules are in shadow mode.
    pub shadow: bool,
    /// Whether several files may contain descriptors of the same domain.
    pub merges_domains: bool,
    pub response_headers: ResponseHeaders,
    /// Whether responses have dynamic metadata.
    pub dynamic_metadata: bool,
}

#[derive(Clone, Debug)]
pub struct RateLimitDomain {
    pub name: String,
    pub descriptors: Vec<Descriptor>,
}

#[derive(Clone, Debug)]
pub struct Descriptor {
    pub key: String,
    /// The entry's value, in which `*` matches any text; `None` matches any value.
    pub value: Option<String>,
    /// The rule for requests with a descriptor that ends here.
    pub rule: Option<Rule>,
    /// Whether all values that a pattern matches share one quota.
    pub shares: bool,
    pub nested: Vec<Self>,
}

impl Descriptor {
    /// Whether both match the same entries.
    pub fn is_like(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

/// "path=/api/*", or "path=(any)"
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value.as_deref().unwrap_or("(any)"))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub name: String,
    /// The names of rules that do not apply if this rule does.
    pub replaces: Vec<String>,
    pub shadow: bool,
    /// Whether the rule denies a request only together with all other rules of this kind.
    pub quota: bool,
    /// The number of requests that it allows; `None` means unlimited.
    pub allowed: Option<Allowed>,
    /// Added to the dynamic metadata of requests within the limit.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug)]
pub struct Allowed {
    /// 0 denies every request.
    pub requests: u32,
    pub unit: Unit,
    pub algorithm: Algorithm,
    /// The policy. Its limit is at least 1.
    pub policy: Policy,
    /// The same counter without a limit, for hits that are charged even beyond the limit. A bucket
    /// has none, because its limit is also its rate.
    pub counted: Option<Policy>,
}

impl Allowed {
    /// Allows this number of requests in each window.
    ///
    /// All rules with the same domain and unit share the policy's name, because the key contains
    /// the entire descriptor. So a rule and a request's own limit share a counter.
    pub fn new(
        domain: &str,
        requests: u32,
        unit: Unit,
        algorithm: Algorithm,
    ) -> Result<Self, PolicyError> {
        let name = format!("{domain}/{}", unit.name());
        let policy = |limit| Policy::new(name.clone(), Quota::new(limit, unit.window()), algorithm);
        let counted = match algorithm {
            Algorithm::TokenBucket { .. } => None,
            _ => Some(policy(Policy::MAX_LIMIT)?),
        };
        let policy = policy(requests.max(1).into())?;
        Ok(Self { requests, unit, algorithm, policy, counted })
    }

    /// Sets the failure policy.
    pub fn set_on_store_error(&mut self, on_store_error: OnStoreError) {
        for policy in [Some(&mut self.policy), self.counted.as_mut()].into_iter().flatten() {
            *policy = policy.clone().with_on_store_error(on_store_error);
        }
    }

    /// The policy's name: the domain and the unit.
    pub fn name(&self) -> &str {
        self.policy.name()
    }

    /// The used units according to a decision by `counted`, and the limit. During a store outage,
    /// the decision and the limit cover only a share.
    pub fn counted_by(&self, decision: &Decision) -> (u64, u64) {
        let limit = u128::from(self.requests) * u128::from(decision.limit);
        let limit = (limit / u128::from(Policy::MAX_LIMIT)).max(1);
        let used = decision.limit.saturating_sub(decision.remaining);
        (used, u64::try_from(limit).unwrap_or(u64::MAX))
    }

    /// The seconds until the quota resets: until a fixed window ends, or until all units are
    /// available again.
    pub fn reset(&self, decision: &Decision, now: Timestamp) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindowCounter => self.until_reset(now),
            _ => decision.reset_after.get().div_ceil(1_000_000),
        }
    }

    /// The seconds until the next fixed window. Windows start at multiples of the unit, even for an
    /// unused quota.
    pub const fn until_reset(&self, now: Timestamp) -> u64 {
        let window = self.unit.window().as_secs();
        window - now.as_micros() / 1_000_000 % window
    }
}

/// A unit of time, as a number of seconds. Windows start at multiples of the unit since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Unit {
    Second = 1,
    Minute = 60,
    Hour = 3_600,
    Day = 86_400,
    /// Seven days.
    Week = 7 * 86_400,
    /// Thirty days.
    Month = 30 * 86_400,
    Year = 365 * 86_400,
}

impl Unit {
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    pub const fn window(self) -> Duration {
        Duration::from_secs(self as u64)
    }
}

pub type RateLimitDomains = HashMap<String, RateLimitDomain>;

impl RateLimitDomain {
    /// Sets the failure policy of all rules.
    pub fn set_on_store_error(&mut self, on_store_error: OnStoreError) {
        let mut open: Vec<_> = self.descriptors.iter_mut().collect();
        while let Some(descriptor) = open.pop() {
            let rule = descriptor.rule.as_mut();
            if let Some(allowed) = rule.and_then(|rule| rule.allowed.as_mut()) {
                allowed.set_on_store_error(on_store_error);
            }
            open.extend(&mut descriptor.nested);
        }
    }

    /// A descriptor's rule and the key of its quota. A rule only matches descriptors with as many
    /// entries as the rule has levels. On each level the exact value has precedence, then patterns
    /// in the order of the file, then the key without a value.
    pub fn find(&self, entries: &[(&str, &str)]) -> Option<(&Rule, Key)> {
        let mut level = &self.descriptors;
        let mut key = Vec::new();
        let mut rule = None;
        for (name, value) in entries {
            let of_key = || level.iter().filter(|it| it.key == *name);
            let is = |it: &&Descriptor| it.value.as_deref() == Some(*value);
            let fits = |it: &&Descriptor| it.value.as_deref().is_some_and(|it| is_match(it, value));
            let found = of_key().find(is).or_else(|| of_key().find(fits));
            let found = found.or_else(|| of_key().find(|it| it.value.is_none()))?;
            let shared = found.value.as_deref().filter(|_| found.shares);
            append(&mut key, name, shared.unwrap_or(value), shared.is_some());
            rule = found.rule.as_ref();
            level = &found.nested;
        }
        rule.map(|rule| (rule, Key::new(key)))
    }
}

pub fn descriptor_key(entries: &[(&str, &str)]) -> Key {
    let mut key = Vec::new();
    entries.iter().for_each(|(name, value)| append(&mut key, name, value, false));
    Key::new(key)
}

/// The lengths are part of the key, so no entry's text can look like another entry.
fn append(key: &mut Vec<u8>, name: &str, value: &str, is_shared: bool) {
    key.push(u8::from(is_shared));
    for text in [name, value] {
        key.extend_from_slice(&(text.len() as u64).to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    }
}

/// Whether a text matches a pattern in which each `*` matches any text.
fn is_match(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(last) = parts.next_back() else { return pattern == text };
    let rest = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
    let rest = rest.and_then(|rest| {
        // The first match is best, because it leaves the most text for the remaining parts.
        parts.try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest))
    });
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("*", "", true),
            ("/api/*/action", "/api/123/action", true),
            ("/api/*/action", "/api/123/other", false),
            ("/api/*/r/*/action", "/api/v1/r/2/action", true),
            ("/api/*/r/*/action", "/api/v1/action", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(is_match(pattern, text), expected, "{pattern} {text}");
        }
    }
}
