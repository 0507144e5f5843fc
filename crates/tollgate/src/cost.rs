//! What a request takes.

use std::fmt;
use std::sync::Arc;

use http::Method;
use tollgate_core::Cost;

use crate::key::route;
use crate::{RequestHead, grpc};

/// What a request takes from a quota.
///
/// The first of these that has an answer: the closure of [`Costs::from_fn`]; the cost of
/// the matched route; 1 for a gRPC call, all of which are a POST; the cost of the method:
///
/// | method | units |
/// |---|---|
/// | GET, HEAD | 1 |
/// | SEARCH, QUERY | 3 |
/// | POST, PUT, PATCH | 5 |
/// | DELETE | 10 |
/// | any other (names of methods are in capitals) | 1 |
///
/// A cost of 0 always passes, whatever is left.
///
/// # gRPC
///
/// The client writes the content type, so that alone does not make a POST a call. The request
/// also has to be for a gRPC service: the route that a router has matched, or without a router
/// the path, has the form `/package.Service/Method`.
/// [`RateLimitLayerBuilder::grpc`](crate::layer::RateLimitLayerBuilder::grpc) includes services without a
/// package, or excludes all. A call is never cheaper than its route, nor than what
/// [`flat`](Costs::flat) or [`method`](Costs::method) say of a POST.
///
/// ```
/// use http::Method;
/// use tollgate::Costs;
///
/// let costs = Costs::by_method()
///     .method(Method::DELETE, 20)
///     .route("/reports/{id}", 50)
///     .from_fn(|head| head.headers.contains_key("x-bulk").then_some(100));
/// # let _ = costs;
/// ```
#[derive(Clone)]
pub struct Costs {
    methods: Methods,
    routes: Vec<(Box<str>, Cost)>,
    closure: Option<Arc<Closure>>,
}

