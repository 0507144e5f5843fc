//! A history: what happens to a few keys, as data that can be repeated and shortened.

use std::fmt;

use tollgate_core::{Key, Policy};

/// The year 2100. Redis' own clock is far behind, so a server never removes a key by itself. Each
/// window of a scene starts here.
pub(super) const START: u64 = 4_102_444_800_000_000;

/// The keys that histories charge. The second is too long to be stored inline.
const KEYS: [&str; 2] = ["k", "a key that is not kept inline"];

pub(super) const KEY_COUNT: usize = KEYS.len();

pub(super) fn key(index: usize) -> Key {
    Key::from(KEYS[index])
}

/// The policies of some keys, and what happens to these keys.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Policies with the same name are versions of a quota.
    pub(super) policies: Vec<Policy>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The number with which later steps refer to this step, also after other steps were removed.
    pub(super) id: usize,
    /// The time since the previous step, in microseconds. If negative, the clock steps back.
    pub(super) after: i64,
    pub(super) action: Action,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A request.
    Ask(Vec<Asked>),
    /// A request that is repeated after its `retry_after` if it is denied.
    Obey(Vec<Asked>),
    /// Corrects charge `nth` of step `of` to `actual` units.
    Settle {
        of: usize,
        nth: usize,
        actual: u64,
    },
    /// Renews the permit of charge `nth` of step `of`.
    Renew {
        of: usize,
        nth: usize,
    },
    Reset {
        policy: usize,
        key: usize,
    },
    /// The store stops or starts to fail. Only a fallback over two stores continues to decide.
    Outage(bool),
}

/// A charge in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The number with which later steps refer to this charge.
    pub(super) nth: usize,
    pub(super) policy: usize,
    pub(super) key: usize,
    pub(super) cost: u64,
    pub(super) enforce: bool,
    pub(super) dry: bool,
}

impl History {
    /// The policies with this name.
    pub(super) fn versions(&self, name: &str) -> impl Iterator<Item = usize> {
        let is_version = move |index: &usize| self.policies[*index].name() == name;
        (0..self.policies.len()).filter(is_version)
    }

    pub(super) fn policies_of(&self, action: &Action) -> Vec<usize> {
        match action {
            Action::Ask(asked) | Action::Obey(asked) => asked.iter().map(|it| it.policy).collect(),
            Action::Reset { policy, .. } => vec![*policy],
            _ => Vec::new(),
        }
    }
}

/// Prints the policies that occur, and a line per step.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used: Vec<_> =
            self.steps.iter().flat_map(|step| self.policies_of(&step.action)).collect();
        for (index, policy) in self.policies.iter().enumerate() {
            if used.contains(&index) {
                let (quota, kind) = (policy.quota(), policy.kind());
                let (limit, window) = (quota.limit(), policy.window().get());
                write!(f, "  version {index} of `{}`: {limit} per {window} µs", policy.name())?;
                writeln!(f, ", capacity {}, {kind:?}", policy.capacity())?;
            }
        }
        let mut now = 0;
        for step in &self.steps {
            now += step.after;
            writeln!(f, "  {now:>7} µs  step {}: {}", step.id, step.action)?;
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(asked) => {
                write!(f, "request")?;
                asked.iter().try_for_each(|charge| write!(f, " {charge}"))
            }
            Self::Obey(asked) => {
                write!(f, "obedient request")?;
                asked.iter().try_for_each(|charge| write!(f, " {charge}"))
            }
            Self::Settle { of, nth, actual } => {
                write!(f, "settle charge {nth} of step {of} to {actual}")
            }
            Self::Renew { of, nth } => write!(f, "renew charge {nth} of step {of}"),
            Self::Reset { policy, key } => write!(f, "reset key {key} of version {policy}"),
            Self::Outage(is_down) => write!(f, "outage: {is_down}"),
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, policy, key, cost, enforce, dry } = self;
        write!(f, "[{nth}: {cost} of key {key} under version {policy}")?;
        write!(f, "{}", if *enforce { "" } else { ", shadow" })?;
        write!(f, "{}]", if *dry { ", dry" } else { "" })
    }
}
