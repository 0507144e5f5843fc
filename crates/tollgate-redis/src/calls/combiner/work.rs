//! Limits how much work a call gives Redis, so scripts do not block other clients for long.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use smallvec::SmallVec;
use tollgate_core::{Algorithm, Policy, Resolution};

use crate::calls::ticket::{NamedCharge, Request};
use crate::script::encode::Batch;
use crate::script::header::{has_plain_path, has_plain_state};

/// The total work for a call's requests.
///
/// The unit is a microsecond on a typical server. The costs are estimates: a script cannot measure
/// its own time, because Redis freezes the clock while it runs.
#[derive(Debug, Default)]
pub(super) struct Work {
    keys: usize,
    /// The work if all requests take the script's plain path.
    plain: u64,
    /// The work if any request needs the general path, which all requests then take.
    general: u64,
    is_general: bool,
    slots: HashSet<u16, RandomState>,
    seen: HashSet<u64, RandomState>,
    hasher: RandomState,
}

/// The maximum work in a call with several requests.
const MOST: u64 = 1_000;

/// The work of starting another script in a call.
const SCRIPT: u64 = 8;
const PLAIN_CHARGE: u64 = 5;
const GENERAL_CHARGE: u64 = 12;
/// A repeated request on the general path. On the plain path it is free.
const REPEATED: u64 = 2;
const CORRECTION: u64 = 20;
/// How many entries of a full log a refund moves per microsecond.
const ENTRIES: u64 = 20;
/// In a log with more entries, a refund changes a few pages.
const MANY: u64 = 4_096;

impl Work {
    /// Adds a request, and returns whether the call has room for it. A call always has room for its
    /// first request, which would otherwise block all requests behind it.
    ///
    /// `slot` is set if the request needs a separate script for its slot.
    pub(super) fn admits(&mut self, request: &Request, slot: Option<u16>) -> bool {
        let is_first = self.keys == 0;
        if slot.is_some_and(|slot| self.slots.insert(slot)) && !is_first {
            self.plain += SCRIPT;
            self.general += SCRIPT;
        }
        self.keys += request.keys();
        match request {
            Request::Decide(charges) => {
                self.is_general |= !charges.iter().all(|it| has_plain_state(&it.charge.policy))
                    || !has_plain_path(charges.iter().map(NamedCharge::as_charge));
                let costs = charges.len() as u64;
                if self.seen.insert(self.hash(charges)) {
                    self.plain += PLAIN_CHARGE * costs;
                    self.general += GENERAL_CHARGE * costs;
                } else {
                    self.general += REPEATED * costs;
                    // Each request in a run gets its own instant.
                    let queued = charges.iter().filter(|it| it.charge.queue.is_some());
                    self.plain += REPEATED * queued.count() as u64;
                }
            }
            Request::Settle { receipt, .. } | Request::Renew { receipt, .. } => {
                self.is_general = true;
                self.general += CORRECTION + most_entries(&receipt.policy) / ENTRIES;
            }
            Request::Reset { .. } | Request::Block { .. } | Request::Lease { .. } => {
                self.is_general = true;
                self.general += CORRECTION;
            }
        }
        let work = if self.is_general { self.general } else { self.plain };
        is_first || self.keys <= Batch::MAX && work <= MOST
    }

    fn hash(&self, charges: &[NamedCharge]) -> u64 {
        let charges = charges.iter().map(|NamedCharge { state, charge: it }| {
            (state, it.cost, it.enforce, it.dry, it.queue, it.headroom)
        });
        self.hasher.hash_one(charges.collect::<SmallVec<[_; 4]>>())
    }
}

