//! The notation of limits and events.
//!
//! A limit is a name, an algorithm, a quota in units per seconds, and options:
//! `p bucket 5/1^2 wait 30 global` has a burst of 2, waits for up to 30 seconds, and one key for all
//! clients. A limit with `when r` applies to requests with the tag `r`; `flat` costs 1.
//!
//! An event that ends with a colon moves the clock to this second. `-1` is the departure of the first
//! request's caller. `p*3` and `?p` take units of a limit and read what remains. For 60 seconds, `p^3/60`
//! gives client `a` a quota of 3 under a limit, and `p^block/60` blocks it. All other events are
//! [`Event::Send`] or words of [`event`].

use std::time::Duration;

use tollgate_core::{
    Algorithm, LeakyMode, Micros, OnStoreError, OverrideChange, Policy, Quota, Refill, Resolution,
    Strikes,
};
use tollgate_engine::{Limit, Mode};

/// A limit, and the requests that it applies to.
#[derive(Clone)]
pub(crate) struct Rule {
    pub(crate) limit: Limit,
    pub(crate) is_global: bool,
    pub(crate) is_flat: bool,
    pub(crate) when: Option<char>,
}

/// A request: `ar*3~2=5!<9` is of client `a`, has the tag `r`, costs 3 units, runs for 2 seconds,
/// states the actual cost 5, does not count, and waits for at most 9 seconds. `a+` ends with an outcome
/// that forgives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) client: String,
    pub(crate) tags: String,
    pub(crate) cost: u64,
    pub(crate) runs: Micros,
    pub(crate) stated: Option<u64>,
    pub(crate) counts: bool,
    pub(crate) forgives: bool,
    pub(crate) patience: Option<Micros>,
}

pub(crate) enum Event {
    /// The clock moves to this time after the start.
    At(Micros),
    Send(Sent),
    Leave(usize),
    Peek(String),
    /// Another process takes units of a limit.
    Take(String, u64),
    /// An operator changes client `a`'s quota under a limit, or blocks it, for this time.
    Override(String, OverrideChange, Micros),
    /// Bounds of the queue.
    MaxRequests(usize),
    MaxBytes(usize),
    /// The store fails, or works again.
    Fail(bool),
    /// The store's replies are delayed, or arrive.
    Hold(bool),
    /// Timers do not fire, or fire again.
    Freeze(bool),
}

pub(crate) fn seconds(text: &str) -> Micros {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    Micros::new(
        whole.parse::<u64>().unwrap() * 1_000_000 + format!("{part:0<6}").parse::<u64>().unwrap(),
    )
}

pub(crate) fn rules(text: &str) -> Vec<Rule> {
    text.split(", ").filter(|rule| !rule.is_empty()).map(rule).collect()
}

fn rule(text: &str) -> Rule {
    let mut words = text.split(' ');
    let [name, algorithm, quota] = [(); 3].map(|()| words.next().unwrap());
    let policy = policy(name, algorithm, quota);
    let mut rule = Rule { limit: Limit::new(policy), is_global: false, is_flat: false, when: None };
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap();
        let Rule { limit, .. } = &mut rule;
        let fails =
            |limit: &mut Limit, to| limit.policy = limit.policy.clone().with_on_store_error(to);
        match word {
            "wait" => {
                limit.mode = Mode::Wait(match value() {
                    "ever" => Duration::MAX,
                    longest => seconds(longest).into(),
                })
            }
            "annotate" => limit.mode = Mode::Annotate,
            "shadow" => limit.mode = Mode::Shadow,
            "open" => fails(limit, OnStoreError::Open),
            "closed" => fails(limit, OnStoreError::Closed),
            "counts" => limit.corrects.counts = true,
            "forgives" => limit.corrects.forgives = true,
            "lapse" => limit.corrects.reserve = Some(seconds(value())),
            "global" => rule.is_global = true,
            "flat" => rule.is_flat = true,
            "when" => rule.when = value().chars().next(),
            _ => panic!("the limit's option `{word}`"),
        }
    }
    rule
}

fn policy(name: &str, algorithm: &str, quota: &str) -> Policy {
    let (units, window) = quota.split_once('/').unwrap();
    let (window, burst) = window.split_once('^').unwrap_or((window, ""));
    let (units, window) = (units.parse().unwrap(), Duration::from(seconds(window)));
    let quota = Quota::new(units, window);
    let quota = burst.parse().map_or(quota, |burst| quota.burst(burst));
    let algorithm = match algorithm {
        "log" => Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
        "window" => Algorithm::FixedWindowCounter,
        "counter" => Algorithm::SlidingWindowCounter,
        "bucket" => Algorithm::TokenBucket { refill: Refill::Greedy },
        "meter" => Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        "queue" => Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
        "permits" => Algorithm::ConcurrentRequests,
        "failures" => return Policy::penalty(name, Strikes::of_failures(units, window)).unwrap(),
        "denials" => return Policy::penalty(name, Strikes::of_denials(units, window)).unwrap(),
        _ => panic!("the algorithm `{algorithm}`"),
    };
    Policy::new(name, quota, algorithm).unwrap().with_on_store_error(OnStoreError::Local)
}

pub(crate) fn event(text: &str, rules: &[Rule]) -> Event {
    let is_limit = |name: &str| rules.iter().any(|rule| rule.limit.policy.name() == name);
    let after = |start: char| text.strip_prefix(start);
    if let Some(time) = text.strip_suffix(':') {
        return Event::At(seconds(time));
    } else if let Some(request) = after('-') {
        return Event::Leave(request.parse::<usize>().unwrap() - 1);
    } else if let Some(name) = after('?') {
        return Event::Peek(name.to_owned());
    }
    if let Some((name, change)) = text.split_once('^') {
        let (change, lasts) = change.split_once('/').unwrap();
        let units = |limit| OverrideChange::Quota { limit, window: None, burst: None };
        let change = match change {
            "block" => OverrideChange::Block,
            limit => units(limit.parse().unwrap()),
        };
        return Event::Override(name.to_owned(), change, seconds(lasts));
    }
    match text.split_once(['*', '=']) {
        Some((name, units)) if is_limit(name) => {
            Event::Take(name.to_owned(), units.parse().unwrap())
        }
        Some(("max", number)) => Event::MaxRequests(number.parse().unwrap()),
        Some(("bytes", number)) => Event::MaxBytes(number.parse().unwrap()),
        None if ["down", "up"].contains(&text) => Event::Fail(text == "down"),
        None if ["hold", "release"].contains(&text) => Event::Hold(text == "hold"),
        None if ["freeze", "thaw"].contains(&text) => Event::Freeze(text == "freeze"),
        _ => Event::Send(sent(text)),
    }
}

fn sent(text: &str) -> Sent {
    let (head, _) = text.split_at(text.find(['*', '~', '=', '!', '+', '<']).unwrap_or(text.len()));
    let (client, tags) = head.split_at(1);
    let value = |sign: char| {
        let value = text.split_once(sign)?.1;
        Some(&value[..value.find(['*', '~', '=', '!', '+', '<']).unwrap_or(value.len())])
    };
    Sent {
        client: client.to_owned(),
        tags: tags.to_owned(),
        cost: value('*').map_or(1, |cost| cost.parse().unwrap()),
        runs: value('~').map_or(Micros::ZERO, seconds),
        stated: value('=').map(|cost| cost.parse().unwrap()),
        counts: !text.contains('!'),
        forgives: text.contains('+'),
        patience: value('<').map(seconds),
    }
}
