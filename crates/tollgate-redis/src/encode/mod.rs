//! Requests into the keys and arguments of one call.
//!
//! | file | is |
//! |---|---|
//! | `decide.rs` | a request to decide: its charges, summed by key |
//! | `settle.rs` | requests that follow a charge: correcting, renewing, forgetting |
//! | `lease.rs` | blocks of units |

mod decide;
mod lease;
mod settle;
#[cfg(test)]
mod tests;

use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tollgate_core::{Cost, Policy, Timestamp};

pub use self::decide::Line;
pub use self::lease::{Ask, Spent};
use crate::bytes::put;
use crate::header::{is_plain, put_header, put_periods};
use crate::interned::Interned;

/// The reason why a request cannot be added to a call. The call does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Charges of one request to one key that differ in quota.
    #[error("one policy and key is in the request with two quotas; name the policies apart")]
    TwoQuotas,
    /// The call is full: send it and begin another.
    #[error("a call holds up to {} keys and requests, and some thousand forms", Batch::MAX)]
    Full,
    /// More different keys than one request can have.
    #[error("a request has charges to more than 255 different keys, or to 64 with a penalty")]
    TooManyCharges,
}

/// The requests of one call, in the form that the script takes.
///
/// Equal requests to decide are sent once, with their number: the script decides such a *run* in
/// one step. A request joins an equal one that came before it only if no request between the two
/// names one of its keys, so that the outcome is that of deciding one after the other.
#[derive(Debug, Default)]
pub struct Batch {
    nonce: [u8; 8],
    /// The time at which Redis probably gets the call.
    now: Timestamp,
    /// After this, in Redis' time, the script does nothing.
    deadline: Option<Timestamp>,
    is_cross_slot: bool,
    /// Whether a request needs the general path of the script, as all others then do.
    is_general: bool,
    keys: Interned,
    /// For each key the last run that names it.
    named_by: Vec<u32>,
    /// A policy of each form, and the bytes before its header.
    pub(crate) forms: Vec<(Policy, u64)>,
    form_bytes: Vec<u8>,
    requests: Vec<u8>,
    pub(crate) runs: Vec<Run>,
    /// The runs of requests to decide, by their bytes.
    equal: HashTable<u32>,
    hasher: RandomState,
    /// The run of each request.
    pub(crate) run_of: Vec<u32>,
    /// A request that is not part of the call yet.
    scratch: Vec<u8>,
}

/// Equal requests.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) asked: Asked,
    pub(crate) count: u16,
    /// Its bytes among those of all requests.
    bytes: Range<usize>,
}

/// The parts of a request that are needed to read its answer.
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
    /// The number of its form.
    pub(crate) form: u16,
    pub(crate) cost: Cost,
    pub(crate) enforce: bool,
}

/// The kinds of requests.
const DECIDE: u8 = 1;
const GIVE_BACK: u8 = 2;
const OWE: u8 = 3;
const RESET: u8 = 4;
const RENEW: u8 = 5;
const LEASE: u8 = 16;

/// Where a run has the number of its requests.
const COUNT: Range<usize> = 1..3;

impl Batch {
    /// The most keys or requests of one call: they go by numbers of two bytes. So do the places of
    /// forms.
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

    /// Has the script do nothing after `deadline`, in Redis' time.
    pub const fn set_deadline(&mut self, deadline: Option<Timestamp>) {
        self.deadline = deadline;
    }

    /// Has the call go to the variant of the script for keys of several slots.
    pub const fn set_cross_slot(&mut self) {
        self.is_cross_slot = true;
    }

    pub(crate) const fn is_cross_slot(&self) -> bool {
        self.is_cross_slot
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.run_of.len()
    }

    /// Whether there are no requests yet.
    pub fn is_empty(&self) -> bool {
        self.run_of.is_empty()
    }

    /// The first bytes that the reply must have.
    pub(crate) const fn nonce(&self) -> [u8; 8] {
        self.nonce
    }

    /// The keys, each once.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter()
    }

    /// The keys that the call declares. These have to share a slot.
    pub fn declared_keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().take(if self.is_cross_slot { 0 } else { usize::MAX })
    }

    /// The arguments in their order. Only tests give the time; Redis has its own.
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

    /// Adds the request in `scratch` with its keys, and returns the number of its run: equal
    /// requests are one run.
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

    /// The number of a form and the bytes before it. There are a handful, so they are looked
    /// through.
    fn form(&mut self, policy: &Policy) -> (u16, u64) {
        let same =
            |(other, _): &(Policy, u64)| other.is_same(policy) || other.form() == policy.form();
        let number = self.forms.iter().position(same).unwrap_or_else(|| {
            self.forms.push((policy.clone(), self.form_bytes.len() as u64));
            self.is_general |= !is_plain(policy);
            let form = policy.form();
            put_header(&mut self.form_bytes, &form, policy.rule());
            put_periods(&mut self.form_bytes, &form, self.now);
            self.forms.len() - 1
        });
        (number as u16, self.forms[number].1)
    }
}

/// The bytes of a run of requests to decide, except their number.
fn equal_bytes<'a>(requests: &'a [u8], run: &Run) -> &'a [u8] {
    &requests[run.bytes.start + COUNT.end..run.bytes.end]
}

/// The place of a key, which goes by a number from 1.
const fn index(key: u64) -> usize {
    key as usize - 1
}

/// The most bytes of a form: a penalty, or a calendar with its periods, has that many.
const LONGEST_FORM: usize = 34;
