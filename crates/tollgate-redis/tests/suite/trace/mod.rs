//! Random traces of calls, decided first by the reference and then by the script.

mod clock;
mod operations;
mod policies;

use std::collections::{HashMap, HashSet, VecDeque};

use fastrand::Rng;
use tollgate_core::{Key, Micros, OwnedCharge, Policy, Receipt, ReceiptId, Timestamp};
use tollgate_redis::protocol::{Batch, ScriptAnswer, Spent};
use tollgate_store_tests::reference::Reference;

use self::clock::Clock;
use crate::support::{ScriptClient, Value, expiry_of};

/// What a trace's policies look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Any,
    LongLogs,
    EndOfTime,
    /// Costs of 10^12 against windows of 50 µs.
    Heavy,
}

/// A trace: some names and keys, where each name usually has one policy.
pub(crate) struct Trace {
    family: Family,
    seed: u64,
    rng: Rng,
    reference: Reference,
    policies: Vec<Vec<Policy>>,
    has_calendars: bool,
    receipts: Vec<Receipt>,
    settled: HashSet<ReceiptId>,
    /// Granted blocks. Some have been settled or have lapsed.
    blocks: Vec<(Policy, Key, Spent)>,
    ids: u128,
    charged: u128,
    granted: usize,
    /// Denied charges to keys without room for a unit.
    frozen: usize,
    clock: Clock,
    /// When each existing key expires, in milliseconds.
    expiries: HashMap<Vec<u8>, i64>,
    under_way: VecDeque<Expected>,
}

/// A request to decide.
type Decided = Vec<OwnedCharge>;

/// A call and its expected reply.
struct Expected {
    batch: Batch,
    now: Timestamp,
    /// The time that the sender assumes.
    believed: Timestamp,
    /// Whether it arrives too late.
    stale: bool,
    decided: Vec<Decided>,
    rows: Vec<ScriptAnswer>,
    expiries: Vec<(Vec<u8>, Option<i64>)>,
    text: Vec<String>,
}

impl Expected {
    /// Whether the time is outside the calendar periods that the call contains.
    fn is_outside_periods(&self, policy: &Policy) -> bool {
        policy.quota().calendar().is_some_and(|calendar| {
            !calendar.around(self.believed).iter().any(|period| period.contains(self.now))
        })
    }
}

/// The number of calls in flight.
const PIPELINE: usize = 32;

impl Trace {
    pub(crate) fn new(family: Family, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let names =
            if matches!(family, Family::LongLogs | Family::Heavy) { 1 } else { rng.usize(1..=3) };
        let policies: Vec<Vec<Policy>> =
            (0..names).map(|name| policies::versions(&mut rng, family, seed, name)).collect();
        let has_calendar = |policy: &Policy| policy.quota().calendar().is_some();
        let has_calendars = policies.iter().flatten().any(has_calendar);
        let windows = policies.iter().flatten().map(|policy| policy.window().get());
        let window = windows.max().expect("at least one policy");
        let clock = Clock::new(&mut rng, family, window, has_calendars);
        Self {
            family,
            seed,
            rng,
            reference: Reference::default(),
            policies,
            has_calendars,
            receipts: Vec::new(),
            settled: HashSet::new(),
            blocks: Vec::new(),
            granted: 0,
            frozen: 0,
            ids: u128::from(seed) << 64,
            charged: 0,
            clock,
            expiries: HashMap::new(),
            under_way: VecDeque::new(),
        }
    }

    /// Runs the trace. Returns how many decisions, blocks, and charges to frozen keys it had.
    pub(crate) fn run(mut self, client: &mut ScriptClient) -> [usize; 3] {
        let calls = match self.family {
            Family::Any | Family::EndOfTime => 200,
            Family::LongLogs => 2_500,
            Family::Heavy => 16_000,
        };
        let mut decisions = 0;
        for _ in 0..calls {
            if !self.clock.pass(&mut self.rng, self.family) {
                break;
            }
            let expected = self.call();
            decisions +=
                expected.rows.iter().filter(|row| matches!(row, ScriptAnswer::Verdict(..))).count();
            client.say_call(&expected.batch, Some(expected.now));
            for (key, _) in &expected.expiries {
                client.say_expiry(key);
            }
            self.under_way.push_back(expected);
            if self.under_way.len() == PIPELINE {
                self.compare(client);
            }
        }
        while !self.under_way.is_empty() {
            self.compare(client);
        }
        assert!(self.family != Family::Heavy || self.charged > 1 << 53, "{}", self.charged);
        [decisions, self.granted, self.frozen]
    }

