//! Requests into the keys and arguments of one call.

use smallvec::SmallVec;
use tollgate_core::{Cost, Form, Micros, Policy, Receipt, Timestamp};

use crate::bytes::{exact, put};
use crate::header::{put_header, put_periods};
use crate::interned::Interned;

/// One charge of a request and the Redis key that holds its state.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Where the state is: one Redis key per policy and key.
    pub key: &'a [u8],
    /// The policy to ask.
    pub policy: &'a Policy,
    /// How many units.
    pub cost: Cost,
    /// Whether a denial denies the request.
    pub enforce: bool,
}

/// A block that is done with, and what was spent of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Its name.
    pub id: u64,
    /// So many units.
    pub units: u64,
}

/// A block that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its name, which no other block of the key has.
    pub id: u64,
    /// So many units at most; none where blocks are only settled.
    pub units: u64,
    /// For so long at most.
    pub ttl: Micros,
}

/// Why a request cannot be part of a call. The call is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Charges of one request to one key that differ in quota.
    #[error("one policy and key is in the request with two quotas; name the policies apart")]
    TwoQuotas,
    /// The call is full: send it and begin another.
    #[error("a call holds up to {} keys, forms and requests", Batch::MAX)]
    Full,
    /// More different keys than one request can have.
    #[error("a request has charges to more than 255 different keys, or to 127 with a penalty")]
    TooManyCharges,
}

/// The requests of one call, in the form that the script takes.
///
/// What requests have in common is sent once: keys, forms, and whole operations, of
/// which a request is then only the number and its deadline. On a hot key that is
/// nearly all there is to say.
#[derive(Debug, Default)]
pub struct Batch {
    nonce: [u8; 8],
    /// What it probably is by Redis' clock.
    now: Timestamp,
    keys: Interned,
    operations: Interned,
    forms: Vec<Form>,
    form_bytes: Vec<u8>,
    requests: Vec<u8>,
    pub(crate) asked: Vec<Asked>,
    scratch: Vec<u8>,
}

/// What a request asked for, as far as it takes that to read the answer.
#[derive(Debug)]
pub(crate) enum Asked {
    /// For each charge in its order, which of the sums it is in.
    Decide {
        sums: SmallVec<[Sum; 2]>,
        charges: SmallVec<[u8; 2]>,
    },
    Settle,
    Renew,
    Reset,
    Lease,
}

/// The charges of a request to one key, summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub(crate) capacity: u64,
    pub(crate) enforce: bool,
}

/// The kinds of operations.
const DECIDE: u8 = 1;
const GIVE_BACK: u8 = 2;
const OWE: u8 = 3;
const RESET: u8 = 4;
const RENEW: u8 = 5;
const LEASE: u8 = 16;

impl Batch {
    /// The most keys, forms or requests of one call: they go by numbers of two bytes.
    pub const MAX: usize = u16::MAX as usize;

    /// A call without requests. The reply has to repeat the `nonce`.
    pub fn new(nonce: u64) -> Self {
        Self { nonce: nonce.to_be_bytes(), ..Self::default() }
    }

