//! Quotas, algorithms, and costs.

mod costs;

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use serde_json::json;
use tollgate::headers::HeaderOptions;
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, Cost, LeakyMode, Refill};
use tollgate::store::Micros;
use tollgate_config::plan::{
    ApiPlan, CostTable, ForgiveOn, LimitPlan, RouteLimits, SettleBy, Statuses,
};
use tollgate_engine::MethodCosts;

use super::{api, with};
use crate::support::plan;

#[test]
fn window_accepts_both_notations() {
    for (written, micros) in [
        ("window: 500ms", 500_000),
        ("window: 1m", 60_000_000),
        ("window: 50us", 50),
        ("window: 1h 30m", 5_400_000_000),
        ("windowSeconds: 60", 60_000_000),
    ] {
        let api = api(&format!("limit: 5, {written}"));
        assert_eq!(api.limit.policy().unwrap().window(), Micros::new(micros), "{written}");
    }
}

#[test]
fn algorithms_accept_their_settings() {
    let algorithm = |rest: &str| api(rest).limit.policy().unwrap().algorithm().expect("a limit");
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
        assert_eq!(
            limits.client.as_ref().unwrap().policy().unwrap().algorithm().expect("a limit"),
            algorithm
        );
        assert_eq!(
            limits.apis[0].limit.policy().unwrap().algorithm().expect("a limit"),
            Algorithm::FixedWindowCounter
        );
    }
    let bucket = api("strategy: token_bucket, limit: 5, refillSeconds: 30, burst: 20");
    assert_eq!(
        bucket.limit.policy().unwrap().to_string(),
        "a: 5 units per 30 seconds, burst 20, token_bucket"
    );
}

#[test]
fn calendar_windows_use_the_time_zone() {
    let policy = |text: &str| {
        api(&format!("strategy: fixed_window_counter, {text}")).limit.policy().cloned().unwrap()
    };
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
    let words = tollgate_config::check::in_words(&plan);
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
fn tiers_may_be_unlimited() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  client: {limit: 1000, window: 1h}
  tiers: {internal: unlimited, pro: {limit: 5000, window: 1h}}
  apis: [{identifier: part, path: /part, share: 1/10}, {identifier: own, path: /own, limit: 5, window: 1h}]
",
    );
    let limits = &plan.routes[0].limits;
    let in_tiers = |limit: &LimitPlan| {
        let [quota] = &*limit.quotas else { panic!("{:?}", limit.quotas) };
        let tiers = quota.tiers.iter();
        tiers.map(|it| it.as_ref().map(|it| it.quota().limit())).collect::<Vec<_>>()
    };
    assert_eq!(in_tiers(limits.client.as_ref().unwrap()), [None, Some(5_000)]);
    assert_eq!(in_tiers(&limits.apis[0].limit), [None, Some(500)]);
    assert!(in_tiers(&limits.apis[1].limit).is_empty());
    let words = tollgate_config::check::in_words(&plan);
    let lines: Vec<_> = words.lines().filter(|line| line.contains("tier ")).collect();
    let [internal, pro] = ["    tier internal: unlimited", "    tier pro: "];
    assert_eq!(lines.len(), 4, "{words}");
    for pair in lines.chunks(2) {
        assert!(pair[0] == internal && pair[1].starts_with(pro), "{words}");
    }
}

