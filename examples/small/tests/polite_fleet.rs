//! Several processes share a third party's quota in one order. All counts are the third party's, by
//! its own clock. If a busy machine delays processes by more than the margin, calls arrive closer
//! together than they left, so the run proves nothing.
#![cfg(unix)]

use std::process::{Command, Output};

use tollgate_test_servers::{Redis, skip};

/// 40 calls in any 10 seconds, for three workers of 16 tasks.
const SMALL: [&str; 8] = ["--quota", "40", "--window", "10", "--workers", "3", "--tasks", "16"];

/// Returns what the example prints. If the machine was too busy, it runs the example again, and records
/// a skip after the last attempt.
fn run(options: &[&str]) -> Option<String> {
    for _ in 0..ATTEMPTS {
        let redis = Redis::start();
        let mut command = Command::new(env!("CARGO_BIN_EXE_polite-fleet"));
        command.args(SMALL).args(options).env("REDIS_URL", redis.url());
        let Output { status, stdout, stderr } = command.output().expect("the example starts");
        let (shown, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        if number(&shown, " ms behind") <= 100 {
            assert!(status.success(), "{shown}\n{errors}");
            return Some(shown.into_owned());
        }
    }
    skip("the machine is too busy");
    None
}

/// A run takes 35 or 50 seconds.
const ATTEMPTS: usize = 3;

/// The number before a text in the summary.
fn number(shown: &str, text: &str) -> u64 {
    let before = shown.split(text).next().expect("the text");
    let number = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {text}: {shown}"))
}

#[test]
fn known_quota_is_used_in_order_without_denials() {
    let Some(shown) = run(&[]) else { return };
    assert_eq!(number(&shown, " × 429"), 0, "{shown}");
    // Calls that leave at the same instant may ask again in another order.
    assert!(number(&shown, " calls of a task between") <= 3, "{shown}");
}

#[test]
fn fleet_recovers_after_halved_quota() {
    let Some(shown) = run(&["--halve"]) else { return };
    let pauses = shown.matches("all workers pause for").count();
    assert!((1..=3).contains(&pauses), "{shown}");
}

#[test]
fn fleet_survives_killed_worker() {
    let Some(shown) = run(&["--kill"]) else { return };
    assert_eq!(number(&shown, " × 429"), 0, "{shown}");
    assert!(number(&shown, " calls of a task between") <= 3, "{shown}");
}
