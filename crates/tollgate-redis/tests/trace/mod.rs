//! Random traces of calls, decided by the reference first and by the script after.

mod policies;

use std::collections::{HashMap, HashSet, VecDeque};

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Calendar, Charge, Cost, Decision, Key, LeakyMode, Micros, Outcome, Policy, Receipt,
    ReceiptId, Refill, Settlement, Timestamp,
};
use tollgate_redis::protocol::{Ask, Batch, Line, Row, Spent};
use tollgate_store_tests::reference::Reference;

use crate::support::{Client, Value};

/// What the policies of a trace are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Any,
    LongLogs,
    EndOfTime,
    /// Costs of 10^12 against windows of 50 µs.
    Heavy,
}

/// One trace: some names and keys, each name usually under one policy.
pub(crate) struct Trace {
    family: Family,
    seed: u64,
    rng: Rng,
    reference: Reference,
    policies: Vec<Vec<Policy>>,
    receipts: Vec<Receipt>,
    settled: HashSet<ReceiptId>,
    /// Blocks that were granted, some of which are settled or have lapsed.
    blocks: Vec<(Policy, Key, Spent)>,
    ids: u128,
    charged: u128,
    granted: usize,
    clock: Clock,
    /// When each key is to expire, in milliseconds, of those that are to be there.
    expiries: HashMap<Vec<u8>, u64>,
    under_way: VecDeque<Expected>,
}

/// A call and what is to come of it.
struct Expected {
    batch: Batch,
    now: Timestamp,
    /// What who sends it takes for the time.
    believed: Timestamp,
    rows: Vec<Row>,
    expiries: Vec<(Vec<u8>, Option<u64>)>,
    text: Vec<String>,
}

impl Expected {
    /// Whether it is another period of the policy's calendar than those that the call brings.
    fn is_elsewhen(&self, policy: &Policy) -> bool {
        policy.quota().calendar().is_some_and(|calendar| {
            !calendar.around(self.believed).iter().any(|period| period.contains(self.now))
        })
    }
}

struct Clock {
    now: u64,
    calendar: Option<Calendar>,
    window: u64,
    retry_at: u64,
    reset_at: u64,
}

/// Calls that wait for their answers at one time.
const PIPELINE: usize = 32;

/// The year 2100: far ahead of Redis' own clock, and the same trace on every day.
const EARLIEST: u64 = 4_102_444_800_000_000;

impl Trace {
    pub(crate) fn new(family: Family, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let names =
            if matches!(family, Family::LongLogs | Family::Heavy) { 1 } else { rng.usize(1..=3) };
        let policies: Vec<Vec<Policy>> =
            (0..names).map(|name| policies::versions(&mut rng, family, seed, name)).collect();
        let windows = policies.iter().flatten().map(|policy| policy.window().get());
        let window = windows.max().expect("at least one policy");
        let clock = Clock::new(&mut rng, family, window);
        Self {
            family,
            seed,
            rng,
            reference: Reference::default(),
            policies,
            receipts: Vec::new(),
            settled: HashSet::new(),
            blocks: Vec::new(),
            granted: 0,
            ids: u128::from(seed) << 64,
            charged: 0,
            clock,
            expiries: HashMap::new(),
            under_way: VecDeque::new(),
        }
    }

