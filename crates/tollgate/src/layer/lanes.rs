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

use tokio::sync::Notify;
use tollgate_core::{Key, Policy};

#[derive(Clone)]
pub(super) struct LaneKey {
    pub(super) policy: Policy,
    pub(super) key: Key,
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

pub(super) type ArrivalNumber = u64;

/// All lanes. Empty lanes are removed.
#[derive(Default)]
pub(super) struct Lanes(HashMap<LaneKey, Lane>);

/// The requests that wait for a key: how to wake each request, and its cost under this key.
type Lane = BTreeMap<ArrivalNumber, (Arc<Notify>, u64)>;

pub(super) struct Member {
    pub(super) arrival: ArrivalNumber,
    /// The keys of its charges. The bits below are indices into this list.
    pub(super) keys: Box<[LaneKey]>,
    pub(super) costs: Box<[u64]>,
    /// The keys that it may wait for. Excludes keys of limits that reject, and keys with cost 0.
    pub(super) may_wait: u64,
    /// The keys that it waits for, or waited for last.
    pub(super) joined: u64,
    pub(super) first: Arc<Notify>,
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn behind(&self, member: &Member) -> u64 {
        let first = |key| self.0.get(key)?.first_key_value();
        let is_behind = |key| first(key).is_some_and(|(first, _)| *first < member.arrival);
        let keys = bits(member.may_wait).filter(|number| is_behind(&member.keys[*number]));
        keys.fold(0, |keys, number| keys | 1 << number)
    }

    pub(super) fn units_ahead(&self, member: &Member, number: usize) -> u64 {
        let lane = self.0.get(&member.keys[number]).into_iter();
        let ahead = lane.flat_map(|lane| lane.range(..member.arrival));
        ahead.fold(0, |units, (_, (_, cost))| units.saturating_add(*cost))
    }

    /// Moves a request into the lanes of the keys that it waits for: the `denying` keys, and each
    /// key that an earlier request waits for. Returns `false` if there is no such key. The request
    /// may then call the store.
    pub(super) fn place(&mut self, member: &mut Member, denying: u64) -> bool {
        let waits_for = denying | self.behind(member);
        if waits_for == 0 {
            return false;
        }
        self.leave(member, member.joined & !waits_for);
        for number in bits(waits_for & !member.joined) {
            let lane = self.0.entry(member.keys[number].clone()).or_default();
            lane.insert(member.arrival, (Arc::clone(&member.first), member.costs[number]));
        }
        member.joined = waits_for;
        true
    }

    /// Removes a request from the lanes of these keys, and wakes the next request in each lane.
    pub(super) fn leave(&mut self, member: &Member, keys: u64) {
        for number in bits(keys) {
            let Entry::Occupied(mut lane) = self.0.entry(member.keys[number].clone()) else {
                continue;
            };
            lane.get_mut().remove(&member.arrival);
            match lane.get().first_key_value() {
                None => drop(lane.remove()),
                Some((next, (first, _))) if *next > member.arrival => first.notify_one(),
                Some(_) => {}
            }
        }
    }
}

#[inline]
pub(super) fn bits(mut bits: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        // `bits` without its lowest set bit.
        bits &= bits.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
}

#[cfg(test)]
mod tests;
