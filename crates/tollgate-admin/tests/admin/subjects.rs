//! Subject names in paths and in `/top`.

use http::{HeaderName, Method};
use serde_json::json;
use tollgate::Limit;
use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, FromExtension, Global, Header, KeySource, MatchedRoute,
    RoutePattern, SubjectFormat, SubjectKind, from_fn,
};
use tollgate::limit::OnMissingKey;
use tollgate_admin::Admin;
use tower::Layer;

use crate::support::*;
use crate::{TOKEN, admin, operate};

#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn subject_names_find_request_keys() {
    let header = |name: &'static str| HeaderName::from_static(name);
    let keys = || ApiKeys::from_keys(["k-7f3a"]);
    let user = || FromExtension::<User>::borrowed(|user| Some(user.0));
    let tenant = from_fn(|head| head.headers.get("x-tenant").cloned());
    let sources: [(&str, std::sync::Arc<dyn KeySource>, &str, &str); 12] = [
        ("global", std::sync::Arc::new(Global), "global", "global"),
        ("ip", std::sync::Arc::new(ClientIp::peer()), "ip:192.0.2.1", "ip:192.0.2.1"),
        (
            "ip6",
            std::sync::Arc::new(ClientIp::from_fn(|_| "2001:db8:0:7::9".parse().ok())),
            "ip:2001:db8:0:7::1",
            "ip:2001:db8:0:7::/64",
        ),
        (
            "key",
            std::sync::Arc::new(ApiKey::in_x_api_key().one_of(keys())),
            "api-key:k-7f3a",
            "key:",
        ),
        ("user", std::sync::Arc::new(user()), "user:alice", "user:alice"),
        (
            "header",
            std::sync::Arc::new(Header::trust_unverified(header("x-tenant"))),
            "header:acme",
            "key:",
        ),
        ("route", std::sync::Arc::new(MatchedRoute), "route:%2Fa%2F%7Bb%7D", "route:/a/{b}"),
        ("closure", std::sync::Arc::new(tenant.clone()), "other:acme", "other:acme"),
        ("named", std::sync::Arc::new(tenant.of_kind(SubjectKind::User)), "user:acme", "user:acme"),
        (
            "chain",
            std::sync::Arc::new(ApiKey::in_x_api_key().verified_by(|_| false).or(ClientIp::peer())),
            "ip:192.0.2.1",
            "ip:192.0.2.1",
        ),
        (
            "pair",
            std::sync::Arc::new((MatchedRoute, ClientIp::peer())),
            "route:/a/{b},ip:192.0.2.1",
            "key:",
        ),
        (
            "missing",
            std::sync::Arc::new(Header::trust_unverified(header("x-none"))),
            "missing",
            "missing",
        ),
    ];
    for (policy, source, name, shown) in sources {
        let (_, store) = memory();
        let layer = builder(&store, [Limit::new(log(policy, 1), source)]);
        let layer = layer.on_missing_key(OnMissingKey::Share).build().unwrap();
        let admin = Admin::builder().token(TOKEN).layer(&layer).show_subjects(SubjectFormat::Clear);
        let admin = admin.build().unwrap();
        let service = layer.layer(hello());
        let request = || {
            let mut request = request(Method::GET, "/");
            request.headers_mut().insert("x-api-key", "k-7f3a".parse().unwrap());
            request.headers_mut().insert("x-tenant", "acme".parse().unwrap());
            request.extensions_mut().insert(User("alice"));
            request.extensions_mut().insert(RoutePattern::new("/a/{b}"));
            request
        };
        let path = format!("/status/{policy}/{}", name.replace('{', "%7B").replace('}', "%7D"));
        assert_eq!(ask(&service, request()).await.status(), 200, "{policy}");
        assert_eq!(ask(&service, request()).await.status(), 429, "{policy}");
        let (code, body) = operate(&admin, "GET", &path, "").await;
        assert_eq!((code, &body["remaining"]), (200, &json!(0)), "{policy}: {body}");
        assert_eq!(operate(&admin, "DELETE", &path, "").await.0, 204, "{policy}");
        assert_eq!(ask(&service, request()).await.status(), 200, "{policy}");

        // The path accepts the name that `/top` shows.
        let (_, top) = operate(&admin, "GET", "/top", "").await;
        let subject = top["policies"][0]["denied"][0]["subject"].as_str().unwrap().to_owned();
        assert!(subject.starts_with(shown), "{policy}: {subject}");
        let subject = subject.replace('{', "%7B").replace('}', "%7D");
        let (code, body) = operate(&admin, "GET", &format!("/status/{policy}/{subject}"), "").await;
        assert_eq!((code, &body["remaining"]), (200, &json!(0)), "{policy}: {subject} {body}");
    }
}

