//! Limits how much work a call gives Redis, so scripts do not block other clients for long.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use smallvec::SmallVec;
use tollgate_core::{Algorithm, Policy, Resolution};

use crate::encode::Batch;
use crate::header::is_plain;
use crate::ticket::{OwnedCharge, Request};

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
                self.is_general |= !charges.iter().all(|it| is_plain(&it.policy) && !it.dry);
                let costs = charges.len() as u64;
                if self.seen.insert(self.hash(charges)) {
                    self.plain += PLAIN_CHARGE * costs;
                    self.general += GENERAL_CHARGE * costs;
                } else {
                    self.general += REPEATED * costs;
                }
            }
            Request::Settle { receipt, .. } | Request::Renew { receipt, .. } => {
                self.is_general = true;
                self.general += CORRECTION + most_entries(&receipt.policy) / ENTRIES;
            }
            Request::Reset { .. } | Request::Lease { .. } => {
                self.is_general = true;
                self.general += CORRECTION;
            }
        }
        let work = if self.is_general { self.general } else { self.plain };
        is_first || self.keys <= Batch::MAX && work <= MOST
    }

    fn hash(&self, charges: &[OwnedCharge]) -> u64 {
        let charges = charges.iter().map(|it| (&it.state, it.cost, it.enforce, it.dry));
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
    use crate::names::Name;

    fn charge(policy: &Policy, key: u32) -> Request {
        let state = key.to_be_bytes().as_slice().into();
        let charge = OwnedCharge::new(state, &Charge::new(policy, &Key::GLOBAL, Cost::ONE));
        Request::Decide([charge].into_iter().collect())
    }

    /// Returns the number of requests that fit into a call.
    fn room(requests: impl Iterator<Item = Request>) -> usize {
        let mut work = Work::default();
        requests.take_while(|request| work.admits(request, None)).count()
    }

    #[test]
    fn call_work_is_limited() {
        let bucket = Policy::token_bucket("b", Quota::per_minute(9)).unwrap();
        let log = Policy::sliding_window_log("l", Quota::per_minute(9)).unwrap();
        assert_eq!(room((0..1_000).map(|key| charge(&bucket, key))), 200);
        assert_eq!(room((0..1_000).map(|key| charge(&log, key))), 83);
        // A single general request moves the entire call to the general path.
        let mixed = (0..1_000).map(|key| charge(if key == 100 { &log } else { &bucket }, key));
        assert_eq!(room(mixed), 100);
    }

    #[test]
    fn separate_script_adds_work() {
        let bucket = Policy::token_bucket("b", Quota::per_minute(9)).unwrap();
        let mut work = Work::default();
        let fits = |&slot: &u16| work.admits(&charge(&bucket, slot.into()), Some(slot));
        assert_eq!((0..1_000).take_while(fits).count(), 77);
    }

    #[test]
    fn equal_requests_share_their_work() {
        let bucket = Policy::token_bucket("b", Quota::per_minute(9)).unwrap();
        let requests = (0..10_000).map(|n| charge(&bucket, n % 200));
        assert_eq!(room(requests), 10_000);
    }

    #[test]
    fn first_request_always_fits() {
        let hour = Duration::from_secs(3_600);
        let log = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
        let log = Policy::new("l", Quota::new(100_000, hour), log).unwrap();
        assert_eq!(room((0..9).map(|_| refund(&log))), 4);
        let short = Policy::concurrent_requests("c", 100, hour).unwrap();
        assert_eq!(room((0..99).map(|_| refund(&short))), 40);
    }

    fn refund(policy: &Policy) -> Request {
        let charged = Charged::new(policy, Cost::ONE, Timestamp::EPOCH);
        let (id, source, key) = (ReceiptId(1), Source::Store, Key::GLOBAL);
        let receipt = Receipt { id, source, policy: policy.clone(), key, charged };
        let lifetime = receipt.lifetime();
        let (state, settled) = (Name::new(), Name::new());
        Request::Settle { state, settled, receipt, actual: Cost::ZERO, lifetime }
    }
}
