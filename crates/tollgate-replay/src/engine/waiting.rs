//! Requests that wait for their limits, in the same order as in the layer: each key serves requests
//! by arrival. A request waits for a key only while the key denies it or an earlier request waits
//! for the key.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::SmallVec;
use tollgate_core::{Cost, Key, Micros, Policy, Timestamp, Verdict};

use super::{Ask, Client, Request};

/// An owned [`Request`].
pub(super) struct Owned {
    asks: Box<[OwnedAsk]>,
    client: Option<(Key, Box<str>)>,
    route: Box<str>,
    at: Timestamp,
    duration: Micros,
}

/// An owned [`Ask`].
#[derive(Clone, Debug)]
struct OwnedAsk {
    policy: Policy,
    key: Key,
    cost: Cost,
    enforce: bool,
    of_client: bool,
    waits: Option<Micros>,
    actual: Option<Cost>,
}

pub(super) struct Waiter {
    pub(super) request: Owned,
    pub(super) since: Timestamp,
    /// When the request gives up.
    pub(super) until: Timestamp,
    /// When each denied charge may be allowed.
    denied: SmallVec<[Option<Timestamp>; 4]>,
    /// A bit set of the charges that wait in a lane.
    joined: u64,
}

/// When the charges that a verdict denies may be allowed.
pub(super) struct Denied {
    pub(super) keys: u64,
    until: SmallVec<[Option<Timestamp>; 4]>,
}

/// A waiting request's next step.
pub(super) enum Next {
    /// Decide the request again.
    Ask,
    /// Retry at this time.
    Sleep(Timestamp),
    /// Deny the request, because it has waited for too long.
    GiveUp,
    /// The request is no longer waiting.
    Gone,
}

/// All waiting requests.
pub(super) struct Waiting {
    waiters: BTreeMap<u64, Waiter>,
    lanes: HashMap<(Box<str>, Key), BTreeSet<u64>>,
    most: usize,
}