type Closure = dyn Fn(&RequestHead<'_>) -> Option<Cost> + Send + Sync;

/// The costs of methods; SEARCH and QUERY are one, the old name and the new.
#[derive(Clone, Debug)]
struct Methods {
    get: Cost,
    head: Cost,
    search: Cost,
    post: Cost,
    put: Cost,
    patch: Cost,
    delete: Cost,
    /// A gRPC call.
    call: Cost,
    others: Vec<(Method, Cost)>,
    any_other: Cost,
}

impl Costs {
    /// The costs of the table above.
    pub const fn by_method() -> Self {
        let mut costs = Self::uniform(Cost::ONE);
        let five = Cost::new(5);
        costs.methods.search = Cost::new(3);
        (costs.methods.post, costs.methods.put, costs.methods.patch) = (five, five, five);
        costs.methods.delete = Cost::new(10);
        costs.methods.call = Cost::ONE;
        costs
    }

    /// The same for every request.
    pub fn flat(cost: impl Into<Cost>) -> Self {
        Self::uniform(cost.into())
    }

    const fn uniform(cost: Cost) -> Self {
        let methods = Methods {
            get: cost,
            head: cost,
            search: cost,
            post: cost,
            put: cost,
            patch: cost,
            delete: cost,
            call: cost,
            others: Vec::new(),
            any_other: cost,
        };
        Self { methods, routes: Vec::new(), closure: None }
    }

    /// Another cost for a method. SEARCH stands for QUERY too, and the other way round; and
    /// a POST is what calls of gRPC are.
    #[must_use]
    pub fn method(mut self, method: Method, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        if method == Method::POST {
            self.methods.call = cost;
        }
        match self.methods.known(method.as_str()) {
            Some(slot) => *slot = cost,
            None => {
                self.methods.others.retain(|(other, _)| *other != method);
                self.methods.others.push((method, cost));
            }
        }
        self
    }

    /// The cost of a route, whatever the method: its pattern as the router has it
    /// (axum's `MatchedPath`, or a [`RoutePattern`](crate::key::RoutePattern) extension), or
    /// the path of a gRPC method (`/package.Service/Method`).
    #[must_use]
    pub fn route(mut self, pattern: impl Into<Box<str>>, cost: impl Into<Cost>) -> Self {
        let (pattern, cost) = (pattern.into(), cost.into());
        self.routes.retain(|(other, _)| *other != pattern);
        self.routes.push((pattern, cost));
        self
    }

    /// Asks a closure first; where it says `None`, the other rules hold.
    #[must_use]
    pub fn from_fn<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        self.closure = Some(Arc::new(move |head| cost(head).map(Into::into)));
        self
    }

    /// What this request takes.
    #[inline]
    pub fn of(&self, head: &RequestHead<'_>) -> Cost {
        self.among(head, None)
    }

    /// The same, where a layer may say whether its services are gRPC.
    #[inline]
    pub(crate) fn among(&self, head: &RequestHead<'_>, is_grpc: Option<bool>) -> Cost {
        if let Some(closure) = &self.closure
            && let Some(cost) = closure(head)
        {
            return cost;
        }
        if !self.routes.is_empty() {
            // A router knows the methods of a gRPC service by one pattern, so that a call
            // goes by its path; but saying that one calls is no way round the cost of a route.
            let called = grpc::says_call(head).then(|| head.uri.path());
            let names = [called, route::pattern(head.extensions)];
            let listed = |name: &str| self.routes.iter().find(|(route, _)| **route == *name);
            if let Some((_, cost)) = names.into_iter().flatten().find_map(listed) {
                return *cost;
            }
        }
        if grpc::is_call(head, is_grpc) { self.methods.call } else { self.methods.of(head.method) }
    }

    /// Whether the method of a request makes no difference.
    pub(crate) fn is_flat(&self) -> bool {
        let Methods { get, head, search, post, put, patch, delete, any_other, .. } = &self.methods;
        let mut named = [get, head, search, post, put, patch, delete].into_iter();
        self.methods.others.is_empty() && named.all(|cost| cost == any_other)
    }

    /// The most that a request takes, as far as the table says.
    pub(crate) fn max_cost(&self) -> Cost {
        let Methods { get, head, search, post, put, patch, delete, call, any_other, others } =
            &self.methods;
        let methods = [get, head, search, post, put, patch, delete, call, any_other];
        let listed = others.iter().map(|(_, cost)| cost).chain(self.routes.iter().map(|(_, c)| c));
        methods.into_iter().chain(listed).copied().max().unwrap_or_default()
    }
}

impl Methods {
    #[inline]
    fn of(&self, method: &Method) -> Cost {
        match method.as_str() {
            "GET" => self.get,
            "HEAD" => self.head,
            "SEARCH" | "QUERY" => self.search,
            "POST" => self.post,
            "PUT" => self.put,
            "PATCH" => self.patch,
            "DELETE" => self.delete,
            _ => {
                let other = self.others.iter().find(|(other, _)| other == method);
                other.map_or(self.any_other, |(_, cost)| *cost)
            }
        }
    }

    fn known(&mut self, method: &str) -> Option<&mut Cost> {
        Some(match method {
            "GET" => &mut self.get,
            "HEAD" => &mut self.head,
            "SEARCH" | "QUERY" => &mut self.search,
            "POST" => &mut self.post,
            "PUT" => &mut self.put,
            "PATCH" => &mut self.patch,
            "DELETE" => &mut self.delete,
            _ => return None,
        })
    }
}

/// "SEARCH 3, POST 5, PUT 5, PATCH 5, DELETE 10, others 1": the costs of methods, without routes and closure.
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Methods { get, head, search, post, put, patch, delete, any_other, .. } = &self.methods;
        let named = [
            ("GET", get),
            ("HEAD", head),
            ("SEARCH", search),
            ("POST", post),
            ("PUT", put),
            ("PATCH", patch),
            ("DELETE", delete),
        ];
        for (method, cost) in named.into_iter().filter(|(_, cost)| *cost != any_other) {
            write!(f, "{method} {}, ", cost.get())?;
        }
        write!(f, "others {}", any_other.get())
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::by_method()
    }
}

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Costs")
            .field("methods", &self.methods)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
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
}
