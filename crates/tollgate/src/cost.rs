//! The cost of a request.

use std::fmt;
use std::sync::Arc;

use http::Method;
use tollgate_core::Cost;

use crate::key::route;
use crate::{RequestHead, grpc};

/// The rule that gives each request its cost, in units of a quota.
///
/// The first of these that applies: the closure of [`Costs::from_fn`]; the cost of the matched
/// route; 1 for a gRPC call; the cost of the method:
///
/// | method | units |
/// |---|---|
/// | GET, HEAD | 1 |
/// | SEARCH, QUERY | 3 |
/// | POST, PUT, PATCH | 5 |
/// | DELETE | 10 |
/// | any other (names of methods are in capitals) | 1 |
///
/// A request with cost 0 always passes.
///
/// # gRPC
///
/// A client can write any content type, so a POST is a call only if its route (without a router:
/// its path) has the form `/package.Service/Method`.
/// [`RateLimitLayerBuilder::grpc`](crate::layer::RateLimitLayerBuilder::grpc) includes services
/// without a package, or excludes all. A call is never cheaper than its route, nor than a POST in
/// [`flat`](Costs::flat) or [`method`](Costs::method).
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

/// The costs of methods. SEARCH and QUERY are the old and the new name of one method.
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
    /// Returns the default costs, by HTTP method: the table above.
    pub const fn by_method() -> Self {
        let mut costs = Self::uniform(Cost::ONE);
        let five = Cost::new(5);
        costs.methods.search = Cost::new(3);
        (costs.methods.post, costs.methods.put, costs.methods.patch) = (five, five, five);
        costs.methods.delete = Cost::new(10);
        costs.methods.call = Cost::ONE;
        costs
    }

    /// Gives all requests the same cost.
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

    /// Sets the cost of an HTTP method. SEARCH and QUERY share a cost. A cost for POST also applies
    /// to gRPC calls.
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

    /// Sets the cost of a route, for all methods: the pattern of the router (axum's `MatchedPath`,
    /// or a [`RoutePattern`](crate::key::RoutePattern) extension), or the path of a gRPC method
    /// (`/package.Service/Method`).
    #[must_use]
    pub fn route(mut self, pattern: impl Into<Box<str>>, cost: impl Into<Cost>) -> Self {
        let (pattern, cost) = (pattern.into(), cost.into());
        self.routes.retain(|(other, _)| *other != pattern);
        self.routes.push((pattern, cost));
        self
    }

    /// Takes the cost from a closure. If the closure returns `None`, the other rules apply.
    #[must_use]
    pub fn from_fn<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        self.closure = Some(Arc::new(move |head| cost(head).map(Into::into)));
        self
    }

    /// Returns the cost of a request.
    #[inline]
    pub fn of(&self, head: &RequestHead<'_>) -> Cost {
        self.among(head, None)
    }

    /// The same, for a layer with [`grpc`](crate::layer::RateLimitLayerBuilder::grpc).
    #[inline]
    pub(crate) fn among(&self, head: &RequestHead<'_>, is_grpc: Option<bool>) -> Cost {
        if let Some(closure) = &self.closure
            && let Some(cost) = closure(head)
        {
            return cost;
        }
        if !self.routes.is_empty() {
            // A router has one pattern for all methods of a gRPC service, so a call has its path.
            // The content type must not avoid the cost of a route.
            let called = grpc::says_call(head).then(|| head.uri.path());
            let names = [called, route::pattern(head.extensions)];
            let listed = |name: &str| self.routes.iter().find(|(route, _)| **route == *name);
            if let Some((_, cost)) = names.into_iter().flatten().find_map(listed) {
                return *cost;
            }
        }
        if grpc::is_call(head, is_grpc) { self.methods.call } else { self.methods.of(head.method) }
    }

    /// Whether all methods have one cost.
    pub(crate) fn is_flat(&self) -> bool {
        let Methods { get, head, search, post, put, patch, delete, any_other, .. } = &self.methods;
        let mut named = [get, head, search, post, put, patch, delete].into_iter();
        self.methods.others.is_empty() && named.all(|cost| cost == any_other)
    }

    /// The highest cost of methods and routes.
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
mod tests;
