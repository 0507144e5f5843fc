//! Encodes requests into a call's keys and arguments.
//!
//! | file | contains |
//! |---|---|
//! | `decide.rs` | requests to decide, with charges summed by key |
//! | `settle.rs` | requests after a charge: corrections, renewals and resets |
//! | `lease.rs` | blocks of units |

mod decide;
mod lease;
mod settle;
#[cfg(test)]
mod tests;

use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use indexmap::IndexSet;
use smallvec::SmallVec;
use tollgate_core::{Cost, Micros, Policy, Timestamp};

pub use self::decide::KeyedCharge;
pub use self::lease::{Ask, Spent};
use crate::script::bytes::put;
use crate::script::header::{has_plain_state, put_header, put_periods};
use crate::script::names::Name;

/// Why a request cannot be added to a call. The call does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A request has charges to the same key with different quotas.
    #[error("a policy has two quotas in one request; give each its own name")]
    TwoQuotas,
    /// The call is full: send it and start another.
    #[error(
        "a call has room for {} keys and requests, and for a few thousand policies",
        Batch::MAX
    )]
    Full,
    /// More different keys than a request may have.
    #[error("a request charges more than 255 different keys, or more than 64 with a penalty")]
    TooManyCharges,
}

/// A call's requests, in the script's encoding.
///
/// Equal requests to decide are sent once with their count, and the script decides such a *run* in
/// one step. A request joins an earlier equal request only if no request in between uses its keys,
/// so the outcome is the same as in sequence.
#[derive(Debug, Default)]
pub struct Batch {
    nonce: [u8; 8],
    /// The estimated time at which Redis executes the call.
    now: Timestamp,
    /// The script skips all requests after this time, by Redis' clock.
    deadline: Option<Timestamp>,
    is_cross_slot: bool,
    /// Whether a request needs the script's general path, which all requests then take.
    is_general: bool,
    keys: IndexSet<Name, RandomState>,
    /// The last run that names each key.
    named_by: Vec<u32>,
    /// One policy per form, and the offset of its header.
    pub(crate) forms: Vec<(Policy, u64)>,
    form_bytes: Vec<u8>,
    requests: Vec<u8>,
    pub(crate) runs: Vec<Run>,
    /// The runs of requests to decide, by their bytes.
    equal: HashTable<u32>,
    hasher: RandomState,
    /// The run of each request.
    pub(crate) run_of: Vec<u32>,
    /// The request being added.
    scratch: Vec<u8>,
}

/// A run of equal requests.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) asked: Asked,
    pub(crate) count: u16,
    /// Its range in the request bytes.
    bytes: Range<usize>,
}

/// What parsing a request's answer needs.
#[derive(Debug)]
pub(crate) enum Asked {
    /// `charges` has the index of each charge's sum.
    Decide {
        sums: SmallVec<[Sum; 2]>,
        charges: SmallVec<[u8; 2]>,
    },
    Settle,
    Renew,
    Reset,
    Block,
    Lease,
}

/// A request's charges to one key, summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    /// The form's index.
    pub(crate) form: u16,
    pub(crate) cost: Cost,
    pub(crate) enforce: bool,
    pub(crate) queue: Option<Micros>,
}

/// The request kinds.
const DECIDE: u8 = 1;
const GIVE_BACK: u8 = 2;
const OWE: u8 = 3;
const RESET: u8 = 4;
const RENEW: u8 = 5;
const DECIDE_QUEUED: u8 = 6;
const BLOCK: u8 = 7;
const LEASE: u8 = 16;

/// Where a run stores its request count.
const COUNT: Range<usize> = 1..3;

impl Batch {
    /// The maximum number of keys, or of requests, in a call: their numbers have two bytes. Form
    /// offsets have two bytes too.
    pub const MAX: usize = u16::MAX as usize;

    /// Creates an empty call. The reply has to repeat the `nonce`.
    pub fn new(nonce: u64) -> Self {
        Self { nonce: nonce.to_be_bytes(), ..Self::default() }
    }

    /// Creates an empty call that Redis probably executes at `now`. If the estimate is off by more
    /// than one calendar period, requests for that calendar are rejected unexecuted.
    pub fn at(nonce: u64, now: Timestamp) -> Self {
        Self { now, ..Self::new(nonce) }
    }

    /// Makes the script skip all requests after `deadline`, in Redis' time.
    pub const fn set_deadline(&mut self, deadline: Option<Timestamp>) {
        self.deadline = deadline;
    }

