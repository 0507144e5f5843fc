//! What a file means.

use std::fs;
use std::time::Duration;

use http::Method;
use tollgate::{Algorithm, Cost, Excess, LeakyMode, Micros, OnMissingKey, OnStoreError, Refill};
use tollgate_gateway::plan::{
    ApiKeyPlace, ForwardingHeader, IdentitySource, KeyOrigin, LimitPlan, Plan, Protocol, SettleBy,
    Statuses, StorePlan, Topology, Whose,
};

use crate::support::{files, plan, read_text};

/// A file with one client policy, to which a test adds what it is about.
fn with(rest: &str) -> Plan {
    plan(&format!(
        "rateLimiter:\n  target: http://localhost:3000\n  client: {{limit: 100, windowSeconds: \
         60}}\n{rest}"
    ))
}

fn api(rest: &str) -> tollgate_gateway::plan::ApiPlan {
    let plan = with(&format!("  apis:\n    - {{identifier: a, path: /a, {rest}}}\n"));
    plan.routes[0].limits.apis[0].clone()
}

#[test]
fn the_file_of_mission_b_means_what_it_meant_there() {
    let file = files("good").into_iter().find(|file| file.ends_with("blog.yaml")).unwrap();
    let plan = plan(&fs::read_to_string(file).unwrap());
    let route = &plan.routes[0];
    assert_eq!(route.target.authority.as_str(), "localhost:3000");
    let client = route.limits.client.as_ref().unwrap();
    assert_eq!(
        client.policy.as_ref().unwrap().to_string(),
        "client: 60 units per 60 seconds, token_bucket"
    );
    let comment = &route.limits.apis[0];
    assert_eq!(comment.limit.name, "comment");
    assert_eq!(comment.limit.whose, Whose::Client);
    assert!(comment.methods.contain(&Method::POST) && !comment.methods.contain(&Method::GET));
    assert!(comment.path.matches("/api/item/42/comment"));
    assert!(!comment.path.matches("/api/item/x/comment"));
    assert!(!comment.path.matches("/api/item/42/comment/"));
    // Every request costs 1.
    assert_eq!(comment.limit.costs.of(&Method::DELETE, "/api/item/42/comment").get(), 1);
    // The header is believed of loopback alone.
    let [IdentitySource::Ip { trusted_proxies, header, .. }] = &*plan.identity else { panic!() };
    assert_eq!(header, &Some(ForwardingHeader::XForwardedFor));
    assert!(trusted_proxies.contains("127.0.0.1".parse().unwrap()));
    assert!(!trusted_proxies.contains("172.17.0.1".parse().unwrap()));
}

#[test]
fn the_target_may_stand_beside_the_limiter() {
    let plan = plan(
        "target: https://example.com/base/\nrateLimiter:\n  client: {limit: 1, windowSeconds: 1}\n",
    );
    let target = &plan.routes[0].target;
    assert_eq!((target.scheme.as_str(), &*target.base_path), ("https", "/base"));
}

#[test]
fn defaults_are_those_of_the_table() {
    let plan = with("");
    assert_eq!(plan.listen[0].addr, "0.0.0.0:8080".parse().unwrap());
    assert_eq!(plan.admin, "127.0.0.1:8081".parse().unwrap());
    let admin = with("  admin: {peers: [\"http://10.0.0.7:8081\"]}\n");
    assert_eq!((admin.admin, admin.admin_peers.len()), (plan.admin, 1));
    assert_eq!(plan.store, StorePlan::MEMORY);
    assert_eq!(plan.on_missing_key, OnMissingKey::Deny);
    assert!(plan.paths.reject_ambiguous);
    let seconds = |span: Duration| span.as_secs();
    let t = plan.timeouts;
    let timeouts = [t.connect, t.response, t.idle, t.tunnel, t.pool, t.request_header];
    assert_eq!(timeouts.map(seconds), [5, 60, 60, 3_600, 30, 10]);
    assert_eq!([t.keep_alive, t.drain].map(seconds), [75, 30]);
    // A section that says nothing of a key means the same.
    assert_eq!(with("  timeouts: {connect: 5s}\n").timeouts, t);
    assert_eq!(with("  headers: {rateLimit: true}\n  store: {memory: {}}\n").store, plan.store);
    let [IdentitySource::Ip { header: None, v4_prefix: 32, v6_prefix: 64, .. }] = &*plan.identity
    else {
        panic!("{:?}", plan.identity)
    };
}