    /// Returns the next call, decided by the reference. Traces with calendar policies do not lease:
    /// if units leased under another version lapse, the script counts them for longer.
    fn call(&mut self) -> Expected {
        let (now, believed) = (Timestamp::from_micros(self.clock.now), self.believed());
        let (deadline, stale) = self.deadline();
        let mut batch = Batch::at(self.rng.u64(..), believed);
        batch.set_deadline(deadline);
        let mut expected = Expected {
            batch,
            now,
            believed,
            stale,
            decided: Vec::new(),
            rows: Vec::new(),
            expiries: Vec::new(),
            text: Vec::new(),
        };
        let most = match self.family {
            // Requests that share a call share an instant, and therefore an entry.
            Family::LongLogs => 2,
            Family::Heavy => 1,
            _ => [1, 4, 20][self.rng.usize(..3)],
        };
        for _ in 0..self.rng.usize(1..=most) {
            match self.rng.u8(..20) {
                // Refunds and resets would keep the total from growing.
                0..3 if self.family != Family::Heavy && !self.receipts.is_empty() => {
                    self.correct(&mut expected);
                }
                3 if matches!(self.family, Family::Any | Family::EndOfTime)
                    && self.rng.u8(..4) == 0 =>
                {
                    self.reset(&mut expected);
                }
                3 if self.family != Family::Heavy => self.block(&mut expected),
                4..7 if self.family != Family::Heavy && !self.has_calendars => {
                    self.lease(&mut expected);
                }
                _ => self.decide(&mut expected),
            }
        }
        // The next call is later, or after the clock stepped back.
        self.reference.forget_resets();
        for key in expected.batch.keys().filter(|key| key.starts_with(b"s:")) {
            expected.expiries.push((key.to_vec(), self.expiries.get(key).copied()));
        }
        expected
    }

    /// Returns the sender's assumed time. It is mostly exact, and sometimes off by up to three
    /// windows, which may be another calendar period.
    fn believed(&mut self) -> Timestamp {
        let (now, window) = (self.clock.now, self.clock.window);
        Timestamp::from_micros(match self.rng.u8(..8) {
            0 => now - self.rng.u64(..window / 2),
            1 => now + self.rng.u64(..window / 2),
            2 => now + self.rng.u64(..window) * 3,
            3 => now - self.rng.u64(..window) * 3,
            _ => now,
        })
    }

    /// Returns a deadline, mostly none. It may be this very instant or the next, or have passed.
    fn deadline(&mut self) -> (Option<Timestamp>, bool) {
        let now = self.clock.now;
        match self.rng.u8(..30) {
            0 => (Some(Timestamp::from_micros(now - 1)), true),
            1..4 => (Some(Timestamp::from_micros(now + self.rng.u64(..2))), false),
            _ => (None, false),
        }
    }

    /// Notes when a key that was just written expires.
    fn written(&mut self, policy: &Policy, key: &Key) {
        let now = Timestamp::from_micros(self.clock.now);
        let fresh_after = self.reference.fresh_after(policy, key, now);
        let name = redis_key(policy, key);
        if fresh_after == Micros::ZERO {
            // Redis does not store it, which only shows after a step back in time.
            self.reference.drop_state(policy, key);
            self.expiries.remove(&name);
        } else {
            self.expiries.insert(name, expiry_of(now + fresh_after));
        }
    }

    fn policy(&mut self) -> Policy {
        let versions = &self.policies[self.rng.usize(..self.policies.len())];
        let unusual = match self.family {
            Family::Heavy => false,
            // Reading a log under another quota means rewriting it.
            Family::LongLogs => self.rng.u8(..200) == 0,
            _ => self.rng.u8(..12) == 0,
        };
        versions[if unusual { self.rng.usize(..versions.len()) } else { 0 }].clone()
    }

    fn key(&mut self) -> Key {
        let keys = if matches!(self.family, Family::LongLogs | Family::Heavy) { 1 } else { 3 };
        Key::from(["", "a", "a key that is not kept inline"][self.rng.usize(..keys)])
    }

    fn compare(&mut self, client: &mut ScriptClient) {
        let Some(expected) = self.under_way.pop_front() else { return };
        let Expected { batch, now, rows, expiries, text, .. } = expected;
        let (family, seed) = (self.family, self.seed);
        let reply = client.hear_reply(&batch);
        assert_eq!(reply.now, now);
        for ((row, should), text) in reply.rows.iter().zip(&rows).zip(&text) {
            assert_eq!(row, should, "{family:?} {seed} at {now:?}: {text}");
        }
        assert_eq!(reply.rows.len(), rows.len());
        for (key, expiry) in expiries {
            let name = String::from_utf8_lossy(&key);
            let should = expiry.unwrap_or(-2);
            let found = client.hear();
            assert_eq!(found, Value::Number(should), "{seed} at {now:?}: {name} {text:#?}");
        }
    }
}

fn redis_key(policy: &Policy, key: &Key) -> Vec<u8> {
    // As in Redis, the part in braces determines which charges have the same subject.
    [b"s:{", &key.as_bytes()[..], b"}", policy.name().as_bytes()].concat()
}
