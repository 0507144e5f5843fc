//! The script's reply, in the format of `lua/README.md`.

use tollgate_core::{Decision, Granted, Micros, Outcome, Settlement, Timestamp, Verdict};

pub(super) struct Reply(Vec<u8>);

const LATE: u8 = 0;
const ROWS: u8 = 2;

impl Reply {
    /// The reply to a call after its deadline.
    pub(super) fn late(nonce: u64, now: Timestamp) -> Self {
        let mut reply = Self(nonce.to_be_bytes().to_vec());
        reply.instant(now);
        reply.0.push(LATE);
        reply
    }

    pub(super) fn rows(nonce: u64, now: Timestamp) -> Self {
        let mut reply = Self::late(nonce, now);
        reply.0.pop();
        reply.0.push(ROWS);
        reply
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A verdict, and for each charge how long its key has no room for a unit.
    pub(super) fn verdict(&mut self, verdict: &Verdict, frozen: &[Micros]) {
        self.0.push(if verdict.is_admitted() { 2 } else { 1 });
        for (index, decision) in verdict.decisions().iter().enumerate() {
            self.decision(decision, frozen.get(index).copied().unwrap_or_default());
        }
    }

    fn decision(&mut self, decision: &Decision, frozen: Micros) {
        let (code, wait, last) = match decision.outcome {
            Outcome::Allow { delay, charged_at, .. } => (1, delay, charged_at.as_micros()),
            Outcome::WouldAllow => (2, Micros::ZERO, 0),
            Outcome::Deny { retry_after } => (3, retry_after, frozen.get()),
            Outcome::ExceedsCapacity => (4, Micros::ZERO, frozen.get()),
            Outcome::Undecided => panic!("a server decides"),
        };
        self.0.push(code);
        self.number::<5>(decision.remaining);
        self.number::<7>(decision.reset_after.get());
        self.number::<7>(wait.get());
        self.number::<7>(last);
        if let Outcome::Allow { refunded, .. } = decision.outcome {
            self.number::<7>(refunded);
        }
    }

    pub(super) fn settlement(&mut self, settlement: Settlement) {
        let (code, units) = match settlement {
            Settlement::Returned { units } => (4, Some(units)),
            Settlement::Charged { units } => (5, Some(units)),
            Settlement::Repeated => (6, None),
            Settlement::Lapsed => (7, None),
        };
        self.0.push(code);
        if let Some(units) = units {
            self.number::<7>(units);
        }
    }

    /// Writes a renewed permit's start; `None` if it was settled.
    pub(super) fn renewal(&mut self, begun: Option<Timestamp>) {
        match begun {
            Some(begun) => {
                self.0.push(9);
                self.instant(begun);
            }
            None => self.0.push(6),
        }
    }

    pub(super) fn reset(&mut self) {
        self.0.push(8);
    }

    /// Writes how long a key is blocked; `None` if the block was old news.
    pub(super) fn blocked(&mut self, length: Option<Micros>) {
        self.0.push(11);
        self.number::<7>(length.map_or(0, Micros::get));
    }

    /// Memory is full, so the request was not charged.
    pub(super) fn unmade(&mut self) {
        self.0.push(10);
    }

    pub(super) fn granted(&mut self, granted: &Granted) {
        self.0.push(16);
        self.number::<5>(granted.units);
        self.number::<7>(granted.lasts.get());
        self.number::<5>(granted.remaining);
        self.number::<7>(granted.reset_after.get());
        self.number::<7>(granted.retry_after.get());
    }

    fn instant(&mut self, instant: Timestamp) {
        self.number::<7>(instant.as_micros());
    }

    fn number<const N: usize>(&mut self, number: u64) {
        // No quota is as large as the largest number, and no wait is as long.
        let number = number.min((1 << (8 * N)) - 1);
        self.0.extend_from_slice(&number.to_be_bytes()[8 - N..]);
    }
}
