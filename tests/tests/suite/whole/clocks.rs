//! Replicas with clock skew: decisions only use the clock of Redis.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tollgate_test_servers::{Replica, Set};

use super::support::{client, start};
use tollgate_test_servers::http::Client;

/// Three replicas. The first replica's clock is a minute behind, and the third's a minute ahead.
///
/// libfaketime shifts every wall clock in the process, which a flag of the demo might miss. The
/// length of a second does not change.
fn start_with_offsets(flags: &[&str]) -> Set {
    let mut set = start(flags);
    let library = library();
    for (replica, offset) in set.replicas.iter_mut().zip(["-60s", "+0s", "+60s"]) {
        let variables = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        replica.plan.variables.extend(variables);
        replica.restart().unwrap();
    }
    set
}

fn library() -> PathBuf {
    let folders =
        fs::read_dir("/usr/lib").unwrap().chain(fs::read_dir("/usr/lib64").into_iter().flatten());
    let found = folders.flatten().map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = found.into_iter().find(|library| library.exists());
    found.expect("libfaketime, which `cargo xtask test` installs")
}

/// Checks that the replica's clock is `offset` seconds ahead of the test's clock.
async fn assert_offset(replica: &Replica, offset: i64) {
    let before = seconds(SystemTime::now());
    let answer = Client::new(replica.address()).get("/healthz").await;
    let theirs = seconds(httpdate::parse_http_date(answer.header("date")).unwrap());
    // The replica may format its date only once per second.
    let possible = before + offset - 1..=seconds(SystemTime::now()) + offset;
    assert!(possible.contains(&theirs), "{theirs} is not in {possible:?}");
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed()
}

#[tokio::test]
async fn clock_skew_has_no_effect() {
    for algorithm in ["sliding_window_log", "sliding_window_counter", "token_bucket"] {
        // In a window of ten hours, no unit is refilled while a slow machine runs this loop.
        let set =
            start_with_offsets(&["--algorithm", algorithm, "--limit", "30", "--window", "10h"]);
        for (replica, offset) in set.replicas.iter().zip([-60, 0, 60]) {
            assert_offset(replica, offset).await;
        }
        let client = client(&set);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        for request in 1..=36_u64 {
            let answer = client.get("/items").await;
            // The counter is approximate: allow a difference of 1.
            let left: u64 = answer.header("x-ratelimit-remaining").parse().unwrap();
            let expected = 30_u64.saturating_sub(request);
            assert!(left.abs_diff(expected) <= 1, "{algorithm}: {left} after {request}");
            assert_eq!(answer.status == 429, request > 30, "{algorithm}: {request}: {answer:?}");
            let reset: u64 = answer.header("x-ratelimit-reset").parse().unwrap();
            assert!((now..=now + 72_000 + 60).contains(&reset), "{algorithm}: {reset} at {now}");
        }
    }
}

#[tokio::test]
async fn retry_after_holds_on_all_replicas() {
    let set =
        start_with_offsets(&["--algorithm", "token_bucket", "--limit", "10", "--window", "20s"]);
    let clients: Vec<_> =
        set.replicas.iter().map(|replica| Client::new(replica.address())).collect();
    // A replica denies, and after the wait another replica with a different clock allows.
    for asked in 0..3 {
        let denied = loop {
            let answer = clients[asked].get("/items").await;
            if answer.status == 429 {
                break answer;
            }
        };
        let wait: u64 = denied.header("retry-after").parse().unwrap();
        assert!((1..=2).contains(&wait), "{wait}");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        assert_eq!(clients[(asked + 1) % 3].get("/items").await.status, 200);
    }
}
