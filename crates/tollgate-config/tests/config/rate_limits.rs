//! Separate files with Envoy rate limit service rules.

use std::fs;

use tollgate_config::check;
use tollgate_config::plan::RateLimitDomain;
use tollgate_config::{Source, is_rate_limits, read_rate_limits};

use crate::support::{expect_beside, files, plan, root};

fn in_words(domains: &[RateLimitDomain]) -> String {
    domains.iter().map(check::rate_limits_in_words).collect()
}

#[test]
fn problems_have_place_and_fix() {
    let files = files("rate_limits");
    assert_eq!(files.len(), 5);
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let source = Source::new(name, fs::read_to_string(&file).unwrap());
        assert!(is_rate_limits(&source));
        let (domain, report) = read_rate_limits(&source);
        assert_eq!(domain.is_some(), name.contains("odd"), "{report}");
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
        let (domains, report) = read_rate_limits(&source);
        let domains = domains.unwrap_or_else(|| panic!("{text}: {report}"));
        assert_eq!(in_words(&domains), words, "{text}");
        assert_eq!(report.warnings(), warnings, "{text}: {report}");
    }
}

/// envoyproxy/ratelimit reads files with go-yaml.
#[test]
fn yaml_1_1_forms_have_the_same_meaning() {
    let limit = |fields: &str| format!("{{key: k, rate_limit: {{unit: minute, {fields}}}}}");
    let minute =
        |number: &str| format!("domain a\n  k=(any): {number} per minute for each value\n");
    for (number, expected) in
        [("1_000", "1000"), ("0x64", "100"), ("0144", "100"), ("0o144", "100"), ("0b11", "3")]
    {
        let text =
            format!("domain: a\ndescriptors: [{}]", limit(&format!("requests_per_unit: {number}")));
        let (domains, report) = read_rate_limits(&Source::new("a.yaml", text));
        assert_eq!(in_words(&domains.unwrap()), minute(expected), "{number}: {report}");
    }
    // Values are texts, and remain as they are.
    let text = "domain: 0x64\ndescriptors: [{key: yes, value: 1_000, shadow_mode: on, rate_limit: {unlimited: Yes}}]";
    let (domains, report) = read_rate_limits(&Source::new("a.yaml", text));
    let expected = "domain 0x64\n  yes=1_000: unlimited, not enforced\n";
    assert_eq!(in_words(&domains.unwrap()), expected, "{report}");
    let text = "domain: a
descriptors:
  - &first
    key: a
    rate_limit: &limit {unit: hour, requests_per_unit: 5}
  - {<<: *first, key: b}
  - {rate_limit: {requests_per_unit: 7, <<: *limit}, key: c}
  - {key: d, rate_limit: {<<: [{unit: day}, *limit, {unit: second, name: n}]}}
";
    let (domains, report) = read_rate_limits(&Source::new("a.yaml", text));
    assert_eq!(
        in_words(&domains.unwrap()),
        "domain a
  a=(any): 5 per hour for each value
  b=(any): 5 per hour for each value
  c=(any): 7 per hour for each value
  d=(any): 5 per day for each value
",
        "{report}"
    );
    assert_eq!(report.warnings(), 0);
}

/// A gateway configuration has the forms of YAML 1.2, and no merge keys.
#[test]
fn configurations_have_no_yaml_1_1_forms() {
    for client in ["{limit: 0x64, windowSeconds: 1}", "{limit: 5, <<: {windowSeconds: 1}}"] {
        let text = format!("rateLimiter:\n  target: http://localhost:1\n  client: {client}\n");
        let outcome = tollgate_config::read(&Source::new("a.yaml", text), &|_| None);
        assert!(outcome.plan.is_none(), "{client}");
    }
}

#[test]
fn config_maps_contain_rules() {
    let rules = |domain: &str, key: &str| {
        format!(
            "domain: {domain}\ndescriptors:\n- {{key: {key}, rate_limit: {{unlimited: true}}}}\n"
        )
    };
    let indented = |text: String, by: usize| text.replace('\n', &format!("\n{}", " ".repeat(by)));
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\n";
    let block = format!("{object}data:\n  a.yaml: |\n    {}", indented(rules("a", "é"), 4));
    let quoted = format!("{object}data: {{a.yaml: {:?}}}\n", rules("a", "é"));
    let folded = format!(
        "{object}data:\n  a.yaml: >-\n    {}",
        indented(rules("a", "é").replace('\n', "\n\n"), 4)
    );
    let a = "domain a\n  é=(any): unlimited\n";
    let b = "domain b\n  y=(any): unlimited\n";
    let envoy = "data: {envoy.yaml: 'static_resources: {}', script: 'echo ${1%x}', LEVEL: debug}\n";
    for (text, expected) in [
        (block.clone(), a.to_owned()),
        (block.replace('\n', "\r\n"), a.to_owned()),
        (block.replace("a.yaml: |\n", "a.yaml: |\n    ---\n"), a.to_owned()),
        (quoted.clone(), a.to_owned()),
        (folded, a.to_owned()),
        (format!("{block}\n  b.yaml: |\n    {}", indented(rules("b", "y"), 4)), format!("{a}{b}")),
        (
            format!(
                "{object}{envoy}---\n{block}\n---\n{}",
                quoted.replace("domain: a", "domain: b").replace("é", "y")
            ),
            format!("{a}{b}"),
        ),
        (
            format!(
                "apiVersion: v1\nkind: List\nitems:\n- {}\n- kind: Service\n",
                indented(block.clone(), 2)
            ),
            a.to_owned(),
        ),
    ] {
        let source = Source::new("a.yaml", text.clone());
        assert!(is_rate_limits(&source), "{text}");
        let (domains, report) = read_rate_limits(&source);
        let domains = domains.unwrap_or_else(|| panic!("{text}: {report}"));
        assert_eq!(in_words(&domains), expected, "{text}");
        assert_eq!(report.warnings(), 0, "{text}: {report}");
    }
}

#[test]
fn check_describes_the_file() {
    let text = fs::read_to_string(root().join("examples/fronts/ratelimit.yaml")).unwrap();
    let (domain, report) = read_rate_limits(&Source::new("ratelimit.yaml", text));
    assert!(report.problems().is_empty(), "{report}");
    assert_eq!(
        in_words(&domain.unwrap()),
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
