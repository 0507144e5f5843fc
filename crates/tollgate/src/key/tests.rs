mod names;

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderName, Request};

use super::*;

const KEY: &str = "k-7f3a";
const OTHER: &str = "k-91bc";
/// SHA-256 of [`KEY`].
const DIGEST: &str = "315597da2c02bb7bd5f2425e61c98e827e57194381f820ff22306a2828fb8a76";

fn request(headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().uri("/orders/7");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer: SocketAddr = "192.0.2.1:4711".parse().unwrap();
    request.extension(peer).body(()).unwrap()
}

fn subject(source: &impl KeySource, request: &Request<()>) -> Option<Subject> {
    source.subject(&RequestHead::of(request)).unwrap()
}

fn kind(source: &impl KeySource, headers: &[(&str, &str)]) -> Option<SubjectKind> {
    subject(source, &request(headers)).map(|subject| subject.kind)
}

fn keys() -> ApiKeys {
    ApiKeys::from_keys([KEY, OTHER])
}

#[test]
fn chain_uses_first_matching_source() {
    let user = FromExtension::<u64>::new(|id| Some(id.to_be_bytes()));
    let keyed = ApiKey::in_x_api_key().one_of(keys());
    let nested = user.clone().or(keyed.clone()).or(ClientIp::peer());
    let listed =
        chain([Arc::new(user) as Arc<dyn KeySource>, Arc::new(keyed), Arc::new(ClientIp::peer())]);
    for source in [&nested as &dyn KeySource, &listed] {
        let mut request = request(&[("x-api-key", KEY)]);
        let kind = |request: &Request<()>| {
            let subject = source.subject(&RequestHead::of(request)).unwrap();
            subject.map(|subject| subject.kind)
        };
        assert_eq!(kind(&request), Some(SubjectKind::ApiKey));
        request.extensions_mut().insert(7_u64);
        assert_eq!(kind(&request), Some(SubjectKind::User));
        request.extensions_mut().remove::<u64>();
        request.headers_mut().clear();
        assert_eq!(kind(&request), Some(SubjectKind::Ip));
    }
}

#[test]
fn sources_report_whether_key_can_be_missing() {
    let api_key = || ApiKey::in_x_api_key().one_of(keys());
    let tenant = || Header::trust_unverified(name("x-tenant"));
    let listed = [Arc::new(tenant()) as Arc<dyn KeySource>, Arc::new(ClientIp::peer())];
    let sources: [(Box<dyn KeySource>, bool); 18] = [
        (Box::new(tenant()), true),
        (Box::new(tenant().or(ClientIp::peer())), false),
        (Box::new(tenant().or(MatchedRoute)), true),
        (Box::new((MatchedRoute, ClientIp::peer())), true),
        (Box::new(chain(listed)), false),
        (Box::new(Global), false),
        (Box::new(ClientIp::peer()), false),
        (Box::new(ClientIp::peer().skip_unix_peer()), true),
        (Box::new(ClientIp::peer().trust_unix_peer()), true),
        (Box::new(ClientIp::from_fn(|_| None)), true),
        (Box::new(api_key()), true),
        (Box::new(MatchedRoute), true),
        (Box::new(api_key().or(ClientIp::peer())), false),
        (Box::new(api_key().or(MatchedRoute)), true),
        (Box::new((ClientIp::peer(), Global)), false),
        (Box::new((ClientIp::peer(), MatchedRoute)), true),
        (Box::new(chain([Arc::new(Global) as Arc<dyn KeySource>])), false),
        (Box::new(chain([])), true),
    ];
    for (index, (source, missing)) in sources.into_iter().enumerate() {
        assert_eq!(source.can_be_missing(), missing, "source {index}");
    }
}

#[test]
fn error_stops_chain() {
    let bare = Request::new(());
    let source = ClientIp::peer().or(Global);
    let error = source.subject(&RequestHead::of(&bare)).unwrap_err();
    assert!(matches!(error, KeyError::NoPeerAddress));
    assert!(error.to_string().contains("into_make_service_with_connect_info"));
}

#[test]
fn tuple_requires_all_parts() {
    let source = (ClientIp::peer(), Header::trust_unverified(name("x-tenant")));
    assert_eq!(kind(&source, &[]), None);
    assert_eq!(kind(&source, &[("x-tenant", "a")]), Some(SubjectKind::Ip));
}

