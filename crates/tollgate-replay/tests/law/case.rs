//! Random limits and requests.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Algorithm, Cost, Key, LeakyMode, Policy, Quota, Refill, Resolution, Strikes, Timestamp,
};
use tollgate_engine::{
    self as engine, AppliedLimit, Charges, Correction, Ending, Limits, Mode, OwnPolicy,
    SubjectKind, TierIndex,
};

/// In milliseconds, the timer's resolution. A quota of up to four units refills at multiples of a
/// twelfth.
const STEP: u64 = 1_200;
const QUARTER: u64 = STEP / 4;

#[derive(Clone, Debug)]
pub(crate) struct Limited {
    /// The policy's name is `p` and this number, also after a reload.
    pub(crate) name: usize,
    pub(crate) rule: Rule,
    /// The quota outside of tiers and in the tier, in units per `interval` milliseconds each. For a
    /// penalty, the first is the number of strikes.
    pub(crate) units: [u64; 2],
    pub(crate) interval: u64,
    pub(crate) mode: Mode,
    pub(crate) is_global: bool,
    /// Whether only failures count.
    pub(crate) counts: bool,
    /// Whether successes forgive.
    pub(crate) forgives: bool,
    /// Whether only the response's body shows a success.
    pub(crate) by_body: bool,
    /// How long requests queue in the store, in milliseconds.
    pub(crate) max_queue_time: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Quota(Algorithm),
    Penalty {
        /// Whether denials are strikes.
        of_denials: bool,
    },
}

/// A request. Its times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// After the previous request.
    pub(crate) after: u64,
    pub(crate) client: u8,
    pub(crate) cost: u64,
    pub(crate) duration: u64,
    pub(crate) fails: bool,
    pub(crate) in_tier: bool,
    /// Whether the quota is the client's own.
    pub(crate) has_own: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) limits: Vec<Limited>,
    /// The limits from the request with this number on.
    pub(crate) reload: (usize, Vec<Limited>),
    pub(crate) places: usize,
    pub(crate) requests: Vec<Sent>,
}

impl Limited {
    fn is_permit(&self) -> bool {
        self.rule == Rule::Quota(Algorithm::ConcurrentRequests)
    }

    fn is_leaky_queue(&self) -> bool {
        let Rule::Quota(Algorithm::LeakyBucket { mode }) = self.rule else { return false };
        self.mode.enforces() && matches!(mode, LeakyMode::Queue { .. })
    }

    pub(crate) fn policy(&self) -> Policy {
        let name = format!("p{}", self.name);
        let policy = match self.rule {
            Rule::Quota(algorithm) => Policy::new(name, self.quotas()[0], algorithm),
            Rule::Penalty { of_denials } => {
                let kind = if of_denials { Strikes::of_denials } else { Strikes::of_failures };
                let block = Duration::from_millis(self.interval);
                let strikes = kind(self.units[0], 4 * block).block(block).growing(2, 4 * block);
                Policy::penalty(name, strikes.forgotten_after(8 * block))
            }
        };
        self.queueing(policy.unwrap())
    }

    fn queueing(&self, policy: Policy) -> Policy {
        match self.max_queue_time {
            Some(time) => policy.with_queue(Duration::from_millis(time)).unwrap(),
            None => policy,
        }
    }

    /// The quota in the tier, which a penalty does not have.
    pub(crate) fn in_tier(&self) -> Option<Quota> {
        matches!(self.rule, Rule::Quota(_)).then(|| self.quotas()[1])
    }

    fn quotas(&self) -> [Quota; 2] {
        self.units.map(|units| {
            // Permits outlive every response, and none is renewed.
            let interval = if self.is_permit() { 900_000 } else { self.interval };
            Quota::new(units, Duration::from_millis(interval * units))
        })
    }
}

impl Case {
    /// The limits that a request meets.
    fn limits_of(&self, number: usize) -> &[Limited] {
        let (reload, limits) = &self.reload;
        if number < *reload { &self.limits } else { limits }
    }

    /// The rules of each request, before and after the reload.
    pub(crate) fn rules(&self) -> Vec<Arc<Limits>> {
        let rule = |limited: &Limited| {
            let policy = limited.policy();
            let like =
                |quota| limited.queueing(Policy::new(policy.name(), quota, policy.kind()).unwrap());
            let in_tiers = limited.in_tier().map(like).into_iter().collect();
            engine::Limit { in_tiers, ..engine::Limit::new(policy).mode(limited.mode) }
        };
        let rules = |limits: &[Limited]| Arc::new(Limits::new(limits.iter().map(rule)));
        let (first, second) = (rules(&self.limits), rules(&self.reload.1));
        let number = 0..self.requests.len();
        number.map(|it| Arc::clone(if it < self.reload.0 { &first } else { &second })).collect()
    }

    /// A request's charges, and how its response corrects them.
    pub(crate) fn charges(
        &self,
        number: usize,
        rules: &Limits,
    ) -> (Charges, Vec<(u8, Correction)>) {
        let (mut charges, mut corrections) = (Charges::default(), Vec::new());
        let sent = &self.requests[number];
        for (number, limited) in (0..).zip(self.limits_of(number)) {
            let (kind, key) = match limited.is_global {
                true => (SubjectKind::Global, Key::GLOBAL),
                false => (SubjectKind::Other, Key::new([sent.client])),
            };
            let costs_one = limited.is_permit() || limited.in_tier().is_none();
            let cost = Cost::new(if costs_one { 1 } else { sent.cost });
            let mut applied = AppliedLimit::new(number, kind, key, cost);
            applied.tier = if sent.in_tier { TierIndex(0) } else { TierIndex::default() };
            if sent.has_own {
                // As if it were the client's own policy, not its tier's.
                let (policy, prepared) = (rules.policy(&applied).clone(), Box::new(()));
                let own = OwnPolicy { policy, prepared, blocked_until: None };
                applied.own = Some(Arc::new(own));
                applied.tier = if sent.in_tier { TierIndex::NONE } else { TierIndex(0) };
            }
            let policy = rules.policy(&applied).clone();
            charges.push(applied, rules);
            let counts = limited.counts.then_some(sent.fails);
            let ending = Ending { counts, forgives: limited.forgives && !sent.fails, stated: None };
            corrections.extend(ending.correction(&policy, cost).map(|it| (number, it)));
        }
        (charges, corrections)
    }

