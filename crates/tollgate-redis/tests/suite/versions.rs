//! This build continues what an old Tollgate build has stored.
//!
//! `tests/fixtures/old` contains the old build's script, each call that it made in the scenes
//! below, and the reply that it got. Here the old build makes the first calls, and this build the
//! others. An old build cannot read what this build stores, because states have a new layout: it
//! reports this and leaves the state as it is, so its own failure policy decides.
//!
//! Calls are stored as bytes, so this test still works when the format of calls and replies
//! changes. `TOLLGATE_BLESS=1` makes this build the old build: run it before such a change.

use std::fmt::Write as _;
use std::fs;
use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, Kind, LeakyMode, Micros, Policy, Quota, Receipt, ReceiptId,
    Refill, Timestamp,
};
use tollgate_redis::protocol::{Ask, Batch, KeyedCharge, ScriptAnswer, Spent, TEXT};
use tollgate_store_tests::reference::Reference;

use crate::support::{ScriptClient, Server, Value, modes};

const MODES: [Algorithm; 9] = modes(400_000);

const OTHERS: [Kind; 2] = [
    Kind::Limit(Algorithm::ConcurrentRequests),
    Kind::Penalty(Terms {
        block: Micros::new(300_000),
        factor: 2,
        max_block: Micros::new(2_000_000),
        forget_after: Micros::new(1_000_000),
        counts_denials: false,
    }),
];

/// The first calls are charges. The builds refund differently.
const OLD_CALLS: usize = 3;

#[test]
fn new_build_continues_old_states() {
    if std::env::var_os("TOLLGATE_BLESS").is_some_and(|it| it == "1") {
        bless();
    }
    let server = Server::start();
    let script = fs::read_to_string(fixture("script")).expect("a script");
    let (mut old, mut new) = (server.connect_with(&script), server.connect());
    let all = recorded();
    assert_eq!(all.len(), scenes().count(), "one block of calls per scene");
    for (scene, calls) in scenes().zip(&all) {
        new.run(&[b"FLUSHALL"]);
        let mut play = Play::new(&scene);
        for (step, call) in calls.iter().enumerate() {
            let (now, batch, expected) = play.step(step);
            let what = format!("{:?}, step {step}", scene.policy);
            if step < OLD_CALLS {
                assert_eq!(call.again(&mut old), call.reply, "{what}");
            } else {
                assert_eq!(new.call(&batch, Some(now)).rows, [expected], "{what}");
                let stored = new.run(&[b"GET", KEY]);
                if is_charge(step) && matches!(stored, Value::Text(_)) {
                    assert_eq!(call.again(&mut old)[REPLY_HEADER..], UNREADABLE, "{what}");
                    assert_eq!(new.run(&[b"GET", KEY]), stored, "{what}");
                }
            }
        }
    }
}

/// The bytes of a reply before its first row.
const REPLY_HEADER: usize = 15;
/// The row of a request that was not executed, because the state of its first key is unreadable.
const UNREADABLE: [u8; 4] = [3, 2, 0, 1];

const fn is_charge(step: usize) -> bool {
    !matches!(step % 8, 3 | 5..=7)
}

/// A policy, and a number of calls for one key.
struct Scene {
    policy: Policy,
    steps: usize,
}

fn scenes() -> impl Iterator<Item = Scene> {
    let scene = |name: &str, limit, kind: Kind, steps| {
        let quota = Quota::new(limit, Duration::from_secs(1));
        Scene { policy: Policy::new(name, quota, kind).expect("builds"), steps }
    };
    let kinds = MODES.into_iter().map(Kind::Limit).chain(OTHERS);
    let short = kinds.map(move |kind| scene("short", 10, kind, 24));
    // Long enough to be written in place.
    short.chain(iter::once(scene("long", 300, MODES[1].into(), 170)))
}

/// A scene and its reference, which predicts each reply.
struct Play<'a> {
    policy: &'a Policy,
    reference: Reference,
    now: u64,
    ids: u64,
    receipts: Vec<Receipt>,
    block: Option<Spent>,
}

impl<'a> Play<'a> {
    fn new(scene: &'a Scene) -> Self {
        // The year 2100: ahead of the server's clock, so no key expires meanwhile.
        let now = 4_102_444_800_000_000;
        let (reference, receipts) = (Reference::default(), Vec::new());
        Self { policy: &scene.policy, reference, now, ids: 0, receipts, block: None }
    }

    /// Returns the next call and its expected reply.
    fn step(&mut self, step: usize) -> (Timestamp, Batch, ScriptAnswer) {
        self.now += if self.policy.name() == "long" { 700 } else { [0, 2_000, 90_000][step % 3] };
        let now = Timestamp::from_micros(self.now);
        self.reference.forget_resets();
        let mut batch = Batch::at(step as u64, now);
        let row = match step % 8 {
            // A step that `is_charge` is a charge in every scene.
            3 if !self.receipts.is_empty() => self.settle(&mut batch, now),
            5 if !self.receipts.is_empty() && self.policy.is_concurrency() => {
                self.renew(&mut batch, now)
            }
            6 if is_leased(self.policy) => self.lease(&mut batch, now),
            7 if step == 15 => {
                batch.reset(KEY).expect("room");
                self.reference.reset(self.policy, &Key::GLOBAL, now);
                ScriptAnswer::Reset
            }
            _ => self.charge(&mut batch, now, [1, 2, 4][step % 3]),
        };
        (now, batch, row)
    }

