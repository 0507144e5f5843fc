//! Parses a call's reply into verdicts, settlements and faults.

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Granted, Micros, Outcome, Settlement, Timestamp, Verdict};

use crate::script::encode::{Asked, Batch, Run, Sum};
use crate::script::replay::{Frozen, Numbers, of_charges};

/// The script's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Redis' time of the call.
    pub now: Timestamp,
    /// One row per request, in order.
    pub rows: Vec<ScriptAnswer>,
}

/// The script's reply to one request.
///
/// The set is closed because a program that sends requests has to handle every row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptAnswer {
    /// The deadline had passed, so the script did not execute the request.
    Stale,
    /// The answer to a request to decide.
    Verdict(Verdict, Frozen),
    /// The answer to a request to settle.
    Settlement(Settlement),
    /// The answer to a renewal: the permit's new start, or `None` if the receipt was settled.
    Renewal(Option<Timestamp>),
    /// The key was reset.
    Reset,
    /// How long the key is blocked, or `None` if the block was old news.
    Blocked(Option<Micros>),
    /// The answer to a request for a block.
    Leased(Granted),
    /// The server has no memory for the request's state. It was not charged.
    Unmade,
    /// Another node has one of the request's keys, or soon will. The request was not executed.
    Elsewhere,
    /// A value that the request needs is unreadable. The request was not executed.
    Fault {
        /// Why the value is unreadable.
        fault: Fault,
        /// The key's index in the call.
        key: usize,
    },
}

/// Why a value is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is not a string.
    #[error("the key holds a value of another type, which Tollgate did not write")]
    WrongType,
    /// It is a string, but this version cannot read it as a state.
    #[error("the key holds a string that this version of Tollgate cannot read")]
    Unreadable,
}

/// The reply does not belong to this call, so its connection can no longer be trusted to pair
/// replies with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadReply {
    /// It repeats another call's nonce.
    #[error("the reply answers another call")]
    Nonce,
    /// It does not have the expected rows.
    #[error("the reply cannot be read at byte {at} of {length}")]
    Malformed {
        /// The position of the error.
        at: usize,
        /// The length of the reply.
        length: usize,
    },
}

impl Batch {
    /// Parses the reply to this call.
    pub fn parse(&self, reply: &[u8]) -> Result<Reply, BadReply> {
        let mut bytes = Bytes { rest: reply };
        let malformed =
            |rest: &[u8]| BadReply::Malformed { at: reply.len() - rest.len(), length: reply.len() };
        let nonce = bytes.number::<8>().ok_or_else(|| malformed(reply))?;
        if nonce.to_be_bytes() != self.nonce() {
            return Err(BadReply::Nonce);
        }
        let now = bytes.instant().ok_or_else(|| malformed(&reply[8..]))?;
        let kind = bytes.byte().ok_or_else(|| malformed(&reply[15..]))?;
        let mut rows = Vec::with_capacity(self.len());
        for run in &self.runs {
            let before = bytes.rest;
            let read = match kind {
                LATE => {
                    rows.extend((0..run.count).map(|_| ScriptAnswer::Stale));
                    Some(())
                }
                STATES | UNWRITTEN => self.states(&mut bytes, run, now, kind, &mut rows),
                ROWS => self.rows(&mut bytes, run, now, &mut rows),
                _ => None,
            };
            read.ok_or_else(|| malformed(before))?;
        }
        if !bytes.rest.is_empty() {
            return Err(malformed(bytes.rest));
        }
        Ok(Reply { now, rows: self.in_order(rows) })
    }

    /// Reads the states in which a run found its keys.
    fn states(
        &self,
        bytes: &mut Bytes<'_>,
        run: &Run,
        now: Timestamp,
        kind: u8,
        rows: &mut Vec<ScriptAnswer>,
    ) -> Option<()> {
        let Asked::Decide { sums, charges } = &run.asked else { return None };
        let admitted = u16::try_from(bytes.number::<2>()?).ok()?;
        let mut states = SmallVec::<[Numbers; 2]>::new();
        for _ in sums {
            let numbers = [bytes.number::<7>()?, bytes.number::<7>()?, bytes.number::<7>()?];
            states.push(numbers);
        }
        let verdicts = self.replay(sums, &states, charges, (run.count, admitted), now)?;
        let charges = sums.iter().any(|sum| sum.cost > Cost::ZERO);
        rows.extend(verdicts.into_iter().map(|(verdict, frozen)| {
            if kind == UNWRITTEN && charges && verdict.is_admitted() {
                ScriptAnswer::Unmade
            } else {
                ScriptAnswer::Verdict(verdict, frozen)
            }
        }));
        Some(())
    }

    /// Reads a row for each request in a run.
    fn rows(
        &self,
        bytes: &mut Bytes<'_>,
        run: &Run,
        now: Timestamp,
        rows: &mut Vec<ScriptAnswer>,
    ) -> Option<()> {
        for _ in 0..run.count {
            rows.push(self.row(bytes, &run.asked, now)?);
        }
        Some(())
    }

