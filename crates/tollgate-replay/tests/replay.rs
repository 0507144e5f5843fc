//! Waiting, penalties, bounds and counts in a replay.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Cost, Key, Micros, Policy, Quota, Strikes, Timestamp};
use tollgate_engine::{AppliedLimit, Charges, Correction, Limit, Limits, Mode, SubjectKind};
use tollgate_replay::{Answer, Bounds, Client, Replay, Request};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000_000_000 + millis * 1_000)
}

fn limits<const N: usize>(mode: Mode, policies: [&Policy; N]) -> Arc<Limits> {
    let limits = policies.map(|policy| Limit::new(policy.clone()).mode(mode));
    Arc::new(Limits::new(limits))
}

fn rejecting<const N: usize>(policies: [&Policy; N]) -> Arc<Limits> {
    limits(Mode::Reject, policies)
}

/// A request that charges each limit a unit under this key.
fn request<'a>(millis: u64, limits: &'a Arc<Limits>, key: &Key) -> Request<'a> {
    Request::new(at(millis), limits, Charges::of_each(limits, key, Cost::ONE))
}

/// Replays requests from a client at these milliseconds, and returns their final answers.
fn answers(limits: &Arc<Limits>, millis: &[u64], corrections: &[(u8, Correction)]) -> Vec<Answer> {
    let mut replay = Replay::new();
    let requests = millis.iter().map(|millis| request(*millis, limits, &Key::from("a")));
    let answers =
        requests.map(|request| replay.request(&mut request.correcting(corrections)).unwrap());
    let mut answers: Vec<_> = answers.collect();
    let waits = answers.iter().filter(|answer| **answer == Answer::Waits).count();
    let report = replay.finish().unwrap();
    assert_eq!(report.total.counts.allowed + report.total.counts.denied, millis.len() as u64);
    assert_eq!(report.policies.values().any(|it| it.waits.longest_micros > 0), waits > 0);
    for resolved in replay.resolved() {
        answers[usize::try_from(resolved.number).unwrap()] = resolved.answer;
    }
    answers
}

const fn after(millis: u64) -> Answer {
    Answer::Allowed { wait: Micros::new(millis * 1_000) }
}

#[test]
fn requests_wait_in_order_until_they_time_out() {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let patient = limits(Mode::Wait(Duration::from_millis(2_500)), [&policy]);
    let all = answers(&patient, &[0, 100, 200, 300, 2_100, 9_000], &[]);
    let (denied, now) = (Answer::Denied, after(0));
    assert_eq!(all, [now, after(900), after(1_800), denied, after(900), now]);
}

/// The first waits for two of its limits, so it plans to continue later than the second does.
#[test]
fn waits_that_end_together_end_in_order_of_arrival() {
    let (half, second) = (Duration::from_millis(500), Duration::from_secs(1));
    let policies = [("half", 1, half), ("second", 1, second), ("all", 3, 60 * second)];
    let policies = policies.map(|(name, units, window)| {
        Policy::sliding_window_log(name, Quota::new(units, window)).unwrap()
    });
    let [half, second, all] = policies.map(Limit::new);
    let waits = |limit: Limit| limit.mode(Mode::Wait(Duration::from_secs(5)));
    let limits = Arc::new(Limits::new([waits(half), waits(second), all]));
    let mut replay = Replay::new();
    let mut request = |millis, key: &str, numbers: &[u8]| {
        let mut charges = Charges::default();
        for &number in numbers {
            let key = if number == 2 { Key::GLOBAL } else { Key::from(key) };
            charges.push(AppliedLimit::new(number, SubjectKind::Other, key, Cost::ONE), &limits);
        }
        replay.request(&mut Request::new(at(millis), &limits, charges)).unwrap()
    };
    for (key, numbers) in [("a", &[0, 1, 2][..]), ("b", &[1, 2])] {
        assert_eq!(request(0, key, numbers), after(0));
    }
    for (millis, key, numbers) in [(20, "a", &[0, 1, 2][..]), (30, "b", &[1, 2])] {
        assert_eq!(request(millis, key, numbers), Answer::Waits);
    }
    let _ = replay.finish().unwrap();
    let resolved: Vec<_> = replay.resolved().map(|it| (it.number, it.answer)).collect();
    assert_eq!(resolved, [(2, after(980)), (3, Answer::Denied)]);
}

#[test]
fn failed_responses_are_strikes() {
    let strikes = Strikes::of_failures(2, Duration::from_secs(10)).block(Duration::from_secs(60));
    let penalty = Policy::penalty("locked", strikes).unwrap();
    // Settling to more than the charge is a strike.
    let all = answers(&rejecting([&penalty]), &[0, 1, 2, 3], &[(0, Cost::new(2).into())]);
    assert_eq!(all, [after(0), after(0), Answer::Denied, Answer::Denied]);
}

