//! A call's arguments, in the format of `lua/README.md`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Charged, Cost, Key, Kind, LeakyMode, Micros, OwnedCharge, PenaltyBlock, Policy,
    Quota, Receipt, ReceiptId, Refill, Resolution, Source, Timestamp,
};

#[derive(Debug)]
pub(super) struct Call {
    pub(super) nonce: u64,
    pub(super) deadline: Option<Timestamp>,
    /// Whether the script's plain path may be enough.
    pub(super) is_plain: bool,
    /// The requests, with the number of equal requests for each.
    pub(super) requests: Vec<(u64, Request)>,
}

#[derive(Debug)]
pub(super) enum Request {
    /// The charges, summed by key.
    Decide(Vec<OwnedCharge>),
    /// `settled` is the key that marks the receipt.
    Settle {
        receipt: Receipt,
        actual: Cost,
        settled: Bytes,
    },
    Renew(Receipt),
    Reset {
        policy: String,
        key: Key,
    },
    Block {
        policy: Policy,
        key: Key,
        block: PenaltyBlock,
    },
    Lease {
        policy: Policy,
        key: Key,
        units: u64,
        ttl: Micros,
        tag: u64,
        spent: Vec<(u64, u64)>,
    },
}

impl Call {
    /// Reads a call's keys and arguments.
    pub(super) fn read(keys: &[Bytes], head: &[u8], forms: &[u8], requests: &[u8]) -> Self {
        let mut head = Reader(head);
        let (nonce, deadline) = (head.number::<8>(), head.number::<7>());
        let is_plain = head.byte() == 1;
        let deadline = (deadline > 0).then(|| Timestamp::from_micros(deadline));
        let mut reader = Reader(requests);
        let context = Context { keys, forms };
        let mut requests = Vec::new();
        while !reader.0.is_empty() {
            let kind = reader.byte();
            requests.push((reader.number::<2>(), context.request(kind, &mut reader)));
        }
        Self { nonce, deadline, is_plain, requests }
    }
}

struct Context<'a> {
    keys: &'a [Bytes],
    forms: &'a [u8],
}

impl Context<'_> {
    fn request(&self, kind: u8, reader: &mut Reader<'_>) -> Request {
        match kind {
            1 | 6 => {
                let sums = 0..reader.byte();
                Request::Decide(sums.map(|_| self.sum(kind == 6, reader)).collect())
            }
            2 | 3 | 5 => self.correction(kind, reader),
            4 => {
                let (policy, key) = self.name(reader);
                Request::Reset { policy, key }
            }
            7 => {
                let (policy, key) = self.policy(reader);
                let length = Some(reader.number::<7>()).filter(|length| *length < 1 << 53);
                let length = length.map(Micros::new);
                let known_at = Timestamp::from_micros(reader.number::<7>());
                Request::Block { policy, key, block: PenaltyBlock { length, known_at } }
            }
            16 => {
                let (policy, key) = self.policy(reader);
                let (units, ttl) = (reader.number::<5>(), Micros::new(reader.number::<7>()));
                let tag = reader.number::<4>();
                let spent = 0..reader.byte();
                let spent = spent.map(|_| (reader.number::<8>(), reader.number::<5>())).collect();
                Request::Lease { policy, key, units, ttl, tag, spent }
            }
            kind => panic!("there is no request of kind {kind}"),
        }
    }

    fn sum(&self, queues: bool, reader: &mut Reader<'_>) -> OwnedCharge {
        let (policy, key) = self.policy(reader);
        let flags = reader.byte() & 3;
        let cost = Cost::new(reader.number::<7>());
        let [queue, headroom] = [(); 2].map(|()| if queues { reader.number::<7>() } else { 0 });
        let (queue, headroom) = (queue.checked_sub(1).map(Micros::new), Cost::new(headroom));
        let (enforce, dry) = (flags == 1, flags == 2);
        OwnedCharge { policy, key, cost, enforce, dry, queue, headroom }
    }

    fn correction(&self, kind: u8, reader: &mut Reader<'_>) -> Request {
        let (policy, key) = self.policy(reader);
        let settled = self.key(reader).clone();
        let id = receipt_id(&settled);
        let (units, cost) = (reader.number::<7>(), reader.number::<7>());
        let [charged_at, leaves_at, resets_at] =
            [(); 3].map(|()| Timestamp::from_micros(reader.number::<7>()));
        let refunded = reader.number::<7>();
        let lifetime = Micros::new(reader.number::<7>());
        let cost_charged = Cost::new(cost);
        let charged =
            Charged { cost: cost_charged, charged_at, leaves_at, resets_at, refunded, lifetime };
        let receipt = Receipt { id, source: Source::Store, policy, key, charged };
        match kind {
            5 => Request::Renew(receipt),
            2 => Request::Settle { receipt, actual: Cost::new(cost - units), settled },
            _ => {
                let actual = Cost::new(cost.saturating_add(units));
                Request::Settle { receipt, actual, settled }
            }
        }
    }

    /// Reads a state's policy and key from `namespace:{subject}:policy`. The subject is the key.
    fn name(&self, reader: &mut Reader<'_>) -> (String, Key) {
        let name = self.key(reader);
        let (subject, policy) = split(name);
        (String::from_utf8(policy[1..].to_vec()).expect("UTF-8"), Key::new(subject))
    }

    fn policy(&self, reader: &mut Reader<'_>) -> (Policy, Key) {
        let (name, key) = self.name(reader);
        let index = usize::try_from(reader.number::<2>()).expect("two bytes");
        (policy(name, &mut Reader(&self.forms[index..])), key)
    }

    fn key(&self, reader: &mut Reader<'_>) -> &Bytes {
        &self.keys[usize::try_from(reader.number::<2>()).expect("two bytes") - 1]
    }
}