    /// Reorders rows that are grouped by run into the order of the requests.
    fn in_order(&self, rows: Vec<ScriptAnswer>) -> Vec<ScriptAnswer> {
        if self.run_of.is_sorted() {
            return rows;
        }
        let mut next: Vec<usize> = Vec::with_capacity(self.runs.len());
        let mut start = 0;
        for run in &self.runs {
            next.push(start);
            start += usize::from(run.count);
        }
        let mut rows: Vec<_> = rows.into_iter().map(Some).collect();
        let row_of = |&run: &u32| {
            let place = &mut next[run as usize];
            *place += 1;
            rows[*place - 1].take()
        };
        self.run_of.iter().filter_map(row_of).collect()
    }

    fn row(&self, bytes: &mut Bytes<'_>, asked: &Asked, now: Timestamp) -> Option<ScriptAnswer> {
        Some(match (bytes.byte()?, asked) {
            (0, _) => ScriptAnswer::Stale,
            (kind @ (1 | 2), Asked::Decide { sums, charges }) => {
                let (verdict, frozen) = self.verdict(bytes, kind == 2, sums, charges, now)?;
                ScriptAnswer::Verdict(verdict, frozen)
            }
            (3, _) => {
                let fault = bytes.byte()?;
                let key = usize::try_from(bytes.number::<2>()?).ok()?.checked_sub(1)?;
                match fault {
                    1 => ScriptAnswer::Fault { fault: Fault::WrongType, key },
                    2 => ScriptAnswer::Fault { fault: Fault::Unreadable, key },
                    3 => ScriptAnswer::Elsewhere,
                    _ => return None,
                }
            }
            (4, Asked::Settle) => {
                ScriptAnswer::Settlement(Settlement::Returned { units: bytes.number::<7>()? })
            }
            (5, Asked::Settle) => {
                ScriptAnswer::Settlement(Settlement::Charged { units: bytes.number::<7>()? })
            }
            (6, Asked::Settle) => ScriptAnswer::Settlement(Settlement::Repeated),
            (7, Asked::Settle) => ScriptAnswer::Settlement(Settlement::Lapsed),
            (6, Asked::Renew) => ScriptAnswer::Renewal(None),
            (8, Asked::Reset) => ScriptAnswer::Reset,
            (11, Asked::Block) => {
                let length = bytes.number::<7>()?;
                ScriptAnswer::Blocked((length > 0).then(|| Micros::new(length)))
            }
            (16, Asked::Lease) => ScriptAnswer::Leased(Granted {
                units: bytes.number::<5>()?,
                lasts: Micros::new(bytes.number::<7>()?),
                remaining: bytes.number::<5>()?,
                reset_after: Micros::new(bytes.number::<7>()?),
                retry_after: Micros::new(bytes.number::<7>()?),
            }),
            (9, Asked::Renew) => ScriptAnswer::Renewal(Some(bytes.instant()?)),
            (10, _) => ScriptAnswer::Unmade,
            _ => return None,
        })
    }

    fn verdict(
        &self,
        bytes: &mut Bytes<'_>,
        admitted: bool,
        sums: &[Sum],
        charges: &[u8],
        now: Timestamp,
    ) -> Option<(Verdict, Frozen)> {
        let mut decisions = SmallVec::<[(Decision, Micros); 2]>::new();
        for sum in sums {
            decisions.push(decision(bytes, self.policy(sum).capacity())?);
        }
        // The script's verdict also follows from the outcomes, and comparing both is cheap.
        let denied = sums.iter().zip(&decisions).any(|(sum, (it, _))| sum.enforce && it.denies());
        (denied != admitted).then(|| of_charges(admitted, now, &decisions, charges))
    }
}

/// The reply kinds.
const LATE: u8 = 0;
const STATES: u8 = 1;
const ROWS: u8 = 2;
const UNWRITTEN: u8 = 3;

/// Reads a decision, and how long the key stays frozen.
fn decision(bytes: &mut Bytes<'_>, limit: u64) -> Option<(Decision, Micros)> {
    let outcome = bytes.byte()?;
    let remaining = bytes.number::<5>()?;
    let reset_after = Micros::new(bytes.number::<7>()?);
    let wait = Micros::new(bytes.number::<7>()?);
    let last = bytes.number::<7>()?;
    let outcome = match outcome {
        1 => Outcome::Allow {
            delay: wait,
            charged_at: Timestamp::from_micros(last),
            refunded: bytes.number::<7>()?,
        },
        2 => Outcome::WouldAllow,
        3 => Outcome::Deny { retry_after: wait },
        4 => Outcome::ExceedsCapacity,
        _ => return None,
    };
    let frozen = if matches!(outcome, Outcome::Allow { .. }) { 0 } else { last };
    Some((Decision { outcome, limit, remaining, reset_after }, Micros::new(frozen)))
}

