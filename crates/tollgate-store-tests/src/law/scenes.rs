//! Short histories with exact answers. Each was once answered wrong, or found a seeded bug.
//!
//! Times are in seconds since the start of the scene, at which a window of every length starts.

use std::time::Duration;

use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, Policy, Quota, Receipt, ReceiptId, Refill, Resolution,
    Strikes, Timestamp,
};

use super::Subject;
use super::history::START;

const LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
const BUCKET: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };
const INTERVAL: Algorithm = Algorithm::TokenBucket { refill: Refill::Interval };

/// The store under test, its time, and a single key.
struct Scene<S> {
    subject: S,
    now: u64,
    receipts: u128,
}

impl<S: Subject> Scene<S> {
    fn start(make: impl Fn() -> S) -> Self {
        Self { subject: make(), now: START, receipts: 0 }
    }

    fn at(&mut self, seconds: f64) {
        self.now = START + Duration::from_secs_f64(seconds).as_micros() as u64;
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// Charges the key. Returns the decision, and the receipt if the charge was admitted.
    fn ask(&mut self, policy: &Policy, cost: u64) -> (Decision, Option<Receipt>) {
        let charges = [Charge::new(policy, &Key::GLOBAL, Cost::new(cost))];
        let now = self.time();
        let verdict = self.subject.decide(&charges, now).expect("no outage");
        self.receipts += 1;
        let id = ReceiptId(self.receipts);
        let receipt = verdict.receipts(&charges, || id).next();
        (verdict.decisions()[0], receipt)
    }

    fn charge(&mut self, policy: &Policy, cost: u64) -> Receipt {
        let (decision, receipt) = self.ask(policy, cost);
        receipt.unwrap_or_else(|| panic!("{policy:?} denies {cost}: {decision:?}"))
    }

    fn settle(&mut self, receipt: &Receipt, actual: u64) {
        let now = self.time();
        self.subject.settle(receipt, Cost::new(actual), now).expect("no outage");
    }

    /// Requests one unit until it is allowed, and waits for each `retry_after`. Returns the waits
    /// in seconds.
    fn obey(&mut self, policy: &Policy) -> Vec<f64> {
        let mut waits = Vec::new();
        while let Some(wait) = self.ask(policy, 1).0.retry_after() {
            waits.push(wait.get() as f64 / 1e6);
            assert!(waits.len() < 10, "obeyed denials: {waits:?}");
            self.now += wait.get();
        }
        waits
    }

    fn remaining(&mut self, policy: &Policy) -> u64 {
        self.ask(policy, 0).0.remaining
    }
}

fn policy(limit: u64, seconds: u64, algorithm: Algorithm) -> Policy {
    of(Quota::new(limit, Duration::from_secs(seconds)), algorithm)
}

fn of(quota: Quota, algorithm: Algorithm) -> Policy {
    Policy::new("quota", quota, algorithm).expect("the scenes' policies build")
}

/// A client has used all of its 500 units per day when its quota becomes 100 per minute. It waits
/// for the end of the minute in which it used the last unit.
pub fn day_becomes_minute<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let day = policy(500, 86_400, Algorithm::FixedWindowCounter);
    let minute = policy(100, 60, Algorithm::FixedWindowCounter);
    scene.at(3_610.0);
    scene.charge(&day, 500);
    scene.at(3_630.0);
    assert_eq!(scene.obey(&minute), [30.0]);
    // If the numbers change back, all 500 units still count.
    let wait = scene.ask(&day, 1).0.retry_after().expect("the day is used up");
    assert_eq!(wait.get(), (86_400 - 3_660) * 1_000_000);
}

/// An empty bucket's capacity drops from 100 to 10. At most the new capacity is missing, so the
/// next unit is refilled after 36 seconds.
pub fn bucket_becomes_smaller<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let quota = Quota::new(100, Duration::from_secs(3_600));
    let (large, small) = (of(quota.burst(100), BUCKET), of(quota.burst(10), BUCKET));
    scene.charge(&large, 100);
    assert_eq!(scene.obey(&small), [36.0]);
    // The larger bucket has refilled two units, and the smaller bucket's charge used a unit.
    scene.at(72.0);
    assert_eq!(scene.remaining(&large), 1);
}

