//! Blocklists and allowlists.

use http::{Method, Request};
use tollgate::Limit;
use tollgate::access::{AccessLists, SubjectList};
use tollgate::key::{ApiKey, ApiKeys, ClientIp};
use tollgate::limit::Paths;
use tower::{Layer, ServiceExt};

use crate::stage::Staged;
use crate::support::*;

fn lists() -> AccessLists {
    AccessLists::new().addresses_by(ClientIp::peer()).api_keys_in(ApiKey::in_x_api_key())
}

fn from(last: u8, path: &str, key: Option<&str>) -> Request<()> {
    let mut request = Request::builder().uri(path);
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    from_peer(last, request.body(()).unwrap())
}

#[tokio::test]
async fn blocklist_forbids_and_allowlist_exempts() {
    let (_, store) = memory();
    let store = Staged::new(store);
    let lists = lists();
    let health = Paths::new(["/health"]).unwrap();
    let limits = [Limit::new(log("client", 1), ClientIp::peer())];
    let layer = builder(&store, limits).access_lists(&lists).exempt_paths(health).build().unwrap();
    let service = layer.layer(hello());
    let ask = async |request| service.clone().oneshot(request).await.unwrap();
    let deny: SubjectList = "192.0.2.128/25".parse().unwrap();
    let allow = SubjectList::new().api_keys(&ApiKeys::from_keys(["partner"]));
    lists.replace(&deny, &allow).unwrap();
    for (last, path, key, status) in [
        (1, "/", None, 200),
        (1, "/", None, 429),
        (1, "/", Some("partner"), 200),
        (1, "/", Some("partner"), 200),
        (1, "/", Some("guessed"), 429),
        (200, "/", None, 403),
        // Neither the allowlist nor an exempt path overrides the blocklist.
        (200, "/", Some("partner"), 403),
        (200, "/health", None, 403),
        (1, "/health", None, 200),
    ] {
        let answer = ask(from(last, path, key)).await;
        assert_eq!(answer.status().as_u16(), status, "{last} {path} {key:?}");
    }
    assert_eq!(store.calls(), 3);
    let answer = ask(from(200, "/", None)).await;
    assert_eq!(rate_fields(answer.headers()), [""; 0]);
    assert_eq!(field(answer.headers(), "cache-control").unwrap(), "no-store");
    let problem = json(answer).await;
    assert_eq!(
        problem["type"],
        "https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#denied-subject"
    );
    assert_eq!((&problem["code"], &problem["status"]), (&"denied-subject".into(), &403.into()));

    // New lists apply from the next request on.
    lists.replace(&SubjectList::new(), &SubjectList::new()).unwrap();
    assert_eq!(ask(from(200, "/", None)).await.status(), 200);
    assert_eq!(ask(from(1, "/", Some("partner"))).await.status(), 429);
}

#[tokio::test]
async fn repeated_api_key_does_not_evade_blocklist() {
    let (_, store) = memory();
    let lists = lists();
    let service = builder(&store, []).access_lists(&lists).build().unwrap().layer(hello());
    let status = async || {
        let mut request = from(1, "/", Some("stolen"));
        request.headers_mut().append("x-api-key", "stolen".parse().unwrap());
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let stolen = SubjectList::new().api_keys(&ApiKeys::from_keys(["stolen"]));
    for (deny, expected) in [(&stolen, 400), (&"203.0.113.1".parse().unwrap(), 200)] {
        lists.replace(deny, &SubjectList::new()).unwrap();
        assert_eq!(status().await, expected);
    }
}

#[tokio::test]
async fn missing_peer_address_fails() {
    let (_, store) = memory();
    let lists = lists();
    lists.replace(&"192.0.2.1".parse().unwrap(), &SubjectList::new()).unwrap();
    // A layer with lists needs no limit.
    let service = builder(&store, []).access_lists(&lists).build().unwrap().layer(hello());
    let request = Request::builder().method(Method::GET).uri("/").body(()).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), 500);
}