/// The unread bytes.
struct Bytes<'a> {
    rest: &'a [u8],
}

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn number<const N: usize>(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn instant(&mut self) -> Option<Timestamp> {
        self.number::<7>().map(Timestamp::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::{Algorithm, Charge, Key, Policy, Quota, Refill};

    use super::*;
    use crate::script::encode::KeyedCharge;

    /// A request with two charges to the same key and one charge to another, and a reset.
    fn batch() -> Batch {
        let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
        let line = |key, enforce| {
            let charge = Charge::new(&policy, &Key::GLOBAL, Cost::ONE);
            KeyedCharge { key, charge: Charge { enforce, ..charge } }
        };
        let mut batch = Batch::new(5);
        batch.decide(&[line(b"a", true), line(b"b", false), line(b"a", true)]).unwrap();
        batch.reset(b"c").unwrap();
        batch
    }

    const HEAD: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 0, ROWS];

    fn decided(outcome: u8, remaining: u8, wait: u8) -> Vec<u8> {
        let mut row = vec![outcome, 0, 0, 0, 0, remaining];
        for number in [8, wait, 3] {
            row.extend([0, 0, 0, 0, 0, 0, number]);
        }
        if outcome == 1 {
            row.extend([0, 0, 0, 0, 0, 0, 2]);
        }
        row
    }

    fn reply(kind: u8, a: &[u8], b: &[u8]) -> Vec<u8> {
        [&HEAD[..], &[kind], a, b, &[8]].concat()
    }

    #[test]
    fn charges_share_their_sums_decision() {
        let reply = reply(2, &decided(1, 4, 0), &decided(3, 0, 6));
        let reply = batch().parse(&reply).unwrap();
        assert_eq!(reply.now, Timestamp::from_micros(256));
        let [ScriptAnswer::Verdict(verdict, frozen), ScriptAnswer::Reset] = &reply.rows[..] else {
            panic!("{reply:?}")
        };
        assert!(verdict.is_admitted() && frozen.is_empty());
        let remaining: Vec<_> = verdict.decisions().iter().map(|it| it.remaining).collect();
        assert_eq!(remaining, [4, 0, 4]);
        assert_eq!(verdict.decisions()[1].retry_after(), Some(Micros::new(6)));
    }

    #[test]
    fn denied_charges_report_frozen_time() {
        let reply = reply(1, &decided(3, 0, 6), &decided(2, 4, 0));
        let reply = batch().parse(&reply).unwrap();
        let [ScriptAnswer::Verdict(verdict, frozen), ScriptAnswer::Reset] = &reply.rows[..] else {
            panic!("{reply:?}")
        };
        assert!(!verdict.is_admitted());
        assert_eq!(frozen[..], [3, 3, 3].map(Micros::new));
    }

    #[test]
    fn fault_names_its_key() {
        let reply = [&HEAD[..], &[3, 1, 0, 2, 0]].concat();
        let rows = batch().parse(&reply).unwrap().rows;
        assert_eq!(
            rows,
            [ScriptAnswer::Fault { fault: Fault::WrongType, key: 1 }, ScriptAnswer::Stale]
        );
    }

    #[test]
    fn foreign_nonce_is_rejected() {
        let mut reply = reply(2, &decided(1, 4, 0), &decided(1, 4, 0));
        reply[7] = 6;
        assert_eq!(batch().parse(&reply), Err(BadReply::Nonce));
    }

    #[test]
    fn states_beyond_time_are_denials() {
        let quota = Quota::new(1, Duration::from_secs(1 << 20));
        let policies = [
            Policy::fixed_window_counter("p", quota),
            Policy::sliding_window_counter("p", quota),
            Policy::token_bucket("p", quota),
            Policy::new("p", quota, Algorithm::TokenBucket { refill: Refill::Interval }),
            Policy::leaky_bucket("p", quota),
        ];
        for policy in policies.map(Result::unwrap) {
            let mut batch = Batch::new(5);
            batch.decide(&[KeyedCharge::new(b"a", &policy, Cost::ONE)]).unwrap();
            let mut reply = HEAD.to_vec();
            reply[15] = STATES;
            // No request was admitted, followed by the state's three numbers.
            reply.extend([0; 2]);
            reply.extend([0xff; 21]);
            let reply = batch.parse(&reply).unwrap();
            let [ScriptAnswer::Verdict(verdict, _)] = &reply.rows[..] else { panic!("{reply:?}") };
            assert!(verdict.decisions()[0].denies(), "{policy:?}");
        }
    }

    #[test]
    fn unexpected_replies_are_malformed() {
        let (allow, deny) = (decided(1, 4, 0), decided(3, 0, 6));
        let good = reply(2, &allow, &deny);
        let mut bad = vec![
            // The row claims admission although an enforced charge was denied.
            reply(2, &deny, &allow),
            reply(1, &allow, &deny),
            reply(4, &allow, &deny),
            reply(9, &allow, &deny),
            reply(2, &decided(0, 4, 0), &deny),
            [&HEAD[..], &[3, 9, 0, 1, 0]].concat(),
            [&HEAD[..], &[3, 1, 0, 0, 0]].concat(),
            [&good[..], &[0]].concat(),
        ];
        bad.extend((0..good.len()).map(|length| good[..length].to_vec()));
        for reply in bad {
            let read = batch().parse(&reply);
            assert!(matches!(read, Err(BadReply::Malformed { .. })), "{reply:?}: {read:?}");
        }
        assert!(batch().parse(&good).is_ok());
    }
}