#[test]
fn spans_are_written_in_either_way() {
    for (written, micros) in [
        ("window: 500ms", 500_000),
        ("window: 1m", 60_000_000),
        ("window: 50us", 50),
        ("window: 1h 30m", 5_400_000_000),
        ("windowSeconds: 60", 60_000_000),
    ] {
        let api = api(&format!("limit: 5, {written}"));
        assert_eq!(api.limit.policy.as_ref().unwrap().window(), Micros::new(micros), "{written}");
    }
}

#[test]
fn each_algorithm_takes_its_settings() {
    let algorithm = |rest: &str| api(rest).limit.policy.as_ref().unwrap().algorithm();
    assert_eq!(
        algorithm("strategy: token_bucket, limit: 5, refillSeconds: 60, refill: interval"),
        Algorithm::TokenBucket { refill: Refill::Interval }
    );
    assert_eq!(
        algorithm("strategy: leaky_bucket, limit: 5, windowSeconds: 60, maxWait: 2s"),
        Algorithm::LeakyBucket {
            mode: LeakyMode::Queue { max_wait: Some(Micros::new(2_000_000)) }
        }
    );
    assert_eq!(
        algorithm("strategy: leaky_bucket, limit: 5, windowSeconds: 60, mode: meter"),
        Algorithm::LeakyBucket { mode: LeakyMode::Meter }
    );
    assert_eq!(algorithm("limit: 5, windowSeconds: 60"), Algorithm::SlidingWindowCounter);
    for algorithm in Algorithm::ALL {
        let plan = with(&format!(
            "  strategy: {algorithm}\n  apis: [{{identifier: a, path: /a, strategy: \
             fixed_window_counter, limit: 1, windowSeconds: 1}}]\n"
        ));
        let limits = &plan.routes[0].limits;
        assert_eq!(limits.client.as_ref().unwrap().policy.as_ref().unwrap().algorithm(), algorithm);
        assert_eq!(
            limits.apis[0].limit.policy.as_ref().unwrap().algorithm(),
            Algorithm::FixedWindowCounter
        );
    }
    let bucket = api("strategy: token_bucket, limit: 5, refillSeconds: 30, burst: 20");
    assert_eq!(
        bucket.limit.policy.as_ref().unwrap().to_string(),
        "a: 5 units per 30 seconds, burst 20, token_bucket"
    );
}

#[test]
fn a_calendar_is_that_of_a_place() {
    let policy =
        |text: &str| api(&format!("strategy: fixed_window_counter, {text}")).limit.policy.unwrap();
    for (text, words) in [
        ("limit: 5, calendar: day, timeZone: Europe/Berlin", "calendar day in Europe/Berlin"),
        (
            "limit: 5, calendar: month, timeZone: america/new_york",
            "calendar month in America/New_York",
        ),
        ("limit: 5, calendar: week", "calendar week in UTC"),
    ] {
        assert_eq!(
            policy(text).to_string(),
            format!("a: 5 units per {words}, fixed_window_counter")
        );
    }
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  strategy: fixed_window_counter
  client: {limit: 1000, calendar: day}
  tiers: {pro: {limit: 5000, calendar: month}}
  apis: [{identifier: part, path: /part, share: 1/10}]
",
    );
    let words = tollgate_gateway::check::in_words(&plan);
    for line in [
        "  client: every request: 1000 units per calendar day in UTC per client IP, \
         fixed window counter, memory\n    tier pro: 5000 units per calendar month in UTC\n",
        "  part: any method /part: 100 units per calendar day in UTC per client IP, \
         fixed window counter, memory\n    tier pro: 500 units per calendar month in UTC\n",
    ] {
        assert!(words.contains(line), "{words}");
    }
}

#[test]
fn methods_and_paths_match_as_they_say() {
    let get = api("method: GET, limit: 5, windowSeconds: 60").methods;
    assert!(get.contain(&Method::GET) && get.contain(&Method::HEAD));
    assert!(!get.contain(&Method::POST));
    let two = api("method: [PUT, PATCH], limit: 5, windowSeconds: 60").methods;
    assert!(two.contain(&Method::PUT) && two.contain(&Method::PATCH));
    assert!(!two.contain(&Method::HEAD));
    assert!(api("limit: 5, windowSeconds: 60").methods.contain(&Method::TRACE));

    let plan = with("  exempt: [/healthz, /static/*, {expression: regex, value: '^/v\\d/x'}]\n");
    let exempt = |path: &str| plan.exempt.iter().any(|exempt| exempt.matches(path));
    for path in ["/healthz", "/static", "/static/", "/static/a/b", "/v1/xyz"] {
        assert!(exempt(path), "{path}");
    }
    for path in ["/healthz/", "/Healthz", "/statics", "/vv/x", "/a/v1/x", "/"] {
        assert!(!exempt(path), "{path}");
    }
}

