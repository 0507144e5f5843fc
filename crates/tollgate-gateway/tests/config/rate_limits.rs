//! Rules of Envoy's Rate Limit Service in files of their own.

use std::fs;

use tollgate_gateway::check;
use tollgate_gateway::config::{Source, is_rate_limits, read_rate_limits};

use crate::support::{expect_beside, files, plan, root};

#[test]
fn everything_wrong_with_a_file_is_told_with_its_place_and_cure() {
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

#[test]
fn a_file_is_told_in_words() {
    let text = fs::read_to_string(root().join("examples/fronts/ratelimit.yaml")).unwrap();
    let (domain, report) = read_rate_limits(&Source::new("ratelimit.yaml", text));
    assert!(report.problems().is_empty(), "{report}");
    assert_eq!(
        check::rate_limits_in_words(&domain.unwrap()),
        "domain shop
  remote_address=(any): 100 per minute for each value
  remote_address=203.0.113.7: unlimited
  path=/api/*/orders, method=POST: 20 per second
"
    );
}

#[test]
fn a_gateway_that_only_decides_listens_for_proxies_alone() {
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
    assert!(words.contains("\ndescriptors of Envoy are limited by a.yaml, b.yaml\n"), "{words}");
    assert!(words.contains("\nroute default: any host, any path, for other proxies\n"), "{words}");
}
