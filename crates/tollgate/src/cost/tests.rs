use http::Request;
use http::header::CONTENT_TYPE;

use super::*;
use crate::grpc::GrpcServices;
use crate::key::RoutePattern;

fn cost(costs: &Costs, method: &str, route: Option<&str>, grpc: bool) -> u64 {
    cost_among(&GrpcServices::None, costs, method, route, grpc)
}

fn cost_among(
    services: &GrpcServices,
    costs: &Costs,
    method: &str,
    route: Option<&str>,
    grpc: bool,
) -> u64 {
    let mut request = Request::builder().method(method).uri("/pkg.Service/Call");
    if let Some(route) = route {
        request = request.extension(RoutePattern::new(route));
    }
    if grpc {
        request = request.header(CONTENT_TYPE, "application/grpc+proto");
    }
    costs.among(&RequestHead::of(&request.body(()).unwrap()), services).get()
}

#[test]
fn default_cost_is_one() {
    for method in ["GET", "SEARCH", "POST", "DELETE", "OPTIONS"] {
        assert_eq!(cost(&Costs::default(), method, None, false), 1, "{method}");
    }
}

#[test]
fn declared_grpc_calls_have_own_cost() {
    let call = |costs: &Costs, grpc| cost_among(&GrpcServices::All, costs, "POST", None, grpc);
    assert_eq!(call(&Costs::by_method(), true), 1);
    assert_eq!(call(&Costs::by_method(), false), 5);
    let costs = Costs::by_method().route("/pkg.Service/Call", Cost::new(7));
    assert_eq!(call(&costs, true), 7);
    assert_eq!(call(&costs, false), 5, "a path is not a route");
    assert_eq!(call(&Costs::by_method().method(Method::POST, Cost::new(20)), true), 20);
    assert_eq!(call(&Costs::by_method().method(Method::GET, Cost::new(20)), true), 1);
    assert_eq!(call(&Costs::flat(Cost::new(300)), true), 300);
    assert_eq!(call(&Costs::flat(Cost::new(0)), true), 0);
}

#[test]
fn content_type_alone_changes_no_cost() {
    let listed = Costs::by_method().route("/reports/{id}", Cost::new(50));
    let cheap = Costs::by_method().route("/pkg.Service/Call", Cost::new(1));
    for (costs, route, expected) in [
        (listed, Some("/reports/{id}"), 50),
        (Costs::by_method(), None, 5),
        (Costs::by_method(), Some("/pkg.Service/{*rest}"), 5),
        (cheap, Some("/{*path}"), 5),
    ] {
        for grpc in [true, false] {
            assert_eq!(cost(&costs, "POST", route, grpc), expected, "{costs:?} {route:?}");
        }
    }
}

#[test]
fn specific_rules_override_general_rules() {
    let costs = Costs::by_method()
        .method(Method::from_bytes(b"QUERY").unwrap(), Cost::new(4))
        .method(Method::from_bytes(b"PURGE").unwrap(), Cost::new(9))
        .route("/items/{id}", Cost::new(2))
        .with_fn(|head| (*head.method == Method::PUT).then_some(Cost::new(100)));
    assert_eq!(cost(&costs, "QUERY", None, false), 4);
    assert_eq!(cost(&costs, "PURGE", None, false), 9);
    assert_eq!(cost(&costs, "DELETE", Some("/items/{id}"), false), 2);
    assert_eq!(cost(&costs, "DELETE", Some("/other"), false), 10);
    assert_eq!(cost(&costs, "PUT", Some("/items/{id}"), false), 100);
}