    /// Runs the trace and says how many decisions and blocks it had.
    pub(crate) fn run(mut self, client: &mut Client) -> (usize, usize) {
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
            decisions += expected.rows.iter().filter(|row| matches!(row, Row::Verdict(_))).count();
            client.say_call(&expected.batch, Some(expected.now));
            for (key, _) in &expected.expiries {
                client.say(&[b"PEXPIRETIME", key]);
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
        (decisions, self.granted)
    }

    /// The next call, decided by the reference.
    fn call(&mut self) -> Expected {
        let (now, believed) = (Timestamp::from_micros(self.clock.now), self.believed());
        let mut expected = Expected {
            batch: Batch::at(self.rng.u64(..), believed),
            now,
            believed,
            rows: Vec::new(),
            expiries: Vec::new(),
            text: Vec::new(),
        };
        let most = match self.family {
            // Those of one call share an instant, and so an entry.
            Family::LongLogs => 2,
            Family::Heavy => 1,
            _ => [1, 4, 20][self.rng.usize(..3)],
        };
        for _ in 0..self.rng.usize(1..=most) {
            match self.rng.u8(..20) {
                // What is given back or forgotten would not add up.
                0..3 if self.family != Family::Heavy && !self.receipts.is_empty() => {
                    self.correct(&mut expected);
                }
                3 if matches!(self.family, Family::Any | Family::EndOfTime)
                    && self.rng.u8(..4) == 0 =>
                {
                    self.reset(&mut expected);
                }
                4..7 if self.family != Family::Heavy => self.lease(&mut expected),
                _ => self.decide(&mut expected),
            }
        }
        // The next call comes later, or after the clock stepped back.
        self.reference.forget_resets();
        for key in expected.batch.keys().filter(|key| key.starts_with(b"s:")) {
            expected.expiries.push((key.to_vec(), self.expiries.get(key).copied()));
        }
        expected
    }

    /// Mostly what it is; sometimes near it, which may be another period of a calendar, or
    /// one that is not even beside it.
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

    /// Mostly none; sometimes this very instant or the next, or one that has passed.
    fn deadline(&mut self) -> (Option<Timestamp>, bool) {
        let now = self.clock.now;
        match self.rng.u8(..30) {
            0 => (Some(Timestamp::from_micros(now - 1)), true),
            1..4 => (Some(Timestamp::from_micros(now + self.rng.u64(..2))), false),
            _ => (None, false),
        }
    }

    fn decide(&mut self, expected: &mut Expected) {
        let (deadline, stale) = self.deadline();
        let mut policies: Vec<Policy> = Vec::new();
        let charges =
            if self.family == Family::Heavy { 1 } else { [1, 1, 1, 2, 3][self.rng.usize(..5)] };
        for _ in 0..charges {
            let policy = self.policy();
            // One name under two quotas is an error that comes before the script.
            let same = policies.iter().find(|other| other.name() == policy.name());
            policies.push(same.unwrap_or(&policy).clone());
        }
        let keys: Vec<Key> = policies.iter().map(|_| self.key()).collect();
        let mut charges = Vec::new();
        for (policy, key) in policies.iter().zip(&keys) {
            let cost = Cost::new(policies::cost(&mut self.rng, policy, self.family));
            charges.push(Charge { policy, key, cost, enforce: self.rng.u8(..5) > 0 });
        }
        let names: Vec<_> =
            charges.iter().map(|charge| redis_key(charge.policy, charge.key)).collect();
        let lines: Vec<_> = charges
            .iter()
            .zip(&names)
            .map(|(&Charge { policy, cost, enforce, .. }, key)| Line { key, policy, cost, enforce })
            .collect();
        expected.batch.decide(&lines, deadline).expect("a call holds so many");
        expected.text.push(format!("{charges:?}"));
        if stale || policies.iter().any(|policy| expected.is_elsewhen(policy)) {
            expected.rows.push(Row::Stale);
            return;
        }
        let verdict = self.reference.decide(&charges, expected.now);
        for (charge, decision) in charges.iter().zip(verdict.decisions()) {
            self.clock.note(charge.policy, decision);
            // Beside an enforced charge to the same key, a shadow takes nothing.
            let beside = |other: &Charge<'_>| {
                other.enforce
                    && other.key == charge.key
                    && other.policy.name() == charge.policy.name()
            };
            let takes = charge.cost > Cost::ZERO && (charge.enforce || !charges.iter().any(beside));
            let is_struck = charge.policy.counts_denials() && !verdict.is_admitted();
            if is_struck && self.reference.is_held(charge.policy, charge.key, expected.now) {
                self.written(charge.policy, charge.key);
            }
            let takes = takes && !charge.policy.penalises();
            if takes && matches!(decision.outcome, Outcome::Allow { .. }) {
                self.charged += u128::from(charge.cost.get());
                self.written(charge.policy, charge.key);
            }
        }
        let ids = &mut self.ids;
        let next_id = || {
            *ids += 1;
            ReceiptId(*ids)
        };
        let receipts: Vec<_> = verdict.receipts(&charges, next_id).collect();
        for receipt in receipts {
            if self.receipts.len() < 40 {
                self.receipts.push(receipt);
            } else {
                let index = self.rng.usize(..40);
                self.receipts[index] = receipt;
            }
        }
        expected.rows.push(Row::Verdict(verdict));
    }