#[tokio::test]
async fn top_formats_subjects() {
    let (_, store) = memory();
    let chain = FromExtension::<User>::borrowed(|user| Some(user.0)).or(ClientIp::peer());
    let layer = layer(&store, [Limit::new(log("each", 1), chain)]);
    let service = layer.clone().layer(hello());
    for n in 0..20 {
        ask(&service, from_peer(n % 3, request(Method::GET, "/"))).await;
    }
    for _ in 0..9 {
        let mut request = request(Method::GET, "/");
        request.extensions_mut().insert(User("alice"));
        ask(&service, request).await;
    }
    let top = async |format: SubjectFormat, path: &str| {
        let admin = Admin::builder().token(TOKEN).layer(&layer).show_subjects(format).build();
        let (_, body) = operate(&admin.unwrap(), "GET", path, "").await;
        let denied = body["policies"][0]["denied"].as_array().unwrap().clone();
        let list = denied
            .iter()
            .map(|it| (it["subject"].as_str().unwrap().to_owned(), it["count"].as_u64().unwrap()));
        list.collect::<Vec<_>>()
    };
    let clear = top(SubjectFormat::Clear, "/top").await;
    assert_eq!(clear[0], ("user:alice".to_owned(), 8));
    assert!(clear.len() == 4 && clear[1] == ("ip:192.0.2.0".to_owned(), 6), "{clear:?}");
    assert_eq!(top(SubjectFormat::Clear, "/top?most=1").await.len(), 1);
    let masked = top(SubjectFormat::Masked, "/top").await;
    assert_eq!((&*masked[0].0, &*masked[1].0), ("user:al…", "ip:192.0.2.*"));
    let hashed = top(SubjectFormat::Hash, "/top").await;
    assert!(hashed[0].0.starts_with("user:#") && hashed[0].0.len() == 22, "{hashed:?}");
}

#[tokio::test]
async fn subjects_use_their_tier() {
    let (_, store) = memory();
    let keys = || ApiKeys::from_keys(["k-pro"]);
    let tiers = tollgate::tier::ApiKeyTiers::new(ApiKey::in_x_api_key()).with("pro", keys());
    let source = ApiKey::in_x_api_key().one_of(keys()).or(ClientIp::peer());
    let limit = Limit::new(log("client", 10), source)
        .in_tier("pro", tollgate::Quota::per_minute(100))
        .unwrap();
    let layer = builder(&store, [limit]).tiers(tiers).build().unwrap();
    let admin = admin(&layer);
    let service = layer.layer(hello());
    for _ in 0..4 {
        let mut request = get();
        request.headers_mut().insert("x-api-key", "k-pro".parse().unwrap());
        assert_eq!(ask(&service, request).await.status(), 200);
    }
    for (path, tier, limit, remaining) in [
        ("/status/client/api-key:k-pro", json!("pro"), 100, 96),
        ("/status/client/api-key:k-pro?tier=pro", json!("pro"), 100, 96),
        ("/status/client/ip:192.0.2.9", json!(null), 10, 10),
        ("/status/client/ip:192.0.2.9?tier=pro", json!("pro"), 100, 100),
    ] {
        let (code, status) = operate(&admin, "GET", path, "").await;
        assert_eq!((code, &status["tier"]), (200, &tier), "{path}");
        assert_eq!((&status["limit"], &status["remaining"]), (&json!(limit), &json!(remaining)));
    }
    let (code, _) = operate(&admin, "GET", "/status/client/ip:192.0.2.9?tier=gold", "").await;
    assert_eq!(code, 404);
    let (_, all) = operate(&admin, "GET", "/status", "").await;
    let pro = json!([
        { "tier": "pro", "limit": 100, "window": 60.0, "calendar": null, "capacity": 100 }
    ]);
    assert_eq!(all["policies"][0]["tiers"], pro);
}

