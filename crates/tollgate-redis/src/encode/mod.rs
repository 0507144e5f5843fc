//! Requests into the keys and arguments of one call.
//!
//! | file | is |
//! |---|---|
//! | `decide.rs` | a request to decide: its charges, summed by key |
//! | `settle.rs` | what comes after a charge: correcting, renewing, forgetting |
//! | `lease.rs` | blocks of units |

mod decide;
mod lease;
mod settle;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tollgate_core::{Form, Policy, Timestamp};

pub use self::decide::Line;
pub use self::lease::{Ask, Spent};
use crate::bytes::put;
use crate::header::{put_header, put_periods};
use crate::interned::Interned;

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
    #[error("a request has charges to more than 255 different keys, or to 64 with a penalty")]
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