    /// Selects the script variant for keys in several slots.
    pub const fn set_cross_slot(&mut self) {
        self.is_cross_slot = true;
    }

    pub(crate) const fn is_cross_slot(&self) -> bool {
        self.is_cross_slot
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.run_of.len()
    }

    /// Returns whether there are no requests yet.
    pub fn is_empty(&self) -> bool {
        self.run_of.is_empty()
    }

    /// Returns the bytes with which the reply must start.
    pub(crate) const fn nonce(&self) -> [u8; 8] {
        self.nonce
    }

    /// Returns the distinct keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(Name::as_slice)
    }

    /// Returns the keys that the call declares, which must share a slot.
    pub fn declared_keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys().take(if self.is_cross_slot { 0 } else { usize::MAX })
    }

    /// Returns the arguments in order. Only tests pass a time; Redis has its own.
    pub fn args(&self, time: Option<Timestamp>) -> SmallVec<[Vec<u8>; 4]> {
        let mut head = self.nonce.to_vec();
        // Zero means no deadline, so a deadline at zero becomes the first microsecond of the epoch.
        put::<7>(&mut head, self.deadline.map_or(0, |at| at.as_micros().max(1)));
        head.push((!self.is_general).into());
        let mut args = SmallVec::new();
        args.extend([head, self.form_bytes.clone(), self.requests.clone()]);
        let time = time.map(|time| time.as_micros().to_string().into_bytes());
        if self.is_cross_slot {
            args.push(time.unwrap_or_default());
            args.extend(self.keys().map(<[u8]>::to_vec));
        } else {
            args.extend(time);
        }
        args
    }

    /// Returns a key's number in the call, counted from 1.
    fn number(&mut self, key: &[u8]) -> u64 {
        self.keys.insert_full(Name::from_slice(key)).0 as u64 + 1
    }

    fn make_room(&self, keys: usize) -> Result<(), EncodeError> {
        let forms = self.form_bytes.len() + keys * LONGEST_FORM;
        if [self.keys.len() + keys, self.len() + 1, forms]
            .into_iter()
            .any(|count| count > Self::MAX)
        {
            return Err(EncodeError::Full);
        }
        Ok(())
    }

    /// Starts a request in `scratch`: its kind, a count of one, and the numbers of keys and forms.
    fn begin(&mut self, kind: u8, numbers: &[u64]) {
        self.scratch.clear();
        self.scratch.extend([kind, 0, 1]);
        numbers.iter().for_each(|number| put::<2>(&mut self.scratch, *number));
    }

    /// Adds the request in `scratch` as a new run, and returns the run's index.
    fn request(&mut self, asked: Asked, keys: &[u64]) -> u32 {
        let number = self.runs.len() as u32;
        let start = self.requests.len();
        self.requests.extend_from_slice(&self.scratch);
        self.is_general |= !matches!(asked, Asked::Decide { .. });
        self.runs.push(Run { asked, count: 1, bytes: start..self.requests.len() });
        self.run_of.push(number);
        self.named_by.resize(self.keys.len(), number);
        for &key in keys {
            self.named_by[index(key)] = number;
        }
        number
    }

    /// Returns the policy of a request's sum.
    pub(crate) fn policy(&self, sum: &Sum) -> &Policy {
        &self.forms[usize::from(sum.form)].0
    }

    /// Returns a form's index and offset. A linear search suffices, because a call has only a few
    /// forms.
    fn form(&mut self, policy: &Policy) -> (u16, u64) {
        let same =
            |(other, _): &(Policy, u64)| other.is_same(policy) || other.form() == policy.form();
        let number = self.forms.iter().position(same).unwrap_or_else(|| {
            self.forms.push((policy.clone(), self.form_bytes.len() as u64));
            self.is_general |= !has_plain_state(policy);
            let form = policy.form();
            put_header(&mut self.form_bytes, &form, policy.rule());
            put_periods(&mut self.form_bytes, &form, self.now);
            self.forms.len() - 1
        });
        (number as u16, self.forms[number].1)
    }
}

/// Returns a run's bytes, except the request count.
fn equal_bytes<'a>(requests: &'a [u8], run: &Run) -> &'a [u8] {
    &requests[run.bytes.start + COUNT.end..run.bytes.end]
}

/// Returns a key's index. Key numbers start at 1.
const fn index(key: u64) -> usize {
    key as usize - 1
}

/// The length of the longest form: a penalty, or a calendar with its periods.
const LONGEST_FORM: usize = 34;