#[test]
fn tuple_kind_identifies_client() {
    let tenant = || Header::trust_unverified(name("x-tenant"));
    let headers = &[("x-tenant", "a"), ("x-api-key", KEY)];
    let api_key = ApiKey::in_x_api_key().one_of(keys());
    assert_eq!(kind(&(tenant(), ClientIp::peer()), headers), Some(SubjectKind::Ip));
    assert_eq!(
        kind(&(Global, tenant(), api_key, ClientIp::peer()), headers),
        Some(SubjectKind::ApiKey)
    );
    assert_eq!(kind(&(Global, tenant()), headers), Some(SubjectKind::Other));
    assert_eq!(kind(&(Global, Global), headers), Some(SubjectKind::Global));
    let global = subject(&(Global, Global), &request(headers)).unwrap();
    assert_eq!(global.key, Key::GLOBAL);
}

#[test]
fn metrics_kind_does_not_affect_key() {
    let tenant = |kind| from_fn(|head| head.headers.get("x-tenant").cloned()).of_kind(kind);
    let key = |kind, name| subject(&(tenant(kind), Global), &request(&[("x-tenant", name)]));
    let [global, other] = [SubjectKind::Global, SubjectKind::Other];
    let keys = |kind| ["a", "b"].map(|name| key(kind, name).unwrap().key);
    let [a, b] = keys(global);
    assert_ne!(a, b, "each tenant has its own quota");
    assert_eq!([a, b], keys(other));
    assert_eq!(key(global, "a").unwrap().kind, SubjectKind::Global);
}

#[test]
fn tuple_parts_are_unambiguous() {
    let source = (Header::trust_unverified(name("x-a")), Header::trust_unverified(name("x-b")));
    let key = |a, b| subject(&source, &request(&[("x-a", a), ("x-b", b)])).unwrap().key;
    assert_ne!(key("a:b", "c"), key("a", "b:c"));
    assert_ne!(key("a", "b"), key("b", "a"));
    assert_eq!(key("a", "b"), key("a", "b"));
    assert_eq!(key("a", "b").heap_bytes(), 0);

    let part = || from_fn(|_| Some("x"));
    let left = subject(&((part(), part()), part()), &request(&[])).unwrap();
    let right = subject(&(part(), (part(), part())), &request(&[])).unwrap();
    assert_ne!(left.key, right.key);
}

#[test]
fn sources_never_share_keys() {
    let headers: &[(&str, &str)] =
        &[("x-api-key", "192.0.2.1"), ("x-a", "192.0.2.1"), ("x-b", "192.0.2.1")];
    let mut request = request(headers);
    request.extensions_mut().insert(RoutePattern::new("192.0.2.1"));
    request.extensions_mut().insert("192.0.2.1");
    let sources: [Box<dyn KeySource>; 8] = [
        Box::new(Global),
        Box::new(ClientIp::peer()),
        Box::new(ApiKey::in_x_api_key().trust_unverified()),
        Box::new(Header::trust_unverified(name("x-a"))),
        Box::new(Header::trust_unverified(name("x-b"))),
        Box::new(MatchedRoute),
        Box::new(FromExtension::<&'static str>::borrowed(|text| Some(*text))),
        // Exactly the bytes of 192.0.2.1's key, which an attacker could make a closure return.
        Box::new(from_fn(|_| Some([1, 192, 0, 2, 1]))),
    ];
    let keys = sources.map(|source| subject(&source, &request).unwrap().key);
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(key.heap_bytes(), 0, "source {index}");
        assert!(!keys[..index].contains(key), "source {index}");
    }
}

#[test]
fn only_accepted_api_keys_identify() {
    let by_list = ApiKey::in_x_api_key().one_of(keys());
    let by_digest = ApiKey::in_x_api_key().one_of(ApiKeys::from_sha256_hex([DIGEST]).unwrap());
    let by_closure = ApiKey::in_x_api_key().verified_by(|key| key == KEY);
    for source in [by_list, by_digest, by_closure] {
        let api_key = Some(SubjectKind::ApiKey);
        assert_eq!(kind(&source, &[("x-api-key", KEY)]), api_key);
        assert_eq!(kind(&source, &[("x-api-key", "k-guess")]), None);
        assert_eq!(kind(&source, &[("x-api-key", "")]), None);
        assert_eq!(kind(&source, &[]), None);
    }
}

