use http::Request;
use http::header::CONTENT_TYPE;

use super::*;
use crate::key::RoutePattern;

fn cost(costs: &Costs, method: &str, route: Option<&str>, grpc: bool) -> u64 {
    cost_at("/pkg.Service/Call", costs, method, route, grpc)
}

fn cost_at(path: &str, costs: &Costs, method: &str, route: Option<&str>, grpc: bool) -> u64 {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(route) = route {
        request = request.extension(RoutePattern::new(route));
    }
    if grpc {
        request = request.header(CONTENT_TYPE, "application/grpc+proto");
    }
    costs.of(&RequestHead::of(&request.body(()).unwrap())).get()
}

#[test]
fn methods_cost_what_the_table_says() {
    for (method, expected) in [
        ("GET", 1),
        ("HEAD", 1),
        ("SEARCH", 3),
        ("QUERY", 3),
        ("POST", 5),
        ("PUT", 5),
        ("PATCH", 5),
        ("DELETE", 10),
        ("OPTIONS", 1),
        ("TRACE", 1),
        ("PROPFIND", 1),
    ] {
        assert_eq!(cost(&Costs::default(), method, None, false), expected, "{method}");
    }
}

#[test]
fn a_grpc_call_is_no_ordinary_post() {
    assert_eq!(cost(&Costs::default(), "POST", None, true), 1);
    let costs = Costs::by_method().route("/pkg.Service/Call", Cost::new(7));
    assert_eq!(cost(&costs, "POST", None, true), 7);
    assert_eq!(cost(&costs, "POST", None, false), 5, "a path is not a route");
}

#[test]
fn who_only_says_to_call_pays_what_others_pay() {
    let route = Some("/reports/{id}");
    let listed = Costs::by_method().route("/reports/{id}", Cost::new(50));
    for (costs, route, expected) in [
        (listed, route, 50),
        (Costs::by_method(), route, 5),
        (Costs::by_method(), Some("/comments"), 5),
        (Costs::by_method(), Some("/files/{*path}"), 5),
        (Costs::by_method(), Some("/pkg.Service/{*rest}"), 1),
        (Costs::by_method().method(Method::POST, Cost::new(20)), None, 20),
        (Costs::by_method().method(Method::GET, Cost::new(20)), None, 1),
        (Costs::flat(Cost::new(300)), None, 300),
        (Costs::flat(Cost::new(0)), None, 0),
    ] {
        assert_eq!(cost(&costs, "POST", route, true), expected, "{costs:?} {route:?}");
    }
}

#[test]
fn without_a_route_the_path_tells_a_call() {
    let costs = Costs::by_method();
    for (path, route, expected) in [
        ("/pkg.Service/Call", None, 1),
        ("/comments", None, 5),
        ("/Service/Call", None, 5),
        ("/comments", Some("/pkg.Service/{*rest}"), 1),
    ] {
        assert_eq!(cost_at(path, &costs, "POST", route, true), expected, "{path}");
    }
}

#[test]
fn the_nearer_rule_wins() {
    let costs = Costs::by_method()
        .method(Method::from_bytes(b"QUERY").unwrap(), Cost::new(4))
        .method(Method::from_bytes(b"PURGE").unwrap(), Cost::new(9))
        .route("/items/{id}", Cost::new(2))
        .from_fn(|head| (*head.method == Method::PUT).then_some(Cost::new(100)));
    assert_eq!(cost(&costs, "SEARCH", None, false), 4);
    assert_eq!(cost(&costs, "PURGE", None, false), 9);
    assert_eq!(cost(&costs, "DELETE", Some("/items/{id}"), false), 2);
    assert_eq!(cost(&costs, "DELETE", Some("/other"), false), 10);
    assert_eq!(cost(&costs, "PUT", Some("/items/{id}"), false), 100);
}