/// When the denied charges may be allowed, or `None` if the request cannot wait until then. `left`
/// is the remaining wait, or `None` if the request has not waited yet.
pub(super) fn denied(
    asks: &[Ask<'_>],
    verdict: &Verdict,
    now: Timestamp,
    left: Option<Micros>,
) -> Option<Denied> {
    let left = left.unwrap_or_else(|| longest(asks));
    let mut denied = Denied { keys: 0, until: SmallVec::from_elem(None, asks.len()) };
    for (number, (ask, decision)) in asks.iter().zip(verdict.decisions()).enumerate() {
        if !(decision.denies() && ask.enforce) {
            continue;
        }
        let _ = ask.waits?;
        let mut wait = decision.retry_after()?;
        if ask.policy.is_concurrency() {
            // Most responses complete long before their permit expires.
            wait = wait.min(LOOK_AGAIN);
        }
        if wait > left {
            return None;
        }
        denied.until[number] = Some(now + wait);
        denied.keys |= 1 << number;
    }
    Some(denied)
}

/// How often the layer polls a concurrency limit.
const LOOK_AGAIN: Micros = Micros::new(25_000);

/// The longest that a request may wait, which is the shortest wait that its limits allow.
fn longest(asks: &[Ask<'_>]) -> Micros {
    asks.iter().filter_map(|ask| ask.waits).min().unwrap_or_default()
}

impl Waiter {
    pub(super) fn new(request: Owned, denied: Option<Denied>, now: Timestamp) -> Self {
        let asks = request.asks();
        let until = now + longest(&asks);
        let denied = denied.map(|denied| denied.until).unwrap_or_default();
        drop(asks);
        Self { request, since: now, until, denied, joined: 0 }
    }

    /// A bit set of the charges that are still denied.
    fn denying(&self, now: Timestamp) -> u64 {
        let is_denied = |(_, until): &(usize, &Option<Timestamp>)| **until > Some(now);
        let denied = self.denied.iter().enumerate().filter(is_denied);
        denied.fold(0, |keys, (number, _)| keys | 1 << number)
    }
}

impl Waiting {
    pub(super) fn new(most: usize) -> Self {
        Self { waiters: BTreeMap::new(), lanes: HashMap::new(), most }
    }

    /// Whether an earlier request waits for any of the keys.
    pub(super) fn is_behind(&self, asks: &[Ask<'_>]) -> bool {
        let waits = |ask: &&Ask<'_>| ask.waits.is_some() && ask.cost > Cost::ZERO;
        !self.lanes.is_empty()
            && asks
                .iter()
                .filter(waits)
                .any(|ask| self.lanes.contains_key(&lane(ask.policy, ask.key)))
    }

    /// Lets a request wait and returns when it retries, or `None` if too many requests are waiting.
    pub(super) fn enter(&mut self, number: u64, waiter: Waiter, denying: u64) -> Option<Timestamp> {
        if self.waiters.len() >= self.most {
            return None;
        }
        let next = waiter.denied.iter().flatten().min().copied();
        let next = next.map_or(waiter.until, |next| next.min(waiter.until));
        self.waiters.insert(number, waiter);
        self.place(number, denying, &mut Vec::new());
        Some(next)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Waiter> {
        self.waiters.get(&number)
    }

    /// Records another denial by the store.
    pub(super) fn deny(&mut self, number: u64, denied: Denied) {
        if let Some(waiter) = self.waiters.get_mut(&number) {
            waiter.denied = denied.until;
        }
    }

    /// Returns a request's next step. Adds to `woken` the requests that no longer wait behind it.
    pub(super) fn look(&mut self, number: u64, now: Timestamp, woken: &mut Vec<u64>) -> Next {
        let Some(waiter) = self.waiters.get(&number) else { return Next::Gone };
        let denying = waiter.denying(now);
        if !self.place(number, denying, woken) {
            return Next::Ask;
        }
        let Some(waiter) = self.waiters.get(&number) else { return Next::Gone };
        if now >= waiter.until {
            return Next::GiveUp;
        }
        let later = waiter.denied.iter().flatten().filter(|until| **until > now).min();
        Next::Sleep(later.map_or(waiter.until, |later| (*later).min(waiter.until)))
    }

    /// Puts a request into the lanes of the keys that it waits for. Returns `false` if there are no
    /// such keys.
    fn place(&mut self, number: u64, denying: u64, woken: &mut Vec<u64>) -> bool {
        let Some(waiter) = self.waiters.get(&number) else { return false };
        let mut waits_for = denying;
        for (bit, ask) in waiter.request.asks.iter().enumerate() {
            let first = self.lanes.get(&lane(&ask.policy, &ask.key)).and_then(BTreeSet::first);
            let may_wait = ask.waits.is_some() && ask.enforce && ask.cost > Cost::ZERO;
            if may_wait && first.is_some_and(|first| *first < number) {
                waits_for |= 1 << bit;
            }
        }
        if waits_for == 0 {
            return false;
        }
        let joined = waiter.joined;
        self.leave_lanes(number, joined & !waits_for, woken);
        let Some(waiter) = self.waiters.get_mut(&number) else { return false };
        waiter.joined = waits_for;
        for (bit, ask) in waiter.request.asks.iter().enumerate() {
            if waits_for & !joined & (1 << bit) != 0 {
                self.lanes.entry(lane(&ask.policy, &ask.key)).or_default().insert(number);
            }
        }
        true
    }

    /// Removes a request, and adds the next requests in its lanes to `woken`.
    pub(super) fn leave(&mut self, number: u64, woken: &mut Vec<u64>) -> Option<Waiter> {
        let joined = self.waiters.get(&number)?.joined;
        self.leave_lanes(number, joined, woken);
        self.waiters.remove(&number)
    }

    fn leave_lanes(&mut self, number: u64, keys: u64, woken: &mut Vec<u64>) {
        let Some(waiter) = self.waiters.get(&number) else { return };
        for (bit, ask) in waiter.request.asks.iter().enumerate() {
            if keys & (1 << bit) == 0 {
                continue;
            }
            let key = lane(&ask.policy, &ask.key);
            let Some(members) = self.lanes.get_mut(&key) else { continue };
            members.remove(&number);
            match members.first() {
                None => drop(self.lanes.remove(&key)),
                Some(next) if *next > number => woken.push(*next),
                Some(_) => {}
            }
        }
    }
}

fn lane(policy: &Policy, key: &Key) -> (Box<str>, Key) {
    (policy.name().into(), key.clone())
}

impl Owned {
    pub(super) fn of(request: &Request<'_>) -> Self {
        let own = |ask: &Ask<'_>| OwnedAsk {
            policy: ask.policy.clone(),
            key: ask.key.clone(),
            cost: ask.cost,
            enforce: ask.enforce,
            of_client: ask.of_client,
            waits: ask.waits,
            actual: ask.actual,
        };
        let client = |client: Client<'_>| (client.key.clone(), client.name.to_string().into());
        Self {
            asks: request.asks.iter().map(own).collect(),
            client: request.client.map(client),
            route: request.route.into(),
            at: request.at,
            duration: request.duration,
        }
    }

    pub(super) fn asks<'a>(&'a self) -> SmallVec<[Ask<'a>; 4]> {
        let ask = |ask: &'a OwnedAsk| {
            let OwnedAsk { policy, key, cost, enforce, of_client, waits, actual } = ask;
            let (cost, enforce, of_client) = (*cost, *enforce, *of_client);
            Ask { policy, key, cost, enforce, of_client, waits: *waits, actual: *actual }
        };
        self.asks.iter().map(ask).collect()
    }

    pub(super) fn request<'a>(&'a self, asks: &'a [Ask<'a>]) -> Request<'a> {
        let client = self.client.as_ref().map(|(key, name)| Client { key, name });
        Request { at: self.at, client, route: &self.route, asks, duration: self.duration }
    }
}