    /// When each request arrives, in milliseconds.
    pub(crate) fn arrivals(&self) -> Vec<u64> {
        let mut at = 0;
        let arrivals = self.requests.iter().map(|sent| {
            at += sent.after;
            at
        });
        arrivals.collect()
    }
}

/// `TokioClock` starts then.
pub(crate) const fn instant(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_704_067_200_000_000 + millis * 1_000)
}

fn limited() -> impl Strategy<Value = Limited> {
    let rules = prop::sample::select(vec![
        Rule::Quota(Algorithm::FixedWindowCounter),
        Rule::Quota(Algorithm::SlidingWindowLog { resolution: Resolution::Exact }),
        Rule::Quota(Algorithm::SlidingWindowCounter),
        Rule::Quota(Algorithm::TokenBucket { refill: Refill::Greedy }),
        Rule::Quota(Algorithm::TokenBucket { refill: Refill::Interval }),
        Rule::Quota(Algorithm::LeakyBucket { mode: LeakyMode::Meter }),
        Rule::Quota(Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } }),
        Rule::Quota(Algorithm::ConcurrentRequests),
        Rule::Penalty { of_denials: false },
        Rule::Penalty { of_denials: true },
    ]);
    let wait =
        (1_u64..160).prop_map(|quarters| Mode::Wait(Duration::from_millis(quarters * QUARTER)));
    let mode = prop_oneof![
        2 => Just(Mode::Reject),
        4 => wait,
        1 => Just(Mode::Annotate),
        1 => Just(Mode::Shadow),
    ];
    let units = prop::array::uniform2(1_u64..5);
    let max_queue_time = prop::option::of((1_u64..160).prop_map(|quarters| quarters * QUARTER));
    (rules, units, 1_u64..12, mode, any::<[bool; 4]>(), max_queue_time).prop_map(
        |(rule, units, interval, mode, [counts, forgives, by_body, is_global], max_queue_time)| {
            let mode = if let Rule::Penalty { .. } = rule { mode.of_penalty() } else { mode };
            let interval = interval * STEP;
            let mut limited = Limited {
                name: 0,
                rule,
                units,
                interval,
                mode,
                is_global,
                counts,
                forgives,
                by_body,
                max_queue_time,
            };
            let cannot_queue = matches!(
                rule,
                Rule::Penalty { .. }
                    | Rule::Quota(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } })
            );
            // A request does not also wait for a limit under which it queues in the store.
            if cannot_queue || mode.max_wait().is_some() {
                limited.max_queue_time = None;
            }
            let queues = cannot_queue && !matches!(rule, Rule::Penalty { .. });
            limited.forgives &= !queues && limited.max_queue_time.is_none();
            if limited.is_permit() {
                (limited.counts, limited.forgives) = (false, false);
                limited.max_queue_time = None;
                if let Mode::Wait(max) = &mut limited.mode {
                    // A waiting request retries every 25 ms.
                    *max /= 10;
                }
            }
            limited
        },
    )
}

/// Limits that one layer can have.
fn limits() -> impl Strategy<Value = Vec<Limited>> {
    prop::collection::vec(limited(), 1..4).prop_map(|mut limits| {
        let waits = limits.iter().any(|limited| limited.mode.max_wait().is_some());
        let mut has_queue = false;
        let has_leaky_queue = limits.iter().any(Limited::is_leaky_queue);
        for (name, limited) in limits.iter_mut().enumerate() {
            limited.name = name;
            if let Rule::Penalty { of_denials } = &mut limited.rule {
                // A waiting request must not count as several denials.
                *of_denials &= !waits;
                limited.counts |= !*of_denials;
            }
            if limited.is_leaky_queue() && std::mem::replace(&mut has_queue, true) {
                limited.mode = Mode::Shadow;
            }
            if has_leaky_queue {
                limited.max_queue_time = None;
            }
        }
        limits
    })
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let sent = (0_u64..12, 0_u8..2, 1_u64..3, 0_u64..48, any::<[bool; 3]>());
    let sent = sent.prop_map(|(after, client, cost, duration, [fails, in_tier, has_own])| {
        let (after, duration) = (after * QUARTER, duration * QUARTER);
        Sent { after, client, cost, duration, fails, in_tier, has_own }
    });
    let requests = prop::collection::vec(sent, 1..=40);
    // A reload changes quotas, and the numbers of limits.
    let reloaded = limits().prop_flat_map(|limits| {
        let units = prop::collection::vec(prop::array::uniform2(1_u64..5), limits.len());
        let changed = (Just(limits.clone()).prop_shuffle(), units, any::<bool>());
        let changed = changed.prop_map(|(mut limits, units, keeps)| {
            for (limited, units) in limits.iter_mut().zip(units).filter(|_| !keeps) {
                limited.units = units;
            }
            limits
        });
        (Just(limits), changed)
    });
    (reloaded, 0_usize..=40, 1_usize..12, requests).prop_map(
        |((limits, changed), number, places, requests)| {
            let reload = (number, changed);
            Case { limits, reload, places, requests }
        },
    )
}