/// The service behind the layer might use the other value.
#[test]
fn repeated_values_are_ambiguous() {
    let by_header = ApiKey::in_x_api_key().one_of(keys());
    let by_scheme = ApiKey::in_authorization("ApiKey").one_of(keys());
    let tenant = Header::trust_unverified(name("x-tenant"));
    let sources: [(&dyn KeySource, &str, &[&str]); 3] = [
        (&by_header, "x-api-key", &[KEY, "k-guess", ""]),
        (&by_scheme, "authorization", &["ApiKey k-7f3a", "Basic a", ""]),
        (&tenant, "x-tenant", &["a", "b", ""]),
    ];
    for (source, name, values) in sources {
        for (one, other) in values.iter().flat_map(|one| values.iter().map(move |it| (one, it))) {
            let request = request(&[(name, one), ("x-other", "a"), (name, other)]);
            let found = source.subject(&RequestHead::of(&request));
            assert!(matches!(found, Err(KeyError::Ambiguous)), "{name}: {one:?} and {other:?}");
        }
    }
}

#[test]
fn ambiguous_keys_stop_combined_sources() {
    let api_key = || ApiKey::in_x_api_key().one_of(keys());
    let listed: [Arc<dyn KeySource>; 2] = [Arc::new(api_key()), Arc::new(ClientIp::peer())];
    let request = request(&[("x-api-key", KEY), ("x-api-key", KEY)]);
    let sources: [Box<dyn KeySource>; 4] = [
        Box::new(api_key().or(ClientIp::peer())),
        Box::new(chain(listed)),
        Box::new((ClientIp::peer(), api_key())),
        Box::new(try_from_fn(|_| Err::<Option<&str>, _>(KeyError::Ambiguous)).or(Global)),
    ];
    for (index, source) in sources.into_iter().enumerate() {
        let found = source.subject(&RequestHead::of(&request));
        assert!(matches!(found, Err(KeyError::Ambiguous)), "source {index}");
    }
    // A chain that has found its key does not read the other sources.
    let found = ClientIp::peer().or(api_key()).subject(&RequestHead::of(&request));
    assert_eq!(found.unwrap().unwrap().kind, SubjectKind::Ip);
}

#[test]
fn api_keys_have_separate_quotas() {
    let source = ApiKey::in_x_api_key().one_of(keys());
    let key = |text| subject(&source, &request(&[("x-api-key", text)]));
    assert_eq!(key(KEY), key(KEY));
    assert_ne!(key(KEY), key(OTHER));
    assert_eq!(key(&KEY.to_uppercase()), None);
}

#[test]
fn authorization_scheme_is_case_insensitive() {
    let source = ApiKey::in_authorization("ApiKey").one_of(keys());
    for (value, found) in [
        ("ApiKey k-7f3a", true),
        ("apikey k-7f3a", true),
        ("APIKEY   k-7f3a", true),
        ("ApiKeyk-7f3a", false),
        ("Bearer k-7f3a", false),
        ("ApiKey", false),
        ("ApiKey ", false),
        ("k-7f3a", false),
    ] {
        let kind = kind(&source, &[("authorization", value)]);
        assert_eq!(kind.is_some(), found, "{value}");
    }
}

#[test]
fn api_keys_are_never_shown() {
    let source = ApiKey::in_x_api_key().one_of(keys());
    let subject = subject(&source, &request(&[("x-api-key", KEY)])).unwrap();
    let shown = format!("{source:?} {:?} {subject:?}", keys());
    assert!(!shown.contains(KEY), "{shown}");
    let bytes = subject.key.as_bytes();
    assert!(!bytes.windows(3).any(|text| KEY.as_bytes().windows(3).any(|key| key == text)));
}

#[test]
fn invalid_digest_error_withholds_text() {
    for wrong in ["", "k-7f3a", &DIGEST[1..], &format!("{}g", &DIGEST[1..])] {
        let error = ApiKeys::from_sha256_hex([DIGEST, wrong]).unwrap_err();
        assert_eq!(error.position, 2);
        assert!(error.to_string().contains("number 2"), "{error}");
        assert!(wrong.is_empty() || !error.to_string().contains(wrong), "{error}");
    }
    let upper = ApiKeys::from_sha256_hex([DIGEST.to_uppercase()]).unwrap();
    assert!(upper.contains(KEY));
}