    /// Settles a receipt, or renews its lease.
    fn correct(&mut self, expected: &mut Expected) {
        let index = match self.rng.u8(..3) {
            0 => self.receipts.len() - 1,
            _ => self.rng.usize(..self.receipts.len()),
        };
        let receipt = self.receipts[index].clone();
        if receipt.policy.counts_in_flight() && self.rng.bool() {
            self.renew(expected, index, &receipt);
        } else {
            self.settle(expected, index, &receipt);
        }
    }

    fn renew(&mut self, expected: &mut Expected, index: usize, receipt: &Receipt) {
        let (deadline, stale) = self.deadline();
        let key = redis_key(&receipt.policy, &receipt.key);
        let receipt_key = format!("r:{}", receipt.id.0).into_bytes();
        let encoded = expected.batch.renew(&key, &receipt_key, receipt, deadline);
        encoded.expect("a call holds so many");
        expected.text.push(format!("renew {receipt:?}"));
        if stale {
            expected.rows.push(Row::Stale);
            return;
        }
        let renewed = self.reference.renew(receipt, expected.now);
        let begun = renewed.as_ref().map(|renewed| renewed.charged.charged_at);
        expected.rows.push(Row::Renewal(begun));
        if let Some(renewed) = renewed {
            self.written(&receipt.policy, &receipt.key);
            // Sometimes the old one is shown again.
            if self.rng.u8(..8) > 0 {
                self.receipts[index] = renewed;
            }
        }
    }

    fn settle(&mut self, expected: &mut Expected, index: usize, receipt: &Receipt) {
        let (deadline, stale) = self.deadline();
        // Sometimes it stays, to be settled again.
        if self.rng.u8(..4) > 0 {
            self.receipts.swap_remove(index);
        }
        let cost = receipt.charged.cost.get();
        let actual = Cost::new(match self.rng.u8(..10) {
            // A debt of one capacity, after which a log is full of one entry.
            0 if self.family != Family::LongLogs => u64::MAX,
            1..4 => 0,
            4 => cost,
            _ => self.rng.u64(0..=cost.saturating_mul(2)),
        });
        let now = expected.now;
        let stale = stale || expected.is_elsewhen(&receipt.policy);
        let first = !stale && !receipt.has_lapsed(now) && !self.settled.contains(&receipt.id);
        let held = self.reference.is_held(&receipt.policy, &receipt.key, now);
        let key = redis_key(&receipt.policy, &receipt.key);
        let receipt_key = format!("r:{}", receipt.id.0).into_bytes();
        let encoded = expected.batch.settle(&key, &receipt_key, receipt, actual, deadline);
        encoded.expect("a call holds so many");
        expected.text.push(format!("{receipt:?} to {actual:?}"));
        if stale {
            expected.rows.push(Row::Stale);
            return;
        }
        let (policy, key) = (&receipt.policy, &receipt.key);
        let settlement = self.reference.settle(receipt, actual, now);
        if first {
            self.settled.insert(receipt.id);
        }
        match settlement {
            Settlement::Charged { .. } => self.written(policy, key),
            // Of nothing, nothing is given back, and nothing written.
            Settlement::Returned { .. } if held => self.written(policy, key),
            _ => {}
        }
        expected.rows.push(Row::Settlement(settlement));
    }