#[test]
fn methods_and_exempt_paths_match() {
    let get = api("method: GET, limit: 5, windowSeconds: 60").methods;
    assert!(get.contain("GET") && get.contain("HEAD"));
    assert!(!get.contain("POST"));
    let two = api("method: [PUT, PATCH], limit: 5, windowSeconds: 60").methods;
    assert!(two.contain("PUT") && two.contain("PATCH"));
    assert!(!two.contain("HEAD"));
    assert!(api("limit: 5, windowSeconds: 60").methods.contain("TRACE"));

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
fn shadow_limits_are_not_enforced() {
    let plan = with(
        "  shadow: true\n  apis: [{identifier: a, path: /a, limit: 1, windowSeconds: 1, shadow: false}]\n",
    );
    let limits = &plan.routes[0].limits;
    assert!(!limits.client.as_ref().unwrap().enforces() && limits.apis[0].limit.enforces());
    // A second queue is valid in shadow mode.
    with(
        "  strategy: leaky_bucket\n  apis: [{identifier: a, path: /a, limit: 1, windowSeconds: 1, shadow: true}]\n",
    );
}

#[test]
fn extra_quotas_become_policies_per_tier() {
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
    let [_, also] = &*client.quotas else { panic!("{:?}", client.quotas) };
    assert_eq!(limit(&also.everybody), None);
    let tiers: Vec<_> = also.tiers.iter().map(limit).collect();
    assert_eq!(tiers, [second("client/2", 20), None]);
    // A share applies to each of the client's quotas.
    let ai = &limits.apis[0].limit;
    let [_, also] = &*ai.quotas else { panic!("{:?}", ai.quotas) };
    assert_eq!(limit(&also.tiers[0]), second("ai/2", 2));
    let daily = &limits.apis[1].limit.quotas[1..];
    let everybody: Vec<_> = daily.iter().map(|it| limit(&it.everybody)).collect();
    assert_eq!(everybody, [second("daily/2", 90), second("daily/3", 900)]);
    assert!(daily.iter().all(|it| it.tiers.is_empty()));
}

#[test]
fn header_options_are_read() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  headers: {rateLimit: false, perPolicy: true, retryJitter: 2s}
  global: {limit: 5000, window: 1s, hideHeaders: true}
  client: {limit: 50, windowSeconds: 60}
",
    );
    let headers = HeaderOptions::all().ratelimit(false).x_ratelimit_by_policy();
    assert_eq!(plan.headers, headers.retry_jitter(Duration::from_secs(2)));
    let limits = &plan.routes[0].limits;
    assert!(limits.global.as_ref().unwrap().hide_headers);
    assert!(!limits.client.as_ref().unwrap().hide_headers);
}

#[test]
fn excess_and_reserve_are_read() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  costs: {POST: 5}
  client: {limit: 50, windowSeconds: 60, excess: reject}
  apis:
    - {identifier: a, path: /a, limit: 9000, windowSeconds: 60, excess: {wait: 20s},
       countOnly: {status: [401, 2xx]}, reserve: {units: 500, lapse: 5m}}
    - {identifier: b, path: /b, limit: 9, windowSeconds: 60, countOnly: {status: 401}, reserve: {settle: body}}
    - {identifier: c, path: /c, limit: 9, windowSeconds: 60, reserve: {settle: body, bytesPerUnit: 1000},
       forgiveOn: {status: [204, 3xx], header: 'X-Login: ok', body: {ok: true, code: 0, text: 'true', word: true it is, flag: True, plus: +1, half: .5}}}
    - {identifier: d, path: /d, limit: 9, windowSeconds: 60, excess: annotate}
",
    );
    let limits = &plan.routes[0].limits;
    let client = limits.client.as_ref().unwrap();
    assert_eq!((client.mode, &client.counts, client.reserve), (Mode::Reject, &None, None));
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| &limits.apis[number].limit);
    assert_eq!((d.mode, d.enforces()), (Mode::Annotate, false));
    assert_eq!(a.mode, Mode::Wait(Duration::from_secs(20)));
    assert_eq!(a.counts, Some(vec![Statuses::One(401), Statuses::Class(2)]));
    let header = (HeaderName::from_static("x-login"), Some(HeaderValue::from_static("ok")));
    let status = vec![Statuses::One(204), Statuses::Class(3)];
    let body = [
        ("ok", json!(true)),
        ("code", json!(0)),
        ("text", json!("true")),
        ("word", json!("true it is")),
        ("flag", json!(true)),
        ("plus", json!(1)),
        ("half", json!(0.5)),
    ];
    let body = Some(body.map(|(name, value)| (name.to_owned(), value)).into());
    let forgives = ForgiveOn { status, header: Some(header), body };
    assert_eq!((&a.forgives, &c.forgives), (&None, &Some(forgives)));
    // `reserve.units` replaces `costs`.
    assert_eq!(a.costs.of(&Method::POST, "/a"), Cost::new(500));
    assert_eq!(b.costs.of(&Method::POST, "/b"), Cost::new(5));
    let reserve = |limit: &LimitPlan| limit.reserve.map(|it| (it.settle, it.lapse.as_secs()));
    assert_eq!(reserve(a), Some((SettleBy::Header, 300)));
    assert_eq!(reserve(b), Some((SettleBy::Trailer, 3_600)));
    assert_eq!(reserve(c), Some((SettleBy::Bytes(1_000), 3_600)));
}

