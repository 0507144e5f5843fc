//! The lanes of the wait queue: for each key, which requests wait for it, by their arrival.
//!
//! A request waits for a key while the store's last answer denies it there, or while an earlier
//! request waits for the key. It is in the lanes of these keys and in no others, so that it
//! holds up no other request at a key that it does not wait for. It asks the store when it waits
//! for no key any more, and stays in the last lanes until the answer is there.
//!
//! The earliest request is never behind another, so the requests cannot wait for each other in
//! a circle.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tokio::sync::Notify;
use tollgate_core::{Key, Policy};

/// A key of a policy, for which requests wait.
#[derive(Clone)]
pub(super) struct LaneKey {
    pub(super) policy: Policy,
    pub(super) key: Key,
}

/// State belongs to the name of a policy: after a reload the quota may be another.
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

/// The number of a request in the order of arrival.
pub(super) type Arrival = u64;

/// All lanes. None of them is empty.
#[derive(Default)]
pub(super) struct Lanes(HashMap<LaneKey, Lane>);

/// The requests that wait for a key: how to wake each, and its cost there.
type Lane = BTreeMap<Arrival, (Arc<Notify>, u64)>;

/// A request in the lanes.
pub(super) struct Member {
    pub(super) arrival: Arrival,
    /// The keys of its charges. The bits below are numbers of these.
    pub(super) keys: Box<[LaneKey]>,
    pub(super) costs: Box<[u64]>,
    /// The keys that it may wait for. Where a limit rejects its excess, or a charge costs
    /// nothing, the request waits for no key.
    pub(super) may_wait: u64,
    /// The keys that it waits for, or waited for last.
    pub(super) joined: u64,
    /// Notified when the request is the first of a lane.
    pub(super) first: Arc<Notify>,
}

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that an earlier request waits for.
    pub(super) fn behind(&self, member: &Member) -> u64 {
        let first = |key| self.0.get(key)?.first_key_value();
        let is_behind = |key| first(key).is_some_and(|(first, _)| *first < member.arrival);
        let keys = bits(member.may_wait).filter(|number| is_behind(&member.keys[*number]));
        keys.fold(0, |keys, number| keys | 1 << number)
    }

    /// The units that earlier requests wait for under one of the keys of a request.
    pub(super) fn units_ahead(&self, member: &Member, number: usize) -> u64 {
        let lane = self.0.get(&member.keys[number]).into_iter();
        let ahead = lane.flat_map(|lane| lane.range(..member.arrival));
        ahead.fold(0, |units, (_, (_, cost))| units.saturating_add(*cost))
    }

    /// Puts a request into the lanes of the keys that it waits for: the `denying` keys, and each
    /// key that an earlier request waits for. Returns `false` if the request waits for no key: then it
    /// may ask the store.
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

    /// Takes a request out of the lanes of these keys, and wakes the next of each.
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

/// The numbers of the bits that are set.
#[inline]
pub(super) fn bits(mut bits: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros();
        // `bits` without its lowest bit.
        bits &= bits.wrapping_sub(1);
        (lowest < u64::BITS).then_some(lowest as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that may wait for the keys with these names.
    fn member(arrival: Arrival, names: &[&str]) -> Member {
        let policy = Policy::fixed_window_counter("p", tollgate_core::Quota::per_second(1));
        let policy = policy.unwrap();
        let key = |name: &&str| LaneKey { policy: policy.clone(), key: Key::from(*name) };
        let keys: Box<[_]> = names.iter().map(key).collect();
        let may_wait = (1 << keys.len()) - 1;
        let costs = keys.iter().map(|_| arrival).collect();
        Member { arrival, keys, costs, may_wait, joined: 0, first: Arc::default() }
    }

    impl Member {
        /// Whether it has been woken since this was asked last.
        fn is_woken(&self) -> bool {
            let mut woken = std::pin::pin!(self.first.notified());
            woken.as_mut().enable()
        }
    }

    #[test]
    fn a_later_request_is_behind_and_an_earlier_one_is_not() {
        let mut lanes = Lanes::default();
        let [mut first, mut second, mut third] = [1, 2, 3].map(|it| member(it, &["a"]));
        assert!(lanes.place(&mut second, 0b1));
        assert!(!lanes.place(&mut first, 0), "it came earlier");
        assert!(lanes.place(&mut third, 0));
        lanes.leave(&second, second.joined);
        assert!(third.is_woken());
        assert!(!lanes.place(&mut third, 0), "its turn");
        assert_eq!((lanes.len(), third.joined), (1, 0b1), "which lasts until it leaves");
        lanes.leave(&third, third.joined);
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_request_leaves_the_lanes_of_keys_that_it_does_not_wait_for() {
        let mut lanes = Lanes::default();
        let mut first = member(1, &["shared", "own"]);
        let mut second = member(2, &["shared"]);
        assert!(lanes.place(&mut first, 0b11));
        assert!(lanes.place(&mut second, 0b1));
        assert!(lanes.place(&mut first, 0b10));
        assert!(second.is_woken());
        assert!(!lanes.place(&mut second, 0));
        // It takes its place again, in front of the second.
        assert!(lanes.place(&mut first, 0b1));
        assert!(lanes.place(&mut second, 0));
        lanes.leave(&first, first.joined);
        assert!(second.is_woken() && !first.is_woken());
        lanes.leave(&second, second.joined);
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_request_that_is_behind_in_one_lane_is_not_the_first_of_another() {
        let mut lanes = Lanes::default();
        let [mut own, mut shared] = [member(1, &["own"]), member(2, &["shared"])];
        let mut both = member(3, &["shared", "own"]);
        let mut last = member(4, &["shared"]);
        assert!(lanes.place(&mut own, 0b1) && lanes.place(&mut shared, 0b1));
        assert!(lanes.place(&mut both, 0) && lanes.place(&mut last, 0));
        lanes.leave(&shared, shared.joined);
        assert!(both.is_woken() && !last.is_woken());
        assert!(lanes.place(&mut both, 0), "it is behind the first");
        assert!(last.is_woken());
        assert!(!lanes.place(&mut last, 0));
    }

    #[test]
    fn only_the_first_of_a_lane_makes_way_for_the_next() {
        let mut lanes = Lanes::default();
        let mut members = [1, 2, 3].map(|it| member(it, &["a"]));
        for member in &mut members {
            assert!(lanes.place(member, 0b1));
        }
        let [first, second, third] = members;
        lanes.leave(&second, second.joined);
        assert!(!first.is_woken() && !third.is_woken());
        lanes.leave(&first, first.joined);
        assert!(third.is_woken());
    }

    #[test]
    fn only_units_of_earlier_requests_for_the_same_key_are_ahead() {
        let mut lanes = Lanes::default();
        // Each costs as many units as its arrival.
        let mut members = [(1, "a"), (2, "b"), (4, "a")].map(|(it, name)| member(it, &[name]));
        for member in &mut members {
            assert!(lanes.place(member, 0b1));
        }
        for (arrival, expected) in [(1, 0), (3, 1), (4, 1), (5, 5)] {
            assert_eq!(lanes.units_ahead(&member(arrival, &["a"]), 0), expected, "{arrival}");
        }
    }

    #[test]
    fn a_key_that_the_request_may_not_wait_for_has_no_lane() {
        let mut lanes = Lanes::default();
        let mut first = member(1, &["a", "b"]);
        let mut second = Member { may_wait: 0b10, ..member(2, &["a", "b"]) };
        assert!(lanes.place(&mut first, 0b1));
        assert!(!lanes.place(&mut second, 0));
    }
}
