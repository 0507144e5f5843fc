use super::*;

const NONE: KeySet = KeySet(0);
const FIRST: KeySet = KeySet(0b1);
const SECOND: KeySet = KeySet(0b10);
const BOTH: KeySet = KeySet(0b11);

/// A request that may wait for the keys with these names.
fn member(arrival: ArrivalNumber, names: &[&str]) -> Member {
    let policy = Policy::fixed_window_counter("p", tollgate_core::Quota::per_second(1));
    let policy = policy.unwrap();
    let key = |name: &&str| LaneKey { policy: policy.clone(), key: Key::from(*name) };
    let keys: Box<[_]> = names.iter().map(key).collect();
    let may_wait = (0..keys.len()).collect();
    let costs = keys.iter().map(|_| arrival).collect();
    let (joined, is_first) = (KeySet::default(), Arc::default());
    Member { arrival, keys, costs, may_wait, own: may_wait, joined, is_first }
}

impl Member {
    /// Whether it was woken since the last call.
    fn is_woken(&self) -> bool {
        self.is_first.take(Waker::noop())
    }
}

impl Lanes {
    fn place_in(&mut self, member: &mut Member, denying: KeySet) -> bool {
        self.place(member, denying, &mut Vec::new())
    }

    fn leave_all(&mut self, member: &Member) {
        self.leave(member, member.joined, &mut Vec::new());
    }
}

#[test]
fn later_requests_wait_behind_earlier() {
    let mut lanes = Lanes::default();
    let [mut first, mut second, mut third] = [1, 2, 3].map(|it| member(it, &["a"]));
    assert!(lanes.place_in(&mut second, FIRST));
    assert!(!lanes.place_in(&mut first, NONE), "it arrived earlier");
    assert!(lanes.place_in(&mut third, NONE));
    lanes.leave_all(&second);
    assert!(third.is_woken());
    assert!(!lanes.place_in(&mut third, NONE), "it is first in its lane");
    assert_eq!((lanes.len(), third.joined), (1, FIRST), "it remains first until it leaves");
    lanes.leave_all(&third);
    assert_eq!(lanes.len(), 0);
}

#[test]
fn requests_leave_lanes_they_do_not_need() {
    let mut lanes = Lanes::default();
    let mut first = member(1, &["shared", "own"]);
    let mut second = member(2, &["shared"]);
    assert!(lanes.place_in(&mut first, BOTH));
    assert!(lanes.place_in(&mut second, FIRST));
    assert!(lanes.place_in(&mut first, SECOND));
    assert!(second.is_woken());
    assert!(!lanes.place_in(&mut second, NONE));
    // It takes its place again, in front of the second request.
    assert!(lanes.place_in(&mut first, FIRST));
    assert!(lanes.place_in(&mut second, NONE));
    lanes.leave_all(&first);
    assert!(second.is_woken() && !first.is_woken());
    lanes.leave_all(&second);
    assert_eq!(lanes.len(), 0);
}

#[test]
fn blocked_requests_do_not_block_other_lanes() {
    let mut lanes = Lanes::default();
    let [mut own, mut shared] = [member(1, &["own"]), member(2, &["shared"])];
    let mut both = member(3, &["shared", "own"]);
    let mut last = member(4, &["shared"]);
    assert!(lanes.place_in(&mut own, FIRST) && lanes.place_in(&mut shared, FIRST));
    assert!(lanes.place_in(&mut both, NONE) && lanes.place_in(&mut last, NONE));
    lanes.leave_all(&shared);
    assert!(both.is_woken() && !last.is_woken());
    assert!(lanes.place_in(&mut both, NONE), "it is behind the first");
    assert!(last.is_woken());
    assert!(!lanes.place_in(&mut last, NONE));
}

#[test]
fn only_first_request_wakes_next() {
    let mut lanes = Lanes::default();
    let mut members = [1, 2, 3].map(|it| member(it, &["a"]));
    for member in &mut members {
        assert!(lanes.place_in(member, FIRST));
    }
    let [first, second, third] = members;
    lanes.leave_all(&second);
    assert!(!first.is_woken() && !third.is_woken());
    lanes.leave_all(&first);
    assert!(third.is_woken());
}

#[test]
fn only_earlier_units_are_ahead() {
    let mut lanes = Lanes::default();
    // Each request costs as many units as its arrival number.
    let mut members = [(1, "a"), (2, "b"), (4, "a")].map(|(it, name)| member(it, &[name]));
    for member in &mut members {
        assert!(lanes.place_in(member, FIRST));
    }
    for (arrival, expected) in [(1, 0), (3, 1), (4, 1), (5, 5)] {
        assert_eq!(lanes.units_ahead(&member(arrival, &["a"]), 0), expected, "{arrival}");
    }
}

#[test]
fn unwaitable_keys_are_ignored() {
    let mut lanes = Lanes::default();
    let mut first = member(1, &["a", "b"]);
    let mut second = Member { may_wait: SECOND, ..member(2, &["a", "b"]) };
    assert!(lanes.place_in(&mut first, FIRST));
    assert!(!lanes.place_in(&mut second, NONE));
}