#[tokio::test]
async fn query_is_form_encoded() {
    let (_, store) = memory();
    let tiers = ["pro plan", "a&b=c+d%", "골드"];
    let mut limit = Limit::new(log("client", 1), ClientIp::peer());
    for (tier, units) in tiers.into_iter().zip(2..) {
        limit = limit.in_tier(tier, tollgate::Quota::per_minute(units)).unwrap();
    }
    let tiers = tollgate::tier::in_extensions();
    let layer = builder(&store, [limit]).tiers(tiers).build().unwrap();
    let admin = admin(&layer);
    for (query, units) in [
        ("", 1),
        ("tier=pro%20plan", 2),
        ("tier=pro+plan", 2),
        ("%74ier=pro%20plan", 2),
        ("x=1&tier=pro+plan", 2),
        ("tier=a%26b%3Dc%2Bd%25", 3),
        ("tier=%EA%B3%A8%EB%93%9C", 4),
        // Parameters with other names are ignored.
        ("tiers=pro+plan", 1),
        ("x=tier=pro+plan", 1),
    ] {
        let path = format!("/status/client/ip:192.0.2.9?{query}");
        let (code, status) = operate(&admin, "GET", &path, "").await;
        assert_eq!((code, &status["limit"]), (200, &json!(units)), "{query}: {status}");
    }
    for query in ["tier=", "tier=pro%2520plan", "tier=%FF", "tier=Pro+plan"] {
        let path = format!("/status/client/ip:192.0.2.9?{query}");
        assert_eq!(operate(&admin, "GET", &path, "").await.0, 404, "{query}");
    }
    for (query, code) in
        [("x=1&most=1", 200), ("most=1&x=1", 200), ("mos%74=%31", 200), ("most=", 400)]
    {
        assert_eq!(operate(&admin, "GET", &format!("/top?{query}"), "").await.0, code, "{query}");
    }
}

/// Two layers share a policy. No answer charges.
#[tokio::test]
async fn subject_is_found_under_all_policies() {
    let (_, store) = memory();
    let key = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k-7f3a"]));
    let each = || Limit::new(log("each", 5), ClientIp::peer());
    let of_key = Limit::new(log("key", 7), key).on_missing_key(OnMissingKey::Pass);
    let one = layer(&store, [each(), Limit::global(log("all", 9))]);
    let two = layer(&store, [each(), of_key, Limit::new(log("more", 3), ClientIp::peer())]);
    let service = one.layer(hello());
    let admin = Admin::builder().token(TOKEN).layer(&one).layer(&two).build().unwrap();
    assert_eq!(status(&service).await, 200);
    for (subject, expected) in [
        ("ip:192.0.2.1", &[("each", 5, 4), ("more", 3, 3)][..]),
        ("ip:192.0.2.2", &[("each", 5, 5), ("more", 3, 3)]),
        ("api-key:k-7f3a", &[("key", 7, 7)]),
        ("global", &[("all", 9, 8)]),
    ] {
        for _ in 0..2 {
            let (code, body) = operate(&admin, "GET", &format!("/subjects/{subject}"), "").await;
            assert_eq!(code, 200, "{subject}");
            let read = |policy: &serde_json::Value| {
                let number = |name: &str| policy[name].as_u64().unwrap();
                (
                    policy["policy"].as_str().unwrap().to_owned(),
                    number("limit"),
                    number("remaining"),
                )
            };
            let read: Vec<_> = body["policies"].as_array().unwrap().iter().map(read).collect();
            let read: Vec<_> =
                read.iter().map(|(name, limit, left)| (&**name, *limit, *left)).collect();
            assert_eq!(read, expected, "{subject}");
        }
    }
    for (subject, expected) in [("user:alice", 404), ("nobody", 400)] {
        let (code, _) = operate(&admin, "GET", &format!("/subjects/{subject}"), "").await;
        assert_eq!(code, expected, "{subject}");
    }
}
