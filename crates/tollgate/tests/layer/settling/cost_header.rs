//! The cost header passes from the service to the layer and is removed there.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use tollgate::access::{AccessLists, SubjectList};
use tollgate::headers::{self, HeaderOptions};
use tollgate::key::{ClientIp, Header};
use tollgate::limit::{OnMissingKey, Paths, Reserve};
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, Policy};
use tower::{Layer, ServiceExt, service_fn};

use crate::stage::{Fault, Staged};
use crate::support::*;

fn tokens() -> Policy {
    log("tokens", 1_000)
}

/// A limit that reads the cost from the response, except for free requests.
fn stated(limit: Limit) -> Limit {
    let costs = Costs::flat(Cost::new(100)).method(Method::HEAD, Cost::ZERO);
    limit.costs(costs).reserve(Reserve::by_handler().or_by_header(headers::COST))
}

/// A request from a client on the allowlist.
fn of_a_partner() -> Request<()> {
    from_peer(77, get())
}

fn preflight() -> Request<()> {
    let mut request = request(Method::OPTIONS, "/");
    for name in ["origin", "access-control-request-method"] {
        request.headers_mut().insert(name, HeaderValue::from_static("x"));
    }
    request
}

fn lists() -> AccessLists {
    let lists = AccessLists::new().addresses_by(ClientIp::peer());
    lists.replace(&SubjectList::new(), &"192.0.2.77".parse().unwrap()).unwrap();
    lists
}

#[tokio::test]
async fn cost_header_never_reaches_the_client() {
    let tenant = || Header::trust_unverified(http::HeaderName::from_static("x-tenant"));
    let global = || stated(Limit::global(tokens()));
    let keyed = || stated(Limit::new(tokens(), tenant())).on_missing_key(OnMissingKey::Pass);
    let on_ai = || global().on_paths(Paths::new(["/ai"]).unwrap());
    let shadow = || global().shadow();
    for (name, limit, request, is_down, is_late) in [
        ("charged", global(), get(), false, false),
        ("charged, by a store that answers later", global(), get(), false, true),
        ("shadow", shadow(), get(), false, false),
        ("exempt", global(), request(Method::GET, "/healthz"), false, false),
        ("on the allowlist", global(), of_a_partner(), false, false),
        ("preflight", global(), preflight(), false, false),
        ("fails open", global(), get(), true, false),
        ("fails open, by a store that answers later", global(), get(), true, true),
        ("costs nothing", global(), request(Method::HEAD, "/"), false, false),
        (
            "costs nothing, by a store that answers later",
            global(),
            request(Method::HEAD, "/"),
            false,
            true,
        ),
        ("without a key", keyed(), get(), false, false),
        ("not limited", on_ai(), get(), false, false),
    ] {
        let all = HeaderOptions::all();
        for headers in [all, all.ratelimit(false).x_ratelimit(false)] {
            let store = Staged::new(memory().1);
            if is_down {
                store.fail(Fault::NotCharged);
            }
            if is_late {
                store.hold();
            }
            let layer = builder(&store, [limit.clone()])
                .headers(headers)
                .access_lists(&lists())
                .exempt_paths(Paths::new(["/healthz"]).unwrap())
                .build()
                .unwrap();
            let service = layer.layer(service_fn(|_: Request<()>| {
                let response = Response::builder().header(headers::COST, "30");
                let response = response.header("x-other", "kept").body(Full::<Bytes>::default());
                std::future::ready(Ok::<_, Infallible>(response.unwrap()))
            }));
            let answer = tokio::spawn(service.oneshot(request.clone()));
            tokio::task::yield_now().await;
            store.release();
            let answer = answer.await.unwrap().unwrap();
            assert_eq!(answer.status(), 200, "{name}");
            assert_eq!(field(answer.headers(), "x-other").as_deref(), Some("kept"), "{name}");
            assert_eq!(answer.headers().get(headers::COST), None, "{name}");
        }
    }
}

#[tokio::test]
async fn inner_layer_passes_cost_header_on() {
    let (_, store) = memory();
    let outer = layer(&store, [stated(Limit::global(tokens()))]);
    let by_handler = Limit::global(log("inner", 9)).reserve(Reserve::by_handler());
    let inner = layer(&store, [by_handler]);
    let service = outer.layer(inner.layer(service_fn(|_: Request<()>| {
        let response = Response::builder().header(headers::COST, "30");
        std::future::ready(Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap()))
    })));
    let answer = service.oneshot(get()).await.unwrap();
    assert_eq!(answer.headers().get(headers::COST), None);
    assert_eq!(left(&store, &tokens()).await, 970);
}