#[test]
fn shadow_counts_but_does_not_deny() {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let (shadow, key) = (limits(Mode::Shadow, [&policy]), Key::from("a"));
    let mut replay = Replay::new();
    for millis in 0..5 {
        assert_eq!(replay.request(&mut request(millis, &shadow, &key)).unwrap(), after(0));
    }
    let report = replay.finish().unwrap();
    let policy = &report.policies["p"];
    assert_eq!((policy.totals.counts.denied, report.total.counts.denied), (4, 0));
    assert!(policy.shadow && report.denied_clients.is_empty());
}

#[test]
fn time_does_not_go_backwards() {
    let policy = Policy::sliding_window_log("p", Quota::per_second(1)).unwrap();
    let all = answers(&rejecting([&policy]), &[5_000, 0, 5_999, 6_000], &[]);
    assert_eq!(all, [after(0), Answer::Denied, Answer::Denied, after(0)]);
}

#[test]
fn clients_beyond_the_bound_are_counted_together() {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let limits = rejecting([&policy]);
    let mut replay = Replay::within(Bounds { clients: 3, named: 2, ..Bounds::default() });
    for number in 0..10_u64 {
        let key = Key::new(number.to_be_bytes());
        for expected in [after(0), Answer::Denied] {
            let client = Client { key: &key, name: &number };
            let mut request = request(0, &limits, &key).of(client);
            assert_eq!(replay.request(&mut request).unwrap(), expected);
        }
    }
    let report = replay.finish().unwrap();
    assert_eq!((report.clients, report.clients_denied, report.denied_clients.len()), (3, 3, 2));
    let beyond = report.beyond_clients;
    assert_eq!((beyond.requests, beyond.denied), (14, 7));
    assert!(report.is_exact());
}

#[test]
fn full_store_is_reported() {
    let policy = Policy::token_bucket("p", Quota::per_hour(1)).unwrap();
    let limits = rejecting([&policy]);
    let mut replay = Replay::within(Bounds { store_bytes: 64 << 10, ..Bounds::default() });
    for number in 0..10_000_u64 {
        let key = Key::new(number.to_be_bytes());
        replay.request(&mut request(0, &limits, &key)).unwrap();
    }
    assert!(!replay.finish().unwrap().is_exact());
}

#[test]
fn worst_minute_and_remaining_shares_are_reported() {
    let policy = Policy::fixed_window_counter("p", Quota::per_minute(10)).unwrap();
    let limits = rejecting([&policy]);
    let mut replay = Replay::new();
    for (minute, name, requests) in [(0, "a", 3), (1, "b", 12), (2, "c", 11), (3, "d", 10)] {
        let key = Key::from(name);
        for _ in 0..requests {
            let start = at(0).as_micros() / 60_000_000;
            let at = Timestamp::from_micros((start + minute) * 60_000_000);
            let client = Client { key: &key, name: &name };
            let request = Request { at, ..request(0, &limits, &key) };
            replay.request(&mut request.of(client).by("home")).unwrap();
        }
    }
    let report = replay.finish().unwrap();
    let worst = report.routes["home"].worst_minute.unwrap();
    assert_eq!((worst.requests, worst.denied), (12, 2));
    let near: Vec<_> = report.nearness.iter().map(|near| near.clients).collect();
    assert_eq!(near, [1, 0, 0, 0, 0, 0, 0, 1, 0, 0], "d has used its quota, and a has 70 % left");
    assert_eq!(report.peaks, [(1, 0), (2, 0), (4, 1), (8, 0), (16, 3)]);
    assert_eq!(report.denied_clients.iter().map(|it| &*it.client).collect::<Vec<_>>(), ["b", "c"]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["policies"]["p"]["denied"], 3);
    assert_eq!(json["worst_minute"]["denied"], 2);
}

/// The full test takes most of a minute in a release build, so it needs `TOLLGATE_HEAVY=1`. By
/// default, clients and memory are divided by 64, which leaves the tables equally full.
#[cfg(target_os = "linux")]
#[test]
fn ten_million_clients_fit_in_two_gibibytes() {
    let is_heavy = std::env::var("TOLLGATE_HEAVY").is_ok_and(|heavy| heavy == "1");
    let part: u64 = if is_heavy { 1 } else { 64 };
    let clients = 10_000_000 / part;
    let before = peak_memory();
    // Every key remains in use until the end.
    let policy = Policy::token_bucket("p", Quota::per_day(1)).unwrap();
    let limits = rejecting([&policy]);
    let mut replay = Replay::new();
    for number in 0..clients {
        let key = Key::new(number.to_be_bytes());
        let client = Client { key: &key, name: &number };
        replay.request(&mut request(number / 1_000, &limits, &key).of(client)).unwrap();
    }
    let report = replay.finish().unwrap();
    assert_eq!((report.clients, report.is_exact()), (clients, true));
    let kibibytes = peak_memory() - before;
    println!("{clients} clients take {kibibytes} KiB");
    assert!(kibibytes < (2 << 20) / part, "{kibibytes} KiB for {clients} clients");
}

/// This process's peak memory use, in KiB.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}
