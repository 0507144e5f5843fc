//! Which branches the runs entered: of the script, the deny cache, leases, the topology and the local
//! fallback. A branch that no run enters is not checked.
//!
//! Not simulated: calendar quotas, and calls with keys of several slots, which Redis 7 allows.

use std::collections::BTreeMap;
use std::fmt;

use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{Algorithm, Kind, LeakyMode, Policy, Refill, Resolution};

/// How often runs entered each branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached(BTreeMap<Branch, u64>);

/// A part of the code, and what it does there.
type Branch = (&'static str, String);

/// Each part of the code with its branches.
const BRANCHES: &[(&str, &[&str])] = &[
    (
        SCRIPT,
        &[
            "plain path",
            "general path",
            "equal requests",
            "deadline has passed",
            "state of another version",
            "strike",
            "shadow policy denies",
            "receipt settled before",
            "permit expired before",
            "renews a permit",
            "ignores a settled permit",
            "resets",
            "settles a block",
            "ignores an unknown block",
            "memory is full: decision",
            "memory is full: correction",
            "memory is full: lease",
        ],
    ),
    (
        DENY_CACHE,
        &[
            "denies",
            "denies beside a policy with units",
            "denies another cost than 1",
            "denies a blocked key",
            "denies a cost above the capacity",
            "denies beside a shadow policy",
        ],
    ),
    (
        LEASES,
        &[
            "spends",
            "spends under several policies",
            "spends in shadow mode",
            "spends in a block's last fifth",
            "returns units on request",
            "settles a leased charge",
        ],
    ),
    (
        TOPOLOGY,
        &[
            "NOSCRIPT",
            "READONLY",
            "MOVED",
            "ASK",
            "TRYAGAIN",
            "several slots admit",
            "several slots deny",
            "several slots fail",
        ],
    ),
    (
        FALLBACK,
        &[
            "admits",
            "denies",
            "denies in shadow mode",
            "allows an open policy beside a local one",
            "fails for a closed policy",
            "admits despite a closed shadow policy",
            "fails above the share",
            "decides after overload",
            "refunds",
            "owes",
            "renews a permit",
            "blocks",
            "shares an overflow entry",
        ],
    ),
];
/// The script's rules.
const RULES: &[&str] = &[
    "fixed window",
    "exact log",
    "rounded log",
    "counter",
    "greedy bucket",
    "interval bucket",
    "meter",
    "queue",
    "short queue",
    "permits",
    "denials penalty",
    "failures penalty",
];
/// What the script does under a rule, and the rules under which it never does.
const VERBS: &[(&str, &[&str])] = &[
    ("allows", &[]),
    ("denies", &[]),
    ("exceeds", PENALTIES),
    ("queries", &[]),
    ("refunds", PENALTIES),
    ("owes", &["permits"]),
    ("leases", UNLEASED),
    ("leases nothing", UNLEASED),
];
const PENALTIES: &[&str] = &["denials penalty", "failures penalty"];
const UNLEASED: &[&str] =
    &["interval bucket", "queue", "short queue", "permits", "denials penalty", "failures penalty"];

pub(crate) const SCRIPT: &str = "script";
pub(crate) const DENY_CACHE: &str = "deny cache";
pub(crate) const LEASES: &str = "leases";
pub(crate) const TOPOLOGY: &str = "topology";
pub(crate) const FALLBACK: &str = "fallback";

impl Reached {
    pub(crate) fn enter(&mut self, part: &'static str, branch: impl Into<String>) {
        *self.0.entry((part, branch.into())).or_default() += 1;
    }

    /// The script entered a branch of a policy's rule.
    pub(crate) fn rule(&mut self, policy: &Policy, verb: &str) {
        self.enter(SCRIPT, format!("{}: {verb}", rule(policy)));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (branch, count) in &other.0 {
            *self.0.entry(branch.clone()).or_default() += count;
        }
    }

    /// Returns the branches that no run entered.
    pub fn holes(&self) -> Vec<String> {
        let is_hole = |branch: &Branch| !self.0.contains_key(branch);
        let holes = branches().filter(is_hole);
        holes.map(|(part, branch)| format!("{part}: {branch}")).collect()
    }
}

fn branches() -> impl Iterator<Item = Branch> {
    let fixed = BRANCHES.iter().flat_map(|(part, branches)| {
        branches.iter().map(move |branch| (*part, (*branch).to_owned()))
    });
    let rules = RULES.iter().flat_map(|rule| {
        let verbs = VERBS.iter().filter(move |(_, never)| !never.contains(rule));
        verbs.map(move |(verb, _)| (SCRIPT, format!("{rule}: {verb}")))
    });
    fixed.chain(rules)
}

fn rule(policy: &Policy) -> &'static str {
    use Algorithm::{
        ConcurrentRequests, FixedWindowCounter, LeakyBucket, SlidingWindowCounter,
        SlidingWindowLog, TokenBucket,
    };
    match policy.kind() {
        Kind::Limit(FixedWindowCounter) => "fixed window",
        Kind::Limit(SlidingWindowLog { resolution: Resolution::Thousandth }) => "rounded log",
        Kind::Limit(SlidingWindowLog { .. }) => "exact log",
        Kind::Limit(SlidingWindowCounter) => "counter",
        Kind::Limit(TokenBucket { refill: Refill::Greedy }) => "greedy bucket",
        Kind::Limit(TokenBucket { refill: Refill::Interval }) => "interval bucket",
        Kind::Limit(LeakyBucket { mode: LeakyMode::Meter }) => "meter",
        Kind::Limit(LeakyBucket { mode: LeakyMode::Queue { max_wait: None } }) => "queue",
        Kind::Limit(LeakyBucket { .. }) => "short queue",
        Kind::Limit(ConcurrentRequests) => "permits",
        Kind::Penalty(Terms { counts_denials: true, .. }) => "denials penalty",
        Kind::Penalty(_) => "failures penalty",
    }
}

/// Shows each branch with its count.
impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for branch in branches() {
            let count = self.0.get(&branch).copied().unwrap_or_default();
            writeln!(f, "{count:>9}  {}: {}", branch.0, branch.1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unentered_branches_are_holes() {
        let mut reached = Reached::default();
        let all = reached.holes().len();
        assert_eq!(all, branches().count());
        reached.enter(TOPOLOGY, "MOVED");
        reached.enter(TOPOLOGY, "MOVED");
        assert_eq!(reached.holes().len(), all - 1);
        assert!(reached.to_string().contains("2  topology: MOVED\n"));
    }
}