/// A client uses all 5 units per 60 seconds, and then moves to a tier with 3 units per 2 seconds.
/// All five units count in this tier's first window. In the next window they count in proportion,
/// so the client waits until two fifths of that window remain.
pub fn counter_becomes_shorter<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let long = policy(5, 60, Algorithm::SlidingWindowCounter);
    let short = policy(3, 2, Algorithm::SlidingWindowCounter);
    scene.charge(&long, 5);
    assert_eq!(scene.obey(&short), [3.2]);
}

/// Requests alternate between a key's two logs. Each log also counts the other's charges, so both
/// together admit as many requests as a list of all charges allows.
fn logs_take_turns<S: Subject>(make: impl Fn() -> S, logs: [(u64, u64); 2], seconds: u64) -> u64 {
    let mut scene = Scene::start(make);
    let mut admitted: Vec<u64> = Vec::new();
    for step in 0..seconds * 100 {
        scene.now = START + step * 10_000;
        let (limit, window) = logs[step as usize % 2];
        let allows = scene.ask(&policy(limit, window, LOG), 1).0.allows();
        let counts = |at: &&u64| **at + window * 1_000_000 > scene.now;
        let counted = admitted.iter().rev().take_while(counts).count() as u64;
        assert_eq!(allows, counted < limit, "at {step}: {counted} of {limit} count");
        if allows {
            admitted.push(scene.now);
        }
    }
    admitted.len() as u64
}

/// 100 per minute and 10 per second. Alone they admit 200 and 1200 units in two minutes.
pub fn logs_of_two_windows_take_turns<S: Subject>(make: impl Fn() -> S) {
    let admitted = logs_take_turns(make, [(100, 60), (10, 1)], 120);
    assert!((1_000..=1_300).contains(&admitted), "{admitted}");
}

/// 20 per 10 seconds in the old build, and 2 per second in the new one. Alone they admit 40 and 40
/// units in 20 seconds.
pub fn rolling_deployment_of_logs<S: Subject>(make: impl Fn() -> S) {
    let admitted = logs_take_turns(make, [(20, 10), (2, 1)], 20);
    assert!((40..=82).contains(&admitted), "{admitted}");
}

/// Eight requests reserve 4096 tokens each and use 200. When they settle after three seconds, the
/// bucket has refilled 5000 tokens. So the first settlement refunds no tokens, the second 3192, and
/// the other six all that they did not use. In total 1200 of 100 000 tokens are missing. If the
/// requests had reserved only 200 tokens, no token would be missing.
pub fn refunds_share_the_refill<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let tokens = policy(100_000, 60, BUCKET);
    let receipts: Vec<_> = (0..8).map(|_| scene.charge(&tokens, 4_096)).collect();
    scene.at(3.0);
    for receipt in &receipts {
        scene.settle(receipt, 200);
    }
    assert_eq!(scene.remaining(&tokens), 98_800);
}

/// Two requests reserve ten units each, and the bucket refunds the second request's units and
/// refills the first's. Then a third request takes ten units, which settling the first must not
/// refund.
pub fn late_refund_keeps_later_charges<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let bucket = policy(100, 100, BUCKET);
    let late = scene.charge(&bucket, 10);
    let early = scene.charge(&bucket, 10);
    scene.settle(&early, 0);
    assert_eq!(scene.remaining(&bucket), 90);
    scene.at(10.0);
    scene.charge(&bucket, 10);
    scene.settle(&late, 0);
    assert_eq!(scene.remaining(&bucket), 90);
}

/// Only failures count, so each of fifty requests reserves a unit. All of them succeed.
pub fn successes_are_not_counted<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let failures = policy(60, 60, BUCKET);
    let receipts: Vec<_> = (0..50).map(|_| scene.charge(&failures, 1)).collect();
    scene.at(2.0);
    for receipt in &receipts {
        scene.settle(receipt, 0);
    }
    assert_eq!(scene.remaining(&failures), 60);
}