#[test]
fn excess_queues_in_every_quota() {
    let plan = plan(
        "rateLimiter:
  target: http://localhost:3000
  client: {limit: 50, windowSeconds: 60, excess: {queue: 20s}, also: [{limit: 9, window: 1s}]}
  tiers: {pro: {limit: 90, windowSeconds: 60}}
  apis:
    - {identifier: a, path: /a, share: 1/10, excess: {queue: 5s}, penalty: {strikes: 5, within: 1m}}
    - {identifier: b, path: /b, limit: 9, windowSeconds: 60, excess: {queue: 5s}, shadow: true}
    - {identifier: c, path: /c, limit: 9, windowSeconds: 60, excess: {queue: 0s}}
    - {identifier: d, path: /d, limit: 9, windowSeconds: 60, strategy: leaky_bucket, mode: meter,
       excess: {queue: 5s}, concurrency: 5}
",
    );
    let limits = &plan.routes[0].limits;
    let client = limits.client.as_ref().unwrap();
    let times = |limit: &LimitPlan| {
        let times = limit.policies().map(|policy| policy.max_queue_time().map(Duration::from));
        times.collect::<Vec<_>>()
    };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(times(client), [seconds(20); 3]);
    assert_eq!(client.mode, Mode::Reject);
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| &limits.apis[number].limit);
    assert_eq!((times(a), times(d)), (vec![seconds(5); 3], vec![seconds(5)]));
    assert_eq!((times(b), b.mode), (vec![None], Mode::Shadow));
    assert_eq!((times(c), c.mode), (vec![None], Mode::Reject));
    // Requests beyond the concurrency limit wait in the gateway.
    assert_eq!(d.in_flight.as_ref().unwrap().max_queue_time(), None);
    let modes: Vec<_> = d.charges().map(|charge| d.mode_of(charge)).collect();
    assert_eq!(modes, [Mode::Reject, Mode::Wait(Duration::from_secs(5))]);
}

#[test]
fn leaky_client_limit_meters_if_an_api_queues() {
    let limits = |client: &str, apis: &str| {
        let plan = plan(&format!(
            "rateLimiter:\n  target: http://localhost:3000\n  strategy: leaky_bucket\n  \
             client: {{limit: 9, window: 9s{client}}}\n  {apis}"
        ));
        plan.routes[0].limits.clone()
    };
    let queues = |limit: &LimitPlan| limit.policy().unwrap().queues();
    let client = |limits: RouteLimits| queues(limits.client.as_ref().unwrap());
    let api =
        |rest: &str| format!("apis: [{{identifier: a, path: /a, limit: 9, window: 9s{rest}}}]\n");
    let both = limits("", &api(""));
    assert!(queues(&both.apis[0].limit) && !client(both));
    // If no api queues, the client limit does.
    for apis in [
        String::new(),
        api(", strategy: token_bucket"),
        api(", mode: meter"),
        api(", shadow: true"),
        "apis: [{identifier: a, path: /a, concurrency: 9}]\n".to_owned(),
    ] {
        assert!(client(limits("", &apis)), "{apis}");
    }
    // An explicit mode takes precedence.
    assert!(!client(limits(", mode: meter", "")));
}

#[test]
fn concurrency_needs_no_quota() {
    let api = |rest: &str| api(rest).limit;
    let in_flight = |limit: &LimitPlan| {
        let policy = limit.in_flight.clone().unwrap();
        (policy.name().to_owned(), policy.quota().limit(), policy.window())
    };
    let (short, long) = (api("concurrency: 5"), api("concurrency: {max: 5, ttl: 10s}"));
    assert!(short.quotas.is_empty());
    assert_eq!(in_flight(&short), ("a/inflight".to_owned(), 5, Micros::new(30_000_000)));
    assert_eq!(in_flight(&long), ("a/inflight".to_owned(), 5, Micros::new(10_000_000)));
    let earlier = api("concurrency: {max: 5, lease: 10s}");
    assert_eq!(in_flight(&earlier), in_flight(&long), "`lease` is the earlier name of `ttl`");
    // A quota and its costs do not affect the concurrency limit.
    let beside = api("limit: 9, window: 1h, concurrency: 5, costs: {GET: 3}");
    assert_eq!(in_flight(&beside), in_flight(&short));
    let with_costs = with("  costs: {GET: 3}\n  global: {concurrency: 7}\n");
    let global = with_costs.routes[0].limits.global.clone().unwrap();
    assert_eq!((&*global.costs, in_flight(&global).1), (&CostTable::flat(Cost::ONE), 7));
    let words = tollgate_config::check::in_words(&with_costs);
    assert!(
        words.contains("  global: every request: for all clients together, memory\n"),
        "{words}"
    );
    assert!(
        words.contains("    global/inflight: 7 requests in flight, held for 30 s if"),
        "{words}"
    );
}
