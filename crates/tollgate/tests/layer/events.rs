//! Shadow policies, and the events that the layer logs.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use parking_lot::Mutex;
use tollgate::access::{AccessLists, SubjectList};
use tollgate::key::{ApiKey, ClientIp, FromExtension, KeySource};
use tollgate::layer::LayerError;
use tollgate::limit::{OnMissingKey, Paths};
use tollgate::policy::OnStoreError;
use tollgate::{Costs, Limit, Policy, Quota};
use tower::{Layer, ServiceExt};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::stage::{Fault, Staged};
use crate::support::*;

/// Records the events with target `tollgate`, including their fields.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    /// Records this thread's events until the guard is dropped.
    fn open() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        (recorder.clone(), set_default(recorder))
    }

    fn recorded(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    fn above_debug(&self) -> Vec<String> {
        self.recorded().into_iter().filter(|line| !line.starts_with("DEBUG")).collect()
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tollgate"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let level: Level = *event.metadata().level();
        let mut line = Line(format!("{level}"));
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("writing to a string");
    }
}

#[tokio::test]
async fn denied_client_of_untrusted_proxy_warns() {
    let (proxy, public) = ("10.0.0.7:80", "198.51.100.7:80");
    for (peer, forwarded, source, expected) in [
        (proxy, true, ClientIp::peer(), 1),
        (proxy, true, ClientIp::behind(["10.9.0.0/16"]).unwrap(), 1),
        (proxy, true, ClientIp::behind(["10.0.0.0/8"]).unwrap(), 0),
        (proxy, false, ClientIp::peer(), 0),
        ("127.0.0.1:80", true, ClientIp::peer(), 1),
        ("169.254.1.1:80", true, ClientIp::peer(), 1),
        ("[fe80::1]:80", true, ClientIp::peer(), 1),
        // A client can send the header, too.
        (public, true, ClientIp::peer(), 0),
        // Many clients share this key anyway.
        (proxy, true, ClientIp::peer().v4_prefix(24).unwrap(), 0),
    ] {
        let (_, store) = memory();
        let service = limited(&store, [Limit::new(log("client", 1), source)]);
        let (recorder, _open) = Recorder::open();
        for _ in 0..3 {
            let mut request = Request::new(());
            let peer: std::net::SocketAddr = peer.parse().unwrap();
            request.extensions_mut().insert(peer);
            if forwarded {
                let client = http::HeaderValue::from_static("203.0.113.1");
                request.headers_mut().insert("x-forwarded-for", client);
            }
            service.clone().oneshot(request).await.unwrap();
        }
        let warnings = recorder.above_debug();
        let found = warnings.iter().filter(|line| line.ends_with(" [TG0202]")).count();
        assert_eq!(found, expected, "{peer} {forwarded}: {warnings:?}");
    }
}

#[tokio::test]
async fn shadow_policy_appears_only_in_events() {
    let (_, store) = memory();
    let trial = log("trial", 1);
    let limits = [Limit::global(log("real", 3)), Limit::global(trial.clone()).shadow()];
    let service = limited(&store, limits);
    let (recorder, _open) = Recorder::open();
    for _ in 0..3 {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), 200);
        let fields = rate_fields(response.headers()).concat();
        assert!(fields.contains("real") && !fields.contains("trial"), "{fields}");
        assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some("3"));
    }
    let shadow = r#"DEBUG message=shadow deny policy="trial""#;
    let recorded = recorder.recorded();
    assert_eq!(recorded.iter().filter(|line| *line == shadow).count(), 2, "{recorded:?}");
    // Only the enforced policy denies.
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 429);
    let problem = json(response).await;
    assert_eq!(problem["violated-policies"], serde_json::json!(["real"]));
    assert_eq!(left(&store, &trial).await, 0);
}

