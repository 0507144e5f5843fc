//! Separate files with Envoy rate limit service rules.

use std::fs;

use tollgate_config::check;
use tollgate_config::{Source, is_rate_limits, read_rate_limits};

use crate::support::{expect_beside, files, plan, root};

#[test]
fn problems_have_place_and_fix() {
    let files = files("rate_limits");
    assert_eq!(files.len(), 2);
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let source = Source::new(name, fs::read_to_string(&file).unwrap());
        assert!(is_rate_limits(&source));
        let (domain, report) = read_rate_limits(&source);
        assert_eq!(domain.is_some(), name == "odd.yaml", "{report}");
        expect_beside(&file.with_extension("expected"), &report.render(false)).unwrap();
    }
}

/// envoyproxy/ratelimit accepts these files.
#[test]
fn optional_keys_may_be_empty() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let five = "domain a\n  k=(any): 5 per minute for each value\n".to_owned();
    for (text, words, warnings) in [
        ("domain: a".to_owned(), "domain a\n".to_owned(), 0),
        ("domain: a\ndescriptors:".to_owned(), "domain a\n".to_owned(), 0),
        ("domain: a\ndescriptors: []".to_owned(), "domain a\n".to_owned(), 0),
        (format!("---\ndomain: a\ndescriptors: [{{key: k, {limit}}}]"), five.clone(), 0),
        (format!("descriptors: [{{key: k, {limit}}}]\ndomain: a\n---\nb: ["), five.clone(), 1),
        (
            format!("domain: a\ndescriptors: [{{key: k, value: null, descriptors: ~, {limit}}}]"),
            five.clone(),
            0,
        ),
        (format!("domain: a\ndescriptors: [{{key: k, value: '', {limit}}}]"), five.clone(), 0),
        (
            format!(
                "domain: a\ndescriptors: [{{key: k, quota_mode: false, shadow_mode: false, \
                 share_threshold: null, {limit}}}]"
            ),
            five,
            0,
        ),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: null, shadow_mode: true}]".to_owned(),
            "domain a\n  k=(any): not limited\n".to_owned(),
            1,
        ),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: {unit: hour, name: '', replaces: []}}]"
                .to_owned(),
            "domain a\n  k=(any): 0 per hour for each value\n".to_owned(),
            1,
        ),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: {unlimited: true, requests_per_unit: 5}}]"
                .to_owned(),
            "domain a\n  k=(any): unlimited\n".to_owned(),
            1,
        ),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 5, \
             algorithm: sliding_window_log}}]"
                .to_owned(),
            "domain a\n  k=(any): 5 per hour for each value, sliding_window_log\n".to_owned(),
            0,
        ),
        (
            format!("domain: a\ndescriptors: [{{key: k, value: v, quota_mode: true, {limit}}}]"),
            "domain a\n  k=v: 5 per minute, denies only together with all quota mode rules\n".to_owned(),
            0,
        ),
    ] {
        let source = Source::new("a.yaml", text.clone());
        assert!(is_rate_limits(&source), "{text}");
        let (domain, report) = read_rate_limits(&source);
        let domain = domain.unwrap_or_else(|| panic!("{text}: {report}"));
        assert_eq!(check::rate_limits_in_words(&domain), words, "{text}");
        assert_eq!(report.warnings(), warnings, "{text}: {report}");
    }
}

#[test]
fn check_describes_the_file() {
    let text = fs::read_to_string(root().join("examples/fronts/ratelimit.yaml")).unwrap();
    let (domain, report) = read_rate_limits(&Source::new("ratelimit.yaml", text));
    assert!(report.problems().is_empty(), "{report}");
    assert_eq!(
        check::rate_limits_in_words(&domain.unwrap()),
        "domain shop
  remote_address=(any): 100 per minute for each value
  remote_address=203.0.113.7: unlimited
  path=/api/*/orders, method=POST: 20 per second
  tokens=(any): 100000 per day for each value
"
    );
}

#[test]
fn decision_only_gateway_serves_other_proxies() {
    let plan = plan(
        "rateLimiter:
  client: {limit: 1, windowSeconds: 1}
  forwardAuth: {trustedProxies: [loopback]}
  rateLimitService: {config: [a.yaml, b.yaml]}
",
    );
    let words = check::in_words(&plan);
    let lines: Vec<_> = words.lines().take(3).collect();
    let expected = [
        "forwardAuth on 127.0.0.1:8082",
        "rateLimitService on 127.0.0.1:8083",
        "admin on 127.0.0.1:8081",
    ];
    assert_eq!(lines, expected);
    assert!(words.contains("\nEnvoy's descriptors are limited by a.yaml, b.yaml\n"), "{words}");
    assert!(words.contains("\nroute default: any host, any path, for other proxies\n"), "{words}");
}