    fn lease(&mut self, expected: &mut Expected) {
        let (deadline, stale) = self.deadline();
        let (mut policy, mut key) = (self.policy(), self.key());
        if policy.quota().calendar().is_some() {
            // Nobody asks for blocks of it.
            return;
        }
        let mut spent = Vec::new();
        if !self.blocks.is_empty() && self.rng.u8(..3) > 0 {
            // What is settled is what was granted, in whichever version of the policy.
            let index = self.rng.usize(..self.blocks.len());
            let (of, whose, block) = self.blocks[index].clone();
            if self.rng.bool() || of.name() != policy.name() {
                policy = of;
            }
            key = whose;
            let units = self.rng.u64(0..=block.units + block.units / 8);
            spent.push(Spent { units, ..block });
            if self.rng.u8(..4) > 0 {
                self.blocks.swap_remove(index);
            }
        }
        // Of what cannot be leased, what was leased before its quota changed may be settled.
        let is_leased = !matches!(
            policy.algorithm(),
            Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }
                | Algorithm::TokenBucket { refill: Refill::Interval }
                | Algorithm::ConcurrentRequests
        );
        let most = policy.capacity();
        let units = match self.rng.u8(..4) {
            _ if !is_leased => 0,
            0 => 0,
            1 => 1,
            2 => self.rng.u64(1..=most),
            _ => (most / 8).max(1),
        };
        self.ids += 1;
        let id = u64::try_from(self.ids & u128::from(u64::MAX)).expect("64 bits");
        let ttl = Micros::new(policy.window().get() * self.rng.u64(1..=10) / 10);
        let name = redis_key(&policy, &key);
        let ask = Ask { id, units, ttl };
        expected.batch.lease(&name, &policy, &spent, ask, deadline).expect("room");
        expected.text.push(format!("{ask:?} of {policy:?} {key:?}, {spent:?}"));
        if stale {
            expected.rows.push(Row::Stale);
            return;
        }
        let now = expected.now;
        let is_known =
            spent.iter().any(|block| self.reference.knows_block(&policy, &key, block.id, now));
        let spent: Vec<_> = spent.iter().map(|block| (block.id, block.units)).collect();
        let granted = self.reference.lease((&policy, &key), now, &spent, (id, units, ttl));
        if is_known || granted.units > 0 {
            self.written(&policy, &key);
        }
        if granted.units > 0 {
            self.granted += 1;
            self.clock.retry_at = self.clock.now.saturating_add(granted.lasts.get());
            self.blocks.push((policy, key, Spent { id, units: granted.units }));
        }
        expected.rows.push(Row::Leased(granted));
    }

    fn reset(&mut self, expected: &mut Expected) {
        let (policy, key) = (self.policy(), self.key());
        let name = redis_key(&policy, &key);
        expected.batch.reset(&name, None).expect("a call holds so many");
        expected.text.push(format!("reset {policy:?} {key:?}"));
        self.reference.reset(&policy, &key, expected.now);
        // What is leased stays.
        if self.expiries.contains_key(&name) {
            self.written(&policy, &key);
        }
        expected.rows.push(Row::Reset);
    }

    /// Notes when a key that was just written is to expire: at the first whole
    /// millisecond at which it cannot be told from a fresh one.
    fn written(&mut self, policy: &Policy, key: &Key) {
        let now = Timestamp::from_micros(self.clock.now);
        let fresh_after = self.reference.fresh_after(policy, key, now);
        let name = redis_key(policy, key);
        if fresh_after == Micros::ZERO {
            // Redis does not keep it, which can be told only after a step back in time.
            self.reference.drop_state(policy, key);
            self.expiries.remove(&name);
        } else {
            self.expiries.insert(name, (now + fresh_after).as_micros().div_ceil(1_000));
        }
    }

    fn policy(&mut self) -> Policy {
        let versions = &self.policies[self.rng.usize(..self.policies.len())];
        let unusual = match self.family {
            Family::Heavy => false,
            // To read a log under another quota is to write it anew.
            Family::LongLogs => self.rng.u8(..200) == 0,
            _ => self.rng.u8(..12) == 0,
        };
        versions[if unusual { self.rng.usize(..versions.len()) } else { 0 }].clone()
    }

    fn key(&mut self) -> Key {
        let keys = if matches!(self.family, Family::LongLogs | Family::Heavy) { 1 } else { 3 };
        Key::from(["", "a", "a key that is not kept inline"][self.rng.usize(..keys)])
    }

    fn compare(&mut self, client: &mut Client) {
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
            let should = expiry.map_or(-2, |at| i64::try_from(at).expect("a time"));
            let found = client.hear();
            assert_eq!(found, Value::Number(should), "{seed} at {now:?}: {name} {text:#?}");
        }
    }
}

