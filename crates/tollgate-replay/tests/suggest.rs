//! Replays requests under their suggested limits, which must be the smallest that deny no more
//! clients than stated.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::{Cost, Key, Micros, Policy, Quota, Timestamp};
use tollgate_engine::{Charges, Limit, Limits};
use tollgate_replay::suggest::{Bounds, ClientKind, Fit, Level, Observed, Part, Suggest, Trial};
use tollgate_replay::{Client, Replay, Request};

const WINDOW: Micros = Micros::new(10_000_000);

/// The number of clients that a policy would deny.
fn denied(policy: &Policy, log: &[(u64, u8)]) -> u64 {
    let limits = Arc::new(Limits::new([Limit::new(policy.clone())]));
    let mut replay = Replay::new();
    for (at, client) in log {
        let key = Key::new([*client]);
        let charges = Charges::of_each(&limits, &key, Cost::ONE);
        let request = Request::new(Timestamp::from_micros(*at), &limits, charges);
        replay.request(&mut request.of(Client { key: &key, name: client })).unwrap();
    }
    replay.finish().unwrap().clients_denied
}

fn observe(suggest: &mut Suggest, at: u64, client: &Key, path: &str, is_success: bool) {
    let (at, client) = (Timestamp::from_micros(at), Some(client));
    suggest.request(&Observed { at, client, path, is_success, is_bot: false });
}

/// Fewer than usual, because each case replays its log up to twelve times.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(4), ..usual }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn suggested_limits_are_minimal(
        log in prop::collection::vec((0_u64..2_000_000, 0_u8..40), 1..250),
    ) {
        let mut at = 1_000_000_000_000;
        let log: Vec<_> = log.into_iter().map(|(step, client)| { at += step; (at, client) }).collect();
        let mut suggest = Suggest::new(WINDOW, &[], Bounds::default());
        for (at, client) in &log {
            observe(&mut suggest, *at, &Key::new([*client]), "/", true);
        }
        let suggestion = suggest.suggestion(false);
        prop_assert_eq!(suggestion.requests, log.len() as u64);
        let clients = suggestion.clients;
        for level in suggestion.all.levels {
            let allowed = clients - (clients * level.share).div_ceil(10_000);
            let quota = |limit| Quota::new(limit, WINDOW.into());
            let sliding = |limit| Policy::sliding_window_log("p", quota(limit)).unwrap();
            let beyond = denied(&sliding(level.sliding_limit), &log);
            prop_assert_eq!(beyond, level.sliding_beyond);
            prop_assert!(beyond <= allowed);
            if level.sliding_limit > 1 {
                prop_assert!(denied(&sliding(level.sliding_limit - 1), &log) > allowed);
            }
            let bucket = |burst| {
                Policy::token_bucket("p", quota(level.bucket_limit).burst(burst)).unwrap()
            };
            let beyond = denied(&bucket(level.bucket_burst), &log);
            prop_assert_eq!(beyond, level.bucket_beyond);
            prop_assert!(beyond <= allowed);
            if level.bucket_burst > 1 {
                prop_assert!(denied(&bucket(level.bucket_burst - 1), &log) > allowed);
            }
        }
    }

    #[test]
    fn combined_limits_respect_the_level(
        log in prop::collection::vec((0_u64..2_000_000, 0_u8..120, 0_usize..3), 1..600),
        bucket in any::<bool>(),
    ) {
        const PATHS: [&str; 3] = ["/", "/login", "/missing"];
        let mut at = 1_000_000_000_000;
        let mut suggest = Suggest::new(WINDOW, &[], Bounds::default());
        for (step, client, path) in &log {
            at += step;
            observe(&mut suggest, at, &Key::new([*client]), PATHS[*path], *path < 2);
        }
        let suggestion = suggest.suggestion(false);
        for level in 0..3 {
            let policy = |name: &str, fit: &Fit| {
                let Level { sliding_limit, bucket_limit, bucket_burst, .. } = fit.levels[level];
                let quota = |limit| Quota::new(limit, WINDOW.into());
                match bucket {
                    true => Policy::token_bucket(name, quota(bucket_limit).burst(bucket_burst)),
                    false => Policy::sliding_window_log(name, quota(sliding_limit)),
                }.unwrap()
            };
            let all = policy("client", &suggestion.all);
            let routes: Vec<_> =
                suggestion.routes.iter().map(|(path, fit)| (path, policy(path, fit))).collect();
            prop_assert!(routes.iter().all(|(path, _)| **path != PATHS[2]));
            let mut replay = Replay::new();
            let mut at = 1_000_000_000_000;
            let limits = PATHS.map(|path| {
                let route = routes.iter().find(|(route, _)| **route == path);
                let policies = [&all].into_iter().chain(route.map(|(_, policy)| policy));
                Arc::new(Limits::new(policies.cloned().map(Limit::new)))
            });
            for (step, client, path) in &log {
                at += step;
                let (key, limits) = (Key::new([*client]), &limits[*path]);
                let charges = Charges::of_each(limits, &key, Cost::ONE);
                let request = Request::new(Timestamp::from_micros(at), limits, charges);
                replay.request(&mut request.of(Client { key: &key, name: client })).unwrap();
            }
            let share = suggestion.all.levels[level].share;
            let allowed = suggestion.clients - (suggestion.clients * share).div_ceil(10_000);
            prop_assert!(replay.finish().unwrap().clients_denied <= allowed);
        }
    }
}

