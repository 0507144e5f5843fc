//! Defaults, variables, and YAML syntax.

use std::fs;
use std::time::Duration;

use http::Method;
use tollgate::limit::OnMissingKey;
use tollgate::policy::OnStoreError;
use tollgate_config::plan::{ForwardingHeader, IdentitySource, Route, StorePlan, Topology, Whose};
use tollgate_proxy::path::PathRules;
use tollgate_proxy::settings::{Address, Connections, Timeouts};

use super::with;
use crate::support::{files, plan, read_text};

fn address(route: &Route) -> &Address {
    &route.target.as_ref().unwrap().upstream.servers.addresses[0]
}

#[test]
fn legacy_file_retains_its_meaning() {
    let file = files("good").into_iter().find(|file| file.ends_with("blog.yaml")).unwrap();
    let plan = plan(&fs::read_to_string(file).unwrap());
    let route = &plan.routes[0];
    assert_eq!(address(route).endpoint.authority.as_str(), "localhost:3000");
    let client = route.limits.client.as_ref().unwrap();
    assert_eq!(
        client.policy().unwrap().to_string(),
        "client: 60 units per 60 seconds, token_bucket"
    );
    let comment = &route.limits.apis[0];
    assert_eq!(comment.limit.name, "comment");
    assert_eq!(comment.limit.whose, Whose::Client);
    assert!(comment.methods.contain("POST") && !comment.methods.contain("GET"));
    assert!(comment.path.matches("/api/item/42/comment"));
    assert!(!comment.path.matches("/api/item/x/comment"));
    assert!(!comment.path.matches("/api/item/42/comment/"));
    // Every request costs 1.
    assert_eq!(comment.limit.costs.of(&Method::DELETE, "/api/item/42/comment").get(), 1);
    // Only loopback peers are trusted to set the header.
    let [IdentitySource::Ip { trusted_proxies, header, .. }] = &*plan.identity else { panic!() };
    assert_eq!(header, &Some(ForwardingHeader::XForwardedFor));
    assert!(trusted_proxies.contains("127.0.0.1".parse().unwrap()));
    assert!(!trusted_proxies.contains("172.17.0.1".parse().unwrap()));
}

#[test]
fn target_may_be_top_level() {
    let plan = plan(
        "target: https://example.com/base/\nrateLimiter:\n  client: {limit: 1, windowSeconds: 1}\n",
    );
    let address = address(&plan.routes[0]);
    assert_eq!((address.endpoint.scheme.as_str(), &*address.base_path), ("https", "/base"));
}

