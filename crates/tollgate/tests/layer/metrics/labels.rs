//! Labels contain the key kind and the route, never values that a client sends.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use http::Method;
use tollgate::Limit;
use tollgate::key::{ApiKey, ClientIp, KeySource, RoutePattern, from_fn};
use tollgate::observe::Observer;
use tower::Layer;

use super::{Meter, counted};
use crate::support::*;

#[tokio::test]
async fn labels_use_key_kind_and_route() {
    let meter = Meter::start();
    let (_, store) = memory();
    let chain = ApiKey::in_x_api_key().trust_unverified().or(ClientIp::peer());
    let service = limited(&store, [Limit::new(log("each", 99), chain)]);
    let routed = |path: &str, route: Option<&str>| {
        let mut request = request(Method::GET, path);
        if let Some(route) = route {
            request.extensions_mut().insert(RoutePattern::new(route));
        }
        request
    };
    ask(&service, routed("/users/7", Some("/users/{id}"))).await;
    ask(&service, routed("/users/8", Some("/users/{id}"))).await;
    let mut with_key = routed("/secret/path", None);
    with_key.headers_mut().insert("x-api-key", "sk_live_ossifrage".parse().unwrap());
    ask(&service, with_key).await;
    for (client, endpoint, expected) in
        [("ip", "/users/{id}", 2.0), ("api_key", "other", 1.0), ("ip", "other", 0.0)]
    {
        let labels = [format!("client=\"{client}\""), format!("endpoint=\"{endpoint}\"")];
        let count = meter.sum("tollgate_decisions_total", &[&labels[0], &labels[1]]);
        assert_eq!(count, expected, "{client} {endpoint}");
    }
    let named = builder(&store, [Limit::global(log("named", 9))]).endpoint("list-items");
    let named = named.build().unwrap().layer(hello());
    ask(&named, routed("/users/9", Some("/users/{id}"))).await;
    assert_eq!(meter.sum("tollgate_decisions_total", &["named", "list-items", "allow"]), 1.0);
}

#[tokio::test]
async fn many_clients_add_no_series() {
    let meter = Meter::start();
    let (_, store) = memory();
    let ip = from_fn(|head| head.extensions.get::<Ipv4Addr>().map(Ipv4Addr::octets));
    let limit = || {
        let limit = Limit::new(log("flood", 1), ip);
        limit.on_missing_key(tollgate::limit::OnMissingKey::Deny)
    };
    let observer = Observer::with_endpoints(10);
    let layer = builder(&store, [limit()]).observer(&observer).build().unwrap();
    let service = layer.layer(hello());
    let mut series = BTreeSet::new();
    for n in 0..100_000_u32 {
        let mut request = request(Method::GET, &format!("/path/{n}"));
        request.extensions_mut().insert(Ipv4Addr::from_bits(n));
        // Simulates a router that sets a pattern per path.
        request.extensions_mut().insert(RoutePattern::new(format!("/path/{n}")));
        ask(&service, request).await;
        if n == 1_000 || n == 99_999 {
            series.insert(meter.series().len());
        }
    }
    assert_eq!(meter.outcomes("flood"), counted(&[("allow", 100_000.0)]));
    // Ten endpoints and `other`, each with six outcomes and its units, and the duration summary.
    // No label contains a client.
    let count = series.pop_first().unwrap();
    assert!(series.is_empty() && (77..100).contains(&count), "{count} and {series:?}");
}
