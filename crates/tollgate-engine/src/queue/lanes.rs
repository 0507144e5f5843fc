//! The wait queue's lanes: for each key, the waiting requests in the order of arrival.
//!
//! A request waits for a key while the store denies it there, or while an earlier request waits for
//! the key. It is only in the lanes of these keys, so it does not delay requests at other keys.
//! When it waits for no key, it calls the store, and remains in its last lanes until the reply.
//!
//! The earliest request is never behind another request, so requests cannot deadlock.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Waker;

use tollgate_core::{Key, Policy};

use super::keys::KeySet;
use super::signal::Signal;

#[derive(Clone, Debug)]
pub(crate) struct LaneKey {
    pub(crate) policy: Policy,
    pub(crate) key: Key,
}

/// State belongs to the policy's name, because a reload may change its quota.
impl PartialEq for LaneKey {
    fn eq(&self, other: &Self) -> bool {
        self.policy.name() == other.policy.name() && self.key == other.key
    }
}

impl Eq for LaneKey {}

impl Hash for LaneKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.policy.name().hash(hasher);
        self.key.hash(hasher);
    }
}

pub(crate) type ArrivalNumber = u64;

/// All lanes. Empty lanes are removed.
#[derive(Debug, Default)]
pub(super) struct Lanes(HashMap<LaneKey, Lane>);

/// The requests that wait for a key: how to wake each request, and its cost under this key.
type Lane = BTreeMap<ArrivalNumber, (Arc<Signal>, u64)>;

#[derive(Debug)]
pub(crate) struct Member {
    pub(super) arrival: ArrivalNumber,
    /// The keys of its charges.
    pub(super) keys: Box<[LaneKey]>,
    pub(super) costs: Box<[u64]>,
    /// The keys that it may wait for. Excludes keys of limits that reject, and keys with cost 0.
    pub(super) may_wait: KeySet,
    /// The keys that divide the queue: all except global keys and keys of shadow policies.
    pub(super) own: KeySet,
    /// The keys that it waits for, or waited for last.
    pub(crate) joined: KeySet,
    /// Set when the request becomes the first in a lane.
    pub(super) is_first: Arc<Signal>,
}

impl Member {
    pub(crate) fn new(
        arrival: ArrivalNumber,
        charges: impl Iterator<Item = (LaneKey, u64)>,
        may_wait: KeySet,
        own: KeySet,
    ) -> Self {
        let (keys, costs): (Vec<_>, Vec<_>) = charges.unzip();
        let (keys, costs) = (keys.into(), costs.into());
        let (joined, is_first) = (KeySet::default(), Arc::default());
        Self { arrival, keys, costs, may_wait, own, joined, is_first }
    }
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn behind(&self, member: &Member) -> KeySet {
        let first = |key| self.0.get(key)?.first_key_value();
        let is_behind = |key| first(key).is_some_and(|(first, _)| *first < member.arrival);
        member.may_wait.iter().filter(|number| is_behind(&member.keys[*number])).collect()
    }

    pub(super) fn units_ahead(&self, member: &Member, number: usize) -> u64 {
        let lane = self.0.get(&member.keys[number]).into_iter();
        let ahead = lane.flat_map(|lane| lane.range(..member.arrival));
        ahead.fold(0, |units, (_, (_, cost))| units.saturating_add(*cost))
    }

    /// Moves a request into the lanes of the keys that it waits for: the `denying` keys, and each
    /// key that an earlier request waits for. Returns `false` if there is no such key. The request
    /// may then call the store. The caller wakes `woken`.
    pub(super) fn enter(
        &mut self,
        member: &mut Member,
        denying: KeySet,
        woken: &mut Vec<Waker>,
    ) -> bool {
        let waits_for = denying.union(self.behind(member));
        if waits_for.is_empty() {
            return false;
        }
        self.leave(member, member.joined.without(waits_for), woken);
        for number in waits_for.without(member.joined).iter() {
            let lane = self.0.entry(member.keys[number].clone()).or_default();
            lane.insert(member.arrival, (Arc::clone(&member.is_first), member.costs[number]));
        }
        member.joined = waits_for;
        true
    }

    /// Removes a request from the lanes of these keys. The caller wakes `woken`, the next request
    /// in each lane.
    pub(super) fn leave(&mut self, member: &Member, keys: KeySet, woken: &mut Vec<Waker>) {
        for number in keys.iter() {
            let Entry::Occupied(mut lane) = self.0.entry(member.keys[number].clone()) else {
                continue;
            };
            lane.get_mut().remove(&member.arrival);
            match lane.get().first_key_value() {
                None => drop(lane.remove()),
                Some((next, (is_first, _))) if *next > member.arrival => {
                    woken.extend(is_first.set())
                }
                Some(_) => {}
            }
        }
    }
}
