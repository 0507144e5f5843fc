//! Golden lines: a verdict on the left, and the exact headers that a client receives on the right.

mod any;

use http::HeaderName;
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate_core::{Algorithm, Calendar, Cost, Micros, Policy, Quota, Refill, Strikes};

use super::*;
use crate::denial::Denial;

/// 2026-09-21T14:13:20.5Z
const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_500_000);
const ALLOW: Outcome = Outcome::Allow { delay: Micros::ZERO, charged_at: NOW, refunded: 0 };

const fn deny(micros: u64) -> Outcome {
    Outcome::Deny { retry_after: Micros::new(micros) }
}

fn decision(policy: &Policy, outcome: Outcome, remaining: u64, reset_after: u64) -> Decision {
    Decision { outcome, limit: policy.capacity(), remaining, reset_after: Micros::new(reset_after) }
}

type Shown = Vec<(Policy, Decision)>;

/// Writes all headers for the verdict, including those for a denial.
fn write(headers: &mut HeaderMap, options: HeaderOptions, shown: &[(Policy, Decision)]) {
    let fields: Vec<_> = shown.iter().map(|it| PolicyFields::new(&it.0)).collect();
    let shown = || fields.iter().zip(shown).map(|(fields, it)| (fields, &it.1, Cost::ONE));
    let is_denial = shown().any(|(_, decision, _)| decision.denies());
    options.write(headers, NOW, is_denial, shown());
    if is_denial {
        let denial = Denial::of_verdict(NOW, shown(), &options, 7);
        if let Some(seconds) = denial.retry_after_secs() {
            write_retry_after(headers, seconds);
        }
    }
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    let line =
        |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
    headers.iter().map(line).collect()
}

fn rendered(options: HeaderOptions, shown: &[(Policy, Decision)]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    write(&mut headers, options, shown);
    lines(&headers)
}

/// A list header's members: names and their integer parameters.
fn parsed(headers: &HeaderMap, name: &HeaderName) -> Vec<(String, Vec<(String, u64)>)> {
    let lines = headers.get_all(name).iter().map(|v| v.to_str().unwrap());
    let list: List = Parser::new(&lines.collect::<Vec<_>>().join(", ")).parse().unwrap();
    let member = |entry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list") };
        let BareItem::String(name) = item.bare_item else { panic!("the name is not a string") };
        let integer = |value| match value {
            BareItem::Integer(number) => u64::try_from(i64::from(number)).unwrap(),
            other => panic!("{other:?} is not an integer"),
        };
        let params = item.params.into_iter();
        let params = params.map(|(key, value)| (key.into(), integer(value)));
        (name.as_str().to_owned(), params.collect())
    };
    list.into_iter().map(member).collect()
}

