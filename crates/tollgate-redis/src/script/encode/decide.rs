//! A request to decide, with its charges summed by key.

use std::hash::BuildHasher as _;

use hashbrown::hash_table::Entry;
use smallvec::{SmallVec, smallvec};
use tollgate_core::{Charge, Cost, Key, Policy};

use super::{
    Asked, Batch, COUNT, DECIDE, DECIDE_QUEUED, EncodeError, Run, Sum, equal_bytes, index,
};
use crate::script::bytes::{exact, put};
use crate::script::header::has_plain_path;

/// A charge, and the Redis key that stores its state.
#[derive(Clone, Copy, Debug)]
pub struct KeyedCharge<'a> {
    /// The Redis key of the state, one per policy and key.
    pub key: &'a [u8],
    /// The charge. Its own key only matters to the caller.
    pub charge: Charge<'a>,
}

impl<'a> KeyedCharge<'a> {
    /// Creates an enforced charge to the state under a Redis key.
    pub fn new(key: &'a [u8], policy: &'a Policy, cost: Cost) -> Self {
        Self { key, charge: Charge::new(policy, &Key::GLOBAL, cost) }
    }
}

/// Encoded instead of the enforce flag.
const DRY: u8 = 2;

impl Batch {
    /// Adds a request, which charges either all or none.
    pub fn decide(&mut self, charges: &[KeyedCharge<'_>]) -> Result<(), EncodeError> {
        let mut sums: SmallVec<[KeyedCharge<'_>; 4]> = SmallVec::new();
        let mut sum_of: SmallVec<[u8; 2]> = smallvec![0; charges.len()];
        // Dry charges come last, because they see what remains after the other charges.
        for dry in [false, true] {
            for (charge, sum) in charges.iter().zip(&mut sum_of) {
                if charge.charge.dry == dry {
                    *sum = sum_up(&mut sums, charge)? as u8;
                }
            }
        }
        let count = u8::try_from(sums.len()).map_err(|_| EncodeError::TooManyCharges)?;
        self.make_room(sums.len())?;
        let subjects = subjects(&sums)?;
        self.is_general |= !has_plain_path(sums.iter().map(|sum| sum.charge));
        self.scratch.clear();
        let is_plain = sums.iter().all(|it| Charge { dry: false, ..it.charge }.is_plain());
        self.scratch.extend([if is_plain { DECIDE } else { DECIDE_QUEUED }, 0, 1, count]);
        let mut keys: SmallVec<[u64; 4]> = SmallVec::new();
        let mut asked: SmallVec<[Sum; 2]> = SmallVec::new();
        for (sum, subject) in sums.iter().zip(&subjects) {
            let key = self.number(sum.key);
            let Charge { policy, cost, enforce, dry, queue, headroom, .. } = sum.charge;
            let (form, place) = self.form(policy);
            put::<2>(&mut self.scratch, key);
            put::<2>(&mut self.scratch, place);
            let flags = if dry { DRY } else { enforce.into() };
            self.scratch.push(subject << 2 | flags);
            put::<7>(&mut self.scratch, exact(cost.get()));
            if !is_plain {
                // Zero means that the charge does not queue.
                let queue = queue.map_or(0, |it| it.get().saturating_add(1));
                put::<7>(&mut self.scratch, exact(queue));
                put::<7>(&mut self.scratch, exact(headroom.get()));
            }
            keys.push(key);
            asked.push(Sum { form, cost, enforce, queue });
        }
        if !self.join(&keys, &sum_of) {
            let number = self.request(Asked::Decide { sums: asked, charges: sum_of }, &keys);
            let Self { requests, runs, equal, hasher, .. } = self;
            let hash = |&run: &u32| hasher.hash_one(equal_bytes(requests, &runs[run as usize]));
            // A later run replaces an equal run, because new requests can no longer join the
            // earlier run.
            match equal.entry(
                hash(&number),
                |run| {
                    equal_bytes(requests, &runs[*run as usize])
                        == equal_bytes(requests, &runs[number as usize])
                },
                hash,
            ) {
                Entry::Occupied(mut entry) => *entry.get_mut() = number,
                Entry::Vacant(entry) => drop(entry.insert(number)),
            }
        }
        Ok(())
    }

    /// Joins the request in `scratch` to an equal request, unless a request between the two uses
    /// its keys.
    fn join(&mut self, keys: &[u64], charges: &[u8]) -> bool {
        let Self { requests, runs, equal, hasher, scratch, named_by, .. } = self;
        let bytes = &scratch[COUNT.end..];
        let is_equal = |&run: &u32| equal_bytes(requests, &runs[run as usize]) == bytes;
        let Some(&number) = equal.find(hasher.hash_one(bytes), is_equal) else { return false };
        let Run { asked, count, bytes } = &mut runs[number as usize];
        let is_last = keys.iter().all(|&key| named_by.get(index(key)) == Some(&number));
        let Asked::Decide { charges: equal, .. } = asked else { return false };
        if !is_last || equal[..] != *charges || *count == u16::MAX {
            return false;
        }
        *count += 1;
        requests[bytes.start..][COUNT].copy_from_slice(&count.to_be_bytes());
        self.run_of.push(number);
        true
    }
}

/// Returns equal numbers for charges with the same subject, because denying one may penalise the
/// other. All numbers are zero if no penalty counts denials.
fn subjects(sums: &[KeyedCharge<'_>]) -> Result<SmallVec<[u8; 4]>, EncodeError> {
    if !sums.iter().any(|sum| sum.charge.policy.counts_denials()) {
        return Ok(SmallVec::from_elem(0, sums.len()));
    }
    let number = |sum: &KeyedCharge<'_>| {
        let same = |other: &KeyedCharge<'_>| subject_of(other.key) == subject_of(sum.key);
        let number = sums.iter().position(same).and_then(|index| u8::try_from(index).ok());
        number.filter(|number| *number < 64).ok_or(EncodeError::TooManyCharges)
    };
    sums.iter().map(number).collect()
}

/// Returns a Redis key's prefix up to and including the subject in braces.
fn subject_of(key: &[u8]) -> Option<&[u8]> {
    let end = key.iter().position(|byte| *byte == b'}')?;
    key.get(..=end)
}

/// Adds a charge to a request's sums, and returns the index of its sum. A dry charge gets its own
/// sum.
fn sum_up<'a>(
    sums: &mut SmallVec<[KeyedCharge<'a>; 4]>,
    charge: &KeyedCharge<'a>,
) -> Result<usize, EncodeError> {
    let same = sums.iter().position(|sum| sum.key == charge.key);
    if let Some(sum) = same.map(|index| &mut sums[index]) {
        let (one, two) = (sum.charge.policy, charge.charge.policy);
        if !one.is_same(two) && one.rule() != two.rule() {
            return Err(EncodeError::TwoQuotas);
        }
        // Dry charges come last, so an earlier sum is not dry.
        if !charge.charge.dry {
            sum.charge.add(&charge.charge);
            return Ok(same.unwrap_or_default());
        }
    }
    sums.push(*charge);
    Ok(sums.len() - 1)
}