#[test]
fn values_above_8_kib_are_ignored() {
    let source = ApiKey::in_x_api_key().trust_unverified();
    let long = "k".repeat(8 * 1024);
    assert!(kind(&source, &[("x-api-key", &long)]).is_some());
    assert!(kind(&source, &[("x-api-key", &format!("{long}k"))]).is_none());
}

#[test]
fn route_key_is_pattern() {
    let mut one = request(&[]);
    assert_eq!(subject(&MatchedRoute, &one), None);
    one.extensions_mut().insert(RoutePattern::new("/orders/{id}"));
    let mut other = Request::builder().uri("//orders/%37").body(()).unwrap();
    other.extensions_mut().insert(RoutePattern::new("/orders/{id}"));
    assert_eq!(subject(&MatchedRoute, &one), subject(&MatchedRoute, &other));
    other.extensions_mut().insert(RoutePattern::new("/orders"));
    assert_ne!(subject(&MatchedRoute, &one), subject(&MatchedRoute, &other));
}

#[test]
fn extension_without_user_has_no_key() {
    #[derive(Clone)]
    struct Session {
        user: Option<String>,
    }
    let source = FromExtension::<Session>::borrowed(|session| session.user.as_deref());
    let mut request = request(&[]);
    assert_eq!(subject(&source, &request), None);
    request.extensions_mut().insert(Session { user: None });
    assert_eq!(subject(&source, &request), None);
    let user = Some("ann".to_owned());
    request.extensions_mut().insert(Session { user });
    assert_eq!(subject(&source, &request).unwrap().kind, SubjectKind::User);
}

#[test]
fn closure_can_set_kind() {
    let source = from_fn(|head| head.headers.get("x-user").cloned()).of_kind(SubjectKind::User);
    assert_eq!(kind(&source, &[]), None);
    assert_eq!(kind(&source, &[("x-user", "ann")]), Some(SubjectKind::User));
}

fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

#[cfg(feature = "axum")]
mod in_axum {
    use axum::extract::connect_info::MockConnectInfo;
    use axum::extract::{ConnectInfo, MatchedPath};

    use super::*;

    /// `MatchedPath` has no constructor, so it must come from a real router.
    #[test]
    fn matched_path_is_the_route() {
        use axum::{Router, body::Body, routing::get};

        async fn pattern(path: MatchedPath, request: Request<Body>) -> String {
            let (parts, _) = request.into_parts();
            let mut found = Request::new(());
            found.extensions_mut().insert(path);
            let by_axum = subject(&MatchedRoute, &found);
            let mut set = Request::from_parts(parts, ());
            set.extensions_mut().insert(RoutePattern::new("/orders/{id}"));
            assert!(by_axum.is_some());
            assert_eq!(by_axum, subject(&MatchedRoute, &set));
            "checked".to_owned()
        }

        let router: Router = Router::new().route("/orders/{id}", get(pattern));
        let request = Request::builder().uri("/orders/7").body(Body::empty()).unwrap();
        let response = block_on(tower::ServiceExt::oneshot(router, request)).unwrap();
        assert_eq!(response.status(), 200);
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread();
        { runtime }.build().unwrap().block_on(future)
    }

    #[test]
    fn connect_info_overrides_plain_address() {
        let mut request = request(&[]);
        let plain = subject(&ClientIp::peer(), &request);
        let peer: SocketAddr = "198.51.100.9:1".parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        let axum = subject(&ClientIp::peer(), &request);
        assert!(axum.is_some());
        assert_ne!(axum, plain);
    }

    #[test]
    fn mock_connect_info_is_fallback_peer() {
        let at = |ip: [u8; 4]| SocketAddr::from((ip, 1));
        let mut request = Request::new(());
        request.extensions_mut().insert(MockConnectInfo(at([203, 0, 113, 9])));
        let mocked = ClientIp::peer().address(&RequestHead::of(&request)).unwrap();
        assert_eq!(mocked, Some(at([203, 0, 113, 9]).ip()));
        request.extensions_mut().insert(ConnectInfo(at([198, 51, 100, 7])));
        let real = ClientIp::peer().address(&RequestHead::of(&request)).unwrap();
        assert_eq!(real, Some(at([198, 51, 100, 7]).ip()));
    }
}