#[test]
fn verdicts_render_expected_headers() {
    const S: u64 = 1_000_000;
    let per_minute = Quota::per_minute(100);
    let bucket = Policy::token_bucket("default", per_minute).unwrap();
    let burst = Policy::token_bucket("burst", Quota::per_hour(1_000).burst(50)).unwrap();
    let fixed = Policy::fixed_window_counter("fixed", per_minute).unwrap();
    let counter = Policy::sliding_window_counter("counter", per_minute).unwrap();
    let log = Policy::sliding_window_log("log", Quota::per_day(10_000)).unwrap();
    let in_steps = Algorithm::TokenBucket { refill: Refill::Interval };
    let steps = Policy::new("steps", Quota::per_minute(10).burst(25), in_steps).unwrap();
    let short = Policy::fixed_window_counter("short", Quota::new(5, Duration::from_millis(250)));
    let short = short.unwrap();
    let quoted = Policy::fixed_window_counter(r#"a "b" \c"#, Quota::per_second(1)).unwrap();
    let odd = Policy::token_bucket("odd", Quota::per_second(3).burst(7)).unwrap();
    let huge = Policy::sliding_window_log("huge", Quota::per_day(Policy::MAX_LIMIT)).unwrap();
    let ends = [1_790_000_000, 1_790_090_000, 1_790_172_800].map(|s| Timestamp::from_micros(s * S));
    let calendar = Calendar::new("day", ends).unwrap();
    let daily = Policy::fixed_window_counter("daily", Quota::per_calendar(100, calendar)).unwrap();
    let name = "n".repeat(128);
    let long = Policy::fixed_window_counter(&*name, Quota::per_second(1)).unwrap();

    let allowed = |policy: &Policy, remaining, reset_after| {
        let decision = decision(policy, ALLOW, remaining, reset_after);
        (policy.clone(), decision)
    };
    let with = |policy: &Policy, outcome, remaining, reset_after| {
        let decision = decision(policy, outcome, remaining, reset_after);
        (policy.clone(), decision)
    };
    #[rustfmt::skip]
    let table: Vec<(Shown, [String; 6])> = vec![
        // 42 units at 100 per minute take 25.2 seconds.
        (vec![allowed(&bucket, 42, 34_800_000)], fields(r#""default";q=100;w=60"#, r#""default";r=42;t=26"#, [100, 42, 1_790_000_036], None)),
        // No units remain. The next unit is at most 0.6 seconds away.
        (vec![allowed(&bucket, 0, 60 * S)], fields(r#""default";q=100;w=60"#, r#""default";r=0;t=1"#, [100, 0, 1_790_000_061], None)),
        (vec![with(&bucket, deny(1_200_000), 3, 58 * S)], fields(r#""default";q=100;w=60"#, r#""default";r=3;t=2"#, [100, 3, 1_790_000_059], Some(2))),
        // 50 units take three minutes to refill.
        (vec![allowed(&burst, 49, 3_600_000)], fields(r#""burst";q=50;w=180"#, r#""burst";r=49;t=177"#, [50, 49, 1_790_000_005], None)),
        // The window is over in 10 seconds, but 60 units take 36 seconds.
        (vec![allowed(&fixed, 60, 10 * S)], fields(r#""fixed";q=100;w=60"#, r#""fixed";r=60;t=36"#, [100, 60, 1_790_000_011], None)),
        // No units are refilled before the end of the window.
        (vec![allowed(&fixed, 0, 10 * S)], fields(r#""fixed";q=100;w=60"#, r#""fixed";r=0;t=10"#, [100, 0, 1_790_000_011], None)),
        // All charges expire in 90 seconds, and the first unit 59.4 seconds earlier.
        (vec![allowed(&counter, 0, 90 * S)], fields(r#""counter";q=100;w=60"#, r#""counter";r=0;t=31"#, [100, 0, 1_790_000_091], None)),
        // A log does not show when its first charge expires.
        (vec![allowed(&log, 0, 600 * S)], fields(r#""log";q=10000;w=86400"#, r#""log";r=0;t=600"#, [10_000, 0, 1_790_000_601], None)),
        // Peeking at an unused key.
        (vec![allowed(&fixed, 100, 0)], fields(r#""fixed";q=100;w=60"#, r#""fixed";r=100;t=60"#, [100, 100, 1_790_000_001], None)),
        // Refills of ten units per minute happen in steps: the next in 20 seconds, the last in 140.
        (vec![allowed(&steps, 1, 140 * S)], fields(r#""steps";q=25;w=180"#, r#""steps";r=1;t=20"#, [25, 1, 1_790_000_141], None)),
        // Days differ in length, so there is no `w`. The quota is full again at the end of the day.
        (vec![allowed(&daily, 99, 89_999_500_000)], fields(r#""daily";q=100"#, r#""daily";r=99;t=90000"#, [100, 99, 1_790_090_000], None)),
        (vec![with(&daily, deny(82_799_500_000), 3, 82_799_500_000)], fields(r#""daily";q=100"#, r#""daily";r=3;t=82800"#, [100, 3, 1_790_082_800], Some(82_800))),
        // Seven units take two and a third seconds, which is not a valid `w`.
        (vec![allowed(&odd, 7, 0)], fields(r#""odd";q=7"#, r#""odd";r=7;t=3"#, [7, 7, 1_790_000_001], None)),
        // A window shorter than a second has no `w`.
        (vec![with(&short, deny(1), 0, 1)], fields(r#""short";q=5"#, r#""short";r=0;t=1"#, [5, 0, 1_790_000_001], Some(1))),
        (vec![allowed(&quoted, 0, 300_000)], fields(r#""a \"b\" \\c";q=1;w=1"#, r#""a \"b\" \\c";r=0;t=1"#, [1, 0, 1_790_000_001], None)),
        (vec![allowed(&huge, 999_999_999_999, 86_400 * S)], fields(r#""huge";q=1000000000000;w=86400"#, r#""huge";r=999999999999;t=86400"#, [1_000_000_000_000, 999_999_999_999, 1_790_086_401], None)),
        // Two policies allow: the tighter is shown.
        (vec![allowed(&log, 4_000, 86_400 * S), allowed(&bucket, 41, 35_400_000)], fields(
            r#""log";q=10000;w=86400, "default";q=100;w=60"#, r#""log";r=4000;t=34560, "default";r=41;t=25"#, [10_000, 4_000, 1_790_086_401], None)),
        // One policy denies, and the other would have allowed.
        (vec![with(&log, Outcome::WouldAllow, 9, 86_400 * S), with(&bucket, deny(600_000), 0, 60 * S)], fields(
            r#""log";q=10000;w=86400, "default";q=100;w=60"#, r#""log";r=9;t=78, "default";r=0;t=1"#, [100, 0, 1_790_000_061], Some(1))),
        // Both deny: the longer wait is shown.
        (vec![with(&bucket, deny(600_000), 0, 60 * S), with(&log, deny(90 * S), 0, 86_000 * S)], fields(
            r#""default";q=100;w=60, "log";q=10000;w=86400"#, r#""default";r=0;t=1, "log";r=0;t=90"#, [10_000, 0, 1_790_086_001], Some(90))),
        // A request that exceeds a capacity has no Retry-After, even if another policy has a wait.
        (vec![with(&bucket, Outcome::ExceedsCapacity, 100, 0), with(&log, deny(90 * S), 0, 86_000 * S)], fields(
            r#""default";q=100;w=60, "log";q=10000;w=86400"#, r#""default";r=100;t=60, "log";r=0;t=90"#, [100, 100, 1_790_000_001], None)),
        // Undecided policies are omitted.
        (vec![(log.clone(), Decision::undecided(10_000)), allowed(&bucket, 42, 34_800_000)], fields(
            r#""default";q=100;w=60"#, r#""default";r=42;t=26"#, [100, 42, 1_790_000_036], None)),
        (vec![allowed(&long, 0, S), allowed(&bucket, 99, 600_000)], fields(
            &format!(r#""{name}";q=1;w=1, "default";q=100;w=60"#), &format!(r#""{name}";r=0;t=1, "default";r=99;t=60"#), [1, 0, 1_790_000_002], None)),
    ];
    for (shown, expected) in &table {
        let expected: Vec<_> = expected.iter().filter(|line| !line.is_empty()).collect();
        let mut lines = rendered(HeaderOptions::all(), shown);
        // `Remaining` is written first, because its insertion returns an inner service's header.
        lines.swap(2, 3);
        assert_eq!(lines.iter().collect::<Vec<_>>(), expected, "{shown:?}");

        let mut headers = HeaderMap::new();
        write(&mut headers, HeaderOptions::all(), shown);
        let named = |(name, _): (String, _)| name;
        let names: Vec<_> = parsed(&headers, &RATELIMIT).into_iter().map(named).collect();
        let policies = parsed(&headers, &RATELIMIT_POLICY).into_iter().map(named);
        assert_eq!(policies.collect::<Vec<_>>(), names);
        let decided = shown.iter().filter(|it| it.1.outcome != Outcome::Undecided);
        assert_eq!(decided.map(|it| it.0.name()).collect::<Vec<_>>(), names);
    }
}

fn fields(policy: &str, state: &str, x: [u64; 3], retry_after: Option<u64>) -> [String; 6] {
    [
        format!("ratelimit-policy: {policy}"),
        format!("ratelimit: {state}"),
        format!("x-ratelimit-limit: {}", x[0]),
        format!("x-ratelimit-remaining: {}", x[1]),
        format!("x-ratelimit-reset: {}", x[2]),
        retry_after.map_or_else(String::new, |seconds| format!("retry-after: {seconds}")),
    ]
}

fn single_policy(remaining: u64) -> [(Policy, Decision); 1] {
    let policy = Policy::fixed_window_counter("ours", Quota::per_minute(100)).unwrap();
    let decision = decision(&policy, ALLOW, remaining, 1_000_000);
    [(policy, decision)]
}

#[test]
fn header_groups_can_be_disabled() {
    let names = |options| {
        let lines = rendered(options, &single_policy(5));
        let name = |line: &String| line.split(':').next().unwrap().to_owned();
        lines.iter().map(name).collect::<Vec<_>>().join(" ")
    };
    let all = HeaderOptions::all();
    assert_eq!(names(all.x_ratelimit(false)), "ratelimit-policy ratelimit");
    assert_eq!(
        names(all.ratelimit(false)),
        "x-ratelimit-remaining x-ratelimit-limit x-ratelimit-reset"
    );
    assert_eq!(names(all.ratelimit(false).x_ratelimit(false)), "");
}

#[test]
fn undecided_verdict_has_no_headers() {
    let policy = Policy::fixed_window_counter("p", Quota::per_second(1)).unwrap();
    let shown = [(policy, Decision::undecided(1))];
    assert_eq!(rendered(HeaderOptions::all(), &shown), [""; 0]);
    assert_eq!(rendered(HeaderOptions::all(), &[]), [""; 0]);
}

#[test]
fn quota_share_shows_own_limit() {
    let mut shown = single_policy(9);
    shown[0].1.limit = 33;
    let lines = rendered(HeaderOptions::all(), &shown);
    assert!(lines.contains(&"x-ratelimit-limit: 33".to_owned()));
    assert!(lines.contains(&r#"ratelimit-policy: "ours";q=100;w=60"#.to_owned()));
}

#[test]
fn inner_lists_are_extended() {
    let mut headers = HeaderMap::new();
    headers.append(RATELIMIT, HeaderValue::from_static(r#""a";r=1, "b";r=2"#));
    headers.append(RATELIMIT, HeaderValue::from_static(r#""c";r=3"#));
    write(&mut headers, HeaderOptions::all(), &single_policy(5));
    let members = parsed(&headers, &RATELIMIT).into_iter();
    let names: Vec<_> = members.map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c", "ours"]);
}

#[test]
fn tighter_x_ratelimit_set_wins() {
    for (theirs, expected) in [
        // Our set is 5 of 100, and theirs is out of 7.
        (&["0"][..], ["7", "0", "9"]),
        (&["1"], ["100", "5", "1790000002"]),
        (&["10"], ["100", "5", "1790000002"]),
        (&["4;w=1"], ["100", "5", "1790000002"]),
        (&["-1"], ["100", "5", "1790000002"]),
        (&[""], ["100", "5", "1790000002"]),
        (&["0", "3"], ["7", "0", "9"]),
        (&[], ["100", "5", "1790000002"]),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(X_RATELIMIT_LIMIT, HeaderValue::from_static("7"));
        for line in theirs {
            headers.append(X_RATELIMIT_REMAINING, HeaderValue::from_static(line));
        }
        headers.insert(X_RATELIMIT_RESET, HeaderValue::from_static("9"));
        write(&mut headers, HeaderOptions::all(), &single_policy(5));
        let names = [X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET];
        for (name, expected) in names.iter().zip(expected) {
            let lines: Vec<_> = headers.get_all(name).iter().collect();
            assert_eq!(lines, [expected], "{name} {theirs:?}");
        }
    }
}

#[test]
fn headers_by_policy_include_its_name() {
    let requests = Policy::token_bucket("requests", Quota::per_minute(60)).unwrap();
    let tokens = Policy::token_bucket("chat tokens", Quota::per_hour(10_000)).unwrap();
    let wait = decision(&tokens, deny(500_000), 40, 360_000_000);
    let shown = [(requests.clone(), decision(&requests, ALLOW, 59, 1_000_000)), (tokens, wait)];
    let options = HeaderOptions::default().ratelimit(false).x_ratelimit_by_policy();
    let expected = [
        "x-ratelimit-limit-requests: 60",
        "x-ratelimit-remaining-requests: 59",
        "x-ratelimit-reset-requests: 1s",
        "x-ratelimit-limit-chat-tokens: 10000",
        "x-ratelimit-remaining-chat-tokens: 40",
        "x-ratelimit-reset-chat-tokens: 6m0s",
        "retry-after: 1",
    ];
    assert_eq!(rendered(options, &shown), expected);
    assert_eq!(rendered(options, &shown[..1]), expected[..3]);
    let strikes = Strikes::of_denials(3, Duration::from_secs(60));
    let banned = Policy::penalty("banned", strikes).unwrap();
    let blocks = decision(&banned, deny(57_000_000), 0, 3_600_000_000);
    let expected = [
        "x-ratelimit-limit-banned: 0",
        "x-ratelimit-remaining-banned: 0",
        "x-ratelimit-reset-banned: 57s",
        "retry-after: 57",
    ];
    assert_eq!(rendered(options, &[(banned, blocks)]), expected);
}

#[test]
fn shared_headers_describe_the_tightest_policy() {
    let [key, team] = [("tokens", 100), ("tokens/team", 1_000)]
        .map(|(name, limit)| Policy::token_bucket(name, Quota::per_hour(limit)).unwrap());
    let fields = [PolicyFields::new(&key), PolicyFields::new(&team).named("tokens")];
    let allowed = |policy, remaining| decision(policy, ALLOW, remaining, 1_000_000);
    for (of_key, of_team, expected) in [
        // The key has the larger share of its limit left, but fewer units.
        (allowed(&key, 50), allowed(&team, 60), ["100", "50"]),
        (allowed(&key, 50), allowed(&team, 40), ["1000", "40"]),
        (allowed(&key, 50), decision(&team, deny(1), 60, 1), ["1000", "60"]),
        (decision(&key, deny(2), 9, 1), decision(&team, deny(1), 8, 1), ["100", "9"]),
    ] {
        let decisions = [of_key, of_team];
        for order in [[0, 1], [1, 0]] {
            let mut headers = HeaderMap::new();
            let shown = order.iter().map(|it| (&fields[*it], &decisions[*it], Cost::ONE));
            let options = HeaderOptions::default().ratelimit(false).x_ratelimit_by_policy();
            options.write(&mut headers, NOW, false, shown);
            let shown = ["limit", "remaining"]
                .map(|it| headers[format!("x-ratelimit-{it}-tokens")].to_str().unwrap());
            assert_eq!((shown, headers.len()), (expected, 3));
        }
    }
}

#[test]
fn hidden_policy_has_no_headers() {
    let policy = |name: &str| Policy::token_bucket(name, Quota::per_minute(60)).unwrap();
    let [shown, hidden] = ["shown", "hidden"].map(policy);
    let decisions = [decision(&shown, ALLOW, 59, 1_000_000), decision(&hidden, ALLOW, 1, 1)];
    let fields = [PolicyFields::new(&shown), PolicyFields::new(&hidden).hidden(true)];
    for options in [HeaderOptions::all(), HeaderOptions::default().x_ratelimit_by_policy()] {
        let write = |shown: &[usize]| {
            let mut headers = HeaderMap::new();
            let shown = shown.iter().map(|it| (&fields[*it], &decisions[*it], Cost::ONE));
            options.write(&mut headers, NOW, false, shown);
            lines(&headers)
        };
        assert_eq!(write(&[1, 0]), write(&[0]));
        assert_eq!(write(&[0, 1]).len(), 5);
        for shown in [&[1][..], &[1, 1]] {
            assert_eq!(write(shown), Vec::<String>::new());
        }
    }
}

#[test]
fn inner_denial_retains_x_ratelimit() {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [(X_RATELIMIT_LIMIT, "9"), (X_RATELIMIT_REMAINING, "8"), (RETRY_AFTER, "3")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    write(&mut headers, HeaderOptions::all(), &single_policy(5));
    assert_eq!(headers[X_RATELIMIT_LIMIT], "9");
    assert_eq!(headers[X_RATELIMIT_REMAINING], "8");
}

#[test]
fn larger_retry_after_wins() {
    for (theirs, expected) in [
        ("3", "5"),
        ("5", "5"),
        ("60", "60"),
        ("soon", "5"),
        ("Mon, 21 Sep 2026 14:13:20 GMT", "5"),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static(theirs));
        write_retry_after(&mut headers, 5);
        assert_eq!(headers.get_all(RETRY_AFTER).iter().count(), 1);
        assert_eq!(headers[RETRY_AFTER], expected, "{theirs}");
    }
}