impl Clock {
    fn new(rng: &mut Rng, family: Family, window: u64) -> Self {
        let now = match family {
            Family::EndOfTime => Timestamp::MAX.as_micros() - rng.u64(0..50) * window - 50,
            _ => EARLIEST + 4 * window + rng.u64(..window),
        };
        Self { now, calendar: None, window, retry_at: now, reset_at: now }
    }

    /// Moves on or back, most often to where something changes or a microsecond beside
    /// it. Says no at the end of time.
    fn pass(&mut self, rng: &mut Rng, family: Family) -> bool {
        let (now, window) = (self.now, self.window);
        let beside = |to: u64, rng: &mut Rng| (to + rng.u64(0..3)).saturating_sub(1).max(now);
        let to = match (family, rng.u8(..24)) {
            (Family::Heavy, _) => now + rng.u64(45..60),
            // Most of the rest jump or step back by much, and not often.
            (Family::LongLogs, 0..23) => now + rng.u64(0..=window / 800),
            (Family::LongLogs, _) if rng.u8(..10) > 0 => {
                now.saturating_sub(rng.u64(0..=window / 100))
            }
            (Family::LongLogs, _) if rng.u8(..4) > 0 => {
                beside(now + window * rng.u64(1..=9) / 10, rng)
            }
            (_, 0..6) => now,
            (_, 6..8) => now + 1,
            (_, 8..10) => now + rng.u64(2..60),
            (_, 10..14) => beside(now + window * rng.u64(1..=12) / 10, rng),
            (_, 14) => now + rng.u64(1..=3) * window,
            (_, 15..17) => beside(self.boundary(), rng),
            (_, 17..20) => beside(self.retry_at, rng),
            (_, 20) => beside(self.reset_at, rng),
            _ => now.saturating_sub(window * rng.u64(0..=12) / 10 + rng.u64(0..3)),
        };
        self.now = to.max(EARLIEST);
        self.now < Timestamp::MAX.as_micros()
    }

    fn boundary(&self) -> u64 {
        match self.calendar {
            Some(calendar) => calendar.period(Timestamp::from_micros(self.now)).end().as_micros(),
            None => (self.now / self.window + 1) * self.window,
        }
    }

    fn note(&mut self, policy: &Policy, decision: &Decision) {
        self.window = policy.window().get();
        self.calendar = policy.quota().calendar();
        if let Outcome::Deny { retry_after } = decision.outcome {
            self.retry_at = self.now.saturating_add(retry_after.get());
        }
        self.reset_at = self.now.saturating_add(decision.reset_after.get());
    }
}

fn redis_key(policy: &Policy, key: &Key) -> Vec<u8> {
    // As in Redis, the part in braces says which charges are about one subject.
    [b"s:{", &key.as_bytes()[..], b"}", policy.name().as_bytes()].concat()
}
