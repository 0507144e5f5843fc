//! What requests cost.

use super::*;

#[test]
fn first_matching_cost_rule_applies() {
    let plan = with(
        "  costs:
    GET: 2
    SEARCH: 3
    DELETE: 10
    other: 4
    paths:
      - {path: /free/*, cost: 0}
      - {path: /bulk, method: POST, cost: 50}
  apis:
    - {identifier: flat, path: /login, limit: 5, windowSeconds: 60, costs: {other: 1}}
",
    );
    let limits = &plan.routes[0].limits;
    let cost = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        limits.client.as_ref().unwrap().costs.of(&method, path).get()
    };
    for (method, path, units) in [
        ("GET", "/", 2),
        ("HEAD", "/", 2),
        ("QUERY", "/", 3),
        ("DELETE", "/", 10),
        ("PUT", "/", 4),
        ("DELETE", "/free/x", 0),
        ("POST", "/bulk", 50),
        ("PUT", "/bulk", 4),
    ] {
        assert_eq!(cost(method, path), units, "{method} {path}");
    }
    assert_eq!(limits.apis[0].limit.costs.of(&Method::DELETE, "/login").get(), 1);
}

#[test]
fn by_method_is_the_usual_table() {
    let methods = |lines: &str| {
        let plan = with(lines);
        plan.routes[0].limits.client.as_ref().unwrap().costs.methods.clone()
    };
    assert_eq!(methods("  costs: byMethod\n"), MethodCosts::by_method());
    assert_eq!(methods(""), MethodCosts::flat(Cost::ONE));
}

#[test]
fn highest_cost_considers_only_matching_requests() {
    let plan = with(
        "  costs:
    GET: 2
    DELETE: 10
    paths:
      - {path: /bulk/*, cost: 50}
      - {path: /once, method: GET, cost: 30}
  apis:
    - {identifier: get, path: /a, method: GET, limit: 99, windowSeconds: 60}
    - {identifier: all, path: /b, limit: 99, windowSeconds: 60}
    - {identifier: bulk, path: /bulk/x, method: GET, limit: 99, windowSeconds: 60}
    - {identifier: some, path: /once, method: [GET, POST], limit: 99, windowSeconds: 60}
    - {identifier: never, path: /once, method: POST, limit: 99, windowSeconds: 60}
",
    );
    let limits = &plan.routes[0].limits;
    let highest = |api: &ApiPlan| api.limit.costs.highest(&api.methods, &api.path);
    let highest: Vec<_> = limits.apis.iter().map(highest).map(|it| (it.0.get(), it.1)).collect();
    let highest: Vec<_> = highest.iter().map(|(cost, request)| (*cost, &**request)).collect();
    assert_eq!(
        highest,
        [
            (2, "a GET request"),
            (10, "a DELETE request"),
            (50, "a request to `/bulk/*`"),
            (30, "a GET request to `/once`"),
            (1, "a POST request"),
        ]
    );
}