    /// A call that Redis is thought to get at `now`. Where that is not even the right period
    /// of a calendar, or the one beside it, requests that are about it are refused unexecuted.
    pub fn at(nonce: u64, now: Timestamp) -> Self {
        Self { now, ..Self::new(nonce) }
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether there are no requests yet.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// What the reply has to begin with.
    pub(crate) const fn nonce(&self) -> [u8; 8] {
        self.nonce
    }

    /// Adds a request: all its charges or none. After its deadline, in Redis' time, it
    /// is refused unexecuted.
    pub fn decide(
        &mut self,
        lines: &[Line<'_>],
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        let mut sums: SmallVec<[Line<'_>; 4]> = SmallVec::new();
        let mut charges = SmallVec::new();
        for line in lines {
            if let Some(index) = sums.iter().position(|sum| sum.key == line.key) {
                let sum = &mut sums[index];
                if !sum.policy.is_same(line.policy) && sum.policy.rule() != line.policy.rule() {
                    return Err(EncodeError::TwoQuotas);
                }
                add(&mut sum.cost, &mut sum.enforce, line);
                charges.push(index as u8);
            } else {
                charges.push(sums.len() as u8);
                sums.push(*line);
            }
        }
        let count = u8::try_from(sums.len()).map_err(|_| EncodeError::TooManyCharges)?;
        self.make_room(sums.len())?;
        let subjects = subjects(&sums)?;
        self.scratch.clear();
        self.scratch.extend([DECIDE, count]);
        for (sum, subject) in sums.iter().zip(&subjects) {
            let key = self.keys.number(sum.key);
            let form = self.form(sum.policy);
            put::<2>(&mut self.scratch, key);
            put::<2>(&mut self.scratch, form);
            self.scratch.push(subject << 1 | u8::from(sum.enforce));
            put::<7>(&mut self.scratch, exact(sum.cost.get()));
        }
        let sums = sums
            .iter()
            .map(|sum| Sum { capacity: sum.policy.capacity(), enforce: sum.enforce })
            .collect();
        self.request(deadline, Asked::Decide { sums, charges });
        Ok(())
    }

    /// Adds the settling of a receipt. That it was settled is kept under `receipt_key`.
    pub fn settle(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        self.settle_within(receipt.lifetime(), key, receipt_key, receipt, actual, deadline)
    }

    /// The same for a receipt that lapses after `lifetime`, or sooner by itself.
    pub fn settle_within(
        &mut self,
        lifetime: Micros,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        actual: Cost,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        let (cost, actual) = (receipt.charged.cost.get(), actual.get());
        let kind = if actual > cost { OWE } else { GIVE_BACK };
        self.correct(kind, key, receipt_key, receipt, actual.abs_diff(cost), lifetime)?;
        self.request(deadline, Asked::Settle);
        Ok(())
    }

    /// Adds the renewal of a lease. Whether it was settled stands under `receipt_key`.
    pub fn renew(
        &mut self,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        self.correct(RENEW, key, receipt_key, receipt, 0, receipt.lifetime())?;
        self.request(deadline, Asked::Renew);
        Ok(())
    }

    /// Puts an operation on a receipt into `scratch`.
    fn correct(
        &mut self,
        kind: u8,
        key: &[u8],
        receipt_key: &[u8],
        receipt: &Receipt,
        units: u64,
        lifetime: Micros,
    ) -> Result<(), EncodeError> {
        self.make_room(2)?;
        let charged = receipt.charged;
        let numbers =
            [self.keys.number(key), self.form(&receipt.policy), self.keys.number(receipt_key)];
        self.scratch.clear();
        self.scratch.push(kind);
        for number in numbers {
            put::<2>(&mut self.scratch, number);
        }
        put::<7>(&mut self.scratch, exact(units));
        put::<7>(&mut self.scratch, exact(charged.cost.get()));
        put::<7>(&mut self.scratch, charged.charged_at.as_micros());
        put::<7>(&mut self.scratch, charged.leaves_at.as_micros());
        put::<7>(&mut self.scratch, lifetime.get());
        Ok(())
    }

    /// Adds a request to forget a key.
    pub fn reset(&mut self, key: &[u8], deadline: Option<Timestamp>) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let key = self.keys.number(key);
        self.scratch.clear();
        self.scratch.push(RESET);
        put::<2>(&mut self.scratch, key);
        self.request(deadline, Asked::Reset);
        Ok(())
    }

    /// Adds a request to settle up to 255 blocks and to grant another.
    pub fn lease(
        &mut self,
        key: &[u8],
        policy: &Policy,
        spent: &[Spent],
        ask: Ask,
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        self.make_room(1)?;
        let count = u8::try_from(spent.len()).map_err(|_| EncodeError::TooManyCharges)?;
        let numbers = [self.keys.number(key), self.form(policy)];
        self.scratch.clear();
        self.scratch.push(LEASE);
        for number in numbers {
            put::<2>(&mut self.scratch, number);
        }
        put::<5>(&mut self.scratch, ask.units.min(Policy::MAX_LIMIT));
        put::<7>(&mut self.scratch, exact(ask.ttl.get()));
        put::<8>(&mut self.scratch, ask.id);
        self.scratch.push(count);
        for block in spent {
            put::<8>(&mut self.scratch, block.id);
            put::<5>(&mut self.scratch, block.units.min(Policy::MAX_LIMIT));
        }
        self.request(deadline, Asked::Lease);
        Ok(())
    }

    /// The keys, each once.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter()
    }

    /// The arguments in their order. Only tests give the time; Redis has its own.
    pub fn args(&self, time: Option<Timestamp>) -> [Vec<u8>; 5] {
        let time = time.map_or_else(Vec::new, |time| time.as_micros().to_string().into_bytes());
        [
            self.nonce.to_vec(),
            time,
            self.form_bytes.clone(),
            self.operations.bytes().to_vec(),
            self.requests.clone(),
        ]
    }

    fn make_room(&self, keys: usize) -> Result<(), EncodeError> {
        let most = [self.keys.len() + keys, self.forms.len() + keys, self.len() + 1];
        if most.into_iter().any(|count| count > Self::MAX) {
            return Err(EncodeError::Full);
        }
        Ok(())
    }

    /// Adds a request for the operation in `scratch`.
    fn request(&mut self, deadline: Option<Timestamp>, asked: Asked) {
        let operation = self.operations.number(&self.scratch);
        put::<2>(&mut self.requests, operation);
        // Zero is no deadline; the first microsecond of the epoch is as good as it.
        put::<7>(&mut self.requests, deadline.map_or(0, |at| at.as_micros().max(1)));
        self.asked.push(asked);
    }

    /// The number of a form, from 1. There are a handful, so they are looked through.
    fn form(&mut self, policy: &Policy) -> u64 {
        let form = policy.form();
        let index = self.forms.iter().position(|other| *other == form).unwrap_or_else(|| {
            self.forms.push(form);
            put_header(&mut self.form_bytes, &form, policy.rule());
            put_periods(&mut self.form_bytes, &form, self.now);
            self.forms.len() - 1
        });
        index as u64 + 1
    }
}

/// Numbers that are equal where a denial of one charge may strike another: where both are
/// about one subject. Without a penalty that counts denials nobody asks, and all are zero.
fn subjects(sums: &[Line<'_>]) -> Result<SmallVec<[u8; 4]>, EncodeError> {
    if !sums.iter().any(|sum| sum.policy.counts_denials()) {
        return Ok(SmallVec::from_elem(0, sums.len()));
    }
    let number = |sum: &Line<'_>| {
        let same = |other: &Line<'_>| subject_of(other.key) == subject_of(sum.key);
        let first = sums.iter().position(same);
        let number = first.and_then(|index| u8::try_from(index + 1).ok());
        number.filter(|number| *number < 128).ok_or(EncodeError::TooManyCharges)
    };
    sums.iter().map(number).collect()
}

/// What the name of a Redis key begins with, up to and with the subject in braces.
fn subject_of(key: &[u8]) -> Option<&[u8]> {
    let end = key.iter().position(|byte| *byte == b'}')?;
    key.get(..=end)
}

/// Adds a charge to others of the same key. A shadow must not make them too dear, so
/// beside an enforced charge it takes nothing.
fn add(cost: &mut Cost, enforce: &mut bool, line: &Line<'_>) {
    match (*enforce, line.enforce) {
        (true, false) => {}
        (false, true) => (*cost, *enforce) = (line.cost, true),
        _ => *cost = cost.plus(line.cost),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Charged, Key, Quota, ReceiptId, Source};

    use super::*;

    fn policy(limit: u64) -> Policy {
        Policy::fixed_window_counter("p", Quota::per_minute(limit)).unwrap()
    }

    fn line<'a>(key: &'a [u8], policy: &'a Policy, cost: u64) -> Line<'a> {
        Line { key, policy, cost: Cost::new(cost), enforce: true }
    }

    #[test]
    fn what_requests_have_in_common_is_sent_once() {
        let policy = policy(100);
        let mut batch = Batch::new(7);
        for deadline in [None, Some(Timestamp::from_micros(0x0102)), None] {
            batch.decide(&[line(b"k", &policy, 1)], deadline).unwrap();
        }
        assert_eq!(batch.keys().collect::<Vec<_>>(), [b"k"]);
        let [nonce, time, forms, operations, requests] = batch.args(None);
        assert_eq!(nonce, 7_u64.to_be_bytes());
        assert_eq!(time, b"");
        assert_eq!(forms, [1, 1, 0, 0, 0, 0, 100, 0, 0, 0x03, 0x93, 0x87, 0]);
        assert_eq!(operations, [1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1]);
        let none = [0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(requests, [none, [0, 1, 0, 0, 0, 0, 0, 1, 2], none].concat());
    }

    #[test]
    fn charges_to_one_key_are_summed_and_a_shadow_beside_one_that_enforces_takes_nothing() {
        let policy = policy(100);
        let mut batch = Batch::new(0);
        let shadow = |cost| Line { enforce: false, ..line(b"k", &policy, cost) };
        let enforced = |cost| line(b"k", &policy, cost);
        let lines =
            [shadow(2), line(b"other", &policy, 9), shadow(4), enforced(3), shadow(8), enforced(2)];
        batch.decide(&lines, None).unwrap();
        let [_, _, _, operations, _] = batch.args(None);
        let sum = [0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 5];
        let other = [0, 2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(operations, [&[1, 2], &sum[..], &other[..]].concat());
        let Asked::Decide { charges, .. } = &batch.asked[0] else { panic!() };
        assert_eq!(charges[..], [0, 1, 0, 0, 0, 0]);
        batch.decide(&[shadow(2), shadow(4)], None).unwrap();
        let [_, _, _, operations, _] = batch.args(None);
        assert_eq!(operations[26..], [1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6]);
    }

    #[test]
    fn a_key_under_two_quotas_is_refused_and_leaves_no_trace() {
        let (small, large) = (policy(10), policy(20));
        let mut batch = Batch::new(0);
        let lines = [line(b"k", &small, 1), line(b"k", &large, 1)];
        assert_eq!(batch.decide(&lines, None), Err(EncodeError::TwoQuotas));
        assert!(batch.is_empty());
        assert_eq!(batch.keys().len(), 0);
        // Two requests of one call may differ: two versions of a policy side by side.
        batch.decide(&lines[..1], None).unwrap();
        batch.decide(&lines[1..], None).unwrap();
        assert_eq!((batch.len(), batch.keys().len(), batch.forms.len()), (2, 1, 2));
    }

    #[test]
    fn a_call_says_when_it_is_full() {
        let policy = policy(1);
        let mut batch = Batch::new(0);
        for number in 0..Batch::MAX as u32 {
            batch.decide(&[line(&number.to_be_bytes(), &policy, 1)], None).unwrap();
        }
        assert_eq!(batch.decide(&[line(b"k", &policy, 1)], None), Err(EncodeError::Full));
        let keys: Vec<_> = (0..256_u32).map(u32::to_be_bytes).collect();
        let lines: Vec<_> = keys.iter().map(|key| line(key, &policy, 1)).collect();
        let mut batch = Batch::new(0);
        assert_eq!(batch.decide(&lines, None), Err(EncodeError::TooManyCharges));
        assert_eq!(batch.decide(&lines[..255], None), Ok(()));
    }

    #[test]
    fn a_cost_that_no_quota_holds_is_as_large_as_lua_can_count() {
        let policy = policy(1);
        let mut batch = Batch::new(0);
        batch.decide(&[line(b"k", &policy, u64::MAX)], None).unwrap();
        let [_, _, _, operations, _] = batch.args(None);
        assert_eq!(operations[7..], [0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn settling_says_which_way_and_by_how_much() {
        let policy = policy(100);
        let receipt = Receipt {
            id: ReceiptId(1),
            source: Source::Store,
            policy,
            key: Key::GLOBAL,
            charged: Charged {
                cost: Cost::new(5),
                charged_at: Timestamp::from_micros(3),
                leaves_at: Timestamp::from_micros(4),
            },
        };
        for (actual, kind, units) in [(2, GIVE_BACK, 3), (5, GIVE_BACK, 0), (9, OWE, 4)] {
            let mut batch = Batch::new(0);
            batch.settle(b"k", b"r", &receipt, Cost::new(actual), None).unwrap();
            let [_, _, _, operations, _] = batch.args(None);
            assert_eq!(operations[..7], [kind, 0, 1, 0, 1, 0, 2]);
            assert_eq!([operations[13], operations[20], operations[27]], [units, 5, 3]);
        }
    }
}
