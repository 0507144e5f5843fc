//! A request to decide: its charges, those to one key summed.

use smallvec::{SmallVec, smallvec};
use tollgate_core::{Cost, Policy, Timestamp};

use super::{Asked, Batch, DECIDE, EncodeError, Sum};
use crate::bytes::{exact, put};

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
    /// Whether it only asks.
    pub dry: bool,
}

/// In place of whether a charge enforces.
const DRY: u8 = 2;

impl Batch {
    /// Adds a request: all its charges or none. After its deadline, in Redis' time, it
    /// is refused unexecuted.
    pub fn decide(
        &mut self,
        lines: &[Line<'_>],
        deadline: Option<Timestamp>,
    ) -> Result<(), EncodeError> {
        let mut sums: SmallVec<[Line<'_>; 4]> = SmallVec::new();
        let mut charges: SmallVec<[u8; 2]> = smallvec![0; lines.len()];
        // Those that only ask come last, as they see what the others have left.
        for dry in [false, true] {
            for (line, charge) in lines.iter().zip(&mut charges) {
                if line.dry == dry {
                    *charge = sum_up(&mut sums, line)? as u8;
                }
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
            let flags = if sum.dry { DRY } else { sum.enforce.into() };
            self.scratch.push(subject << 2 | flags);
            put::<7>(&mut self.scratch, exact(sum.cost.get()));
        }
        let sums = sums
            .iter()
            .map(|sum| Sum { capacity: sum.policy.capacity(), enforce: sum.enforce })
            .collect();
        self.request(deadline, Asked::Decide { sums, charges });
        Ok(())
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
        let number = sums.iter().position(same).and_then(|index| u8::try_from(index).ok());
        number.filter(|number| *number < 64).ok_or(EncodeError::TooManyCharges)
    };
    sums.iter().map(number).collect()
}

/// What the name of a Redis key begins with, up to and with the subject in braces.
fn subject_of(key: &[u8]) -> Option<&[u8]> {
    let end = key.iter().position(|byte| *byte == b'}')?;
    key.get(..=end)
}

/// Adds a charge to those of a request, and says which it is part of. One that only asks stays
/// by itself.
fn sum_up<'a>(sums: &mut SmallVec<[Line<'a>; 4]>, line: &Line<'a>) -> Result<usize, EncodeError> {
    let same = sums.iter().position(|sum| sum.key == line.key);
    if let Some(sum) = same.map(|index| &mut sums[index]) {
        if !sum.policy.is_same(line.policy) && sum.policy.rule() != line.policy.rule() {
            return Err(EncodeError::TwoQuotas);
        }
        // Those that only ask come last, so this one does not.
        if !line.dry {
            add(&mut sum.cost, &mut sum.enforce, line);
            return Ok(same.unwrap_or_default());
        }
    }
    sums.push(*line);
    Ok(sums.len() - 1)
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