    fn charge(&mut self, batch: &mut Batch, now: Timestamp, cost: u64) -> ScriptAnswer {
        let (policy, cost) = (self.policy, Cost::new(cost));
        let line = KeyedCharge::new(KEY, policy, cost);
        batch.decide(&[line]).expect("room");
        let charges = [Charge::new(policy, &Key::GLOBAL, cost)];
        let verdict = self.reference.decide(&charges, now);
        let id = self.next_id();
        self.receipts.extend(verdict.receipts(&charges, || ReceiptId(id.into())));
        let frozen = self.reference.frozen(&charges, &verdict, now);
        ScriptAnswer::Verdict(verdict, frozen.into())
    }

    /// Refunds part of a charge, or adds strikes to a penalty.
    fn settle(&mut self, batch: &mut Batch, now: Timestamp) -> ScriptAnswer {
        let receipt = self.receipts.remove(0);
        let actual = if self.policy.is_penalty() { Cost::new(7) } else { Cost::ONE };
        batch.settle(KEY, &name_of(&receipt), &receipt, actual).expect("room");
        ScriptAnswer::Settlement(self.reference.settle(&receipt, actual, now))
    }

    fn renew(&mut self, batch: &mut Batch, now: Timestamp) -> ScriptAnswer {
        let receipt = self.receipts.remove(0);
        batch.renew(KEY, &name_of(&receipt), &receipt).expect("room");
        let renewed = self.reference.renew(&receipt, now);
        let begun = renewed.as_ref().map(|renewed| renewed.charged.charged_at);
        self.receipts.extend(renewed);
        ScriptAnswer::Renewal(begun)
    }

    /// Settles the previous block, of which one unit was used, and requests another.
    fn lease(&mut self, batch: &mut Batch, now: Timestamp) -> ScriptAnswer {
        let spent: Vec<_> = self.block.take().into_iter().collect();
        let tag = u32::try_from(self.next_id()).expect("a scene has few");
        let ask = Ask { tag, units: 3, ttl: Micros::new(500_000) };
        batch.lease(KEY, self.policy, &spent, ask).expect("room");
        let used: Vec<_> = spent.iter().map(|block| (block.id, block.units)).collect();
        let block = (ask.id(now), ask.units, ask.ttl);
        let granted = self.reference.lease((self.policy, &Key::GLOBAL), now, &used, block);
        self.block = (granted.units > 0).then_some(Spent { id: ask.id(now), units: 1 });
        ScriptAnswer::Leased(granted)
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// Whether a policy's algorithm supports leases.
pub(crate) fn is_leased(policy: &Policy) -> bool {
    !matches!(
        policy.kind(),
        Kind::Limit(
            Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }
                | Algorithm::TokenBucket { refill: Refill::Interval }
                | Algorithm::ConcurrentRequests
        ) | Kind::Penalty(_)
    )
}

fn name_of(receipt: &Receipt) -> Vec<u8> {
    format!("receipt {}", receipt.id.0).into_bytes()
}

/// A call by the old build, and its reply.
struct Call {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
    reply: Vec<u8>,
}

impl Call {
    fn again(&self, client: &mut ScriptClient) -> Vec<u8> {
        client.say_script(&self.keys, &self.args);
        match client.hear() {
            Value::Text(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Parses `key … | argument … | reply`, all in hexadecimal.
    fn parse(line: &str) -> Self {
        let words = |part: &str| part.split_whitespace().map(bytes).collect::<Vec<_>>();
        let [keys, args, reply] = line
            .split('|')
            .map(words)
            .collect::<Vec<_>>()
            .try_into()
            .expect("as many parts as there were");
        Self { keys, args, reply: reply.concat() }
    }

    fn to_line(&self) -> String {
        let words = |words: &[Vec<u8>]| words.iter().map(|word| hex(word)).collect::<Vec<_>>();
        let [keys, args] = [&self.keys, &self.args].map(|it| words(it).join(" "));
        format!("{keys} | {args} | {}", hex(&self.reply))
    }
}

/// Returns the calls of each scene.
fn recorded() -> Vec<Vec<Call>> {
    let calls = fs::read_to_string(fixture("calls")).expect("calls");
    calls.split("\n\n").map(|scene| scene.trim().lines().map(Call::parse).collect()).collect()
}

/// Makes this build the old build.
fn bless() {
    let server = Server::start();
    let mut client = server.connect();
    let mut calls = Vec::new();
    for scene in scenes() {
        client.run(&[b"FLUSHALL"]);
        let mut play = Play::new(&scene);
        let lines = (0..scene.steps).map(|step| {
            let (now, batch, _) = play.step(step);
            let keys = batch.keys().map(<[u8]>::to_vec).collect();
            let mut call = Call { keys, args: batch.args(Some(now)).to_vec(), reply: Vec::new() };
            call.reply = call.again(&mut client);
            call.to_line()
        });
        calls.push(lines.collect::<Vec<_>>().join("\n"));
    }
    fs::write(fixture("calls"), calls.join("\n\n") + "\n").expect("a full disk?");
    fs::write(fixture("script"), TEXT).expect("a full disk?");
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/old").join(name)
}

/// Returns a word for a byte string, which is not empty even if the string is.
fn hex(bytes: &[u8]) -> String {
    let mut word = String::from("x");
    for byte in bytes {
        let _ = write!(word, "{byte:02x}");
    }
    word
}

fn bytes(word: &str) -> Vec<u8> {
    let digits = word.strip_prefix('x').expect("a word of hex()");
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

const KEY: &[u8] = b"key";
