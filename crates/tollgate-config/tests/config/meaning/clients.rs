//! Clients and their quotas, routes, and targets.

use std::time::Duration;

use tollgate_config::check;
use tollgate_config::plan::{
    ApiKeyHeader, ForwardingHeader, GroupSource, IdentitySource, KeyOrigin, LimitPlan, Whose,
};
use tollgate_proxy::settings::{Balance, HealthCheck, Host, Passive, Protocol};

use super::with;
use crate::support::plan;

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
    assert_eq!(quota(client.quotas_in(None).next()), (100, Some(20)));
    assert_eq!(quota(client.quotas_in(Some(0)).next()), (1_000, None));
    assert_eq!(quota(client.quotas_in(Some(1)).next()), (100_000, Some(500)));
    // State is stored under the policy name, so a client's usage survives a tier change.
    assert!(client.policies().all(|policy| policy.name() == "client"));
    let ai = &limits.apis[0].limit;
    assert_eq!(quota(ai.quotas_in(None).next()), (10, Some(2)));
    assert_eq!(quota(ai.quotas_in(Some(0)).next()), (100, None));
    assert_eq!(quota(ai.quotas_in(Some(1)).next()), (10_000, Some(50)));
    let all = &limits.apis[1].limit;
    assert_eq!((all.whose, quota(all.quotas_in(Some(1)).next())), (Whose::Everybody, (50, None)));

    let [IdentitySource::ApiKey(keys), IdentitySource::Ip { .. }] = &*plan.identity else {
        panic!("{:?}", plan.identity)
    };
    assert_eq!(keys.header, ApiKeyHeader::Authorization("ApiKey".to_owned()));
    assert_eq!(keys.keys.iter().map(|key| key.tier).collect::<Vec<_>>(), [Some(0), None]);
}

#[test]
fn routes_inherit_unset_keys() {
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
    let target = &api.target.as_ref().unwrap().upstream;
    assert_eq!((target.servers.protocol, target.host), (Protocol::Http2, Host::Target));
    let name = |limit: &Option<std::sync::Arc<LimitPlan>>| limit.as_ref().unwrap().name.clone();
    assert_eq!(name(&api.limits.client), "api/client");
    assert_eq!(name(&admin.limits.client), "client");
    assert_eq!(admin.limits.apis[0].limit.name, "export");
    // Inherited limits share the same policy, and therefore the same state.
    let global = |route: &tollgate_config::plan::Route| {
        route.limits.global.as_ref().unwrap().policy().cloned().unwrap()
    };
    assert!(global(api).is_same(&global(fallback)));
    assert_eq!(api.limits.apis[0].limit.name, "login");
}

#[test]
fn identity_sources_retain_their_order() {
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

    // If no header is set, expect the most common: X-Forwarded-For.
    let plan = with("  trustedProxies: [private]\n");
    let [IdentitySource::Ip { header, trusted_proxies, .. }] = &*plan.identity else { panic!() };
    assert_eq!(header, &Some(ForwardingHeader::XForwardedFor));
    assert!(trusted_proxies.contains("192.168.1.1".parse().unwrap()));
}

#[test]
fn target_section_sets_all_options() {
    let text = include_str!("../../good/target-section.yaml");
    let plan = plan(text);
    let target = &plan.routes[0].target.as_ref().unwrap().upstream;
    let addresses: Vec<_> = target.servers.addresses.iter().map(ToString::to_string).collect();
    let expected = ["http://10.0.0.1:3000", "http://10.0.0.2:3000", "unix:/run/app.sock"];
    assert_eq!(addresses, expected);
    assert_eq!(target.servers.balance, Balance::LeastBusy);
    let passive = Passive { failures: 5, retry_after: Duration::from_secs(30) };
    assert_eq!(target.servers.passive, passive);
    let active = HealthCheck {
        path: "/healthz?full".parse().unwrap(),
        interval: Duration::from_secs(1),
        timeout: Duration::from_millis(500),
        healthy: 1,
        unhealthy: 2,
    };
    assert_eq!(target.servers.active.as_ref(), Some(&active));
    assert_eq!(target.strip_prefix.as_deref(), Some("/v1"));
    assert_eq!(target.request_headers.to_string(), "set x-role, remove x-debug");
    assert_eq!(target.response_headers.to_string(), "set x-frame-options, remove server");
    assert_eq!(target.max_body, Some(1 << 20));
    let shown = check::target(plan.routes[0].target.as_ref());
    let own = ", bodies up to 1048576 bytes, timeouts: response 300s, idle 3600s";
    assert!(shown.ends_with(own), "{shown}");
    let default = check::target(plan.routes[1].target.as_ref());
    assert_eq!(default, "unix:/run/other.sock, bodies up to 4096 bytes");
}

#[test]
fn target_url_equals_default_section() {
    let target = |target: &str| {
        let text =
            format!("rateLimiter: {{client: {{limit: 1, windowSeconds: 1}}, target: {target}}}");
        plan(&text).routes[0].target.clone()
    };
    assert_eq!(target("http://a:1/b"), target("{url: 'http://a:1/b'}"));
    assert_eq!(target("http://a:1/b"), target("{url: ['http://a:1/b']}"));
}

#[test]
fn levels_are_limits_of_their_groups() {
    let plan = plan(include_str!("../../good/levels.yaml"));
    let names: Vec<_> =
        plan.levels.iter().map(|level| (&*level.name, level.sources.len())).collect();
    assert_eq!(names, [("team", 2), ("organisation", 2), ("company", 1)]);
    let [GroupSource::ApiKey { groups, .. }, GroupSource::Claim(claim)] = &*plan.levels[0].sources
    else {
        panic!("{:?}", plan.levels)
    };
    assert_eq!((groups.len(), &*groups[0].1, &**claim), (1, "red", "team"));
    let limits = &plan.routes[0].limits;
    let shown =
        |limit: &LimitPlan| (limit.name.clone(), limit.whose, limit.policy().unwrap().capacity());
    let everywhere: Vec<_> = limits.everywhere().map(shown).collect();
    let owned = |name: &str| name.to_owned();
    assert_eq!(
        everywhere,
        [
            (owned("client"), Whose::Client, 600),
            (owned("client/team"), Whose::Group(0), 3_000),
            (owned("client/organisation"), Whose::Group(1), 10_000),
        ]
    );
    let llm: Vec<_> = limits.apis[0].limits().skip(1).map(shown).collect();
    assert_eq!(
        llm,
        [
            (owned("tokens"), Whose::Client, 100_000),
            (owned("requests/team"), Whose::Group(0), 100),
            (owned("tokens/team"), Whose::Group(0), 500_000),
            (owned("budget/company"), Whose::Group(2), 1_000_000_000),
        ]
    );
    let words = check::in_words(&plan);
    for line in [
        "its team is listed for 1 API key, else the token's claim team\n",
        "its company is the same for all requests\n",
        "  client/team: every request: 3000 units per 60 s per team, sliding window counter, memory\n",
        "  budget/company: POST /(completions|responses|embeddings|messages|batches)/?$: a price of \
         1000 per calendar month in Europe/Berlin per company, fixed window counter, memory\n",
    ] {
        assert!(words.contains(line), "{line}{words}");
    }
}