#[test]
fn costs_are_those_of_the_first_rule_that_knows() {
    let plan = with(
        "  costs:
    GET: 2
    SEARCH: 3
    DELETE: 10
    other: 4
    paths:
      - {path: /free/*, cost: 0}
      - {path: /bulk, method: POST, cost: 50}
  apis:
    - {identifier: flat, path: /login, limit: 5, windowSeconds: 60, costs: {other: 1}}
",
    );
    let limits = &plan.routes[0].limits;
    let cost = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        limits.client.as_ref().unwrap().costs.of(&method, path).get()
    };
    for (method, path, units) in [
        ("GET", "/", 2),
        ("HEAD", "/", 2),
        ("QUERY", "/", 3),
        ("DELETE", "/", 10),
        ("PUT", "/", 4),
        ("DELETE", "/free/x", 0),
        ("POST", "/bulk", 50),
        ("PUT", "/bulk", 4),
    ] {
        assert_eq!(cost(method, path), units, "{method} {path}");
    }
    assert_eq!(limits.apis[0].limit.costs.of(&Method::DELETE, "/login").get(), 1);
}

#[test]
fn tiers_and_shares_follow_the_client() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  identity: [apiKey, ip]
  client: {strategy: token_bucket, limit: 100, windowSeconds: 60, burst: 20}
  tiers:
    pro: {limit: 1000, windowSeconds: 60}
    enterprise: {limit: 100000, windowSeconds: 60, burst: 500}
  apiKeys:
    scheme: ApiKey
    keys:
      - {sha256: 2C26B46B68FFC68FF99B453C1D30413413422D706483BFA0F98A5E886266E7AE, tier: pro}
      - {sha256: fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9}
  apis:
    - {identifier: ai, path: /ai, share: 1/10, strategy: token_bucket}
    - {identifier: all, path: /all, share: 1/2, per: everyone}
",
    );
    let limits = &plan.routes[0].limits;
    assert_eq!(plan.tiers, ["pro", "enterprise"]);
    let client = limits.client.as_ref().unwrap();
    let quota = |policy: Option<&tollgate::Policy>| {
        let quota = policy.unwrap().quota();
        (quota.limit(), quota.burst_units())
    };
    assert_eq!(quota(client.policy_in(None)), (100, Some(20)));
    assert_eq!(quota(client.policy_in(Some(0))), (1_000, None));
    assert_eq!(quota(client.policy_in(Some(1))), (100_000, Some(500)));
    // Counters belong to the name, which a client keeps when its tier changes.
    assert!(client.tiers.iter().all(|policy| policy.name() == "client"));
    let ai = &limits.apis[0].limit;
    assert_eq!(quota(ai.policy_in(None)), (10, Some(2)));
    assert_eq!(quota(ai.policy_in(Some(0))), (100, None));
    assert_eq!(quota(ai.policy_in(Some(1))), (10_000, Some(50)));
    let all = &limits.apis[1].limit;
    assert_eq!((all.whose, quota(all.policy_in(Some(1)))), (Whose::Everybody, (50, None)));

    let [IdentitySource::ApiKey(keys), IdentitySource::Ip { .. }] = &*plan.identity else {
        panic!("{:?}", plan.identity)
    };
    assert_eq!(keys.place, ApiKeyPlace::Authorization("ApiKey".to_owned()));
    assert_eq!(keys.keys.iter().map(|key| key.tier).collect::<Vec<_>>(), [Some(0), None]);
}

#[test]
fn routes_inherit_what_they_do_not_say() {
    let plan = plan(
        "rateLimiter:
  target: http://fallback:3000
  global: {limit: 1000, windowSeconds: 1}
  client: {limit: 100, windowSeconds: 60}
  apis:
    - {identifier: login, path: /login, limit: 5, windowSeconds: 60}
  routes:
    - name: api
      host: API.example.com
      path: /v1/*
      target: {url: http://api:3000, protocol: http2, preserveHost: false}
      client: {limit: 10, windowSeconds: 1}
    - name: admin
      path: /admin/*
      target: http://admin:3000
      apis:
        - {identifier: export, path: /admin/export, limit: 1, windowSeconds: 60}
",
    );
    let names: Vec<_> = plan.routes.iter().map(|route| route.name.as_str()).collect();
    assert_eq!(names, ["api", "admin", "default"]);
    let [api, admin, fallback] = &*plan.routes else { panic!() };
    assert_eq!(api.host.as_deref(), Some("api.example.com"));
    assert_eq!((api.target.protocol, api.target.preserve_host), (Protocol::Http2, false));
    let name = |limit: &Option<std::sync::Arc<LimitPlan>>| limit.as_ref().unwrap().name.clone();
    assert_eq!(name(&api.limits.client), "api/client");
    assert_eq!(name(&admin.limits.client), "client");
    assert_eq!(admin.limits.apis[0].limit.name, "export");
    // One quota, and so one policy: the very same.
    let global = |route: &tollgate_gateway::plan::Route| {
        route.limits.global.as_ref().unwrap().policy.clone().unwrap()
    };
    assert!(global(api).is_same(&global(fallback)));
    assert_eq!(api.limits.apis[0].limit.name, "login");
}

#[test]
fn identities_are_asked_in_their_order() {
    let plan = with(
        "  identity:
    - user
    - apiKey
    - {key: ip, header: X-Real-IP, trustedProxies: [10.0.0.0/8], ipv6Prefix: 56}
  jwt: {secret: '${JWT_SECRET}', issuer: me, audience: [a, b]}
  apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]
",
    );
    let [
        IdentitySource::User(jwt),
        IdentitySource::ApiKey(_),
        IdentitySource::Ip { header, v6_prefix, .. },
    ] = &*plan.identity
    else {
        panic!("{:?}", plan.identity)
    };
    assert!(matches!(&jwt.keys, KeyOrigin::Secret(secret) if secret.reveal().starts_with("an-")));
    assert_eq!((jwt.issuer.as_deref(), jwt.audiences.len()), (Some("me"), 2));
    let Some(ForwardingHeader::Single(name)) = header else { panic!("{header:?}") };
    assert_eq!((name.as_str(), *v6_prefix), ("x-real-ip", 56));
    assert!(plan.trusted_proxies.contains("10.1.2.3".parse().unwrap()));
    assert!(!plan.trusted_proxies.contains("127.0.0.1".parse().unwrap()));

    // Proxies without a header are read as nearly all proxies write.
    let plan = with("  trustedProxies: [private]\n");
    let [IdentitySource::Ip { header, trusted_proxies, .. }] = &*plan.identity else { panic!() };
    assert_eq!(header, &Some(ForwardingHeader::XForwardedFor));
    assert!(trusted_proxies.contains("192.168.1.1".parse().unwrap()));
}

#[test]
fn redis_is_data_and_its_secrets_stay_secret() {
    let plan = with(
        "  store:
    redis: {url: '${REDIS_URL}', timeoutMs: 20, topology: cluster, keySecret: '${REDIS_KEY_SECRET}', localShare: 1/3}
  onStoreError: closed
",
    );
    let StorePlan::Redis(redis) = &plan.store else { panic!() };
    assert_eq!((redis.timeout, redis.local_share), (Duration::from_millis(20), (1, 3)));
    assert_eq!(redis.topology, Topology::Cluster);
    assert_eq!(redis.url.reveal(), "redis://:hunter2@localhost:6379");
    let client = plan.routes[0].limits.client.as_ref().unwrap();
    assert_eq!(client.on_store_error(), OnStoreError::Closed);
    let shown = format!("{plan:?}{}", tollgate_gateway::check::in_words(&plan));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn variables_are_values_and_nothing_more() {
    let plan = with(
        "  apis:
    - {identifier: '${NOT_SET:-from a default}', path: '/${NOT_SET:-p}', limit: '${LIMIT_OF_TEST}', windowSeconds: 60}
    - {identifier: '$${literal}', path: /b, limit: 1, windowSeconds: 60}
",
    );
    let [api, literal] = &*plan.routes[0].limits.apis else { panic!() };
    assert_eq!(
        api.limit.policy.as_ref().unwrap().to_string(),
        "from a default: 7 units per 60 seconds, sliding_window_counter"
    );
    assert!(api.path.matches("/p"));
    assert_eq!(literal.limit.name, "${literal}");
    // Neither a key nor a comment comes out of a variable, and none is a key.
    let env = |_: &str| Some("x\n  shadow: true # ".to_owned());
    let source = tollgate_gateway::config::Source::new(
        "env",
        "rateLimiter:\n  target: http://localhost\n  client: {identifier: '${A}', limit: 1, windowSeconds: 1}\n",
    );
    let report = tollgate_gateway::config::read(&source, &env).report;
    assert_eq!(report.errors(), 1, "{report}");
    assert!(
        read_text("key", "${LIMIT_OF_TEST}: 1\n").report.to_string().contains("no key `${LIMIT")
    );
}

#[test]
fn what_only_watches_does_not_block() {
    let plan = with(
        "  shadow: true\n  apis: [{identifier: a, path: /a, limit: 1, windowSeconds: 1, shadow: false}]\n",
    );
    let limits = &plan.routes[0].limits;
    assert!(!limits.client.as_ref().unwrap().enforce && limits.apis[0].limit.enforce);
    // Two queues of which one only watches are no two queues.
    with(
        "  strategy: leaky_bucket\n  apis: [{identifier: a, path: /a, limit: 1, windowSeconds: 1, shadow: true}]\n",
    );
}

#[test]
fn aliases_repeat_what_they_name() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost
  client: &quota {limit: 10, windowSeconds: 60}
  tiers:
    pro: *quota
",
    );
    assert_eq!(plan.routes[0].limits.client.as_ref().unwrap().tiers[0].quota().limit(), 10);
}

#[test]
fn a_policy_is_dear_by_the_requests_that_it_is_about() {
    let plan = with(
        "  costs:
    GET: 2
    DELETE: 10
    paths:
      - {path: /bulk/*, cost: 50}
      - {path: /once, method: GET, cost: 30}
  apis:
    - {identifier: get, path: /a, method: GET, limit: 99, windowSeconds: 60}
    - {identifier: all, path: /b, limit: 99, windowSeconds: 60}
    - {identifier: bulk, path: /bulk/x, method: GET, limit: 99, windowSeconds: 60}
    - {identifier: some, path: /once, method: [GET, POST], limit: 99, windowSeconds: 60}
    - {identifier: never, path: /once, method: POST, limit: 99, windowSeconds: 60}
",
    );
    let limits = &plan.routes[0].limits;
    let dearest: Vec<_> = limits.apis.iter().map(|api| api.limit.dearest.get()).collect();
    assert_eq!(dearest, [2, 10, 50, 30, 1]);
    assert_eq!(limits.client.as_ref().unwrap().dearest.get(), 50);
}

#[test]
fn the_marks_and_line_ends_of_other_systems_are_no_hindrance() {
    let text = "\u{feff}rateLimiter:\r\n  target: http://localhost # ü\r\n  client:\r\n    limit: 5\r\n    windowSeconds: 60\r\n";
    assert_eq!(
        plan(text).routes[0]
            .limits
            .client
            .as_ref()
            .unwrap()
            .policy
            .as_ref()
            .unwrap()
            .quota()
            .limit(),
        5
    );
    // And a place after them is where an editor shows it.
    let report = read_text("crlf", &text.replace("limit: 5", "limit: x")).report;
    assert!(report.to_string().starts_with("crlf:4:12: error: "), "{report}");
    assert!(report.render(false).contains("4 |     limit: x"), "{}", report.render(false));
}

#[test]
fn several_quotas_at_a_time_are_a_policy_each_in_every_tier_that_has_so_many() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  client: {limit: 50, windowSeconds: 60}
  tiers:
    free: {limit: 100, windowSeconds: 60, also: [{limit: 20, windowSeconds: 10}]}
    pro: {limit: 1000, windowSeconds: 60}
  apis:
    - {identifier: ai, path: /ai, share: 1/10}
    - {identifier: daily, path: /d, limit: 9, window: 1s, also: [{limit: 90, window: 1h}, {limit: 900, window: 24h}]}
",
    );
    let limits = &plan.routes[0].limits;
    let limit = |policy: &Option<tollgate::Policy>| {
        policy.as_ref().map(|policy| (policy.name().to_owned(), policy.quota().limit()))
    };
    let second = |name: &str, units| Some((name.to_owned(), units));
    let client = limits.client.as_ref().unwrap();
    let [also] = &*client.also else { panic!("{:?}", client.also) };
    assert_eq!(limit(&also.everybody), None);
    let tiers: Vec<_> = also.tiers.iter().map(limit).collect();
    assert_eq!(tiers, [second("client/2", 20), None]);
    // A share is one of each quota.
    let ai = &limits.apis[0].limit;
    let [also] = &*ai.also else { panic!("{:?}", ai.also) };
    assert_eq!(limit(&also.tiers[0]), second("ai/2", 2));
    let daily = &limits.apis[1].limit.also;
    let everybody: Vec<_> = daily.iter().map(|it| limit(&it.everybody)).collect();
    assert_eq!(everybody, [second("daily/2", 90), second("daily/3", 900)]);
    assert!(daily.iter().all(|it| it.tiers.is_empty()));
}

#[test]
fn what_is_settled_and_what_waits_is_said_in_one_place() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  costs: {POST: 5}
  client: {limit: 50, windowSeconds: 60, excess: reject}
  apis:
    - {identifier: a, path: /a, limit: 9000, windowSeconds: 60, excess: {wait: 20s},
       countOnly: {status: [401, 2xx]}, reserve: {units: 500, lapse: 5m}}
    - {identifier: b, path: /b, limit: 9, windowSeconds: 60, countOnly: {status: 401}, reserve: {settle: body}}
    - {identifier: c, path: /c, limit: 9, windowSeconds: 60, reserve: {settle: body, bytesPerUnit: 1000}}
",
    );
    let limits = &plan.routes[0].limits;
    let client = limits.client.as_ref().unwrap();
    assert_eq!((client.excess, &client.counts, client.reserve), (Excess::Reject, &None, None));
    let [a, b, c] = [0, 1, 2].map(|number| &limits.apis[number].limit);
    assert_eq!(a.excess, Excess::Wait { max: Duration::from_secs(20) });
    assert_eq!(a.counts, Some(vec![Statuses::One(401), Statuses::Class(2)]));
    // The estimate stands in place of what requests cost elsewhere.
    assert_eq!(a.costs.of(&Method::POST, "/a"), Cost::new(500));
    assert_eq!(b.costs.of(&Method::POST, "/b"), Cost::new(5));
    let reserve = |limit: &LimitPlan| limit.reserve.map(|it| (it.settle, it.lapse.as_secs()));
    assert_eq!(reserve(a), Some((SettleBy::Header, 300)));
    assert_eq!(reserve(b), Some((SettleBy::Trailer, 3_600)));
    assert_eq!(reserve(c), Some((SettleBy::Bytes(1_000), 3_600)));
}

#[test]
fn what_is_under_way_may_be_all_that_is_limited() {
    let api = |rest: &str| api(rest).limit;
    let in_flight = |limit: &LimitPlan| {
        let policy = limit.in_flight.clone().unwrap();
        (policy.name().to_owned(), policy.quota().limit(), policy.window())
    };
    let (short, long) = (api("concurrency: 5"), api("concurrency: {max: 5, lease: 10s}"));
    assert!(short.policy.is_none() && short.tiers.is_empty());
    assert_eq!(in_flight(&short), ("a/inflight".to_owned(), 5, Micros::new(30_000_000)));
    assert_eq!(in_flight(&long), ("a/inflight".to_owned(), 5, Micros::new(10_000_000)));
    // The number is the same beside a quota, and what requests cost is about that alone.
    let beside = api("limit: 9, window: 1h, concurrency: 5, costs: {GET: 3}");
    assert_eq!(in_flight(&beside), in_flight(&short));
    let with_costs = with("  costs: {GET: 3}\n  global: {concurrency: 7}\n");
    let global = with_costs.routes[0].limits.global.clone().unwrap();
    assert_eq!((global.dearest, in_flight(&global).1), (Cost::ONE, 7));
    let words = tollgate_gateway::check::in_words(&with_costs);
    assert!(words.contains("  global: every request: for all together, memory\n"), "{words}");
    assert!(words.contains("    global/inflight: 7 at once, for 30 s after"), "{words}");
}

#[test]
fn one_listener_needs_no_list() {
    let listen = |value: &str| {
        let text = format!("rateLimiter:\n  target: http://a\n  listen: {value}\n");
        plan(&text).listen.iter().map(|it| (it.addr, it.max_connections)).collect::<Vec<_>>()
    };
    let alone = listen("{address: 127.0.0.1:8000, maxConnections: 7}");
    assert_eq!(alone, [("127.0.0.1:8000".parse().unwrap(), 7)]);
    assert_eq!(alone, listen("[{address: 127.0.0.1:8000, maxConnections: 7}]"));
}