fn receipt_id(name: &[u8]) -> ReceiptId {
    let (_, id) = split(name);
    let id = URL_SAFE_NO_PAD.decode(&id[1..]).expect("base64");
    ReceiptId(u128::from_be_bytes(id.try_into().expect("16 bytes")))
}

fn split(name: &[u8]) -> (&[u8], &[u8]) {
    let end = name.iter().position(|byte| *byte == b'}').expect("a subject in braces");
    name.split_at(end + 1)
}

/// Returns the policy that a header describes.
fn policy(name: String, reader: &mut Reader<'_>) -> Policy {
    let (_version, code) = (reader.byte(), reader.byte());
    let (limit, window) = (reader.number::<5>(), reader.number::<6>());
    // A bucket's header has the smallest numbers of its rate, which may be too small for a quota.
    let times = 50_u64.div_ceil(window);
    let quota = Quota::new(limit * times, Duration::from_micros(window * times));
    let log = |resolution| Algorithm::SlidingWindowLog { resolution };
    let queue = |max_wait| Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let mut burst = || quota.burst(reader.number::<5>());
    let (quota, kind) = match code {
        1 => (quota, Algorithm::FixedWindowCounter.into()),
        2 => (quota, log(Resolution::Exact).into()),
        3 => (quota, log(Resolution::Thousandth).into()),
        4 => (quota, Algorithm::SlidingWindowCounter.into()),
        5 => (burst(), Algorithm::TokenBucket { refill: Refill::Greedy }.into()),
        6 => (burst(), Algorithm::TokenBucket { refill: Refill::Interval }.into()),
        7 => (burst(), queue(None).into()),
        8 => {
            let quota = burst();
            (quota, queue(Some(Micros::new(reader.number::<7>()))).into())
        }
        9 => (burst(), Algorithm::LeakyBucket { mode: LeakyMode::Meter }.into()),
        10 => (quota, Algorithm::ConcurrentRequests.into()),
        11 | 13 => {
            let terms = Terms {
                block: Micros::new(reader.number::<6>()),
                factor: reader.number::<3>(),
                max_block: Micros::new(reader.number::<6>()),
                forget_after: Micros::new(reader.number::<6>()),
                counts_denials: code == 11,
            };
            (quota, Kind::Penalty(terms))
        }
        code => panic!("the simulated server has no algorithm with code {code}"),
    };
    Policy::new(name, quota, kind).expect("a policy that was built before")
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().expect("another byte");
        self.0 = rest;
        *first
    }

    fn number<const N: usize>(&mut self) -> u64 {
        (0..N).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}