#[tokio::test(start_paused = true)]
async fn key_errors_are_logged_once_a_minute() {
    let (_, store) = memory();
    let limit = || Limit::new(log("ip", 9), ClientIp::peer());
    let lists = AccessLists::new().addresses_by(ClientIp::peer());
    lists.replace(&"192.0.2.1".parse().unwrap(), &SubjectList::new()).unwrap();
    let none = AccessLists::new();
    for (limit, lists, status) in [
        (limit(), &none, 500),
        // A shadow policy never blocks.
        (limit().shadow(), &none, 200),
        (Limit::global(log("all", 9)), &lists, 500),
    ] {
        let layer = builder(&store, [limit]).access_lists(lists).build().unwrap();
        let service = layer.layer(hello());
        let (recorder, _open) = Recorder::open();
        for lines in 1..3 {
            for _ in 0..100 {
                let answer = service.clone().oneshot(Request::new(())).await.unwrap();
                assert_eq!(answer.status(), status);
            }
            let recorded = recorder.above_debug();
            assert_eq!(recorded.len(), lines, "{recorded:?}");
            assert!(
                recorded[0].starts_with("ERROR") && recorded[0].contains("into_make_service_with")
            );
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }
}

#[tokio::test]
async fn events_contain_no_personal_data() {
    #[derive(Clone)]
    struct User(String);

    let (recorder, _open) = Recorder::open();
    let (_, store) = memory();
    let store = Staged::new(store);
    let user = || FromExtension::<User>::borrowed(|user| Some(&user.0));
    let api_key = || ApiKey::in_x_api_key().trust_unverified();
    let chain = user().or(api_key()).or(ClientIp::peer());
    let limits = [
        Limit::new(log("subject", 2), chain),
        Limit::new(log("ip", 1), ClientIp::peer()).shadow(),
        Limit::new(log("key", 1), api_key()).shadow().on_missing_key(OnMissingKey::Pass),
        Limit::new(log("user", 9), user()).on_missing_key(OnMissingKey::Deny),
    ];
    let closed = log("closed", 99).with_on_store_error(OnStoreError::Closed);
    let service = limited(&store, limits.into_iter().chain([Limit::global(closed)]));
    let personal = || {
        let mut request = request(Method::GET, "/private/path?token=squeamish");
        request.headers_mut().insert("x-api-key", "sk_live_ossifrage".parse().unwrap());
        request.extensions_mut().insert(User("alice@example.org".to_owned()));
        request
    };
    for expected in [200, 200, 429] {
        assert_eq!(ask(&service, personal()).await.status(), expected);
    }
    assert_eq!(status(&service).await, 403);
    store.fail(Fault::MaybeCharged);
    for _ in 0..2 {
        assert_eq!(ask(&service, personal()).await.status(), 503);
    }
    // Denials are logged at debug level, so a client cannot fill the log.
    let above = recorder.above_debug();
    assert!(
        !above.iter().any(|line| line.contains("deny") || line.contains("no key")),
        "{above:?}"
    );
    let recorded = recorder.recorded();
    for what in
        ["allow", "deny", "shadow deny", "no key", "the store cannot decide", "failed closed"]
    {
        assert!(recorded.iter().any(|line| line.contains(what)), "no {what}: {recorded:#?}");
    }
    let secrets = ["192.0.2", "ossifrage", "alice", "squeamish", "private"];
    for line in recorded {
        assert!(!secrets.iter().any(|secret| line.contains(secret)), "{line}");
    }
}

#[tokio::test]
async fn deny_event_names_policies_and_reason() {
    let (_, store) = memory();
    let limits = [Limit::global(log("all", 1)), Limit::new(log("ip", 9), ClientIp::peer())];
    let service = limited(&store, limits);
    let (recorder, _open) = Recorder::open();
    for expected in [200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    let deny = r#"DEBUG message=deny policies=["all"] keys=["global", "ip"] "#.to_owned()
        + r#"reason="quota-exceeded" retry_after=Some(60s)"#;
    let recorded = recorder.recorded();
    let event = recorded.iter().find(|line| line.starts_with("DEBUG message=deny"));
    assert_eq!(event, Some(&deny), "{recorded:?}");
}

#[tokio::test(start_paused = true)]
async fn outages_log_few_lines_with_counts() {
    let (_, store) = memory();
    let store = Staged::new(store);
    let service = limited(&store, [Limit::global(log("open", 9_999))]);
    let (recorder, _open) = Recorder::open();
    let ask = async |requests: usize| {
        for _ in 0..requests {
            assert_eq!(status(&service).await, 200);
        }
    };
    store.fail(Fault::NotCharged);
    ask(100).await;
    let begins = "WARN message=the store cannot decide, policies fail error=stage: unplugged";
    assert_eq!(recorder.above_debug(), [begins]);
    // The store alternates between failing and deciding, like a server with short pauses.
    for second in 0..10 {
        tokio::time::advance(Duration::from_secs(1)).await;
        store.recover();
        ask(10).await;
        store.fail(Fault::NotCharged);
        ask(10).await;
        assert_eq!(recorder.above_debug().len(), if second < 9 { 1 } else { 2 });
    }
    let goes_on = "WARN message=the store still cannot decide some requests \
                   error=stage: unplugged passed_unlimited=191 refused=0";
    assert_eq!(recorder.above_debug()[1], goes_on, "the first of ten at this second is the 191st");
    store.recover();
    tokio::time::advance(Duration::from_millis(9_999)).await;
    ask(10).await;
    assert_eq!(recorder.above_debug().len(), 2);
    tokio::time::advance(Duration::from_millis(1)).await;
    ask(10).await;
    let ends = "WARN message=the store decides all requests again passed_unlimited=200 refused=0";
    assert_eq!(recorder.above_debug()[2..], [ends]);
}

#[tokio::test]
async fn build_logs_differing_costs() {
    let (recorder, _open) = Recorder::open();
    let (_, store) = memory();
    layer(&store, [Limit::global(log("by-method", 10)).costs(Costs::by_method())]);
    let recorded = recorder.above_debug();
    let [costs] = &*recorded else { panic!("{recorded:?}") };
    let table = "costs=SEARCH 3, POST 5, PUT 5, PATCH 5, DELETE 10, any other 1";
    assert!(costs.starts_with("INFO") && costs.contains(table), "{costs}");
    layer(&store, [Limit::global(log("one", 10))]);
    assert_eq!(recorder.above_debug().len(), 1, "all requests cost 1");
}

/// The layer cannot know whether a request with this cost meets a condition, or whether a closure
/// gives it another cost.
#[test]
fn possible_cost_above_capacity_only_warns() {
    let (_, store) = memory();
    let policy = || Policy::token_bucket("login", Quota::per_minute(5)).unwrap();
    let on_login = || Limit::global(policy()).on_paths(Paths::new(["/login"]).unwrap());
    let route = Costs::default().route("/reports/{id}", 50);
    for (limit, request) in [
        (on_login().costs(route), "a request to `/reports/{id}` costs 50"),
        (on_login().costs(Costs::by_method()), "a DELETE request costs 10"),
        (
            Limit::global(policy()).costs(Costs::by_method().with_fn(|_| Some(1))),
            "a DELETE request costs 10",
        ),
        (Limit::global(policy()).costs(Costs::flat(6).with_fn(|_| Some(1))), "a request costs 6"),
    ] {
        let (recorder, _open) = Recorder::open();
        builder(&store, [limit]).build().unwrap();
        let expected = format!(
            "WARN message=policy `login` grants at most 5 units at the same time, but {request}: \
             if the policy applies to such a request, it always denies it with 403; raise the \
             limit or the burst, or give the limit its own costs, for example `.cost(1)` [TG0107]"
        );
        let recorded = recorder.above_debug();
        assert_eq!(recorded.iter().filter(|line| **line == expected).count(), 1, "{recorded:?}");
    }
    // Every request that the limit applies to costs 6.
    let flat = builder(&store, [on_login().costs(Costs::flat(6))]).build();
    assert!(matches!(flat, Err(LayerError::CostAboveCapacity(_))), "{flat:?}");
}