#[test]
fn defaults_match_the_documentation() {
    let plan = with("");
    assert_eq!(plan.listen[0].1.address, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(plan.admin.address, "127.0.0.1:8081".parse().unwrap());
    let admin = with("  admin: {peers: [\"http://10.0.0.7:8081\"]}\n").admin;
    assert_eq!((admin.address, admin.peers.unwrap().len()), (plan.admin.address, 1));
    let StorePlan::Memory(memory) = &plan.store else { panic!() };
    assert_eq!((memory.max_keys, memory.max_bytes), (1_000_000, 256 << 20));
    assert_eq!((plan.on_missing_key, plan.missing_key_status.as_u16()), (OnMissingKey::Deny, 403));
    assert_eq!(plan.paths, PathRules::default());
    let seconds = |span: Duration| span.as_secs();
    let t = &plan.timeouts;
    let timeouts = [t.response, t.idle, t.tunnel, t.request_header];
    assert_eq!(timeouts.map(seconds), [60, 60, 3_600, 10]);
    let target = &plan.routes[0].target.as_ref().unwrap().upstream;
    let up = Timeouts { response: t.response, body: t.idle, tunnel: t.tunnel };
    assert_eq!(target.timeouts, up);
    let to = target.servers.connections;
    let ages = [to.timeout, to.idle, to.max_age, to.lookup_interval];
    assert_eq!(ages.map(seconds), [5, 30, 300, 10]);
    assert_eq!([t.keep_alive, t.drain].map(seconds), [75, 30]);
    // An unset key in a section has the same default.
    assert_eq!(with("  timeouts: {connect: 5s}\n").timeouts, *t);
    assert_eq!(with("  headers: {rateLimit: true}\n  store: {memory: {}}\n").store, plan.store);
    let [IdentitySource::Ip { header: None, v4_prefix: 32, v6_prefix: 64, .. }] = &*plan.identity
    else {
        panic!("{:?}", plan.identity)
    };
}

#[test]
fn targets_inherit_missing_timeouts() {
    let plan = with(
        "  timeouts:
    {connect: 1s, response: 2s, idle: 3s, tunnel: 4s, pool: 5s, connectionAge: 6s, addressAge: 7s}
  routes:
    - name: events
      path: /events
      target: {url: 'http://a', timeouts: {connect: 11s, idle: 13s, pool: 15s, addressAge: 17s}}
    - name: api
      path: /api
      target: {url: 'http://b', timeouts: {response: 12s, tunnel: 14s, connectionAge: 16s}}
",
    );
    let seconds = |route: usize| {
        let target = &plan.routes[route].target.as_ref().unwrap().upstream;
        let (Timeouts { response, body, tunnel }, to) =
            (target.timeouts, target.servers.connections);
        let Connections { timeout, idle, max_age, lookup_interval } = to;
        [timeout, response, body, tunnel, idle, max_age, lookup_interval].map(|it| it.as_secs())
    };
    assert_eq!(seconds(0), [11, 2, 13, 4, 15, 6, 17]);
    assert_eq!(seconds(1), [1, 12, 3, 14, 5, 16, 7]);
    assert_eq!(seconds(2), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn redis_secrets_are_not_shown() {
    let plan = with(
        "  store:
    redis: {url: '${REDIS_URL}', timeoutMs: 20, topology: cluster, keySecret: '${REDIS_KEY_SECRET}', localShare: 1/3}
  onStoreError: closed
",
    );
    let StorePlan::Redis(redis) = &plan.store else { panic!() };
    assert_eq!((redis.timeout, redis.local_share), (Duration::from_millis(20), Some((1, 3))));
    assert_eq!(redis.topology, Topology::Cluster);
    assert_eq!(redis.url.reveal(), "redis://:hunter2@localhost:6379");
    let client = plan.routes[0].limits.client.as_ref().unwrap();
    assert_eq!(client.on_store_error(), OnStoreError::Closed);
    let shown = format!("{plan:?}{}", tollgate_config::check::in_words(&plan));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn variables_expand_only_to_values() {
    let plan = with(
        "  apis:
    - {identifier: '${NOT_SET:-from a default}', path: '/${NOT_SET:-p}', limit: '${LIMIT_OF_TEST}', windowSeconds: 60}
    - {identifier: '$${literal}', path: /b, limit: 1, windowSeconds: 60}
",
    );
    let [api, literal] = &*plan.routes[0].limits.apis else { panic!() };
    assert_eq!(
        api.limit.policy().unwrap().to_string(),
        "from a default: 7 units per 60 seconds, sliding_window_counter"
    );
    assert!(api.path.matches("/p"));
    assert_eq!(literal.limit.name, "${literal}");
    // A variable's value cannot add a key or a comment, and a variable cannot be a key.
    let env = |_: &str| Some("x\n  shadow: true # ".to_owned());
    let source = tollgate_config::Source::new(
        "env",
        "rateLimiter:\n  target: http://localhost\n  client: {identifier: '${A}', limit: 1, windowSeconds: 1}\n",
    );
    let report = tollgate_config::read(&source, &env).report;
    assert_eq!(report.errors(), 1, "{report}");
    assert!(
        read_text("key", "${LIMIT_OF_TEST}: 1\n").report.to_string().contains("no key `${LIMIT")
    );
}

#[test]
fn aliases_expand_to_their_anchor() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost
  client: &quota {limit: 10, windowSeconds: 60}
  tiers:
    pro: *quota
",
    );
    let client = plan.routes[0].limits.client.as_ref().unwrap();
    assert_eq!(client.quotas_in(Some(0)).next().unwrap().quota().limit(), 10);
}

#[test]
fn byte_order_mark_and_crlf_are_accepted() {
    let text = "\u{feff}rateLimiter:\r\n  target: http://localhost # ü\r\n  client:\r\n    limit: 5\r\n    windowSeconds: 60\r\n";
    assert_eq!(
        plan(text).routes[0].limits.client.as_ref().unwrap().policy().unwrap().quota().limit(),
        5
    );
    // Positions in messages must match those in an editor.
    let report = read_text("crlf", &text.replace("limit: 5", "limit: x")).report;
    assert!(report.to_string().starts_with("crlf:4:12: error[TG0012]: "), "{report}");
    assert!(report.render(false).contains("4 |     limit: x"), "{}", report.render(false));
}

#[test]
fn single_listener_needs_no_list() {
    let listen = |value: &str| {
        let text = format!("rateLimiter:\n  target: http://a\n  listen: {value}\n");
        plan(&text)
            .listen
            .iter()
            .map(|(_, it)| (it.address, it.max_connections))
            .collect::<Vec<_>>()
    };
    let alone = listen("{address: 127.0.0.1:8000, maxConnections: 7}");
    assert_eq!(alone, [("127.0.0.1:8000".parse().unwrap(), Some(7))]);
    assert_eq!(alone, listen("[{address: 127.0.0.1:8000, maxConnections: 7}]"));
}

#[test]
fn log_sample_may_be_a_fraction() {
    for (sample, expected) in [
        ("1/4", 0.25),
        ("3 / 4", 0.75),
        ("7/7", 1.0),
        ("0.25", 0.25),
        ("0.05", 0.05),
        (".5", 0.5),
        ("0", 0.0),
        ("1", 1.0),
    ] {
        let plan = with(&format!("  accessLog: {{sample: {sample}}}\n"));
        assert_eq!(plan.access_log.map(|log| log.sample), Some(expected), "{sample}");
    }
}

#[test]
fn samples_are_described_as_shares() {
    for (sample, share) in [("", "all"), (", sample: 1", "all"), (", sample: 0.07", "7% of the")] {
        let plan = with(&format!(
            "  accessLog: {{file: a.log{sample}}}\n  tracing: {{endpoint: 'http://a:4318'{sample}}}"
        ));
        let words = tollgate_config::check::in_words(&plan);
        for text in [
            format!("requests from {share} clients are logged to a.log\n"),
            format!(": {share} traces that start here\n"),
        ] {
            assert!(words.contains(&text), "{text}: {words}");
        }
    }
}

#[test]
fn admin_token_silences_its_warning() {
    let text =
        "rateLimiter: {target: http://a, client: {limit: 1, window: 1s}, admin: 0.0.0.0:9000}";
    let warnings = |token: Option<&str>| {
        let env = |name: &str| token.filter(|_| name == "TOLLGATE_ADMIN_TOKEN").map(str::to_owned);
        tollgate_config::read(&tollgate_config::Source::new("a.yaml", text), &env).report.warnings()
    };
    assert_eq!([warnings(None), warnings(Some("")), warnings(Some("t0ken"))], [1, 1, 0]);
}
