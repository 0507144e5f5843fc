//! What a request costs.

use std::fmt;
use std::sync::Arc;

use http::Method;
use tollgate_core::Cost;
use tollgate_engine::MethodCosts;

use crate::grpc::GrpcServices;
use crate::head::RequestHead;
use crate::key::route;

/// Determines each request's cost in quota units. By default every request costs 1.
///
/// The closure set with [`Costs::with_fn`] applies first, then the matched route's cost, then the
/// method's cost. [`Costs::by_method`] has these costs:
///
/// | method | units |
/// |---|---|
/// | GET, HEAD | 1 |
/// | SEARCH, QUERY | 3 |
/// | POST, PUT, PATCH | 5 |
/// | DELETE | 10 |
/// | any other | 1 |
///
/// Method names are compared without case. A request with cost 0 is always allowed.
///
/// All gRPC calls are POST requests, so with [`by_method`](Costs::by_method) a call to a declared
/// gRPC service ([`grpc`](crate::layer::RateLimitLayerBuilder::grpc)) costs 1. A POST cost set with
/// [`method`](Costs::method), or a route's cost, also applies to gRPC calls.
///
/// ```
/// use http::Method;
/// use tollgate::Costs;
///
/// let costs = Costs::by_method()
///     .method(Method::DELETE, 20)
///     .route("/reports/{id}", 50)
///     .with_fn(|head| head.headers.contains_key("x-bulk").then_some(100));
/// # let _ = costs;
/// ```
#[derive(Clone)]
#[must_use]
pub struct Costs {
    methods: MethodCosts,
    /// Of gRPC calls to declared services.
    call: Cost,
    routes: Vec<(Box<str>, Cost)>,
    closure: Option<Arc<Closure>>,
}

type Closure = dyn Fn(&RequestHead<'_>) -> Option<Cost> + Send + Sync;

impl Costs {
    /// Returns the costs by HTTP method from the table above.
    pub fn by_method() -> Self {
        Self { methods: MethodCosts::by_method(), ..Self::default() }
    }

    /// Gives all requests the same cost.
    pub fn flat(cost: impl Into<Cost>) -> Self {
        let call = cost.into();
        Self { methods: MethodCosts::flat(call), call, routes: Vec::new(), closure: None }
    }

    /// Sets an HTTP method's cost. A cost for GET also applies to HEAD, and SEARCH and QUERY have
    /// the same cost, unless both methods are set. A cost for POST also applies to gRPC calls.
    #[expect(clippy::needless_pass_by_value, reason = "callers write constants: Method::POST")]
    pub fn method(mut self, method: Method, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        if method == Method::POST {
            self.call = cost;
        }
        self.methods = self.methods.method(method.as_str(), cost);
        self
    }

    /// Sets a route's cost for all methods. The route is the router's pattern (axum's
    /// `MatchedPath`, or a [`RoutePattern`](crate::key::RoutePattern) extension), or a gRPC
    /// method's path (`/package.Service/Method`).
    pub fn route(mut self, pattern: impl Into<Box<str>>, cost: impl Into<Cost>) -> Self {
        let (pattern, cost) = (pattern.into(), cost.into());
        self.routes.retain(|(other, _)| *other != pattern);
        self.routes.push((pattern, cost));
        self
    }

    /// Computes the cost with a closure. If the closure returns `None`, the request costs 1.
    ///
    /// ```
    /// use tollgate::Costs;
    ///
    /// let costs = Costs::from_fn(|head| head.headers.contains_key("x-bulk").then_some(100));
    /// # let _ = costs;
    /// ```
    pub fn from_fn<C: Into<Cost>>(
        cost: impl Fn(&RequestHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        Self::default().with_fn(cost)
    }

    /// Computes the cost with a closure. If the closure returns `None`, the other rules apply.
    pub fn with_fn<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> Option<C> + Send + Sync + 'static,
    ) -> Self {
        self.closure = Some(Arc::new(move |head| cost(head).map(Into::into)));
        self
    }

    /// Returns a request's cost. gRPC calls cost as much as other POST requests.
    #[inline]
    pub fn of(&self, head: &RequestHead<'_>) -> Cost {
        self.among(head, &GrpcServices::None)
    }

    /// Like [`of`](Self::of), but knows which services are gRPC services.
    #[inline]
    pub(crate) fn among(&self, head: &RequestHead<'_>, services: &GrpcServices) -> Cost {
        if let Some(closure) = &self.closure
            && let Some(cost) = closure(head)
        {
            return cost;
        }
        if !self.routes.is_empty() {
            // Routers use one pattern for all methods of a gRPC service, so look up the call's path
            // first.
            let called = services.is_call(head).then(|| head.uri.path());
            let names = [called, route::pattern(head.extensions)];
            let listed = |name: &str| self.routes.iter().find(|(route, _)| **route == *name);
            if let Some((_, cost)) = names.into_iter().flatten().find_map(listed) {
                return *cost;
            }
        }
        if services.is_call(head) { self.call } else { self.methods.of(head.method.as_str()) }
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.methods.is_flat()
    }

    /// Returns the cost if it is the same for all requests.
    pub(crate) fn uniform_cost(&self) -> Option<Cost> {
        let is_uniform = self.is_flat() && self.routes.is_empty() && self.closure.is_none();
        is_uniform.then_some(self.methods.other())
    }

    pub(crate) const fn depend_on_closure(&self) -> bool {
        self.closure.is_some()
    }

    /// Returns the highest cost that does not depend on a closure, and describes the requests that
    /// have it.
    pub(crate) fn highest(&self) -> (String, Cost) {
        let methods = self.methods.listed();
        let methods = methods.map(|(method, cost)| (format!("a {method} request"), cost));
        let routes = self.routes.iter();
        let routes = routes.map(|(route, cost)| (format!("a request to `{route}`"), *cost));
        let call = ("a gRPC call".to_owned(), self.call);
        methods.chain(routes).chain([call]).fold(
            ("a request".to_owned(), self.methods.other()),
            |highest, next| {
                if next.1 > highest.1 { next } else { highest }
            },
        )
    }
}

/// Only the method costs: "SEARCH 3, POST 5, PUT 5, PATCH 5, DELETE 10, any other 1".
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.methods.fmt(f)
    }
}

/// Every request costs 1.
impl Default for Costs {
    fn default() -> Self {
        Self::flat(Cost::ONE)
    }
}

debug_fields!(Costs, methods, routes);

#[cfg(test)]
mod tests;