/// The charge that started an interval is refunded shortly before the interval ends. The units of
/// later charges are still refilled then.
pub fn refund_keeps_the_interval<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let bucket = policy(10, 60, INTERVAL);
    let first = scene.charge(&bucket, 1);
    scene.at(1.0);
    scene.charge(&bucket, 9);
    assert_eq!(scene.ask(&bucket, 1).0.retry_after().expect("none is left").get(), 59_000_000);
    scene.at(59.0);
    scene.settle(&first, 0);
    assert_eq!(scene.remaining(&bucket), 1);
    assert_eq!(scene.ask(&bucket, 2).0.retry_after().expect("one is left").get(), 1_000_000);
    scene.at(60.0);
    assert_eq!(scene.remaining(&bucket), 10);
}

/// Two versions are charged, and the first version's charge is refunded. The second version started
/// from an interval bucket that already counted this charge, and its own charge remains.
pub fn refund_keeps_the_next_version<S: Subject>(make: impl Fn() -> S) {
    let interval = policy(5, 200, INTERVAL);
    let first = of(Quota::new(20, Duration::from_secs(100)).burst(10), BUCKET);
    let second = of(Quota::new(3, Duration::from_secs(6)).burst(2), BUCKET);
    // Both are charged in the same microsecond, or the clock steps back in between.
    for (charged, at) in [(&first, 4.0), (&interval, 4.0), (&first, 6.0)] {
        let mut scene = Scene::start(&make);
        scene.charge(&interval, 1);
        scene.at(at);
        let receipt = scene.charge(charged, 1);
        scene.at(4.0);
        scene.charge(&second, 1);
        scene.settle(&receipt, 0);
        assert_eq!(scene.remaining(&second), 1, "refunded at {at}: {charged:?}");
    }
}

/// A client exceeds a shadow policy while its team exceeds an enforced policy, so its request is
/// denied. The client's penalty counts no strike, because no enforced policy denies the client's
/// key.
pub fn shadow_denials_are_no_strikes<S: Subject>(make: impl Fn() -> S) {
    let mut subject = make();
    let (client, team) = (Key::from("client"), Key::from("team"));
    let minute = Duration::from_secs(60);
    let shadow = policy(1, 60, LOG);
    let enforced = Policy::new("team", Quota::new(1, minute), LOG).expect("builds");
    let strikes = Policy::penalty("strikes", Strikes::of_denials(1, minute)).expect("builds");
    let charges = [
        Charge::new(&shadow, &client, Cost::ONE).shadow(),
        Charge::new(&enforced, &team, Cost::ONE),
        Charge::new(&strikes, &client, Cost::ONE),
    ];
    for is_admitted in [true, false] {
        let now = Timestamp::from_micros(START);
        let verdict = subject.decide(&charges, now).expect("no outage");
        assert_eq!(verdict.is_admitted(), is_admitted);
        let denies: Vec<_> = verdict.decisions().iter().map(Decision::denies).collect();
        assert_eq!(denies, [!is_admitted, !is_admitted, false]);
    }
}

/// Two permits last ten minutes. Then the time to live becomes two seconds: both count until their
/// requests return them after 25 seconds.
pub fn shorter_permits_count_longer_ones<S: Subject>(make: impl Fn() -> S) {
    let mut scene = Scene::start(make);
    let permits = |seconds| {
        Policy::concurrent_requests("quota", 2, Duration::from_secs(seconds)).expect("builds")
    };
    let (long, short) = (permits(600), permits(2));
    let receipts = [scene.charge(&long, 1), scene.charge(&long, 1)];
    for second in 1..25 {
        scene.at(f64::from(second));
        let (denied, _) = scene.ask(&short, 1);
        assert!(denied.denies(), "three are in flight at {second}: {denied:?}");
    }
    scene.at(25.0);
    for receipt in &receipts {
        scene.settle(receipt, 0);
    }
    let third = scene.charge(&short, 2);
    // This permit expires after its own policy's time to live.
    scene.at(26.9);
    assert!(scene.ask(&long, 1).0.denies());
    scene.at(27.0);
    scene.charge(&long, 2);
    scene.settle(&third, 0);
    assert_eq!(scene.remaining(&short), 0);
}