fn most_entries(policy: &Policy) -> u64 {
    let limit = policy.quota().limit();
    match policy.algorithm() {
        Some(
            Algorithm::SlidingWindowLog { resolution: Resolution::Exact }
            | Algorithm::ConcurrentRequests,
        ) => limit.min(MANY),
        Some(Algorithm::SlidingWindowLog { .. }) => limit.min(1_000),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::{Charge, Charged, Cost, Key, Quota, Receipt, ReceiptId, Source, Timestamp};

    use super::*;
    use crate::script::names::Name;

    fn charge(policy: &Policy, key: u32) -> Request {
        let state = key.to_be_bytes().as_slice().into();
        let charge = NamedCharge::new(state, &charge_of(policy));
        Request::Decide([charge].into_iter().collect())
    }

    fn charge_of(policy: &Policy) -> Charge<'_> {
        Charge::new(policy, &Key::GLOBAL, Cost::ONE)
    }

    /// Returns the number of requests that fit into a call.
    fn room(requests: impl Iterator<Item = Request>) -> usize {
        let mut work = Work::default();
        requests.take_while(|request| work.admits(request, None)).count()
    }

    fn bucket() -> Policy {
        Policy::token_bucket("b", Quota::per_minute(9)).unwrap()
    }

    fn log() -> Policy {
        Policy::sliding_window_log("l", Quota::per_minute(9)).unwrap()
    }

    /// How many requests with different keys fit on the plain and on the general path.
    fn rooms() -> (usize, usize) {
        let [plain, general] = [bucket(), log()];
        let room_of = |policy: &Policy| room((0..10_000).map(|key| charge(policy, key)));
        (room_of(&plain), room_of(&general))
    }

    /// A unit of work is a microsecond, and a call should take at most about a millisecond.
    #[test]
    fn call_work_is_limited() {
        let (plain, general) = rooms();
        assert!(50 < general && general < plain && plain < 1_000, "{general}, {plain}");
    }

    #[test]
    fn single_general_request_moves_the_call_to_the_general_path() {
        let ((plain, general), bucket, log) = (rooms(), bucket(), log());
        for at in 0..plain {
            let policy = |key: usize| if key == at { &log } else { &bucket };
            let mixed = room((0..1_000).map(|key| charge(policy(key), key as u32)));
            // A later general request does not fit any more.
            assert_eq!(mixed, at.max(general), "the general request is number {at}");
        }
    }

    #[test]
    fn each_slot_adds_a_script() {
        let ((plain, _), bucket) = (rooms(), bucket());
        let room_in = |slots: u16| {
            let mut work = Work::default();
            let fits = |&key: &u16| work.admits(&charge(&bucket, key.into()), Some(key % slots));
            (0..1_000).take_while(fits).count()
        };
        assert_eq!(room_in(1), plain);
        assert!((plain - 5..plain).contains(&room_in(2)), "{}", room_in(2));
        assert!(room_in(1_000) < plain / 2, "{}", room_in(1_000));
    }

    #[test]
    fn equal_requests_share_their_work() {
        let ((plain, general), bucket, log) = (rooms(), bucket(), log());
        let requests =
            |policy, keys: usize| (0..10_000).map(move |n| charge(policy, (n % keys) as u32));
        assert_eq!(room(requests(&bucket, plain)), 10_000);
        // On the general path, the script decides each request.
        let shared = room(requests(&log, 10));
        assert!((2 * general..10_000).contains(&shared), "{shared}");
    }

    #[test]
    fn first_request_always_fits() {
        let [long, short] = [100_000, 100].map(|limit| {
            let log = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
            Policy::new("l", Quota::new(limit, Duration::from_secs(3_600)), log).unwrap()
        });
        let large = || {
            let key =
                |key: u16| NamedCharge::new(key.to_be_bytes().as_slice().into(), &charge_of(&long));
            Request::Decide((0..1_000).map(key).collect())
        };
        assert_eq!(room((0..9).map(|_| large())), 1);
        let refunds = |policy| room((0..10_000).map(|_| refund(policy)));
        assert!(1 < refunds(&long) && refunds(&long) < refunds(&short));
        assert!(refunds(&short) < rooms().1);
    }

    fn refund(policy: &Policy) -> Request {
        let charged = Charged::new(policy, Cost::ONE, Timestamp::EPOCH);
        let (id, source, key) = (ReceiptId(1), Source::Store, Key::GLOBAL);
        let receipt = Receipt { id, source, policy: policy.clone(), key, charged };
        let (state, settled) = (Name::new(), Name::new());
        Request::Settle { state, settled, receipt, actual: Cost::ZERO }
    }
}