#[test]
fn sampling_drops_entire_clients() {
    let bounds = Bounds { requests: 1_000, ..Bounds::default() };
    let mut suggest = Suggest::new(WINDOW, &[], bounds);
    for round in 0..4_u64 {
        for client in 0..2_000_u64 {
            let (at, key) = (1_000_000_000 + round * 1_000, Key::new(client.to_be_bytes()));
            observe(&mut suggest, at, &key, "/", true);
        }
    }
    let suggestion = suggest.suggestion(false);
    assert!(suggestion.sample >= 8 && suggestion.clients > 0, "{suggestion:?}");
    assert_eq!(suggestion.all.requests, 4 * suggestion.clients);
    assert!(suggestion.all.levels.iter().all(|level| level.sliding_limit == 4));
    assert_eq!(suggestion.requests, 8_000);
}

const SECOND: u64 = 1_000_000;

#[test]
fn scanners_and_bots_do_not_shape_limits() {
    let mut suggest = Suggest::new(WINDOW, &[], Bounds::default());
    let [scanner, bot, clumsy] = ["scanner", "bot", "clumsy"].map(Key::from);
    let mut at = 1_000 * SECOND;
    for round in 0..50_u64 {
        at += SECOND;
        for client in 0..20_u64 {
            let path = format!("/item/{round}-{client}x");
            observe(&mut suggest, at, &Key::new(client.to_be_bytes()), &path, true);
        }
        for scan in 0..10_u64 {
            observe(
                &mut suggest,
                at,
                &scanner,
                &format!("/admin-{}.php", round * 10 + scan),
                false,
            );
        }
        for _ in 0..5 {
            observe(&mut suggest, at, &bot, "/robots.txt", true);
        }
        // Each of these items would exist, or it is always the same path.
        let path = [format!("/item/gone{round}x"), "/favicon.ico".to_owned()];
        observe(&mut suggest, at, &clumsy, &path[round as usize % 2], false);
    }
    let suggestion = suggest.suggestion(false);
    assert_eq!((suggestion.clients, suggestion.all.clients), (23, 21));
    assert_eq!((suggestion.scanners.clients, suggestion.scanners.in_window), (1, 100));
    assert_eq!((suggestion.bots.clients, suggestion.bots.requests), (1, 250));
    assert!(suggestion.all.levels.iter().all(|level| level.sliding_limit == 10), "{suggestion:?}");
    let mut trial = Trial::new(&suggestion.kinds);
    for (part, client, is_denied) in [
        (Part::Before, &scanner, false),
        (Part::After, &scanner, true),
        (Part::Before, &bot, false),
        (Part::Before, &clumsy, true),
        (Part::After, &clumsy, false),
    ] {
        trial.note(part, client, is_denied);
    }
    let count = |kind, part| {
        let count = trial.count(kind, part);
        (count.clients, count.denied)
    };
    for (part, expected) in [
        (Part::Before, [(1, 1), (1, 0), (1, 0)]),
        (Part::After, [(1, 0), (1, 1), (0, 0)]),
        (Part::Both, [(1, 1), (1, 1), (1, 0)]),
    ] {
        let kinds = [ClientKind::Ordinary, ClientKind::Scanner, ClientKind::Bot];
        assert_eq!(kinds.map(|kind| count(kind, part)), expected);
    }
}

#[test]
fn held_out_requests_do_not_shape_limits() {
    let mut suggest = Suggest::new(WINDOW, &[], Bounds::default());
    for second in 0..=1_000_u64 {
        let later = second > 700;
        let (path, requests) = if later { ("/later", 9) } else { ("/", 1) };
        for _ in 0..requests {
            observe(&mut suggest, (5_000 + second) * SECOND, &Key::from("a"), path, true);
        }
    }
    let suggestion = suggest.suggestion(true);
    assert_eq!(suggestion.until.unwrap().0.as_micros(), 5_700 * SECOND);
    assert_eq!((suggestion.all.requests, suggestion.all.levels[0].sliding_limit), (700, 10));
    assert_eq!(suggestion.routes.iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["/"]);
}
